"""pfl's DP-FedAvg in the setting of study `privacy`: same data, split, model, first weights, steps, clip, δ and rounds.

    python -m venv benchmarks/.venv-pfl
    benchmarks/.venv-pfl/bin/pip install -c constraints.txt torch pfl==0.6.0 -e . -e papers
    benchmarks/.venv-pfl/bin/python benchmarks/peers/pfl_privacy.py --data-dir DATA --out runs/pfl-privacy
    turnout study show runs/pfl-privacy/study.json --markdown

A second call with the same --out makes only the runs that are missing. The kinds of run:

    sampled      pfl's random sampler, noise by its PLD accountant: ε is for a server that samples
    drawn        the same cohorts without that assumption: noise for the client that was drawn most
    independent  cohorts of Turnout's runs, at least 50 rounds apart; pfl's accountant without sampling
    banded       the same cohorts, pfl's banded mechanism with the noise that its matrix needs for the stated ε

Local work differs in one respect: a step has all samples of a client (1 to 27), Turnout's has at most 12.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant, PrivacyAccountant
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor, nn

from turnout.machine.threads import cores
from turnout.parts.privacy.accountant import epsilon_of, mu_of
from turnout.parts.selection import Count, MinSeparation
from turnout.running.tracks.building import build_model
from turnout.world.members import Members
from turnout_papers.studies.privacy import CLIP, DELTA, SIZES, experiment
from turnout_papers.studies.running import Findings
from turnout_papers.studies.study import Curve, ResultRow, last_fifth, row

SIZE = SIZES["paper"]
KINDS = ("sampled", "banded", "drawn", "independent")
APART = SIZE.separations[-1]  # rounds between participations, of the last two kinds


class Net(nn.Module):
    """The study's model with the two methods pfl asks of a module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x_B: Tensor, y_B: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(x_B), y_B)

    @torch.no_grad()
    def metrics(self, x_B: Tensor, y_B: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x_B, y_B).item() * len(y_B), len(y_B))}


class Tested(TrainingProcessCallback):
    """Accuracy on the central test set, as often as the study measures it."""

    def __init__(self, net: nn.Module, test: tuple[Tensor, Tensor], every: int) -> None:
        self.net, self.test, self.every = net, test, every
        self.found: dict[int, float] = {}

    @torch.no_grad()
    def after_central_iteration(self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int) -> Any:
        if (central_iteration + 1) % self.every == 0:
            x, y = self.test
            self.found[central_iteration] = (self.net(x).argmax(1) == y).double().mean().item()
        return False, Metrics()


def cohorts(kind: str, seed: int) -> Tensor:
    """The clients of each round [T, C]: as pfl draws, with repetition, or as Turnout's run with this seed asks."""
    if kind in ("sampled", "drawn"):
        np.random.seed(seed)
        sampler = get_user_sampler("random", list(range(SIZE.clients)))
        return torch.tensor([[sampler() for _ in range(SIZE.asked)] for _ in range(SIZE.rounds)])
    selection, everyone = MinSeparation(APART, of=Count(SIZE.asked)), Members(SIZE.clients)
    last_N, found = torch.full((SIZE.clients,), -APART), []
    for t in range(SIZE.rounds):
        state = {"of": {}, "client": everyone.ids(), "last": last_N, "count": last_N}
        found.append(selection.choose(everyone, t, seed, state))
        last_N[found[-1]] = t
    return torch.stack(found)


def drawn_most(cohort_TC: Tensor) -> float:
    """Δ of the client that was drawn most; drawn twice in a round, it moves that round's sum by two clips."""
    count_TN = torch.stack([row_C.bincount(minlength=SIZE.clients) for row_C in cohort_TC])
    return math.sqrt(int(count_TN.square().sum(0).max()))


