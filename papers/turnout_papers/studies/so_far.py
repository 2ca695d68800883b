"""What a study has so far that was cut off, or gone on with: its ended runs, how long they took, on what machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from turnout.errors import UserError
from turnout.machine.checksums import read_json
from turnout.running.loop import DELETE
from turnout.running.records.records import Records
from turnout.running.state import RECORDS, state_of


def ended_folders(out: Path) -> list[Path]:
    """The folders of the runs that have finished, below a study's."""
    begun = sorted(file.parent for file in out.rglob("experiment.toml"))
    return [folder for folder in begun if state_of(folder).state == "finished"]


def refuse_none(ended: list[Path], out: Path) -> None:
    if not ended:
        raise UserError(f"no run has ended in {out}: without --so-far the study goes on")


def seconds_at_work(folders: Sequence[Path]) -> float:
    """How long some of these runs were at work: pauses in between, of hours or days, do not count."""
    return covered([(end - _seconds(folder), end) for folder in folders for end in [state_of(folder).when]])


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of what spans of time cover together.

    >>> covered([(0.0, 3.0), (10.0, 12.0), (2.0, 4.0)])
    6.0
    """
    total, until = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _seconds(folder: Path) -> float:
    with Records.read(folder / RECORDS) as records:
        return float(records.column("seconds").sum())


def machines(folders: Sequence[Path]) -> str:
    """What the runs were made on, as they say themselves."""
    said = [read_json(folder / "environment.json", DELETE) for folder in folders]
    return ", ".join(sorted({str(one.get("device_name") or one.get("device")) for one in said}))
