"""What the records hold, told to a tracker afterwards: for runs that were made without one."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnout.running.records.finding import runs_in
from turnout.running.records.runs import FILE
from turnout.running.tracker import TrackedRun, Tracker, flat, recorded


def replay(folder: Path, make: Callable[[], Tracker]) -> dict[str, str]:
    """Tell of every run of a folder; where each can be found, by its name."""
    found, outbox = runs_in(folder), {}
    for run in found.runs:
        name = run.variant if run.seed is None else f"{run.variant} seed {run.seed}"
        tracker = make()
        settings = flat(_settings(run.path))
        outbox[name] = tracker.begin(TrackedRun(name, found.title, run.path, settings=settings))
        for step, values in recorded(run.path / FILE):
            tracker.log(step, values)
        tracker.end("finished")
    return outbox


def _settings(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
