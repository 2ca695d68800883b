"""Sections that are maps: who turned up when, and who stood in for whom.

Shape letters: N entries (one client asked in one round, or one loan of a share).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
from markupsafe import Markup

from turnout.records.schema import Column
from turnout.report.heat import MOST_ROWS, Cells, HeatMap, Words, gather, heat_map
from turnout.report.lines import column_chart
from turnout.report.runs import RunRecords, Runs
from turnout.report.templates import render, trusted

SHOWN = 3
Turnout = tuple[Column, Column, Column]  # rounds, clients, work of everyone asked
_TURNOUT = Words("round", "client", "not asked", "asked, absent", "a little work", "all of it")
_FRIENDS = Words("friend", "client", "never", "", "once", "most often")


def turnout_section(runs: Runs) -> list[Markup]:
    """Clients × rounds, coloured by work; variants that saw the same turnout share one map."""
    maps: dict[str, tuple[list[str], Turnout]] = {}
    for variant, found in runs.variants.items():
        turnout = found[0].turnout()
        key = hashlib.sha256(b"".join(column.tobytes() for column in turnout)).hexdigest()
        if len(turnout[0]) and (key in maps or len(maps) < SHOWN):
            maps.setdefault(key, ([], turnout))[0].append(variant)
    if not maps:
        return []
    pictures = [turnout_map(turnout, _title(names, runs)) for names, turnout in maps.values()]
    charts = [
        column_chart(runs, "work", "Mean work of the asked"),
        column_chart(runs, "answered", "Clients that answered"),
    ]
    values = {"maps": pictures, "charts": trusted(charts), "side_by_side": False}
    return [render("maps.html", title="Who turned up when", note="", **values)]


def _title(names: list[str], runs: Runs) -> str:
    seed = next(iter(runs.variants.values()))[0].seed
    several = len(runs.runs) > len(runs.variants)
    which = "all variants" if len(names) == len(runs.variants) > 1 else ", ".join(names)
    return (which if len(runs.variants) > 1 else "Work done") + (f", seed {seed}" if several else "")


def turnout_cells(turnout: Turnout) -> tuple[Cells, int]:
    """The map, with a row for everyone who was ever asked, and how many those are.

    Where clients must share a row, those that did about as much work do: a mean over any others would be all alike.
    """
    round_N, client_N, work_N = turnout
    known, row_N = np.unique(client_N, return_inverse=True)
    if len(known) > MOST_ROWS:
        mean = np.bincount(row_N, work_N) / np.bincount(row_N)
        row_N = np.argsort(np.argsort(-mean, kind="stable"))[row_N]
    first, last = int(round_N.min()), int(round_N.max())
    return gather(row_N, round_N, work_N, len(known), first, last - first + 1), len(known)


def turnout_map(turnout: Turnout, title: str) -> HeatMap:
    """Clients x rounds, coloured by work."""
    cells, known = turnout_cells(turnout)
    across, down = cells.columns_per_cell, cells.rows_per_cell
    note, words = "", _TURNOUT
    if down > 1:
        note = f"The {known:,} clients that were asked, the most active at the top, {down:.3g} to a row. "
        words = replace(_TURNOUT, row="clients by work")
    elif known != int(turnout[1].max()) + 1:
        note = f"Rows are the {known:,} clients that were ever asked, by number. "
        words = replace(_TURNOUT, row="client, by rank")
    if across > 1:
        note += f"A column is the mean of {across:.3g} rounds."
    return heat_map(cells, title, words, note)


def friends_section(runs: Runs) -> list[Markup]:
    """How often each client was the stand-in of each other."""
    maps: list[HeatMap] = []
    for variant, found in runs.variants.items():
        chosen = next((run for run in found if run.has_friends), None)
        if chosen is not None and len(maps) < 2 * SHOWN:
            maps.append(_friend_map(chosen, variant if len(runs.variants) > 1 else "Times stood in"))
    note = "Row: an absent client. Column: the friend that stood in for it."
    values = {"maps": maps, "charts": [], "side_by_side": True}
    return [render("maps.html", title="Who is whose friend", note=note, **values)] if maps else []


def _friend_map(run: RunRecords, title: str) -> HeatMap:
    client_N, friend_N = run.friends()
    known, place = np.unique(np.concatenate([client_N, friend_N]), return_inverse=True)
    n, half = len(known), len(client_N)
    pair, count = np.unique(place[:half] * n + place[half:], return_counts=True)
    cells = gather(pair // n, pair % n, count.astype(np.float64), n, 0, n)
    most = float(np.nanmax(cells.value_RK))
    note = f"{half:,} loans among {n:,} clients; the most frequent pair {int(count.max()):,} times."
    words = f"{note} Numbered by rank." if n != int(known.max()) + 1 else note
    return heat_map(cells, title, _FRIENDS, words, most, square=True)
