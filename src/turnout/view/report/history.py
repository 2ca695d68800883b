"""A client's own part of the page: its metrics, work, weight, bytes and friends over the rounds; one can be chosen.

All clients are drawn on the same axes, so that they can be compared. The frames are drawn here once; the line of the
chosen client is drawn by the script (history.js) from a table of 16-bit levels.

Shape letters: C clients, K columns (a round, or several where there are many).
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
from turnout.running.records.runs import RunRecords, Runs
from turnout.view.report import render
from turnout.view.report.client_rows import rows_of, worth_of

MOST_VALUES = 1_000_000  # of all runs together, two bytes each before they are compressed
MOST_COLUMNS = 250
MOST_VARIANTS = 12
FEW_CLIENTS = 20  # of a run: seeds are left out before fewer than these are shown
LEVELS = 65534  # level 0 is "nothing"
RECORDED = {"work": "Work done", "weight": "Weight of its update", "bytes": "Bytes, both ways", "loss": "Training loss",
            "friend": "Friend that stood in for it"}  # fmt: skip
UNITS: dict[str, Unit] = {"work": "percent", "bytes": "bytes", "friend": "count"}


@dataclass(frozen=True)
class History:
    """What was recorded of some clients of a run: a value per client and column, NaN where there is none."""

    run: RunRecords
    everyone: int  # clients that the run has
    client_C: NDArray[np.int64]
    round_K: Floats  # the middle of each column
    values: dict[str, Floats]  # [C, K]


def history_section(runs: Runs) -> list[Markup]:
    """The part for one client; nothing where no client was recorded."""
    metrics = runs.glossary.in_order({name for run in runs.runs for name in run.client_values})
    names = [*metrics, *RECORDED]
    shown, room = _that_fit(runs, len(names))
    histories = [history for run in shown if len((history := read_history(run, metrics, room)).client_C)]
    names = [name for name in names if any(np.isfinite(h.values[name]).any() for h in histories)]
    if not histories or not names:
        return []
    axes = {name: _axis(runs, name, [h.values[name] for h in histories]) for name in names}
    x = make_axis(min(h.round_K[0] for h in histories), max(h.round_K[-1] for h in histories), LEFT, WIDTH - RIGHT,
                  "count", about=6)  # fmt: skip
    charts = [frame(heading(name), grid(x, axes[name], "round") + '<g class="own"></g><g class="cursor"></g>', "{}")
              for name in names]  # fmt: skip
    about = {
        "quantities": [_about(runs, name, axes[name]) for name in names],
        "runs": [_packed(history, names, axes, x, runs) for history in histories],
    }
    data = json.dumps(about, separators=(",", ":"))
    return [render("history.html", title="One client", note=_note(histories, runs), charts=trusted(charts), data=data)]


def _that_fit(runs: Runs, quantities: int) -> tuple[list[RunRecords], int]:
    """The runs that are shown, and how many clients of each: all seeds, or the first of each variant that fit."""
    variants = list(runs.variants.values())[:MOST_VARIANTS]
    rounds = max(len(run.rounds["round"]) for run in runs.runs)
    clients = max((int(run.rounds["members"].max()) for run in runs.runs if len(run.rounds["members"])), default=0)
    fitting = MOST_VALUES // (max(min(rounds, MOST_COLUMNS), 1) * quantities)  # clients of all runs together
    for seeds in range(max(map(len, variants)), 0, -1):
        shown = [run for found in variants for run in found[:seeds]]
        if fitting // len(shown) >= min(clients, FEW_CLIENTS):
            break
    return shown, fitting // len(shown)


def read_history(run: RunRecords, metrics: Sequence[str], room: int) -> History:
    """The rows of at most `room` clients of a run: all, or some from the worst to the best."""
    everyone, worth_C = worth_of(run)
    client_C = _chosen(everyone, worth_C, max(room, 1))
    rounds = run.rounds["round"].astype(np.int64)
    first, count = (int(rounds[0]), int(rounds[-1] - rounds[0]) + 1) if len(rounds) else (0, 1)
    K = min(count, MOST_COLUMNS)
    round_K = first + (np.arange(K) + 0.5) * count / K - 0.5
    values = {name: np.full((len(client_C), K), np.nan) for name in [*metrics, *RECORDED]}
    for name, (t_N, client_N, value_N) in rows_of(run, client_C, metrics).items():
        place_N = np.searchsorted(client_C, client_N) * K + (t_N - first) * K // count
        inside = (t_N >= first) & (t_N < first + count) & np.isfinite(value_N)  # a run may go on meanwhile
        values[name] = _gathered(place_N[inside], value_N[inside], len(client_C) * K, name == "friend").reshape(-1, K)
    return History(run, len(everyone), client_C, round_K, values)


def _gathered(place_N: NDArray[np.int64], value_N: Floats, cells: int, last: bool) -> Floats:
    """The mean of what falls in each cell, or the last of it."""
    if last:
        found = np.full(cells, np.nan)
        found[place_N] = value_N
        return found
    count = np.bincount(place_N, minlength=cells)
    return np.divide(np.bincount(place_N, value_N, cells), count, out=np.full(cells, np.nan), where=count > 0)


def _chosen(client_C: NDArray[np.int64], worth_C: Floats, room: int) -> NDArray[np.int64]:
    """Clients by number: all, or as many as fit, spread evenly from the worst to the best."""
    if len(client_C) > room:
        order = np.argsort(worth_C, kind="stable")
        client_C = client_C[order[np.linspace(0, len(order) - 1, room).round().astype(int)]]
    return np.unique(client_C)


def _axis(runs: Runs, name: str, values: Sequence[Floats]) -> Axis:
    known = np.concatenate([v[np.isfinite(v)] for v in values])
    low, high = float(known.min()), float(known.max())
    unit = unit_of(runs, name)
    low, high = (min(low, 0.0), max(high, 1.0)) if unit == "percent" else (low, high)
    return value_axis(low, high, HEIGHT - BOTTOM, 40, unit)


def unit_of(runs: Runs, name: str) -> Unit:
    """The unit of a metric, or of what is recorded of a client."""
    return UNITS.get(name, "number") if name in RECORDED else runs.glossary.unit(name)


def heading(name: str) -> str:
    """What stands above the chart of a quantity."""
    return RECORDED.get(name) or title_of(name)


def is_joined(name: str) -> bool:
    """Whether its points are joined: work, bytes and friends are of one round, and say nothing of those between."""
    return name == "loss" or name not in RECORDED


def _about(runs: Runs, name: str, axis: Axis) -> dict[str, object]:
    """What the script must know of a quantity: its range in values and in pixels, and whether points are joined."""
    places = [round(float(axis.place(v)), 2) for v in (axis.low, axis.high)]
    return {"unit": unit_of(runs, name), "low": axis.low, "high": axis.high, "from": places[0], "to": places[1],
            "joined": is_joined(name), "client": name == "friend"}  # fmt: skip


def _packed(history: History, names: Sequence[str], axes: dict[str, Axis], x: Axis, runs: Runs) -> dict[str, object]:
    """A run's clients as the script reads them: levels of 16 bits, the high bytes first, compressed."""
    levels = np.stack([_levels(history.values[name], axes[name]) for name in names])
    split = np.stack([levels >> 8, levels & 255]).astype(np.uint8)
    run = history.run
    return {
        "variant": run.variant,
        "seed": "" if run.seed is None else str(run.seed),
        "style": style(list(runs.variants).index(run.variant)),
        "clients": history.client_C.tolist(),
        "names": _names(history),
        "said": _said(run, history.client_C, runs),
        "x": [round(float(v), 1) for v in x.place(history.round_K)],
        "rounds": [f"{v:.0f}" for v in history.round_K],
        "data": base64.b64encode(zlib.compress(split.tobytes(), 9)).decode(),
    }


