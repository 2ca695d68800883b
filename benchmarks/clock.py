"""What simulated time costs: rounds of case b with and without devices, in turn, in one process.

    python benchmarks/clock.py [--rounds 60]

With devices of three tiers and a deadline that everybody meets, so that both sides train the same. Prints the median
ratio, and what drawing the devices of a cohort takes from a population of a million.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from cases import CASES, build_model, make_tensors
from turnout_side import NextInLine, held_by_clients

import turnout as to
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.track import Track


def experiment(case_name: str, devices: bool) -> to.Experiment:
    case = CASES[case_name]
    local = to.Local(to.SGD(lr=case.lr), steps=case.steps, batch_size=case.batch)
    closing = to.closing.Deadline(1e6) if devices else to.closing.WaitForAll()
    fleet = to.devices.Tiers(noise=0.2, slow_chance=0.1) if devices else None
    return to.Experiment(
        world=to.World(held_by_clients(case, *make_tensors(case)), devices=fleet),
        model=build_model(case),
        algorithm=to.Algorithm(local, selection=NextInLine(case), closing=closing),
    )


def side_by_side(plain: Track, timed: Track, rounds: int) -> list[tuple[float, float]]:
    """Milliseconds of rounds of either, in turn, after two to warm up."""
    states, found = [plain.begin(), timed.begin()], []
    for t in range(rounds + 2):
        took = []
        for i, track in enumerate((plain, timed)):
            start = time.perf_counter()
            states[i], _ = track.round(states[i], t)
            took.append((time.perf_counter() - start) * 1000)
        found.append((took[0], took[1]))
    return found[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="b", choices=sorted(CASES))
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    plain, timed = (prepare(experiment(given.case, devices)) for devices in (False, True))
    pairs = side_by_side(plain, timed, given.rounds)
    usual, ratio = median(a for a, _ in pairs), median(b / a for a, b in pairs)
    print(
        f"case {given.case}: {usual:.1f} ms a round, with devices {ratio:.3f} times that ({given.rounds} pairs in turn)"
    )
    fleet, client_C = to.devices.Tiers(noise=0.2, slow_chance=0.1), torch.arange(0, 1_000_000, 10_000)
    start = time.perf_counter()
    for t in range(100):
        fleet.draw(client_C, t, 0)
    print(f"  devices of 100 clients among 1,000,000: {(time.perf_counter() - start) * 10:.2f} ms a round, by address")


if __name__ == "__main__":
    main()
