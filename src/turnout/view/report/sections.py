"""The sections of the page that are tables or charts over rounds; each is left out where there is no data for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from markupsafe import Markup

from turnout.machine.checksums import KEY
from turnout.round_log import RoundRecord
from turnout.running.charts.lines import spark
from turnout.running.charts.page import charts_section
from turnout.running.charts.svg import sample
from turnout.running.charts.units import title_of
from turnout.running.records.runs import RunRecords, Runs
from turnout.view.report import render
from turnout.view.report.lines import column_chart, metric_by_bytes, metric_charts
from turnout.view.report.marks import marks_said
from turnout.view.report.results import results, seeds_of

_ROUND_NAMES = frozenset(f.name for f in fields(RoundRecord))
_MOST_EVENTS = 200  # of one list

Event = tuple[int, str, str, str]  # round, client, kind, detail


@dataclass(frozen=True)
class ResultRow:
    """A variant in the table of results, with a piece of its line; `of` is its number, "" where there is only one."""

    variant: str
    cells: list[str]
    curve: Markup
    sample: Markup
    of: str
    leading: bool


@dataclass(frozen=True)
class EventList:
    """What happened to the members in the runs named by `of`; the first of `count` events are shown."""

    of: str
    count: int
    shown: Sequence[Event]


@dataclass(frozen=True)
class SettingsFile:
    """A file of the run folder: as rows where it is a table of values, else as it is."""

    name: str
    content: str
    rows: list[tuple[str, str]] | None


def results_section(runs: Runs) -> list[Markup]:
    """The results of each variant with its curve; one in bold only where all others are shown to be behind it."""
    found = results(runs)
    main = runs.metrics[0] if runs.metrics else None
    rows = []
    for i, (variant, cells) in enumerate(zip(runs.variants, found.rows, strict=True)):
        curve = Markup(spark(runs.curve(variant, main)[1], i)) if main else Markup()
        of = str(i) if len(found.rows) > 1 else ""
        rows.append(ResultRow(cells[0], cells[1:], curve, Markup(sample(i)), of, i == found.leading))
    note = f"Mean ± standard deviation over {seeds_of(runs)}, after the last round. " if _several(runs) else ""
    note += f"{found.said[:1].upper()}{found.said[1:]}. " if found.said else ""
    note += "Turnout is the share of the clients asked that answered"
    note += ", work the share of the asked work that was done." if "work" in found.header else "."
    return [render("results.html", title="Results", note=note, header=found.header, rows=rows)]


def curves_section(runs: Runs) -> list[Markup]:
    """Every evaluated metric and the training loss, over rounds."""
    note = "Lines are means over seeds, bands one standard deviation." if _several(runs) else ""
    return charts_section("Curves", metric_charts(runs), f"{note} {marks_said(runs)}".strip())


def _several(runs: Runs) -> bool:
    """Whether a variant has more than one seed."""
    return any(len(found) > 1 for found in runs.variants.values())


def bytes_section(runs: Runs) -> list[Markup]:
    """Bytes up and down, and the main metric against bytes spent."""
    shown = [
        column_chart(runs, "bytes_up", "Sent up by clients, in total", total=True, beside="bytes_down"),
        column_chart(runs, "bytes_down", "Sent down to clients, in total", total=True, beside="bytes_up"),
    ]
    if any(shown) and runs.metrics and len(runs.variants) > 1:
        shown.append(metric_by_bytes(runs, runs.metrics[0]))
    return charts_section("Bytes", shown)


def weights_section(runs: Runs) -> list[Markup]:
    """The sum and the largest of the weights: a sum far from 1 moves the model by more or less than a mean."""
    shown = [column_chart(runs, "weight_sum", "Sum of weights"), column_chart(runs, "weight_max", "Largest weight")]
    note = "A sum below 1 keeps a part of the old model; above 1 it overshoots the mean."
    return charts_section("Weights", shown, note)


def parts_section(runs: Runs) -> list[Markup]:
    """Numbers that the parts of the algorithm added, the learning rate and the members."""
    names = {n for run in runs.runs for n, c in run.rounds.items() if c.dtype != object} - _ROUND_NAMES
    changing = [n for n in ("lr", "members") if any(len(set(run.rounds[n].tolist())) > 1 for run in runs.runs)]
    shown = [column_chart(runs, n, title_of(n)) for n in [*changing, *runs.glossary.in_order(names)]]
    return charts_section("What the parts reported", shown)


def events_section(runs: Runs) -> list[Markup]:
    """Who joined and left, and what was decided; runs that agree are listed once."""
    found: dict[tuple[Event, ...], list[RunRecords]] = {}
    for run in runs.runs:
        if run.events:
            listed = tuple((t, run.client(client), kind, detail) for t, client, kind, detail in run.events)
            found.setdefault(listed, []).append(run)
    lists = [EventList(_names(users, runs), len(e), e[:_MOST_EVENTS]) for e, users in found.items()]
    return [render("events.html", title="Joined and left", note="", lists=lists)] if lists else []


def _names(found: list[RunRecords], runs: Runs) -> str:
    if len(found) == len(runs.runs):
        return ""
    names = [r.variant if r.seed is None else f"{r.variant}, seed {r.seed}" for r in found]
    return " in " + "; ".join(names[:6]) + (" and others" if len(names) > 6 else "")


def settings_section(runs: Runs) -> list[Markup]:
    """The experiment files and the environment, folded away; equal ones once."""
    files = []
    for name in ("experiment.toml", "environment.json"):
        contents: dict[str, list[str]] = {}
        for variant, found in runs.variants.items():
            if content := found[0].text(name):
                contents.setdefault(_shared(content), []).append(variant)
        for content, users in contents.items():
            of = "" if len(contents) == 1 else " of " + ", ".join(users)
            files.append(SettingsFile(name + of, content, _rows(content)))
    return [render("settings.html", title="Settings", note="", files=files)] if files else []


def _shared(content: str) -> str:
    """What runs can have in common: a JSON object without a run's own number and the file's checksum.

    >>> _shared('{"run": "a1", "device": "cpu"}'), _shared("rounds = 3")
    ('{"device": "cpu"}', 'rounds = 3')
    """
    rows = _object(content)
    return content if rows is None else json.dumps({k: v for k, v in rows.items() if k not in (KEY, "run")})


def _rows(content: str) -> list[tuple[str, str]] | None:
    """The values of a JSON object by name; None where it is something else."""
    rows = _object(content)
    if rows is None:
        return None
    return [(k, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in rows.items()]


def _object(content: str) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
