"""The first page: what runs, what has run, what studies found, how a race stands, and a form to start a run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from turnout.errors import UserError
from turnout.machine.checksums import table_of
from turnout.running.listing import ListedRun
from turnout.running.records.now import read_now
from turnout.running.records.records import Records
from turnout.running.state import RECORDS
from turnout.view.live.races import Race, read_race
from turnout.view.live.watched import Watched
from turnout.view.report.charts import spark
from turnout.view.report.finding import client_names, runs_in
from turnout.view.report.units import show

NAMED = 24  # clients at work that the first page names
WORST = ("running", "failed", "interrupted", "waiting", "finished")
CAN_RESUME = ("interrupted", "failed", "waiting")


@dataclass(frozen=True)
class RunRow:
    """A run in the list."""

    name: str
    shown: str
    state: str
    worst: str  # of the states of several runs, the one to look at
    why: str
    done: int
    rounds: int  # 0 while the run is prepared
    result: str
    when: str
    curve: Markup
    activity: str
    running: bool
    can_resume: bool


@dataclass(frozen=True)
class StudyRow:
    """A study in the list: how many of its claims came out how."""

    name: str
    study: str
    scale: str
    outcomes: dict[str, int]


def overview(watched: Watched) -> dict[str, Any]:
    """Everything that the first page shows."""
    rows = [run_row(name, run, watched) for name, run in watched.runs().items()]
    return {
        "folder": str(watched.folder.absolute()),
        "running": [row for row in rows if row.running],
        "rows": rows,
        "studies": [row for name, path in watched.studies().items() if (row := _study_row(name, path))],
        "races": races(watched),
    }


def run_row(name: str, run: ListedRun, watched: Watched) -> RunRow:
    state = run.state
    running = "running" in state.state
    result = ""
    if state.metric is not None and state.value is not None:
        result = f"{state.metric} {show(state.value, state.unit)}"
    return RunRow(
        name=name,
        shown=watched.folder.absolute().name if name == "." else name,
        state=state.state,
        worst=next((word for word in WORST if word in state.state), state.state),
        why=state.why or "",
        done=state.done,
        rounds=state.rounds or state.done,
        result=result,
        when=time.strftime("%Y-%m-%d %H:%M", time.localtime(run.when)) if run.when else "",
        curve=_curve(run),
        activity=activity(run.path) if running else "",
        running=running,
        can_resume=not running and any(word in state.state for word in CAN_RESUME),
    )


def _curve(run: ListedRun) -> Markup:
    """The main metric of a run, or of the first of several."""
    metric = run.state.metric.rpartition(": ")[2] if run.state.metric else None
    folder = next((found.path for found in _inside(run.path)), None)
    if metric is None or folder is None:
        return Markup()
    with Records.read(folder / RECORDS) as records:
        return Markup(spark(records.curve(metric)[1])) if metric in records.metrics() else Markup()


def _inside(path: Path) -> list[Any]:
    try:
        return list(runs_in(path).runs)
    except UserError:
        return []


def activity(path: Path) -> str:
    """Who is training now, in words; nothing where no round says so."""
    now = None
    for found in _inside(path):
        with suppress(UserError), Records.read(found.path / RECORDS) as records:  # one may be just beginning
            now = read_now(records)
        if now is not None:
            called = dict(enumerate(client_names(found.path)))
            listed = ", ".join(called.get(client, str(client)) for client in now.clients[:NAMED])
            more = f" and {now.asked - NAMED:,} more" if now.asked > NAMED else ""
            which = "" if found.seed is None else f"{found.variant} seed {found.seed}, "
            return f"{which}round {now.round}: {now.asked:,} asked: {listed}{more}"
    return ""


def _study_row(name: str, path: Path) -> StudyRow | None:
    try:
        found = read_findings(path)
    except UserError:
        return None
    outcomes = Counter(claim["outcome"] for claim in found.claims)
    return StudyRow(name, found.study, found.scale, dict(outcomes))


@dataclass(frozen=True)
class StudyResult:
    """The rows and claims of a study, as its study.json has them.

    study   its name
    scale   smoke, small or paper
    rows    numbers beside published ones: case, metric, ours, spread, repeats, published
    claims  claim, outcome, evidence
    """

    study: str
    scale: str
    rows: Sequence[Mapping[str, Any]]
    claims: Sequence[Mapping[str, Any]]


def read_findings(path: Path) -> StudyResult:
    """Read what `turnout study run` wrote; files of earlier versions have no `outcome`."""
    try:
        found = table_of(path.read_bytes())
        claims = [{"outcome": "holds" if claim["holds"] else "undecided"} | claim for claim in found["claims"]]
        return StudyResult(found["study"], found["scale"], found["rows"], claims)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not what `turnout study run --json` writes ({error})") from error


def races(watched: Watched) -> list[Race]:
    return [read_race(name, folder) for name, folder in watched.races().items()]
