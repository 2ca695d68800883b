"""How often `turnout advise` names a wrong winner.

    python benchmarks/advise_errors.py synthetic --repeats 400
    python benchmarks/advise_errors.py noise --repeats 200 --candidates 3 --seeds 12
    python benchmarks/advise_errors.py known --repeats 40 --processes 16
    python benchmarks/advise_errors.py all-candidates --repeats 4 --processes 16

`synthetic`: whole advices (comparison, further rates, race, other logs, collapses) whose runs are drawn instead of
trained, in worlds of known truth: identical candidates with two about equally good rates; the experiment's rate far
below the best one, where one candidate only learns quicker; a candidate that is ahead but collapses in 3 % of the
seeds; logs that each favour another of two equal candidates; and a candidate that is truly better.
`noise`: candidates that do the same but for noise (plain FedAvg with weights shaken at random), raced at all rates
like any others, with real training, the whole advice repeated with other seeds and another log each time; here any
candidate that is ahead counts as a wrong winner.
`known`: the fleets of tests/support/known_fleets.py with the candidates each is about; `all-candidates`: with all of
ours, so that what wins may be something else: who it was is counted. One line of JSON for each fleet.

A wrong winner is a candidate called best that is not better than all others. `ahead` counts those that lead on the log
at hand, which is no promise about other logs or collapses.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import turnout as to
from turnout.data.partition import Dirichlet
from turnout.fleet.advice.budget import RaceBoard, RacePlan
from turnout.fleet.advice.candidates import AIMS, Candidate, Judge, rate_of
from turnout.fleet.advice.cases import RaceCase
from turnout.fleet.advice.trials import Trial, TrialLedger, TrialOutcome, TrialWorkers
from turnout.fleet.advice.work import AdviceWork
from turnout.fleet.diagnosis import Diagnosis, diagnose
from turnout.statistics import share_at_most

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from known_fleets import KNOWN, KnownFleet, Shaken, half_there

APART = 100_000  # seeds between repeats
Found = tuple[
    str, bool, bool, int
]  # who is ahead, whether that is right, whether a wrong one is called best, seeds raced

NOISE, OF_SEED = 0.02, 0.04  # deviations: of each run, and of all runs of a seed
STRETCHES = 12  # of a log

Level = Callable[[str, float], float]  # the accuracy of a candidate at a rate


@dataclass(frozen=True)
class SyntheticCase:
    """A world of known truth.

    name      of the case
    level     the mean accuracy of a candidate at a rate
    wrong     whether it is wrong to call a candidate best
    names     of the candidates
    collapse  the candidate that collapses in 3 % of the seeds
    by_log    how much stretches of a log favour the second candidate, as a deviation
    """

    name: str
    level: Level
    wrong: Callable[[str], bool]
    names: tuple[str, ...] = ("a", "b", "c")
    collapse: str = ""
    by_log: float = 0.0


def peak(best: float, top: float, steps: float) -> float:
    """An accuracy that falls with the distance to the best rate, in steps of three."""
    return top - 0.04 * (abs(math.log(best, 3) - steps)) ** 1.5


def flat(name: str, rate: float) -> float:
    """Two rates are about equally good, for all candidates alike."""
    return {0: 0.800, 1: 0.803}.get(round(math.log(rate, 3)), 0.70)


def low_edge(name: str, rate: float) -> float:
    """All are as good at nine times the rate of the experiment; below it one of them learns quicker."""
    steps = math.log(rate, 3)
    quick = 0.05 if name == "b" and steps < 1.5 else 0.0
    return peak(9.0, 0.85, steps) + min(quick, 0.85 - peak(9.0, 0.85, steps))


def ahead_by(points: float) -> Level:
    return lambda name, rate: peak(1.0, 0.85, math.log(rate, 3)) + (points if name == "b" else 0.0)


SYNTHETIC = (
    SyntheticCase("identical, two rates about equally good", flat, lambda name: True),
    SyntheticCase("the experiment's rate at the edge", low_edge, lambda name: True),
    SyntheticCase("ahead by 5 points, collapses in 3 %", ahead_by(0.05), lambda name: name == "b", collapse="b"),
    SyntheticCase("equal, but each log favours one", ahead_by(0.0), lambda name: True, ("a", "b"), by_log=0.05),
    SyntheticCase("equal, each log favours one a little", ahead_by(0.0), lambda name: True, ("a", "b"), by_log=0.03),
    SyntheticCase("one is better by 4 points", ahead_by(0.04), lambda name: name != "b"),
)


class Drawn(TrialWorkers):
    """Workers whose runs are drawn: by candidate, rate, seed, and bootstrap log."""

    def __init__(self, case: SyntheticCase, repeat: int) -> None:
        super().__init__(1)
        self.case, self.repeat = case, repeat
        self.stretches = [random.Random(f"{repeat} stretch {k}").gauss(0, case.by_log) for k in range(STRETCHES)]

    def outcomes(
        self, work: Iterable[tuple[Trial, to.Experiment]], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[Trial, TrialOutcome]]:
        for trial, _ in work:
            yield trial, TrialOutcome((1,), {"global_accuracy": (self.accuracy(trial),)}, (1.0,))

    def accuracy(self, trial: Trial) -> float:
        def draw(*address: object) -> random.Random:
            return random.Random(repr((self.repeat, *address)))

        name, seed = trial.candidate, (trial.part, trial.seed)
        if name == self.case.collapse and draw("collapse", seed).random() < 0.03:
            return 0.1
        found = self.case.level(name, rate_of(trial.settings))
        found += draw("seed", seed).gauss(0, OF_SEED) + draw("run", trial[1:3], seed).gauss(0, NOISE)
        if self.case.by_log and name == "b":  # a bootstrap log has the same stretches in both of its runs
            again = draw("log", trial.seed).choices(self.stretches, k=STRETCHES)
            found += statistics.fmean(again)
        return found


def facts() -> Diagnosis:
    with tempfile.TemporaryDirectory() as folder:
        fleet = KnownFleet("any", to.data.Digits(clients=20), half_there, [], [])
        return diagnose(to.fleet.read_fleet(fleet.write_log(Path(folder) / "log.csv")))


def synthetic(repeat: int, case: int, seeds: int) -> Found:
    """One advice on runs that are drawn."""
    known, experiment = SYNTHETIC[case], to.Experiment()
    with tempfile.TemporaryDirectory() as folder:
        work = AdviceWork(
            [Candidate(name, "") for name in known.names], [RaceCase("w", "", experiment)],
            Judge.of(AIMS["accuracy"], experiment.task), RacePlan(True, 1, 1, 0.0), TrialLedger(Path(folder)),
            Drawn(known, repeat), RaceBoard(quiet=True), 1e9, time.monotonic(), seeds, 0,
        )  # fmt: skip
        advice = work.advice(facts(), {}, Path(folder))
    wrong = advice.best is not None and known.wrong(advice.best)
    right = advice.best is not None and not known.wrong(advice.best)
    return advice.ahead or "undecided", right, wrong, advice.race.seeds


def noise(repeat: int, candidates: int, seeds: int) -> Found:
    """One advice on candidates that are alike."""
    fleet = KnownFleet("noise", to.data.Digits(clients=20, partition=Dirichlet(0.5)), half_there, [], [], rounds=10)
    alike = {f"alike {i}": {"algorithm.weighting": Shaken(i)} for i in range(candidates)}
    with tempfile.TemporaryDirectory() as folder:
        advice = to.advise(
            fleet.write_log(Path(folder) / "log.csv", repeat), fleet.experiment(), out=Path(folder) / "out", jobs=1,
            candidates=alike, only=list(alike), seeds=seeds, budget=1e9, quiet=True, levers=False,
            first_seed=APART * repeat,
        )  # fmt: skip
        return advice.ahead or "undecided", advice.ahead is None, advice.ahead is not None, advice.race.seeds


def known(repeat: int, number: int, every: bool, seeds: int) -> Found:
    """One advice on a fleet with a known answer."""
    fleet = KNOWN[number]
    with tempfile.TemporaryDirectory() as folder:
        advice = to.advise(
            fleet.write_log(Path(folder) / "log.csv", repeat), fleet.experiment(), aim=fleet.aim, jobs=1,
            out=Path(folder) / "out", only=() if every else fleet.candidates, seeds=seeds, budget=1e9,
            quiet=True, levers=False, first_seed=APART * repeat,
        )  # fmt: skip
        named = advice.ahead or f"undecided between {', '.join(advice.undecided)}"
        return named, fleet.is_right(advice), fleet.names_a_wrong_winner(advice), advice.race.seeds


def counted(fleets: dict[str, Callable[[int], Found]], repeats: int, processes: int, seconds: float) -> None:
    """Repeat every fleet's advice in turn, count, print.

    When the time is up nothing more is begun, and what was begun is finished and counted: which repeats are counted
    does not depend on how they ended.
    """
    start, found = time.perf_counter(), {name: list[Found]() for name in fleets}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        tasks = [(name, pool.submit(one, repeat)) for repeat in range(repeats) for name, one in fleets.items()]
        wait([task for _, task in tasks], None if math.isinf(seconds) else seconds)
        for _, task in tasks:
            task.cancel()
        for name, task in tasks:
            if not task.cancelled():
                found[name].append(task.result())
    for name in fleets:
        if found[name]:
            print(json.dumps(summary(name, found[name])), flush=True)
    print(f"{time.perf_counter() - start:.0f} s with {processes} processes")


def summary(name: str, found: list[Found]) -> dict[str, object]:
    n, wrong = len(found), sum(f[2] for f in found)
    return {
        "fleet": name,
        "repeats": n,
        "wrong winners": wrong,
        "share": round(wrong / n, 4),
        "at most": round(share_at_most(wrong, n, 0.975), 4),
        "right": sum(f[1] for f in found),
        "mean seeds": round(sum(f[3] for f in found) / n, 1),
        "ahead": dict(Counter(f[0] for f in found).most_common(8)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["synthetic", "noise", "known", "all-candidates"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--candidates", type=int, default=5, help="of noise")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing more after so long")
    parser.add_argument("--seeds", type=int, default=192, help="the most that are raced")
    given = parser.parse_args()
    fleets: dict[str, Callable[[int], Found]]
    if given.what == "synthetic":
        fleets = {c.name: partial(synthetic, case=i, seeds=given.seeds) for i, c in enumerate(SYNTHETIC)}
    elif given.what == "noise":
        one = partial(noise, candidates=given.candidates, seeds=given.seeds)
        fleets = {f"{given.candidates} candidates alike": one}
    else:
        every = given.what == "all-candidates"
        fleets = {k.name: partial(known, number=i, every=every, seeds=given.seeds) for i, k in enumerate(KNOWN)}
    counted(fleets, given.repeats, given.processes, given.seconds)


if __name__ == "__main__":
    main()
