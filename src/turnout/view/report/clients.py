"""The sections about clients: a metric of each at the end, who turned up when, who stood in for whom."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup

from turnout.running.charts.axes import Floats
from turnout.running.charts.heat import HeatMap, MapWords, Turnout, gather, row_names, turnout_map
from turnout.running.charts.lines import bars
from turnout.running.charts.page import Figure, trusted
from turnout.running.charts.units import show, title_of
from turnout.running.records.runs import Runs
from turnout.view.report import render
from turnout.view.report.lines import column_chart

SHOWN = 3  # turnout maps of one seed
MOST_BYTES = 1_800_000  # of all turnout maps together
_NOTE = "The last time each client was measured, all seeds together; the worst tenth is marked."
_FRIENDS = MapWords("friend", "client", "never", "", "once", "most often")


@dataclass(frozen=True)
class ClientValues:
    """The last value of each client of a variant, from worst to best.

    label    of its chart
    metric   what was measured
    variant  the number of the variant
    values   from worst to best
    names    of the clients
    """

    label: str
    metric: str
    variant: int
    values: Floats
    names: list[str]


def clients_sections(runs: Runs) -> list[Markup]:
    """One section for all metrics of a single variant, or one for each metric that compares the variants."""
    variants = list(runs.variants)
    if len(variants) == 1:
        return _section(runs, "Each client", [_values(runs, title_of(m), variants[0], m) for m in runs.client_metrics])
    found = []
    for name in runs.client_metrics:
        title = f"{title_of(name.removeprefix('client_'))} of each client"
        found += _section(runs, title, [_values(runs, variant, variant, name) for variant in variants])
    return found


def _values(runs: Runs, label: str, variant: str, metric: str) -> ClientValues:
    found = [(run, *run.client_values[metric]) for run in runs.variants[variant] if metric in run.client_values]
    names = []
    for run, ids, _ in found:
        seed = f", seed {run.seed}" if len(found) > 1 else ""
        names += [f"client {run.client(c)}{seed}" for c in ids.tolist()]
    values = np.concatenate([np.asarray(v, np.float64) for v in [[], *(v for _, _, v in found)]])
    order = np.argsort(values if runs.glossary.higher_is_better(metric) else -values, kind="stable")
    order = order[np.isfinite(values[order])]
    return ClientValues(label, metric, list(runs.variants).index(variant), values[order], [names[i] for i in order])


def _section(runs: Runs, title: str, found: list[ClientValues]) -> list[Markup]:
    """A chart and a row of numbers for each; charts of one metric have the same axes."""
    found = [one for one in found if len(one.values)]
    charts, rows = [], []
    for one in found:
        unit, v = runs.glossary.unit(one.metric), one.values
        of = str(one.variant) if len(runs.variants) > 1 else ""
        alike = [other.values for other in found if other.metric == one.metric]
        ends = float(min(o.min() for o in alike)), float(max(o.max() for o in alike))
        words = f"{len(v):,} values, from worst to best"
        charts.append(Figure(Markup(bars(v, one.label, unit, words, one.names, ends, marks_worst=True)), of))
        tenth = max(1, len(v) // 10)
        numbers = (v[:tenth].mean(), np.median(v), v.mean(), v[-tenth:].mean())
        rows.append((one.label, [f"{len(v):,}", *(show(float(number), unit) for number in numbers)], of))
    return [render("clients.html", title=title, note=_NOTE, charts=charts, rows=rows)] if rows else []


def turnout_section(runs: Runs) -> list[Markup]:
    """Clients × rounds, coloured by work, for a seed to choose; variants that saw the same turnout share one map."""
    seeds, spent, dropped = list[dict[str, Any]](), 0, list[str]()
    for seed in dict.fromkeys(run.seed for run in runs.runs):
        if spent > MOST_BYTES:
            dropped.append(str(seed))
            continue
        maps, left_out = _maps_of(runs, seed)
        if maps:
            seeds.append({"seed": seed, "maps": maps, "left_out": left_out})
            spent += sum(len(shown.image) for shown in maps)
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


def _maps_of(runs: Runs, seed: int | None) -> tuple[list[HeatMap], int]:
    """The different turnouts of a seed's variants, and how many more there are."""
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
    return maps, len(left_out)


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
