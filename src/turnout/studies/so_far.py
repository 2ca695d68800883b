"""What a study that was cut off has so far: its ended runs, how long they took, and on what machine."""

from __future__ import annotations

from pathlib import Path

from turnout.errors import Mistake
from turnout.machine.sealed import read_json
from turnout.records.records import Records
from turnout.running.loop import DELETE
from turnout.running.state import RECORDS, state_of


def ended_folders(out: Path) -> list[Path]:
    """The folders of the runs that have finished, below a study's."""
    begun = sorted(file.parent for file in out.rglob("experiment.toml"))
    found = [folder for folder in begun if state_of(folder).state == "finished"]
    if not found:
        raise Mistake(f"no run has ended in {out}: without --so-far the study goes on")
    return found


def seconds_between(folders: list[Path]) -> float:
    """From the first round of the first run to the end of the last one."""
    ends = [state_of(folder).when for folder in folders]
    return max(ends) - min(end - _seconds(folder) for end, folder in zip(ends, folders, strict=True))


def _seconds(folder: Path) -> float:
    with Records.read(folder / RECORDS) as records:
        return float(records.column("seconds").sum())


def machines(folders: list[Path]) -> str:
    """What the runs were made on, as they say themselves."""
    said = [read_json(folder / "environment.json", DELETE) for folder in folders]
    return ", ".join(sorted({str(one.get("device_name") or one.get("device")) for one in said}))
