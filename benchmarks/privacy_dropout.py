"""How many private rounds are released where some of the clients that were asked do not reply: Turnout beside Flower's
own strategy for central privacy (fixed clipping at the server), with its accountant and without it.

    pip install 'flwr[dp]==1.41.0'        # its accountant needs dp-accounting, which needs an older attrs
    python benchmarks/privacy_dropout.py  # half a minute

100 of 1,000 clients are asked in each of 200 rounds; noise multiplier 1, δ = 1e-6. Who is absent when is drawn by
`participation.Dropout` on both sides. Flower's strategy runs as it is (`Strategy.start`) on a grid in this process, of
which absent nodes do not reply at all. (One that replies with an error makes Flower skip the round on either side.)

Released: rounds whose sum was noised and applied. ε: Turnout's for the participation that it enforces (at most 20
times, 10 rounds apart); Flower's accountant's own, which counts every release for every client; without an accountant,
that of a client that takes part 20 times, with the noise that a mean over fewer replies has got.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import random
import tempfile
from collections.abc import Iterable
from statistics import mean
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # before flwr is imported

import flwr
import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore import privacy_accounting as accounting
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from flwr.supercore.task_identity import TaskIdentity

import turnout as to
from turnout.parts.privacy.accountant import epsilon_of

CLIENTS, ASKED, SEPARATION, MULTIPLIER, DELTA = 1000, 100, 10, 1.0, 1e-6


def trained(message: Message) -> ArrayRecord:
    return ArrayRecord([value + 1 for value in message.content["arrays"].to_numpy_ndarrays()])


class AbsentGrid(Grid):
    """Nodes 1 to 1,000 in this process; those that are present reply with an update of ones."""

    def __init__(self, dropout: float):
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.participation, self.replied = to.participation.Dropout(dropout), list[int]()

    def get_node_ids(self) -> Iterable[int]:
        return range(1, CLIENTS + 1)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        asked = list(messages)
        if not asked:  # nothing is evaluated
            return []
        client_C = torch.tensor([message.metadata.dst_node_id - 1 for message in asked])
        here_C = self.participation.fraction(client_C, len(self.replied), 1, seed=0) > 0
        self.replied.append(int(here_C.sum()))
        return [
            Message(
                RecordDict({"arrays": trained(message), "metrics": MetricRecord({"num-examples": 1})}),
                reply_to=message,
            )
            for message, here in zip(asked, here_C.tolist(), strict=True)
            if here
        ]

    def _unused(self, *given: Any, **more: Any) -> Any:
        raise AssertionError("Strategy.start uses send_and_receive alone")

    set_run = create_message = push_messages = pull_messages = _unused
    run = property(_unused)


def flower(rounds: int, dropout: float, accounted: bool) -> tuple[int, float]:
    """Rounds that were released, and ε."""
    random.seed(0)  # Flower samples nodes with it
    grid, accountant = AbsentGrid(dropout), None
    if accounted:
        relation, sampling = (
            accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
            accounting.SamplingMethod.NO_AMPLIFICATION,
        )
        accountant = RdpAccountant(accounting.PrivacyConfig(DELTA, CLIENTS, relation, sampling))
    inner = FedAvg(fraction_train=ASKED / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, MULTIPLIER, 1.0, ASKED, accountant=accountant)
    result = strategy.start(grid, ArrayRecord([np.zeros(10, np.float32)]), num_rounds=rounds)
    released = len(result.train_metrics_clientapp)
    if accountant is not None:
        assert accountant.num_releases == released
        return released, accountant.get_privacy_spent().epsilon if released else 0.0
    squared = mean((ASKED / replied) ** 2 for replied in grid.replied) / MULTIPLIER**2
    return released, epsilon_of(math.sqrt(rounds // SEPARATION * squared), DELTA)


def turnout(rounds: int, dropout: float) -> tuple[int, float]:
    """The same."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(2 * CLIENTS, 9, generator=draw), torch.randint(0, 2, (2 * CLIENTS,), generator=draw)
    owner = torch.arange(CLIENTS).repeat_interleave(2)
    private = to.Private(
        1.0, n0=ASKED, delta=DELTA, noise_multiplier=MULTIPLIER, min_separation=SEPARATION, most=rounds // SEPARATION
    )
    local = to.Local(to.SGD(0.1), steps=1, batch_size=2)
    experiment = to.Experiment(
        to.World(to.data.Own(x, y, owner, test=(x[:10], y[:10]), test_share=0.0), to.participation.Dropout(dropout)),
        to.models.Logistic(),
        to.Algorithm(local=local, selection=to.selection.Count(ASKED), privacy=private),
        evaluate=to.Evaluate(every=rounds),
        rounds=rounds,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = to.run(experiment, folder, quiet=True)
        with run.records() as records:
            rows = records.rounds()
    released = rows["counted"] > 0
    return int(released.sum()), float(rows["epsilon"][released].max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.0, 0.05, 0.3])
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(f"{given.rounds} rounds, {ASKED} of {CLIENTS:,} asked, flwr {flwr.__version__}: released rounds, ε")
    for dropout in given.dropout:
        sides = {
            "Turnout": turnout(given.rounds, dropout),
            "Flower, accountant": flower(given.rounds, dropout, accounted=True),
            "Flower, none": flower(given.rounds, dropout, accounted=False),
        }
        for side, (released, epsilon) in sides.items():
            print(f"  dropout {dropout:4.0%}  {side:20}{released:5} of {given.rounds}  ε = {epsilon:6.1f}", flush=True)


if __name__ == "__main__":
    main()
