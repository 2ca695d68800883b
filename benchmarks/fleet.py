"""How long a large fleet's log takes, and how much memory: written, read, fitted, diagnosed, drawn from.

    python benchmarks/fleet.py --clients 10000 --rounds 10000

Rounds are hours; every client has a rate of its own, and nights are fuller than days: one client in seven is there.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from turnout.fleet import Reading, read_fleet
from turnout.fleet.diagnosis import diagnose
from turnout.fleet.fleet_model import fit
from turnout.fleet.fleet_participation import FleetLog


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print the processor's seconds, and the most memory so far."""
    start = time.process_time()
    yield
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{what}: {time.process_time() - start:.1f} s, {gigabytes:.2f} GB", flush=True)


def write_log(path: Path, clients: int, rounds: int) -> int:
    draw = np.random.default_rng(0)
    rate_M, rows = draw.beta(1.2, 6, clients), 0
    with path.open("w", encoding="utf-8") as file:
        file.write("time,client,work\n")
        for t in range(rounds):
            there = np.flatnonzero(draw.random(clients) < 0.9 * rate_M * (1 + 0.8 * np.sin(2 * np.pi * t / 24)))
            file.write("".join(f"{1_767_225_600 + 3600 * t},{c},1\n" for c in there.tolist()))
            rows += len(there)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1_000)
    given = parser.parse_args()
    reading = Reading(every="1h")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        print(f"{write_log(path, given.clients, given.rounds):,} rows")
        with timed("read"):
            fleet = read_fleet(path, reading)
        with timed("fitted"):
            model = fit(fleet)
        with timed("diagnosed"):
            found = diagnose(fleet, model)
        print(f"turnout {found.turnout:.1%}, {len(found.groups)} groups, {len(found.hardly_there):,} hardly there")
        log, asked = FleetLog(str(path), mode="blocks", reading=reading), torch.arange(100)
        with timed("read again to draw, first round"):
            log.fraction(asked, 0, 1, 0)
        with timed("100 rounds of 100 clients drawn in blocks"):
            for t in range(100):
                log.fraction(asked, t, 1, 0)


if __name__ == "__main__":
    main()
