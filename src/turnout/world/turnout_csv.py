"""The turnout as a CSV file of `round,client,work`: what runs export and what `FleetLog` replays (fleet/ reads it).

`work` is the fraction finished, in [0, 1]; 0 means asked and absent; no row means not asked. A client is written by its
number, or by its name if the data has names.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

HEADER = ("round", "client", "work")


def write_turnout(path: str | Path, rows: Iterable[tuple[int, int | str, float]]) -> None:
    """Write rows (round, client, work) as a log; clients by number or by name."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows((int(t), client, repr(float(work))) for t, client, work in rows)
