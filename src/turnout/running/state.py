"""How a run folder is doing: running, finished, interrupted or failed, from the folder alone.

A running process holds the folder's lock. When it ends in order it leaves `state.json`; a killed one leaves neither.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.machine.checksums import read_json, write_json
from turnout.machine.lock import is_locked
from turnout.running.config.run_file import new_settings
from turnout.running.folder import LOCK_FILE
from turnout.running.records.records import Records
from turnout.task import Unit

FILE = "state.json"
RECORDS = "records.sqlite"


@dataclass(frozen=True)
class RunState:
    """A run folder as a list shows it.

    state   "running", "finished", "interrupted", "failed", or "waiting" (it has not begun)
    why     the reason it failed, or ended before its last round
    when    seconds since the epoch: when it ended, or was last at work
    metric  the main metric's name; `value` is its last one
    """

    state: str
    done: int = 0
    rounds: int | None = None
    why: str | None = None
    when: float = 0.0
    metric: str | None = None
    value: float | None = None
    unit: Unit = "number"


def state_of(folder: Path) -> RunState:
    """How a run is doing."""
    settings, ended = _settings(folder), _ended(folder)
    rounds = settings.get("rounds")
    rounds = rounds if isinstance(rounds, int) else None
    running = is_held(folder)
    when = ended.get("at") or _at_work(folder, running)
    if not (folder / RECORDS).is_file():
        state = "running" if running else ended.get("state", "waiting")
        return RunState(state, 0, rounds, ended.get("why"), when)
    try:
        done, metric, value, unit = _measured(folder, settings)
    except UserError as mistake:  # a run that is just beginning has a file without tables
        why = None if running else str(mistake)
        return RunState("running" if running else "failed", 0, rounds, why, when)
    state = "running" if running else ended.get("state") or _guessed(done, rounds)
    why = ended.get("why") if state in ("failed", "finished") else None
    return RunState(state, done, rounds, why, when, metric, value, unit)


def is_complete(folder: Path, experiment: Experiment) -> bool:
    """Whether a run has ended in its folder with the rounds and stop rules asked for: there is nothing left to do."""
    settings = folder / "experiment.toml"
    if not settings.is_file() or not (folder / RECORDS).is_file() or new_settings(settings, experiment):
        return False
    found = state_of(folder)
    return found.state == "finished" and (found.why is not None or found.done == experiment.rounds)


def is_held(folder: Path) -> bool:
    """Whether a process works in a run folder."""
    return is_locked(folder / LOCK_FILE)


@contextmanager
def state_kept(folder: Path) -> Iterator[dict[str, str | None]]:
    """While a run goes on in its folder: how it ends is kept there. The reason can be put under "why"."""
    (folder / FILE).unlink(missing_ok=True)
    said: dict[str, str | None] = {"why": None}
    try:
        yield said
    except Exception as error:
        keep_state(folder, "failed", str(error) or type(error).__name__)
        raise
    keep_state(folder, "finished", said["why"])


@contextmanager
def failed_start_kept(folder: Path) -> Iterator[None]:
    """While a run is prepared: why one of several could not begin is kept in its folder. A run that has records is not
    touched, as what failed is not it but the attempt to go on with it."""
    try:
        yield
    except Exception as error:
        if (folder / "experiment.toml").is_file() and not (folder / RECORDS).is_file():
            keep_state(folder, "failed", str(error) or type(error).__name__)
        raise


def keep_state(folder: Path, state: str, why: str | None) -> None:
    write_json(folder / FILE, {"state": state, "why": why, "at": time.time()})


def _ended(folder: Path) -> dict[str, Any]:
    try:
        found = read_json(folder / FILE, "the folder still says how far it got")
        return found if isinstance(found.get("at"), float) and isinstance(found.get("state"), str) else {}
    except (OSError, UserError):
        return {}


def _guessed(done: int, rounds: int | None) -> str:
    """Of a folder that says nothing: a run that was killed, or one of an older version."""
    return "finished" if rounds is not None and done >= rounds else "interrupted"


def _settings(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def _measured(folder: Path, settings: dict[str, Any]) -> tuple[int, str | None, float | None, Unit]:
    with Records.read(folder / RECORDS) as records:
        last, names = records.last_round(), records.glossary().in_order(records.metrics())
        stop = settings.get("stop")
        wanted = stop.get("metric") if isinstance(stop, dict) else None
        metric = wanted if wanted in names else (names[0] if names else None)
        values = records.curve(metric)[1].tolist() if metric else [None]
        value = values[-1] if values else None
        unit: Unit = records.glossary().unit(metric) if metric else "number"
    return (0 if last is None else last + 1), metric, value, unit


def _at_work(folder: Path, running: bool) -> float:
    """When a run last wrote something. Who reads the records of a killed run touches them, so they say nothing."""
    names = ["checkpoint.safetensors", "environment.json", "experiment.toml", *([f"{RECORDS}-wal"] if running else [])]
    return max((path.stat().st_mtime for name in names if (path := folder / name).exists()), default=0.0)
