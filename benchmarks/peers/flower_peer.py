"""Flower: the Message API's ClientApp and ServerApp, FedAvg, and the simulation engine on Ray.

`--threads 1` gives two actors of one core each, `--threads 2` one actor of two. A round is timed inside the strategy,
from the start of `configure_train` to the end of `aggregate_train`; evaluation is off.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Before flwr and ray are imported, because they read these when they load: hence
# ruff: noqa: E402
HOME = tempfile.TemporaryDirectory(prefix="flwr-")  # removed when the program ends
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
os.environ.update(QUIET, FLWR_HOME=HOME.name)

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from cases import build_model
from flower_client import app as client_app
from side import Options, read_options, report_check, report_times


class TimedFedAvg(FedAvg):
    """FedAvg that notes how long each training round took."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.laps: list[float] = []
        self.began = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.began = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        failed = [message.error.reason for message in replies if message.has_error()]
        if failed:  # FedAvg would carry on with the rest, and the round would look fast
            raise RuntimeError(f"{len(failed)} of {len(replies)} clients failed: {failed[0]}")
        result = super().aggregate_train(server_round, replies)
        self.laps.append((time.perf_counter() - self.began) * 1000)
        return result


def simulate(options: Options, rounds: int) -> tuple[list[float], dict[str, Any]]:
    """Run so many rounds; the milliseconds of each, and the weights at the end."""
    case = options.case
    strategy = TimedFedAvg(
        fraction_train=case.cohort / case.population,
        fraction_evaluate=0.0,
        min_train_nodes=case.cohort,
        min_available_nodes=case.population,
    )
    config = {"case": case.name, "dropout": not options.check, "threads": options.threads}
    final: dict[str, Any] = {}
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord(build_model(case).state_dict())
        result = strategy.start(grid, start, num_rounds=rounds, train_config=ConfigRecord(config))
        final.update(result.arrays.to_torch_state_dict())

    cores = len(os.sched_getaffinity(0))
    backend = {
        "client_resources": {"num_cpus": options.threads, "num_gpus": 0.0},
        "init_args": {"num_cpus": cores, "log_to_driver": False},
    }
    run_simulation(server_app, client_app, num_supernodes=case.population, backend_config=backend)
    return strategy.laps, final


if __name__ == "__main__":
    given = read_options("Time rounds of Flower's simulation engine.")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    laps, state = simulate(given, 1 if given.check else given.warmup + given.rounds)
    if given.check:
        report_check("flower", given, state)
    else:
        report_times("flower", given, laps)
