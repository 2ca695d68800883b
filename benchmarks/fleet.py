"""How long a large fleet's log takes, and how much memory: read, fitted, diagnosed, drawn from.

    python benchmarks/fleet.py
    python benchmarks/fleet.py --table --clients 10000 --rounds 10000 [--parquet] [--names]

The first: check-ins by the hour; every client has its own rate, and nights are fuller than days: one client in seven
is there. The second: a row for every client and round, beside DuckDB's own scan of the file, three times in turn.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
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


def beside_duckdb(clients: int, rounds: int, parquet: bool, names: bool) -> None:
    """Print the seconds of DuckDB's scan and of reading the log, by the clock and of the processor, three times."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("log.parquet" if parquet else "log.csv")
        name = f"'device-' || (i % {clients})" if names else f"(i % {clients})::INTEGER"
        work = "CASE WHEN hash(i) % 10 < 4 THEN 0 WHEN hash(i) % 10 < 9 THEN 1 ELSE 0.5 END"
        rows = f"SELECT (i // {clients})::INTEGER AS round, {name} AS client, {work} AS work"
        duckdb.sql(f"COPY ({rows} FROM range({clients * rounds}) t(i)) TO '{path}'")
        print(f"{clients * rounds:,} rows, {path.stat().st_size / 1e6:,.0f} MB")
        for _ in range(3):
            spent = []
            for work_of in (
                lambda: duckdb.sql(f"SELECT count(*), sum(round), max(client), sum(work) FROM '{path}'").fetchall(),
                lambda: read_fleet(path),
            ):
                clock, processor = time.perf_counter(), time.process_time()
                found = work_of()
                spent.append((time.perf_counter() - clock, time.process_time() - processor))
            (scan, scan_cpu), (read, read_cpu) = spent
            gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(f"scan {scan:.1f} s ({scan_cpu:.1f} of the processor), read {read:.1f} s ({read_cpu:.1f}): "
                  f"{read / scan:.2f} times ({read_cpu / scan_cpu:.2f}), {gigabytes:.2f} GB", flush=True)  # fmt: skip
        with timed("diagnosed"):
            diagnose(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--table", action="store_true", help="a row for every client and round, beside DuckDB")
    parser.add_argument("--parquet", action="store_true", help="as Parquet")
    parser.add_argument("--names", action="store_true", help="clients have names, not numbers")
    given = parser.parse_args()
    if given.table:
        beside_duckdb(given.clients, given.rounds, given.parquet, given.names)
        return
    reading = Reading(every="1h")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        print(f"{write_log(path, given.clients, given.rounds):,} rows")
        with timed("read"):
            fleet = read_fleet(path, reading)
        with timed("fitted"):
            model = fit(fleet)
        with timed("diagnosed"):
            found = diagnose(fleet, model.groups)
        print(f"turnout {found.turnout:.1%}, {len(found.groups)} groups, {len(found.hardly_there):,} hardly there")
        log, asked = FleetLog(str(path), mode="blocks", reading=reading), torch.arange(100)
        with timed("read again to draw, first round"):
            log.fraction(asked, 0, 1, 0)
        with timed("100 rounds of 100 clients drawn in blocks"):
            for t in range(100):
                log.fraction(asked, t, 1, 0)


if __name__ == "__main__":
    main()
