"""A client's own part of the page: its metrics, work, weight, bytes and friends over the rounds; one can be chosen.

All clients are drawn on the same axes, so that they can be compared. The frames are drawn here once; the page's script
(history.js) draws the line of the chosen client from a table of 16-bit levels.

Shape letters: C clients, K columns (a round, or several where there are many), N rows of the records.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from turnout.running.charts.axes import Axis, Floats, make_axis, value_axis
from turnout.running.charts.page import trusted
from turnout.running.charts.svg import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, frame, grid, style
from turnout.running.charts.units import Unit, show, title_of
from turnout.running.records.records import FILE, Records
from turnout.running.records.runs import RunRecords, Runs
from turnout.running.records.schema import Column
from turnout.view.report import render

MOST_VALUES = 1_000_000  # of all runs together, two bytes each before they are compressed
MOST_COLUMNS = 250
MOST_VARIANTS = 12
FEW_CLIENTS = 20  # of a run: seeds are left out before fewer than these are shown
MANY = 1_000_000  # rows of clients
LEVELS = 65534  # level 0 is "nothing"

ClientRows = tuple[Column, Column, Floats]  # rounds, clients, values


@dataclass(frozen=True)
class Quantity:
    """A quantity of single clients.

    heading    of its chart
    unit       of its values
    is_joined  whether points are joined: work, bytes and friends are of one round, and say nothing of those between
    sql        how it is read from the table of clients; empty for a metric
    """

    heading: str
    unit: Unit
    is_joined: bool = True
    sql: str = ""


RECORDED = {
    "work": Quantity("Work done", "percent", False, "k.work"),
    "weight": Quantity("Weight of its update", "number", False, "k.weight"),
    "bytes": Quantity(
        "Bytes, both ways", "bytes", False, "coalesce(k.bytes_up, 0) + coalesce(k.bytes_down, 0)"
    ),
    "loss": Quantity("Training loss", "number", True, "k.loss"),
    "friend": Quantity(
        "Friend that stood in for it", "count", False,
        "CASE WHEN k.friend >= 0 AND k.friend != k.client THEN k.friend END",
    ),
}  # fmt: skip
# A client's rows are found one by one in each round, which is fast where few of many clients are wanted: CROSS JOIN
# keeps SQLite from scanning all rows instead.
_ROWS = """
SELECT k.round, k.client, {} FROM rounds r CROSS JOIN json_each(?) c
CROSS JOIN clients k ON k.round = r.round AND k.client = c.value ORDER BY k.round
"""
_MEASURED = """
SELECT v.round, v.client, v.value FROM (SELECT DISTINCT round FROM evaluations) r CROSS JOIN json_each(?) c
CROSS JOIN client_evaluations v ON v.round = r.round AND v.name = ? AND v.client = c.value ORDER BY v.round
"""


@dataclass(frozen=True)
class History:
    """What was recorded of some clients of a run.

    run       the run
    everyone  how many clients it has
    client_C  those shown
    round_K   the middle of each column
    values    by quantity: [C, K], NaN where there is none
    """

    run: RunRecords
    everyone: int
    client_C: NDArray[np.int64]
    round_K: Floats
    values: dict[str, Floats]


def quantities_of(runs: Runs) -> dict[str, Quantity]:
    """Everything that is measured or recorded of single clients, by name."""
    return {name: Quantity(title_of(name), runs.glossary.unit(name)) for name in runs.client_metrics} | RECORDED


def rows_of(run: RunRecords, client_C: Column, metrics: Sequence[str]) -> dict[str, ClientRows]:
    """What was recorded of some clients, by metric and by column of their rows."""
    listed = json.dumps(client_C.tolist())
    with Records.read(run.path / FILE) as records:
        query = _ROWS.format(", ".join(quantity.sql for quantity in RECORDED.values()))
        table = _table(records, query, (listed,), 2 + len(RECORDED))
        found = {name: table[:, [0, 1, 2 + i]] for i, name in enumerate(RECORDED)}
        found |= {name: _table(records, _MEASURED, (listed, name), 3) for name in metrics}
    return {name: (t[:, 0].astype(np.int64), t[:, 1].astype(np.int64), t[:, 2]) for name, t in found.items()}


def _table(records: Records, query: str, values: tuple[str, ...], width: int) -> Floats:
    return np.array(list(records.rows(query, *values)), np.float64).reshape(-1, width)


def _worth_of(run: RunRecords) -> tuple[Column, Floats]:
    """(clients, a number that is higher for better ones): the last main metric, else how much work they did.

    All clients that were ever asked or measured; NaN for those not measured. Of runs with very many rows, where finding
    all clients that were asked takes long, only those measured.
    """
    main = next(iter(run.glossary.in_order(run.client_values)), None)
    if main is None or run.total("asked") <= MANY:
        with Records.read(run.path / FILE) as records:
            asked = _table(records, "SELECT client, avg(work) FROM clients GROUP BY client ORDER BY client", (), 2)
        client_C, work_C = asked[:, 0].astype(np.int64), asked[:, 1]
        if main is None:
            return client_C, work_C
    else:
        client_C = run.client_values[main][0]
    measured, values = run.client_values[main]
    everyone = np.union1d(client_C, measured).astype(np.int64)
    worth_C = np.full(len(everyone), np.nan)
    worth_C[np.searchsorted(everyone, measured)] = values if run.glossary.higher_is_better(main) else -values
    return everyone, worth_C


def read_history(run: RunRecords, metrics: Sequence[str], room: int) -> History:
    """The rows of at most `room` clients of a run: all, or some spread evenly from the worst to the best."""
    everyone, worth_C = _worth_of(run)
    client_C = everyone
    if len(everyone) > max(room, 1):
        order = np.argsort(worth_C, kind="stable")
        client_C = everyone[order[np.linspace(0, len(order) - 1, max(room, 1)).round().astype(int)]]
    client_C = np.unique(client_C)
    rounds = run.rounds["round"].astype(np.int64)
    first, count = (int(rounds[0]), int(rounds[-1] - rounds[0]) + 1) if len(rounds) else (0, 1)
    K = min(count, MOST_COLUMNS)
    round_K = first + (np.arange(K) + 0.5) * count / K - 0.5
    values = {}
    for name, (t_N, client_N, value_N) in rows_of(run, client_C, metrics).items():
        place_N = np.searchsorted(client_C, client_N) * K + (t_N - first) * K // count
        inside = (t_N >= first) & (t_N < first + count) & np.isfinite(value_N)  # a run may continue meanwhile
        place_N, value_N = place_N[inside], value_N[inside]
        cells = np.full(len(client_C) * K, np.nan)
        if name == "friend":  # the last of each cell; else the mean
            cells[place_N] = value_N
        else:
            n = np.bincount(place_N, minlength=len(cells))
            np.divide(np.bincount(place_N, value_N, len(cells)), n, out=cells, where=n > 0)
        values[name] = cells.reshape(-1, K)
    return History(run, len(everyone), client_C, round_K, values)


def history_section(runs: Runs) -> list[Markup]:
    """The part for one client; nothing where no client was recorded."""
    quantities = quantities_of(runs)
    variants = list(runs.variants.values())[:MOST_VARIANTS]
    rounds = max(len(run.rounds["round"]) for run in runs.runs)
    clients = max((int(run.rounds["members"].max()) for run in runs.runs if len(run.rounds["members"])), default=0)
    fitting = MOST_VALUES // (max(min(rounds, MOST_COLUMNS), 1) * len(quantities))  # clients of all runs together
    for seeds in range(max(map(len, variants)), 0, -1):  # all seeds, or the first of each variant that fit
        shown = [run for found in variants for run in found[:seeds]]
        room = fitting // len(shown)
        if room >= min(clients, FEW_CLIENTS):
            break
    histories = [history for run in shown if len((history := read_history(run, runs.client_metrics, room)).client_C)]
    names = [name for name in quantities if any(np.isfinite(h.values[name]).any() for h in histories)]
    if not histories or not names:
        return []
    axes = {}
    for name in names:
        known, unit = np.concatenate([h.values[name].ravel() for h in histories]), quantities[name].unit
        ends = [float(np.nanmin(known)), float(np.nanmax(known)), *([0.0, 1.0] if unit == "percent" else [])]
        axes[name] = value_axis(min(ends), max(ends), HEIGHT - BOTTOM, 40, unit)
    first, last = min(h.round_K[0] for h in histories), max(h.round_K[-1] for h in histories)
    x = make_axis(first, last, LEFT, WIDTH - RIGHT, "count", about=6)
    charts, about = [], []
    for name, y in axes.items():
        q = quantities[name]
        charts.append(frame(q.heading, grid(x, y, "round") + '<g class="own"></g><g class="cursor"></g>', "{}"))
        low, high = (round(float(y.place(v)), 2) for v in (y.low, y.high))
        about.append({"unit": q.unit, "low": y.low, "high": y.high, "from": low, "to": high,
                      "joined": q.is_joined, "client": name == "friend"})  # fmt: skip
    packed = [_packed(history, axes, x, runs) for history in histories]
    data = json.dumps({"quantities": about, "runs": packed}, separators=(",", ":"))
    note = "All clients have the same scales."
    if any(len(h.client_C) < h.everyone for h in histories):
        most = max(len(h.client_C) for h in histories)
        note += f" {most:,} clients are here, spread from the worst to the best; turnout watch shows any of them."
    if len(runs.runs) > len(histories):
        note += f" {len(histories)} of {len(runs.runs)} runs are here, the first seeds of each variant."
    return [render("history.html", title="One client", note=note, charts=trusted(charts), data=data)]


def _packed(history: History, axes: dict[str, Axis], x: Axis, runs: Runs) -> dict[str, object]:
    """A run's clients as the script reads them: levels of 16 bits, the high bytes first, compressed.

    `values` stand behind the clients' numbers in the list: the last main metric.
    """
    run, listed = history.run, history.client_C.tolist()
    levels = []
    for name, axis in axes.items():
        values = history.values[name]
        share = np.clip((np.nan_to_num(values) - axis.low) / (axis.high - axis.low), 0, 1)
        levels.append(np.where(np.isfinite(values), 1 + (share * (LEVELS - 1)).round(), 0).astype(np.int64))
    split = np.stack([np.stack(levels) >> 8, np.stack(levels) & 255]).astype(np.uint8)
    friend_CK = history.values["friend"]
    known = np.union1d(history.client_C, friend_CK[np.isfinite(friend_CK)]).astype(np.int64)
    main, last = next(iter(runs.glossary.in_order(run.client_values)), None), []
    if main is not None:
        value = dict(zip(*(v.tolist() for v in run.client_values[main]), strict=True))
        last = [show(float(value[c]), runs.glossary.unit(main)) if c in value else "" for c in listed]
    return {
        "variant": run.variant,
        "seed": "" if run.seed is None else str(run.seed),
        "style": style(list(runs.variants).index(run.variant)),
        "clients": listed,
        "names": {str(c): run.client(c) for c in known.tolist()} if run.names else {},
        "values": last,
        "x": [round(float(v), 1) for v in x.place(history.round_K)],
        "rounds": [f"{v:.0f}" for v in history.round_K],
        "data": base64.b64encode(zlib.compress(split.tobytes(), 9)).decode(),
    }