@cache
def banded(b: int) -> tuple[BandedMatrixFactorizationMechanism, float]:
    """pfl's banded mechanism, and Δ of its matrix C: the longest |Σ C e_i| over rounds i at least b apart.

    Columns so far apart have no row in common, so squares of their lengths add up. pfl takes each length for 1.
    """
    os.chdir(tempfile.mkdtemp())  # pfl stores the matrix where it runs
    any_noise = PrivacyAccountant(SIZE.rounds, 1.0, "gaussian", delta=DELTA, noise_parameter=1.0)
    found = BandedMatrixFactorizationMechanism(CLIP, SIZE.rounds, b, lambda k: any_noise)
    square_T = np.square(found.query_matrix, dtype=np.float64).sum(0)
    most = [0.0]
    for t in range(SIZE.rounds):
        most.append(max(most[t], square_T[t] + most[max(0, t + 1 - b)]))
    return found, math.sqrt(most[-1])


def mechanism(kind: str, multiplier: float) -> GaussianMechanism:
    if kind != "banded":
        return GaussianMechanism(CLIP, multiplier)
    found = copy.deepcopy(banded(APART)[0])
    found._relative_noise_stddev = multiplier
    return found


@cache
def chosen_by_pfl(compositions: int, probability: float, epsilon: float) -> float:
    return PLDPrivacyAccountant(compositions, probability, "gaussian", epsilon=epsilon, delta=DELTA).noise_parameter


