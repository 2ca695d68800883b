"""The first page: runs and their states, and a form to start a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from markupsafe import Markup

from turnout.errors import UserError
from turnout.running.charts.lines import spark
from turnout.running.charts.units import show
from turnout.running.records.finding import runs_in
from turnout.running.records.records import Records
from turnout.running.records.runs import FoundRun
from turnout.running.state import RECORDS, ListedRun
from turnout.view.live.watched import WatchedFolder

WORST = ("running", "failed", "interrupted", "waiting", "finished")
CAN_RESUME = ("interrupted", "failed", "waiting")


def overview(watched: WatchedFolder) -> dict[str, Any]:
    """Everything that the first page shows."""
    rows = [run_row(name, run, watched) for name, run in watched.runs().items()]
    return {
        "folder": str(watched.folder.absolute()),
        "running": [row for row in rows if row["running"]],
        "rows": rows,
    }


def run_row(name: str, run: ListedRun, watched: WatchedFolder) -> dict[str, Any]:
    """A run in the list; `worst` is the state to look at of several runs, `rounds` is 0 while the run is prepared."""
    state = run.state
    running, metric, value = "running" in state.state, state.metric, state.value
    curve, found = Markup(), _inside(run.path) if metric is not None else []
    if metric is not None and found:  # of the first of several
        name_of_metric = metric.rpartition(": ")[2]
        with Records.read(found[0].path / RECORDS) as records:
            if name_of_metric in records.metrics():
                curve = Markup(spark(records.curve(name_of_metric)[1]))
    return {
        "name": name,
        "shown": watched.folder.absolute().name if name == "." else name,
        "state": state.state,
        "worst": next((word for word in WORST if word in state.state), state.state),
        "why": state.why or "",
        "done": state.done,
        "rounds": state.rounds or state.done,
        "result": "" if metric is None or value is None else f"{metric} {show(value, state.unit)}",
        "when": time.strftime("%Y-%m-%d %H:%M", time.localtime(run.when)) if run.when else "",
        "curve": curve,
        "running": running,
        "can_resume": not running and any(word in state.state for word in CAN_RESUME),
    }


def _inside(path: Path) -> list[FoundRun]:
    try:
        return runs_in(path).runs
    except UserError:
        return []
