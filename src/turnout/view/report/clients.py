"""The sections about single clients: how a metric is spread over them at the end, the worst tenth marked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from turnout.running.charts.axes import Floats
from turnout.running.charts.bars import BINS, bars, histogram
from turnout.running.charts.page import Figure
from turnout.running.charts.units import show, title_of
from turnout.running.records.runs import Runs
from turnout.task import MetricInfo
from turnout.view.report import render

FEW = 200  # bars that can be told apart
_NOTE = "The last time each client was measured, all seeds together; the worst tenth is marked."


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
        info = runs.glossary.info(one.metric)
        of = str(one.variant) if len(runs.variants) > 1 else ""
        alike = [other.values for other in found if other.metric == one.metric]
        charts.append(Figure(Markup(_chart(one, info, alike)), of))
        tenth, v = max(1, len(one.values) // 10), one.values
        numbers = (v[:tenth].mean(), np.median(v), v.mean(), v[-tenth:].mean())
        rows.append((one.label, [f"{len(v):,}", *(show(float(number), info.unit) for number in numbers)], of))
    return [render("clients.html", title=title, note=_NOTE, charts=charts, rows=rows)] if rows else []


def _chart(one: ClientValues, info: MetricInfo, alike: list[Floats]) -> str:
    """Bars, or a histogram of many; `alike` are the values of all charts that share the axes."""
    values, count = one.values, len(one.values)
    ends = float(min(v.min() for v in alike)), float(max(v.max() for v in alike))
    if max(map(len, alike)) <= FEW:
        words = f"{count} values, from worst to best"
        return bars(values, one.label, max(1, count // 10), info.unit, words, one.names, ends)
    most = max(float(np.histogram(v, bins=BINS, range=ends)[0].max()) for v in alike)
    words = f"{count:,} values"
    return histogram(values, one.label, info.unit, words, ends, info.higher_is_better, one.names, most)