def multiplier_of(kind: str, epsilon: float, seed: int) -> tuple[float, float]:
    """The noise multiplier of a run; and ε, without sampling, of the noise that pfl would choose."""
    if kind in ("sampled", "drawn"):
        theirs = chosen_by_pfl(SIZE.rounds, SIZE.asked / SIZE.clients, epsilon)
        moved = drawn_most(cohorts(kind, seed))
    else:
        theirs = chosen_by_pfl(SIZE.rounds // APART, 1.0, epsilon)
        moved = banded(APART)[1] if kind == "banded" else math.sqrt(SIZE.rounds // APART)
    needed = moved / mu_of(epsilon, DELTA)
    return needed if kind in ("drawn", "banded") else theirs, epsilon_of(moved / theirs, DELTA)


@cache
def federation(name: str, seed: int, folder: str) -> tuple[list[PyTorchTensorDataset], Any, tuple[int, ...], int]:
    loaded = experiment(name, SIZE, None).world.data.load(seed, Path(folder))
    samples = loaded.train(torch.arange(SIZE.clients), 0)
    users = [PyTorchTensorDataset(samples.of(c), user_id=str(c)) for c in range(SIZE.clients)]
    return users, loaded.central_test(), loaded.input_shape, loaded.classes


def train(kind: str, name: str, epsilon: float, seed: int, folder: str) -> dict[str, Any]:
    """One run: its accuracy at the end, its noise, and ε of the noise that pfl would choose."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    study = experiment(name, SIZE, None)
    users, test, shape, classes = federation(name, seed, folder)
    multiplier, of_theirs = multiplier_of(kind, epsilon, seed)
    module = Net(build_model(study.model, shape, classes, seed))
    tested = Tested(module.net, test, study.evaluate.every)
    turns = iter(cohorts(kind, seed).flatten().tolist())
    np.random.seed(seed)
    dataset = FederatedDataset(users.__getitem__, lambda: next(turns))
    steps = [WeightByUser(), CentrallyAppliedPrivacyMechanism(mechanism(kind, multiplier))]
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=SIZE.rounds,
            evaluation_frequency=SIZE.rounds + 1,
            train_cohort_size=SIZE.asked,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=steps),
        model=PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=study.algorithm.local.steps, local_learning_rate=0.1, local_batch_size=None
        ),
        callbacks=[tested],
        send_metrics_to_platform=False,
    )
    curve = Curve(np.array(list(tested.found)), np.array(list(tested.found.values())))
    return {
        "kind": kind, "set": name, "epsilon": epsilon, "seed": seed, "seconds": time.perf_counter() - began,
        "accuracy": last_fifth(curve), "multiplier": multiplier,
        "without_sampling": of_theirs,
    }  # fmt: skip


def rows(found: list[dict[str, Any]]) -> list[ResultRow]:
    """A case is a set and an ε; the accuracy of each kind of run, and the ε that pfl's own noise has."""
    listed = []
    for name, epsilon in product(SIZE.sets, SIZE.epsilons):
        for kind in KINDS:
            runs = [one for one in found if (one["set"], one["epsilon"], one["kind"]) == (name, epsilon, kind)]
            columns = {f"accuracy, {kind}": "accuracy"}
            if kind in ("sampled", "banded"):
                columns[f"ε of pfl's noise without sampling, {kind}"] = "without_sampling"
            for metric, field in columns.items():
                listed.append(row(f"{name} ε={epsilon:g}", metric, {one["seed"]: one[field] for one in runs}))
    return listed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="the folder with mnist/ and fashion-mnist/")
    parser.add_argument("--out", type=Path, default=Path("runs/pfl-privacy"), help="the folder of the results")
    parser.add_argument("--seeds", type=int, default=SIZE.seeds)
    parser.add_argument("--jobs", type=int, default=cores(), help="runs side by side")
    parser.add_argument(
        "--so-far", action="store_true", help="train nothing: write study.json of the runs that have ended"
    )
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    log = given.out.resolve() / "results.jsonl"
    found = [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []
    known = {(one["kind"], one["set"], one["epsilon"], one["seed"]) for one in found}
    every = product(KINDS, SIZE.sets, SIZE.epsilons, range(0 if given.so_far else given.seeds))
    planned = sorted((case for case in every if case not in known), key=lambda case: (case[0] != "sampled", case[2]))
    folder = str(Path(given.data_dir).resolve())
    # fork: a process that imports pfl itself must be the main one
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("fork")) as pool, log.open("a") as lines:
        waiting = [pool.submit(train, *case, folder) for case in planned]
        for count, done in enumerate(as_completed(waiting), 1):
            found.append(done.result())
            lines.write(json.dumps(found[-1], ensure_ascii=False) + "\n")
            lines.flush()
            print(f"{count} of {len(planned)}: {found[-1]}", flush=True)
    multipliers = {(one["kind"], one["epsilon"]): one["multiplier"] for one in found if one["seed"] == 0}
    of_banded = []
    for b in SIZE.separations[1:]:
        theirs, moved = banded(b)
        longer = moved / math.sqrt(SIZE.rounds / b)
        last = np.linalg.norm(np.linalg.inv(theirs.query_matrix.astype(np.float64)).sum(0))
        gain = math.sqrt(SIZE.rounds) / (longer * last)  # as in the study: in the noise of the last prefix sum
        of_banded.append(f"b = {b}: {longer:.2f} times, which leaves a gain of {gain:.2f} in noise")
    notes = [
        "pfl 0.6.0 in the setting of the study `privacy`: its data, split, first weights, clip and δ; 100 of 5,000 "
        "users in each of 200 rounds; 5 local steps, each with all samples of a user (1 to 27)",
        "sampled: pfl's random sampler and PLD accountant, whose ε holds for a server that samples; without sampling "
        "its noise has the ε of the user who was drawn most",
        "drawn: the same cohorts, with so much noise that this is the stated ε",
        f"independent: the cohorts of the study at b = {APART}, pfl's accountant without sampling",
        f"banded: the same cohorts, pfl's banded mechanism with separation {APART} and the noise that its matrix C "
        "needs. pfl takes the columns of C for unit vectors, but it is the rows that are: one user moves what is "
        f"released by more than it accounts for ({'; '.join(of_banded)})",
        f"noise multipliers at ε = {', '.join(f'{e:g}' for e in SIZE.epsilons)}: "
        + "; ".join(
            f"{kind} " + ", ".join(f"{multipliers[kind, e]:.2f}" for e in SIZE.epsilons if (kind, e) in multipliers)
            for kind in KINDS
        ),
    ]
    command = "benchmarks/.venv-pfl/bin/python benchmarks/peers/pfl_privacy.py --data-dir DATA --out runs/pfl-privacy"
    command += " --so-far" if given.so_far else ""
    seconds = math.fsum(one["seconds"] for one in found) / given.jobs
    listed = Findings(
        "privacy beside pfl", "paper", rows(found), [], seconds, (), command, f"{cores()} cores", notes=notes
    )
    log.with_name("study.json").write_text(listed.to_json(), "utf-8")


if __name__ == "__main__":
    main()
