"""Sections that are maps: who turned up when, and who stood in for whom.

Shape letters: N entries (one client asked in one round, or one loan of a share), R rows of a map.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from turnout.running.charts.heat import Cells, HeatMap, Turnout, Words, gather, heat_map, row_names, turnout_map
from turnout.running.charts.page import trusted
from turnout.running.records.runs import RunRecords, Runs
from turnout.view.report import render
from turnout.view.report.lines import column_chart

SHOWN = 3  # maps of one seed
MOST_BYTES = 1_800_000  # of all turnout maps together
_FRIENDS = Words("friend", "client", "never", "", "once", "most often")


@dataclass(frozen=True)
class SeedMaps:
    """The maps of one seed; `left_out` counts those that are not shown, because there are many."""

    seed: int | None
    maps: list[HeatMap]
    left_out: int


def turnout_section(runs: Runs) -> list[Markup]:
    """Clients × rounds, coloured by work, for a seed to choose; variants that saw the same turnout share one map."""
    seeds, spent, dropped = list[SeedMaps](), 0, list[str]()
    for seed in dict.fromkeys(run.seed for run in runs.runs):
        if spent > MOST_BYTES:
            dropped.append(str(seed))
            continue
        if (found := _maps_of(runs, seed)).maps:
            seeds.append(found)
            spent += sum(len(shown.image) for shown in found.maps)
    if not seeds:
        return []
    note = f"Seeds {', '.join(dropped)} are left out, to keep this page small." if dropped else ""
    charts = trusted(turnout_charts(runs))
    return [render("turnout.html", title="Who turned up when", note=note, seeds=seeds, charts=charts)]


def turnout_charts(runs: Runs) -> list[str]:
    """How many turned up, and how much they did, over the rounds."""
    return [
        column_chart(runs, "work", "Mean work of the asked"),
        column_chart(runs, "answered", "Clients that answered"),
    ]


def _maps_of(runs: Runs, seed: int | None) -> SeedMaps:
    """The different turnouts of one seed."""
    maps: dict[str, tuple[list[str], Turnout]] = {}
    left_out: set[str] = set()
    for run in (run for run in runs.runs if run.seed == seed):
        turnout = run.turnout()
        if not len(turnout[0]):
            continue
        key = hashlib.sha256(b"".join(column.tobytes() for column in turnout)).hexdigest()
        if key in maps or len(maps) < SHOWN:
            maps.setdefault(key, ([], turnout))[0].append(run.variant)
        else:
            left_out.add(key)
    return SeedMaps(seed, [_turnout_map(turnout, names, runs) for names, turnout in maps.values()], len(left_out))


def _turnout_map(turnout: Turnout, variants: list[str], runs: Runs) -> HeatMap:
    which = "all variants" if len(variants) == len(runs.variants) else ", ".join(variants)
    title = which if len(runs.variants) > 1 else "Work done"
    return turnout_map(turnout, title, runs.variants[variants[0]][0].client, numbers_of(variants, runs))


def numbers_of(variants: Sequence[str], runs: Runs) -> str:
    """Variants by number, as pages switch them; nothing where there is only one."""
    listed = list(runs.variants)
    return " ".join(str(listed.index(name)) for name in variants) if len(listed) > 1 else ""


def friends_section(runs: Runs) -> list[Markup]:
    """How often each client was the stand-in of each other; all maps have the same scale."""
    chosen = {name: next((run for run in found if run.has_friends), None) for name, found in runs.variants.items()}
    known = [(name, _Loans.of(run)) for name, run in chosen.items() if run is not None][: 2 * SHOWN]
    if not known:
        return []
    most = max(float(np.nanmax(loans.cells.value_RK)) for _, loans in known)
    several = len(runs.variants) > 1
    maps = [loans.drawn(name if several else "Times stood in", most, numbers_of([name], runs)) for name, loans in known]
    note = "Row: an absent client. Column: the friend that stood in for it."
    return [render("maps.html", title="Who is whose friend", note=note, maps=maps)]


@dataclass(frozen=True)
class _Loans:
    """How often each client stood in for each other, in one run."""

    cells: Cells
    names: tuple[list[str], list[str]]  # of its rows and columns
    note: str

    @classmethod
    def of(cls, run: RunRecords) -> _Loans:
        client_N, friend_N = run.friends()
        known, place = np.unique(np.concatenate([client_N, friend_N]), return_inverse=True)
        n, half = len(known), len(client_N)
        pair, count = np.unique(place[:half] * n + place[half:], return_counts=True)
        cells = gather(pair // n, pair % n, count.astype(np.float64), n, 0, n)
        note = f"{half:,} loans among {n:,} clients; the most frequent pair {int(count.max()):,} times."
        rows, columns = cells.value_RK.shape
        return cls(cells, (row_names(known, rows, run.client), row_names(known, columns, run.client)), note)

    def drawn(self, title: str, most: float, of: str) -> HeatMap:
        rows, columns = self.names
        return heat_map(self.cells, title, _FRIENDS, rows, columns, self.note, most, square=True, of=of)
