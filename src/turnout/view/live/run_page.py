"""The pages of a run, or of runs made together: curves, who turns up, its clients, one client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import numpy as np
from markupsafe import Markup

from turnout.errors import UserError
from turnout.running.charts.axes import Floats
from turnout.running.charts.heat import turnout_map
from turnout.running.charts.lines import Series, line_chart
from turnout.running.charts.page import render, trusted
from turnout.running.charts.units import Unit, show, title_of
from turnout.running.records.finding import find_runs
from turnout.running.records.records import Records
from turnout.running.records.runs import RunRecords, Runs
from turnout.running.state import RECORDS
from turnout.view.live.overview import run_row
from turnout.view.live.watched import WatchedFolder
from turnout.view.report import sections
from turnout.view.report.clients import turnout_charts
from turnout.view.report.lines import merged
from turnout.view.report.page import head

RECENT_ROWS = 100_000  # of the turnout map: rounds times clients asked
PAGE = 100  # clients in a list
# What is recorded of a client in a round: heading, unit and SQL.
RECORDED: dict[str, tuple[str, Unit, str]] = {
    "work": ("Work done", "percent", "k.work"),
    "weight": ("Weight of its update", "number", "k.weight"),
    "bytes": ("Bytes, both ways", "bytes", "coalesce(k.bytes_up, 0) + coalesce(k.bytes_down, 0)"),
    "loss": ("Training loss", "number", "k.loss"),
    "friend": (
        "Friend that stood in for it", "count",
        "CASE WHEN k.friend BETWEEN 0 AND 1e15 AND k.friend != k.client THEN k.friend END",
    ),
}  # fmt: skip
# A client's rows are found one by one in each round: CROSS JOIN keeps SQLite from scanning all rows instead.
_ROWS = """
SELECT k.round, {} FROM rounds r CROSS JOIN clients k ON k.round = r.round AND k.client = ? ORDER BY k.round
"""
_MEASURED = """
SELECT v.round, v.value FROM (SELECT DISTINCT round FROM evaluations) r
CROSS JOIN client_evaluations v ON v.round = r.round AND v.name = ? AND v.client = ? ORDER BY v.round
"""
_CLIENTS = """
SELECT client, count(*), coalesce(sum(work > 0), 0), avg(work), max(CASE WHEN work > 0 THEN round END)
FROM clients GROUP BY client ORDER BY client
"""


def run_page(watched: WatchedFolder, name: str) -> dict[str, Any]:
    """The page of a run: the parts of the report that are worth looking at while it runs."""
    path = watched.path(name)
    row = run_row(name, watched.runs()[name], watched)
    try:
        runs = find_runs(path)
    except UserError as error:
        return {"row": row, "title": row["shown"], "facts": [], "notes": [str(error)], "kinds": [], "sections": []}
    top = head(runs)
    made = [
        *sections.results_section(runs),
        *sections.curves_section(runs),
        *_recent_turnout(runs),
        *sections.bytes_section(runs),
        *sections.weights_section(runs),
        *sections.privacy_section(runs),
        *sections.parts_section(runs),
        *sections.events_section(runs),
    ]
    return top | {"row": row, "notes": [*top["notes"], *top["warnings"]], "sections": made}


def _recent_turnout(runs: Runs) -> list[Markup]:
    """Who turned up in the last rounds of the first run."""
    run = runs.runs[0]
    asked = run.rounds["asked"].astype(np.float64)
    if not len(asked) or not np.nansum(asked):
        return []
    last, each = int(run.rounds["round"][-1]), max(float(np.nanmean(asked)), 1.0)
    since = last - max(20, int(RECENT_ROWS / each))
    turnout = run.turnout(since)
    if not len(turnout[0]):
        return []
    title = "Work done" if len(runs.runs) == 1 else f"{run.variant}, seed {run.seed}"
    maps, charts = [turnout_map(turnout, title, run.client)], trusted(turnout_charts(runs))
    note = f"From round {since + 1} on." if since >= 0 else ""
    return [render("wide_maps.html", title="Who turns up", note=note, maps=maps, charts=charts)]


def clients_page(watched: WatchedFolder, name: str, page: int, order: str, number: int = 0) -> dict[str, Any]:
    """The clients of a run, a hundred at a time: how often each was asked and answered, its work, its last metric.

    number  which of several runs that were made together
    """
    runs = find_runs(watched.path(name))
    number = min(number, len(runs.runs) - 1)
    run = runs.runs[number]
    main = next(iter(runs.glossary.in_order(run.client_values)), None)
    with Records.read(run.path / RECORDS) as records:
        found = [(int(c), *more, None if t is None else int(t)) for c, *more, t in records.rows(_CLIENTS)]
    ids, values = run.client_values[main] if main else (np.array([]), np.array([]))
    measured = dict(zip(ids.tolist(), values.tolist(), strict=True))
    rows = [(*row, measured.pop(row[0], None)) for row in found]  # (client, asked, answered, work, last, value)
    rows += [(int(client), 0, 0, None, None, value) for client, value in measured.items()]
    if order in ("work", "last", "value"):
        by = ("work", "last", "value").index(order) + 3
        rows.sort(key=lambda row: -math.inf if row[by] is None else row[by])
    pages = max(1, -(-len(rows) // PAGE))
    page = min(max(page, 1), pages)
    shown = []
    for client, asked, answered, work, last, value in rows[(page - 1) * PAGE : page * PAGE]:
        cells = [f"{asked:,}", f"{answered:,}", show(math.nan if work is None else work, "percent")]
        cells.append("never" if last is None else f"round {last}")
        cells += [show(math.nan if value is None else value, runs.glossary.unit(main))] if main else []
        shown.append((client, run.client(client), cells))
    where = [f"/clients?{urlencode({'name': name, 'run': i})}" for i in range(len(runs.runs))]
    names = [other.variant if other.seed is None else f"{other.variant}, seed {other.seed}" for other in runs.runs]
    return {
        "name": name,
        "title": f"Clients of {runs.title}",
        "count": len(rows),
        "header": ["asked", "answered", "mean work", "last there", *([main] if main else [])],
        "rows": shown,
        "page": page,
        "pages": pages,
        "order": order,
        "has_metric": main is not None,
        "address": where[number],
        "seed": "" if run.seed is None else run.seed,
        "choices": _choices(names, where, number),
    }


def _choices(words: Sequence[str], where: Sequence[str], chosen: int) -> list[dict[str, Any]]:
    """The pages that a list leads to."""
    pairs = enumerate(zip(words, where, strict=True))
    return [{"words": word, "where": to, "here": i == chosen} for i, (word, to) in pairs]


def client_page(watched: WatchedFolder, name: str, client: int, seed: int | None = None) -> dict[str, Any]:
    """One client over the rounds, in one seed of each variant: a chart of every quantity, with a line for each run."""
    runs = find_runs(watched.path(name))
    seeds = list(dict.fromkeys(run.seed for run in runs.runs))
    seed = seed if seed in seeds else seeds[0]
    chosen = [run for run in runs.runs if run.seed == seed]
    rows = [_rows_of(run, client, runs.client_metrics) for run in chosen]
    charts, variants = [], list(runs.variants)
    measured = {name: (title_of(name), runs.glossary.unit(name)) for name in runs.client_metrics}
    for quantity, (heading, unit) in (measured | {name: found[:2] for name, found in RECORDED.items()}).items():
        series = []
        for run, found in zip(chosen, rows, strict=True):
            t, values = found[quantity].T
            if np.isfinite(values).any():
                # work, bytes and friends are of one round, and say nothing of those between
                joined, colour = quantity in measured or quantity == "loss", variants.index(run.variant)
                series.append(Series(run.variant, t, values, colour, joined=joined))
        whole = [Series("", np.zeros(2), np.array([0.0, 1.0]))] if unit == "percent" else []
        charts.append(line_chart(merged(series), heading, unit=unit, beside=whole))
    if not any(charts):
        raise UserError(f"client {client} was never asked or measured in {name}")
    where = [f"/client?{urlencode({'name': name, 'client': client, 'seed': s})}" for s in seeds]
    events = dict.fromkeys((t, kind, detail) for run in chosen for t, who, kind, detail in run.events if who == client)
    return {
        "name": name,
        "client": client,
        "title": f"Client {chosen[0].client(client)} of {runs.title}",
        "charts": trusted(charts),
        "events": sorted(events),
        "choices": _choices([str(s) for s in seeds], where, seeds.index(seed)),
    }


def _rows_of(run: RunRecords, client: int, metrics: Sequence[str]) -> dict[str, Floats]:
    """What was recorded of a client, by quantity: rows of (round, value)."""
    with Records.read(run.path / RECORDS) as records:
        query = _ROWS.format(", ".join(sql for _, _, sql in RECORDED.values()))
        recorded = records.db.execute(query, (client,)).fetchall()
        table = np.array(recorded, np.float64).reshape(-1, 1 + len(RECORDED))
        found = {name: table[:, [0, 1 + i]] for i, name in enumerate(RECORDED)}
        for name in metrics:
            measured = records.db.execute(_MEASURED, (name, client)).fetchall()
            found[name] = np.array(measured, np.float64).reshape(-1, 2)
    return found
