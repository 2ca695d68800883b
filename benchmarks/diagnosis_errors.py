"""How often the diagnosis of a log is right: five fleets of known truth, and coin-flip logs.

    python benchmarks/diagnosis_errors.py --draws 100 --coins 500

A fleet is right if exactly its truth is found: outage, trend, rhythm, labels, or nothing. Groups of clients that are
away together are counted beside it: they are true of rhythms and outages of some clients, and an error elsewhere.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from known_logs import TRUTHS, drawn_log, log_of_presence
from turnout.fleet.diagnosis import diagnose
from turnout.fleet.participation_log import ParticipationLog

TESTED = ("outage", "trend", "rhythm", "labels")


def named(log: ParticipationLog) -> tuple[set[str], bool]:
    """What the diagnosis of a log names, and whether it has groups."""
    found = diagnose(log)
    return {one.kind for one in found.findings} & set(TESTED), bool(found.groups)


def coin_flips(seed: int, clients: int, days: int) -> ParticipationLog:
    draw = np.random.default_rng([seed, clients, days])
    return log_of_presence(draw.random((24 * days, clients)) < 0.5)


def line(name: str, logs: list[ParticipationLog], truth: set[str]) -> str:
    count: Counter[str] = Counter()
    for log in logs:
        kinds, groups = named(log)
        count.update(kinds)
        count["right"] += kinds == truth
        count["groups"] += groups
    cells = [count["right"], *(count[kind] for kind in TESTED), count["groups"]]
    return f"| {name} | {len(logs)} | " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--coins", type=int, default=500)
    parser.add_argument("--only", default="", help="fleets whose name has this in it")
    given = parser.parse_args()
    print(f"| fleet | logs | right | {' | '.join(TESTED)} | groups |")
    print("|---" * (len(TESTED) + 4) + "|")
    for truth in TRUTHS:
        if given.only in truth:
            logs = [drawn_log(truth, seed) for seed in range(given.draws)]
            print(line(truth, logs, {truth} - {"independent"}), flush=True)
    for clients, days in ((8, 7), (20, 14), (40, 28)):
        if given.only in (name := f"coin flips, {clients} clients, {days} days"):
            print(line(name, [coin_flips(seed, clients, days) for seed in range(given.coins)], set()), flush=True)
    if given.only in (name := "stays of ten hours and more, 20 clients, 14 days"):
        logs = [drawn_log("independent", 10_000 + seed, 20, 14, keeps=0.9) for seed in range(given.coins)]
        print(line(name, logs, set()), flush=True)


if __name__ == "__main__":
    main()
