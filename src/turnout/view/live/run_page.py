"""The pages of a run, or of runs made together: curves, who turns up, its clients, one client; and several compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np
from markupsafe import Markup

from turnout.errors import UserError
from turnout.running.charts.heat import turnout_map
from turnout.running.charts.lines import Series, line_chart
from turnout.running.charts.page import trusted
from turnout.running.charts.units import Unit, show
from turnout.running.records.finding import find_runs
from turnout.running.records.records import Records
from turnout.running.records.runs import RunRecords, Runs
from turnout.running.records.warnings import warnings_in
from turnout.running.state import RECORDS
from turnout.view.live.devices import devices_of, is_deployment
from turnout.view.live.overview import run_row
from turnout.view.live.watched import Watched
from turnout.view.report import render, sections
from turnout.view.report.client_rows import rows_of
from turnout.view.report.figure import together
from turnout.view.report.history import RECORDED, heading, is_joined, unit_of
from turnout.view.report.lines import merged
from turnout.view.report.maps import turnout_charts
from turnout.view.report.page import common_kinds, facts, notes, variants_of

RECENT_ROWS = 100_000  # of the turnout map: rounds times clients asked
PAGE = 100  # clients in a list


def run_page(watched: Watched, name: str) -> dict[str, Any]:
    """What the page of a run shows."""
    path = watched.path(name)
    row = run_row(name, watched.runs()[name], watched)
    try:
        runs = find_runs(path)
    except UserError as mistake:
        return {"row": row, "title": row.shown, "facts": [], "notes": [str(mistake)], "kinds": [], "sections": []}
    deployed = [run for run in runs.runs if is_deployment(run.settings())]
    return {
        "row": row,
        "title": runs.title,
        "facts": facts(runs),
        "kinds": common_kinds(runs),
        "notes": [*notes(runs), *(f"{who}: {words}" if who else words for who, words in warnings_in(runs))],
        "variants": variants_of(runs),
        "devices": devices_of(deployed[0].path, row.running) if deployed else [],
        "sections": _sections(runs),
    }


def _sections(runs: Runs) -> list[Markup]:
    """The parts of the report that are worth looking at while a run goes on."""
    return [
        *sections.results_section(runs),
        *sections.curves_section(runs),
        *_recent_turnout(runs),
        *sections.bytes_section(runs),
        *sections.weights_section(runs),
        *sections.parts_section(runs),
        *sections.events_section(runs),
    ]


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
    maps = [turnout_map(turnout, title, run.client)]
    charts = trusted(turnout_charts(runs))
    note = f"From round {since + 1} on." if since >= 0 else ""
    return [render("wide_maps.html", title="Who turns up", note=note, maps=maps, charts=charts)]


def compare_page(watched: Watched, names: Sequence[str]) -> dict[str, Any]:
    """Several runs, or folders of runs, as one comparison."""
    if not names:
        raise UserError("tick the runs to compare on the first page")
    paths = [watched.path(name) for name in dict.fromkeys(names)]
    runs = together([find_runs(path) for path in paths], paths)
    return {
        "title": runs.title,
        "variants": variants_of(runs),
        "sections": [
            *sections.results_section(runs),
            *sections.curves_section(runs),
            *sections.bytes_section(runs),
            *sections.weights_section(runs),
        ],
    }


class ClientRow(NamedTuple):
    """A client in the list; `work`, `last` and `value` are None where it never was there, or was not measured."""

    client: int
    asked: int
    answered: int
    work: float | None
    last: int | None
    value: float | None

    def cells(self, unit: Unit | None) -> list[str]:
        """In words; `unit` is that of the metric, None where there is none."""
        last = "never" if self.last is None else f"round {self.last}"
        value = [] if unit is None else [show(math.nan if self.value is None else self.value, unit)]
        work = show(math.nan if self.work is None else self.work, "percent")
        return [f"{self.asked:,}", f"{self.answered:,}", work, last, *value]


class Choice(NamedTuple):
    """One of several pages that a list leads to."""

    words: str
    where: str
    here: bool


def clients_page(watched: Watched, name: str, page: int, order: str, number: int = 0) -> dict[str, Any]:
    """The clients of a run, a hundred at a time: how often each was asked and answered, its work, its last metric.

    Of runs that were made together, `number` is the one whose clients are shown.
    """
    runs = find_runs(watched.path(name))
    number = min(number, len(runs.runs) - 1)
    run = runs.runs[number]
    main = next(iter(runs.glossary.in_order(run.client_values)), None)
    rows = _client_rows(run, main)
    if order in ("work", "last", "value"):
        rows.sort(key=lambda row: -math.inf if getattr(row, order) is None else getattr(row, order))
    pages = max(1, -(-len(rows) // PAGE))
    page = min(max(page, 1), pages)
    unit = runs.glossary.unit(main) if main else None
    shown = [(row.client, run.client(row.client), row.cells(unit)) for row in rows[(page - 1) * PAGE : page * PAGE]]
    header = ["asked", "answered", "mean work", "last there", *([main] if main else [])]
    where = [f"/clients?{urlencode({'name': name, 'run': i})}" for i in range(len(runs.runs))]
    choices = [Choice(_named(other), where[i], i == number) for i, other in enumerate(runs.runs)]
    return {
        "name": name,
        "title": f"Clients of {runs.title}",
        "count": len(rows),
        "header": header,
        "rows": shown,
        "page": page,
        "pages": pages,
        "order": order,
        "has_metric": main is not None,
        "address": where[number],
        "seed": "" if run.seed is None else run.seed,
        "choices": choices,
    }


def _named(run: RunRecords) -> str:
    return run.variant if run.seed is None else f"{run.variant}, seed {run.seed}"


def _client_rows(run: RunRecords, main: str | None) -> list[ClientRow]:
    query = """
    SELECT client, count(*), sum(work > 0), avg(work), max(CASE WHEN work > 0 THEN round END)
    FROM clients GROUP BY client ORDER BY client
    """
    with Records.read(run.path / RECORDS) as records:
        found = records.db.execute(query).fetchall()
    ids, values = run.client_values[main] if main else (np.array([]), np.array([]))
    measured = dict(zip(ids.tolist(), values.tolist(), strict=True))
    rows = [ClientRow(c, asked, there or 0, work, last, measured.pop(c, None)) for c, asked, there, work, last in found]
    return rows + [ClientRow(int(c), 0, 0, None, None, v) for c, v in measured.items()]


def client_page(watched: Watched, name: str, client: int, seed: int | None = None) -> dict[str, Any]:
    """One client over the rounds, in one seed of each variant."""
    runs = find_runs(watched.path(name))
    seeds = list(dict.fromkeys(run.seed for run in runs.runs))
    seed = seed if seed in seeds else seeds[0]
    chosen = [run for run in runs.runs if run.seed == seed]
    charts = _client_charts(runs, chosen, client)
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
        "choices": [Choice(str(s), to, s == seed) for s, to in zip(seeds, where, strict=True)],
    }


def _client_charts(runs: Runs, chosen: Sequence[RunRecords], client: int) -> list[str]:
    """A chart of everything that was measured or recorded of a client, with a line for each run."""
    metrics = runs.glossary.in_order({metric for run in chosen for metric in run.client_values})
    rows = [rows_of(run, np.array([client]), metrics) for run in chosen]
    charts, variants = [], list(runs.variants)
    for quantity in [*metrics, *RECORDED]:
        series = [
            Series(
                run.variant,
                found[quantity][0].astype(np.float64),
                found[quantity][2],
                variants.index(run.variant),
                joined=is_joined(quantity),
            )
            for run, found in zip(chosen, rows, strict=True)
            if np.isfinite(found[quantity][2]).any()
        ]
        unit = unit_of(runs, quantity)
        whole = [Series("", np.zeros(2), np.array([0.0, 1.0]))] if unit == "percent" else []
        charts.append(line_chart(merged(series), heading(quantity), unit=unit, beside=whole))
    return charts
