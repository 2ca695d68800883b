"""Sections that are heat maps: who turned up when, and who stood in for whom."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from turnout.running.charts.heat import HeatMap, MapWords, Turnout, gather, row_names, turnout_map
from turnout.running.charts.page import trusted
from turnout.running.records.runs import Runs
from turnout.view.report import render
from turnout.view.report.lines import column_chart

SHOWN = 3  # maps of one seed
MOST_BYTES = 1_800_000  # of all turnout maps together
_FRIENDS = MapWords("friend", "client", "never", "", "once", "most often")


@dataclass(frozen=True)
class SeedMaps:
    """The maps of one seed.

    seed      the seed
    maps      the different turnouts of its variants
    left_out  how many are not shown, because there are many
    """

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
    """How many clients answered, and how much work they did, over the rounds."""
    return [
        column_chart(runs, "work", "Mean work of the asked"),
        column_chart(runs, "answered", "Clients that answered"),
    ]


def _maps_of(runs: Runs, seed: int | None) -> SeedMaps:
    found: dict[str, tuple[list[str], Turnout]] = {}
    left_out: set[str] = set()
    for run in (run for run in runs.runs if run.seed == seed):
        turnout = run.turnout()
        if not len(turnout[0]):
            continue
        key = hashlib.sha256(b"".join(column.tobytes() for column in turnout)).hexdigest()
        if key in found or len(found) < SHOWN:
            found.setdefault(key, ([], turnout))[0].append(run.variant)
        else:
            left_out.add(key)
    maps = []
    for variants, turnout in found.values():
        title = "all variants" if len(variants) == len(runs.variants) else ", ".join(variants)
        title = title if len(runs.variants) > 1 else "Work done"
        maps.append(turnout_map(turnout, title, runs.variants[variants[0]][0].client, _numbers(variants, runs)))
    return SeedMaps(seed, maps, len(left_out))


def _numbers(variants: Sequence[str], runs: Runs) -> str:
    """Variants by number, as pages switch them; "" where there is only one."""
    listed = list(runs.variants)
    return " ".join(str(listed.index(name)) for name in variants) if len(listed) > 1 else ""


def friends_section(runs: Runs) -> list[Markup]:
    """How often each client was the friend of each other; all maps have the same scale."""
    maps: list[HeatMap] = []
    for name, found in runs.variants.items():
        run = next((run for run in found if run.has_friends), None)
        if run is None or len(maps) == 2 * SHOWN:
            continue
        client_N, friend_N = run.friends()
        known, place = np.unique(np.concatenate([client_N, friend_N]), return_inverse=True)
        n, half = len(known), len(client_N)
        pair, count = np.unique(place[:half] * n + place[half:], return_counts=True)
        cells = gather(pair // n, pair % n, count.astype(np.float64), n, 0, n)
        title = name if len(runs.variants) > 1 else "Times stood in"
        rows, columns = (row_names(known, side, run.client) for side in cells.value_RK.shape)
        note = f"{half:,} loans among {n:,} clients; the most frequent pair {int(count.max()):,} times."
        of = _numbers([name], runs)
        maps.append(HeatMap(cells, title, _FRIENDS, rows, columns, note, is_square=True, of=of))
    if not maps:
        return []
    most = max(float(np.nanmax(drawn.cells.value_RK)) for drawn in maps)
    maps = [replace(drawn, most=most) for drawn in maps]
    note = "Row: an absent client. Column: the friend that stood in for it."
    return [render("maps.html", title="Who is whose friend", note=note, maps=maps)]
