"""The pages of a run, or of runs made together: curves, who turns up, devices, clients, one client; several compared.

The devices of a deployment are in the table `devices` where its server keeps one; else they follow from the rounds:
when each last answered, which have left, which are asked now.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np
from markupsafe import Markup

from turnout.errors import UserError
from turnout.running.charts.heat import turnout_map
from turnout.running.charts.lines import Series, line_chart
from turnout.running.charts.page import render, trusted
from turnout.running.charts.units import duration, show
from turnout.running.records.finding import find_runs
from turnout.running.records.records import Records
from turnout.running.records.runs import Runs
from turnout.running.state import RECORDS
from turnout.view.live.overview import run_row
from turnout.view.live.watched import WatchedFolder
from turnout.view.report import sections
from turnout.view.report.clients import turnout_charts
from turnout.view.report.figure import together
from turnout.view.report.history import quantities_of, rows_of
from turnout.view.report.lines import merged
from turnout.view.report.page import head, variants_of

RECENT_ROWS = 100_000  # of the turnout map: rounds times clients asked
PAGE = 100  # clients in a list
MOST_DEVICES = 500
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
    runtimes = [run.settings().get("runtime") for run in runs.runs]
    is_deployed = [isinstance(runtime, dict) and runtime.get("kind") == "flower" for runtime in runtimes]
    deployed = [run.path for run, real in zip(runs.runs, is_deployed, strict=True) if real]
    top = head(runs)
    made = [
        *sections.results_section(runs),
        *sections.curves_section(runs),
        *_recent_turnout(runs),
        *sections.bytes_section(runs),
        *sections.weights_section(runs),
        *sections.parts_section(runs),
        *sections.events_section(runs),
    ]
    devices = devices_of(deployed[0], row["running"]) if deployed else []
    return top | {"row": row, "notes": [*top["notes"], *top["warnings"]], "devices": devices, "sections": made}


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


def compare_page(watched: WatchedFolder, names: Sequence[str]) -> dict[str, Any]:
    """Several runs, or folders of runs, as one comparison."""
    if not names:
        raise UserError("tick the runs to compare on the first page")
    runs = together([watched.path(name) for name in dict.fromkeys(names)])
    made = [
        *sections.results_section(runs),
        *sections.curves_section(runs),
        *sections.bytes_section(runs),
        *sections.weights_section(runs),
    ]
    return {"title": runs.title, "variants": variants_of(runs), "sections": made}


def clients_page(watched: WatchedFolder, name: str, page: int, order: str, number: int = 0) -> dict[str, Any]:
    """The clients of a run, a hundred at a time: how often each was asked and answered, its work, its last metric.

    number  which of several runs that were made together
    """
    runs = find_runs(watched.path(name))
    number = min(number, len(runs.runs) - 1)
    run = runs.runs[number]
    main = next(iter(runs.glossary.in_order(run.client_values)), None)
    with Records.read(run.path / RECORDS) as records:
        found = list(records.rows(_CLIENTS))
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
    rows = [rows_of(run, np.array([client]), runs.client_metrics) for run in chosen]
    charts, variants = [], list(runs.variants)
    for quantity, q in quantities_of(runs).items():
        series = []
        for run, found in zip(chosen, rows, strict=True):
            t, _, values = found[quantity]
            if np.isfinite(values).any():
                colour = variants.index(run.variant)
                series.append(Series(run.variant, t.astype(np.float64), values, colour, joined=q.is_joined))
        whole = [Series("", np.zeros(2), np.array([0.0, 1.0]))] if q.unit == "percent" else []
        charts.append(line_chart(merged(series), q.heading, unit=q.unit, beside=whole))
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


class WatchedDevice(NamedTuple):
    """A device in the list.

    client  its number
    name    of its client
    state   "working", "present", "absent", "left"
    seen    when it last answered, in words
    """

    client: int
    name: str
    state: str
    seen: str


def devices_of(folder: Path, running: bool) -> list[WatchedDevice]:
    """The devices of a deployment, those at work first."""
    found: dict[int, WatchedDevice] = {}
    with Records.read(folder / RECORDS) as records:
        if list(records.rows("SELECT 1 FROM sqlite_master WHERE name = 'devices'")):
            for client, name, state, seen in records.rows("SELECT client, name, state, seen FROM devices"):
                ago = "never" if seen is None else f"{duration(max(0.0, time.time() - seen))} ago"
                found[client] = WatchedDevice(client, name or f"client {client}", state, ago)
        else:  # by the rounds that each was seen in
            last, events = records.last_round(), records.events()
            left = {client for _, client, kind, _ in events if kind in ("leave", "drop")}
            left -= {client for t, client, kind, _ in events if kind == "join" and t == last}
            query = "SELECT client, max(CASE WHEN work > 0 THEN round END) FROM clients GROUP BY client"
            for client, seen in records.rows(query):
                state = "left" if client in left else "present" if seen == last else "absent"
                when = "never" if seen is None else f"round {seen}"
                found[client] = WatchedDevice(client, f"client {client}", state, when)
    order = {"working": 0, "present": 1, "absent": 2, "left": 3}
    return sorted(found.values(), key=lambda device: (order.get(device.state, 4), device.client))[:MOST_DEVICES]
