"""How often `turnout advise` names a wrong winner: on candidates that are all alike, and on fleets with a known answer.

    python benchmarks/advise_errors.py noise --repeats 400 --processes 16
    python benchmarks/advise_errors.py pool --runs 400 --repeats 4000 --processes 16
    python benchmarks/advise_errors.py known --repeats 40 --processes 16
    python benchmarks/advise_errors.py all-candidates --repeats 4 --processes 16

`noise`: five candidates that do the same but for noise (plain FedAvg with weights shaken at random), tuned and raced
like any others, the whole advice repeated with other seeds and another log each time; any winner is a wrong one.
`pool`: the scores of real runs of plain FedAvg, dealt to candidates at random: thousands of races in a minute.
`known`: the fleets of tests/support/known_fleets.py with the candidates each is about; `all-candidates`: with all of
ours, so that what wins may be something else: who it was is counted. One line of JSON for each fleet.
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
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import turnout as to
from turnout.data.partition import Dirichlet
from turnout.fleet.advice.race import Race
from turnout.fleet.advice.trials import measure

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from known_fleets import KNOWN, KnownFleet, Shaken, half_there

APART = 100_000  # seeds between repeats
Found = tuple[str, bool, bool, int]  # what is recommended, whether one is best, whether that is wrong, seeds raced


def noise(repeat: int, candidates: int, seeds: int) -> Found:
    """One advice on candidates that are alike."""
    fleet = KnownFleet("noise", to.data.Digits(clients=20, partition=Dirichlet(0.5)), half_there, [], [], rounds=10)
    alike = {f"alike {i}": {"algorithm.weighting": Shaken(i)} for i in range(candidates)}
    with tempfile.TemporaryDirectory() as folder:
        advice = to.advise(
            fleet.write_log(Path(folder) / "log.csv", repeat), fleet.experiment(), out=Path(folder) / "out", jobs=1,
            candidates=alike, only=list(alike), seeds=seeds, budget=1e9, quiet=True,
            first_seed=APART * repeat,
        )  # fmt: skip
        named = advice.best is not None
        return advice.best or "undecided", not named, named, advice.race.seeds


def score(seed: int) -> float:
    """The accuracy of a run of plain FedAvg, as the race takes it."""
    fleet = KnownFleet("pool", to.data.Digits(clients=20, partition=Dirichlet(0.5)), half_there, [], [], rounds=10)
    run = fleet.experiment().but(seed=seed, **{"world.participation": to.participation.Dropout(0.3)})
    return measure(run).final("global_accuracy")


def pool_races(runs: int, repeats: int, seeds: int, processes: int) -> None:
    """Races among candidates whose scores are drawn from the same real runs: any winner is a wrong one."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as workers:
        scores = list(workers.map(score, range(runs), chunksize=8))
    print(json.dumps({"runs": runs, "standard deviation": round(statistics.stdev(scores), 4)}))
    draw = random.Random(0)
    for candidates in (2, 3, 5, 12):
        found = [dealt_race(draw.sample(scores, candidates * seeds), candidates, seeds) for _ in range(repeats)]
        print(json.dumps(summary(f"{candidates} candidates with scores of real runs", found)), flush=True)


def dealt_race(scores: list[float], candidates: int, seeds: int) -> Found:
    """A race whose scores are these, in any order."""
    names = [f"alike {i}" for i in range(candidates)]
    given = {n: dict(enumerate(scores[i * seeds : (i + 1) * seeds])) for i, n in enumerate(names)}
    race = Race.of(names)
    while not race.decided and (look := race.next_look()) is not None and look <= seeds:
        race = race.looked_at(given, look)
    return race.running[0] if race.decided else "undecided", not race.decided, race.decided, race.seeds


def known(repeat: int, number: int, every: bool, seeds: int) -> Found:
    """One advice on a fleet with a known answer."""
    fleet = KNOWN[number]
    with tempfile.TemporaryDirectory() as folder:
        advice = to.advise(
            fleet.write_log(Path(folder) / "log.csv", repeat), fleet.experiment(), aim=fleet.aim, jobs=1,
            out=Path(folder) / "out", only=() if every else fleet.candidates, seeds=seeds, budget=1e9,
            quiet=True, first_seed=APART * repeat,
        )  # fmt: skip
        named = advice.best or f"undecided between {', '.join(advice.undecided)}"
        return named, fleet.is_right(advice), fleet.names_a_wrong_winner(advice), advice.race.seeds


def counted(fleets: dict[str, Callable[[int], Found]], repeats: int, processes: int, seconds: float) -> None:
    """Repeat every fleet's advice in turn, count, print.

    When the time is up nothing more is begun, and what was begun is finished and counted: which repeats are counted
    does not depend on how they ended.
    """
    start, found = time.perf_counter(), {name: list[Found]() for name in fleets}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        tasks = [(name, pool.submit(one, repeat)) for repeat in range(repeats) for name, one in fleets.items()]
        wait([task for _, task in tasks], seconds)
        for _, task in tasks:
            task.cancel()
        for name, task in tasks:
            if not task.cancelled():
                found[name].append(task.result())
    for name in fleets:
        if found[name]:
            print(json.dumps(summary(name, found[name])), flush=True)
    print(f"{time.perf_counter() - start:.0f} s with {processes} processes")


def exact_interval(found: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval of a share: the shares under which so many, or so few, have 2.5 %.

    >>> [round(end, 4) for end in exact_interval(0, 300)]
    [0.0, 0.0122]
    """

    def at_most(k: int, share: float) -> float:
        return math.fsum(math.comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(k + 1))

    low = halved(lambda share: 1 - at_most(found - 1, share) > 0.025) if found else 0.0
    high = halved(lambda share: at_most(found, share) < 0.025) if found < n else 1.0
    return low, high


def halved(above: Callable[[float], bool]) -> float:
    """Where a condition begins to hold between 0 and 1."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return high


def summary(name: str, found: list[Found]) -> dict[str, object]:
    n, wrong = len(found), sum(f[2] for f in found)
    return {
        "fleet": name,
        "repeats": n,
        "wrong winners": wrong,
        "share": round(wrong / n, 4),
        "95 % interval": [round(end, 4) for end in exact_interval(wrong, n)],
        "right recommendations": sum(f[1] for f in found),
        "mean seeds": round(sum(f[3] for f in found) / n, 1),
        "answers": dict(Counter(f[0] for f in found).most_common(8)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["noise", "pool", "known", "all-candidates"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--candidates", type=int, default=5, help="of noise")
    parser.add_argument("--runs", type=int, default=200, help="of a pool")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing more after so long")
    parser.add_argument("--seeds", type=int, default=16, help="the most that are raced")
    given = parser.parse_args()
    if given.what == "pool":
        pool_races(given.runs, given.repeats, given.seeds, given.processes)
        return
    fleets: dict[str, Callable[[int], Found]]
    if given.what == "noise":
        one = partial(noise, candidates=given.candidates, seeds=given.seeds)
        fleets = {f"{given.candidates} candidates alike": one}
    else:
        every = given.what == "all-candidates"
        fleets = {k.name: partial(known, number=i, every=every, seeds=given.seeds) for i, k in enumerate(KNOWN)}
    counted(fleets, given.repeats, given.processes, given.seconds)


if __name__ == "__main__":
    main()
