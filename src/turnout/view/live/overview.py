"""The first page: runs and their states, studies, races, and a form to start a run.

Races of `turnout advise` and results of `turnout study` are read from the files that these commands write.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from turnout.errors import UserError
from turnout.machine.checksums import table_of
from turnout.running.charts.lines import spark
from turnout.running.charts.units import show
from turnout.running.records.finding import runs_in
from turnout.running.records.glossary import Glossary
from turnout.running.records.records import Records
from turnout.running.records.runs import FoundRun
from turnout.running.state import RECORDS, ListedRun
from turnout.view.live.watched import ANSWER, TRIALS, WatchedFolder

WORST = ("running", "failed", "interrupted", "waiting", "finished")
CAN_RESUME = ("interrupted", "failed", "waiting")
RANKING = ["candidate", "score", "seeds", "difference", "state"]
ROW = ("case", "metric", "ours", "spread", "repeats", "published")


def overview(watched: WatchedFolder) -> dict[str, Any]:
    """Everything that the first page shows."""
    rows = [run_row(name, run, watched) for name, run in watched.runs().items()]
    studies = []
    for name, path in watched.studies().items():
        with suppress(UserError):
            found = read_study(path)
            outcomes = Counter(claim["outcome"] for claim in found["claims"])
            studies.append({"name": name, "study": found["study"], "scale": found["scale"], "outcomes": outcomes})
    return {
        "folder": str(watched.folder.absolute()),
        "running": [row for row in rows if row["running"]],
        "rows": rows,
        "studies": studies,
        "races": [read_race(name, folder) for name, folder in watched.races().items()],
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


@dataclass(frozen=True)
class RaceTable:
    """A race as a page shows it.

    name          of its folder
    sentence      how it stands
    header, rows  a table of the candidates
    """

    name: str
    sentence: str
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def read_study(path: Path) -> dict[str, Any]:
    """A study's file: `study`, `scale`, `claims`, `rows`."""
    try:
        found = table_of(path.read_bytes())
        claims = []
        for claim in found["claims"]:
            outcome = claim.get("outcome") or ("holds" if claim["holds"] else "undecided")  # older files lack it
            claims.append({"claim": claim["claim"], "outcome": outcome, "evidence": claim["evidence"]})
        rows = [{name: row.get(name) for name in ROW} for row in found["rows"]]
        return {"study": str(found["study"]), "scale": str(found["scale"]), "claims": claims, "rows": rows}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not what `turnout study run` writes ({error})") from error


def read_race(name: str, folder: Path) -> RaceTable:
    """A race from its folder: its answer, or the runs that have ended so far; an error is shown in its place."""
    try:
        if (folder / ANSWER).is_file():
            found = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
            rows = []
            for values in ([row.get(column) for column in RANKING] for row in found["ranking"]):
                empty = (v is None or (isinstance(v, float) and math.isnan(v)) for v in values)
                cells = zip(values, empty, strict=True)
                rows.append(["" if e else f"{v:.3g}" if isinstance(v, float) else str(v) for v, e in cells])
            return RaceTable(name, str(found["answer"]), RANKING, rows)
        return _standing(name, (folder / TRIALS).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return RaceTable(name, f"its files cannot be read ({type(error).__name__}: {error})")


def _standing(name: str, lines: str) -> RaceTable:
    """How many runs of each candidate have ended, and the mean of their last values."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines.splitlines():
        try:
            trial = json.loads(line)
        except ValueError:  # a line that is just being written
            continue
        found.setdefault(str(trial["trial"]["candidate"]), []).append(trial["outcome"])
    metrics = list(dict.fromkeys(m for outcomes in found.values() for o in outcomes for m in o.get("values", {})))[:3]
    rows = []
    for candidate, outcomes in found.items():
        shown = []
        for metric in metrics:
            last = [o["values"][metric][-1] for o in outcomes if o.get("values", {}).get(metric)]
            shown.append(show(math.fsum(last) / len(last) if last else math.nan, Glossary().unit(metric)))
        diverged = sum(bool(o.get("diverged")) for o in outcomes)
        rows.append([candidate, str(len(outcomes)), *shown, str(diverged) if diverged else ""])
    count = sum(map(len, found.values()))
    ended = "1 run has" if count == 1 else f"{count:,} runs have"
    return RaceTable(name, f"the race is running: {ended} ended", ["candidate", "runs", *metrics, "diverged"], rows)
