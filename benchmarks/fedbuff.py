"""FedBuff beside its authors' simulator: client updates until 80 %, on the same samples with the same rates.

    python benchmarks/fedbuff.py --flsim VENV/bin/python [--seeds 10] [--updates 800]

FLSim 0.1 (`pip install flsim`) imports on Python 3.10 and not on 3.11, so it has an environment of its own. The case is
the small scale of study `fedbuff`: 40 clients with two shards of the 8x8 digits, one epoch in batches of 32, steps of
K = 2 replies, ten clients at work (FLSim starts them at a constant rate, so ten on average; ours starts one as another
replies), half-normal durations, replies discounted by 1 / √(1 + staleness). FLSim adds up replies, so its server rate
is ours divided by K.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

CLIENT_RATE, SERVER_RATE, TARGET, K, AT_WORK, EVERY = 0.3, 1.0, 0.8, 2, 10, 5  # measured every 5 steps


def ours(seed: int, updates: int, folder: Path) -> list[float]:
    """Accuracy after every `EVERY` steps; leaves the samples in a file for the other side."""
    import turnout as to
    from turnout_papers.studies import fedbuff

    experiment = fedbuff.experiment("FedBuff", fedbuff.Rates(CLIENT_RATE, SERVER_RATE), "small")
    experiment = experiment.but(seed=seed, rounds=updates // K, stop=to.Stop())
    data = experiment.world.data.load(seed)
    own = [data.train(torch.tensor([c]), 0).of(0) for c in range(data.clients or 0)]
    test_x, test_y = data.central_test()
    x, y = torch.cat([x for x, _ in own]), torch.cat([y for _, y in own])
    count = np.array([len(y) for _, y in own])
    np.savez(folder / "data.npz", x=x, y=y, count=count, test_x=test_x, test_y=test_y)
    with to.run(experiment, folder / "run", quiet=True).records() as records:
        round_T, value_T = records.curve("global_accuracy")
    return [float(value) for value in value_T[round_T >= 0]]


def theirs(file: Path, seed: int, updates: int) -> list[float]:
    """The same with FLSim: its trainer, aggregator, durations and weights; only the model and the samples are given."""
    from flsim.clients.base_client import ClientConfig
    from flsim.data.data_provider import FLDataProviderFromList
    from flsim.interfaces.metrics_reporter import Channel
    from flsim.optimizers.async_aggregators import FedAvgWithLRFedBuffAggregatorConfig
    from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig
    from flsim.trainers.async_trainer import AsyncTrainer, AsyncTrainerConfig
    from flsim.utils.async_trainer.async_example_weights import EqualExampleWeightConfig
    from flsim.utils.async_trainer.async_staleness_weights import PolynomialStalenessWeightConfig
    from flsim.utils.async_trainer.async_user_selector import AsyncUserSelectorType
    from flsim.utils.async_trainer.async_weights import AsyncWeightConfig
    from flsim.utils.async_trainer.training_event_generator import (
        AsyncTrainingEventGeneratorConfig,
        ConstantAsyncTrainingStartTimeDistrConfig,
    )
    from flsim.utils.example_utils import FLModel, MetricsReporter
    from flsim.utils.timing.training_duration_distribution import PerUserHalfNormalDurationDistributionConfig
    from omegaconf import OmegaConf

    torch.manual_seed(seed)
    np.random.seed(seed)
    arrays = {name: torch.from_numpy(value) for name, value in np.load(file).items()}
    test_x, test_y, found = arrays["test_x"], arrays["test_y"], list[float]()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    users = []
    for x, y in zip(*(arrays[n].split(arrays["count"].tolist()) for n in ("x", "y")), strict=True):
        order = torch.randperm(len(y))
        users.append([{"features": x[o], "labels": y[o]} for o in order.split(32)])

    class Batches(FLModel):  # type: ignore[misc]
        def fl_create_training_batch(self, **kwargs: Any) -> Any:
            return kwargs["batch"]

    class Measuring(AsyncTrainer):  # type: ignore[misc]
        steps = 0

        def _global_update_done(self) -> None:
            self.steps += 1
            if self.steps % EVERY == 0:
                with torch.no_grad():
                    found.append(float((model(test_x).argmax(1) == test_y).double().mean()))

    wrapped: Any = Batches(model, "cpu")
    trainer = Measuring(
        model=wrapped,
        cuda_enabled=False,
        **OmegaConf.structured(
            AsyncTrainerConfig(
                aggregator=FedAvgWithLRFedBuffAggregatorConfig(lr=SERVER_RATE / K, buffer_size=K),
                client=ClientConfig(epochs=1, optimizer=LocalOptimizerSGDConfig(lr=CLIENT_RATE)),
                epochs=math.ceil(updates / len(users)),
                training_event_generator=AsyncTrainingEventGeneratorConfig(
                    training_start_time_distribution=ConstantAsyncTrainingStartTimeDistrConfig(
                        training_rate=AT_WORK / math.sqrt(2 / math.pi)
                    ),
                    duration_distribution_generator=PerUserHalfNormalDurationDistributionConfig(
                        training_duration_sd=1.0, training_duration_min=0.0
                    ),
                ),
                async_user_selector_type=AsyncUserSelectorType.RANDOM,
                async_weight=AsyncWeightConfig(
                    example_weight=EqualExampleWeightConfig(),
                    staleness_weight=PolynomialStalenessWeightConfig(exponent=0.5, avg_staleness=0),
                ),
                do_eval=False,
            )
        ),
    )
    given = FLDataProviderFromList(users, [], [], wrapped)
    trainer.train(given, MetricsReporter([Channel.STDOUT]), len(users))
    return found


def reached(accuracy: list[float]) -> int | None:
    """Client updates until the target."""
    return next(((i + 1) * EVERY * K for i, value in enumerate(accuracy) if value >= TARGET), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flsim", help="the Python that has FLSim")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--updates", type=int, default=800)
    parser.add_argument("--theirs", nargs=2, metavar=("FILE", "SEED"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.theirs:
        print("\n" + json.dumps(theirs(Path(given.theirs[0]), int(given.theirs[1]), given.updates)))
        return
    rows: dict[str, list[list[float]]] = {"turnout": [], "FLSim": []}
    for seed in range(given.seeds):
        with tempfile.TemporaryDirectory() as name:
            rows["turnout"].append(ours(seed, given.updates, Path(name)))
            command = [
                given.flsim,
                __file__,
                "--updates",
                str(given.updates),
                "--theirs",
                f"{name}/data.npz",
                str(seed),
            ]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            rows["FLSim"].append(json.loads(output.splitlines()[-1]))
        print(f"seed {seed}", {side: reached(found[-1]) for side, found in rows.items()}, file=sys.stderr, flush=True)
    print("| side | client updates to 80 % | there | accuracy over the last quarter, % |\n|---|---|---|---|")
    for side, found in rows.items():
        counts = [count for count in map(reached, found) if count is not None]
        last = [100 * float(np.mean(a[-len(a) // 4 :])) for a in found]
        spread = f"{np.mean(counts):.0f} ± {np.std(counts, ddof=1):.0f}" if len(counts) > 1 else str(counts)
        print(
            f"| {side} | {spread} | {len(counts)} of {len(found)} | {np.mean(last):.1f} ± {np.std(last, ddof=1):.1f} |"
        )


if __name__ == "__main__":
    main()