def _names(history: History) -> dict[str, str]:
    """The names of the clients that are shown, and of their friends, by number; none where the data has none."""
    friend_CK = history.values["friend"]
    known = np.union1d(history.client_C, friend_CK[np.isfinite(friend_CK)]).astype(np.int64).tolist()
    return {str(c): history.run.client(c) for c in known} if history.run.names else {}


def _levels(values: Floats, axis: Axis) -> NDArray[np.int64]:
    share = np.clip((np.nan_to_num(values) - axis.low) / (axis.high - axis.low), 0, 1)
    return np.where(np.isfinite(values), 1 + (share * (LEVELS - 1)).round(), 0).astype(np.int64)


def _said(run: RunRecords, client_C: NDArray[np.int64], runs: Runs) -> list[str]:
    """What stands behind each client's number in the list: its last main metric."""
    main = next(iter(runs.glossary.in_order(run.client_values)), None)
    if main is None:
        return []
    known = dict(zip(*(v.tolist() for v in run.client_values[main]), strict=True))
    return [show(float(known[c]), runs.glossary.unit(main)) if c in known else "" for c in client_C.tolist()]


def _note(histories: Sequence[History], runs: Runs) -> str:
    said = "All clients have the same scales."
    if any(len(h.client_C) < h.everyone for h in histories):
        most = max(len(h.client_C) for h in histories)
        said += f" {most:,} clients are here, spread from the worst to the best; turnout watch shows any of them."
    if len(runs.runs) > len(histories):
        said += f" {len(histories)} of {len(runs.runs)} runs are here, the first seeds of each variant."
    return said
