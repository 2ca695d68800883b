"""The sections about single clients: how a metric is spread over them at the end, the worst tenth marked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from turnout.running.charts.axes import Floats
from turnout.running.charts.bars import Ends, bars, fullest, histogram
from turnout.running.charts.page import Figure
from turnout.running.charts.units import show, title_of
from turnout.running.records.runs import Runs
from turnout.task import MetricInfo
from turnout.view.report import render

FEW = 200  # bars that can be told apart
_NOTE = "The last time each client was measured, all seeds together; the worst tenth is marked."


@dataclass(frozen=True)
class Spread:
    """What was last measured on each client of a variant, from worst to best, and who they are."""

    label: str
    metric: str
    variant: int
    values: Floats
    names: list[str]


def clients_sections(runs: Runs) -> list[Markup]:
    """One section for all metrics of a single variant, or one for each metric that compares the variants."""
    names = runs.glossary.in_order({name for run in runs.runs for name in run.client_values})
    variants = list(runs.variants)
    if len(variants) == 1:
        return _section(runs, "Each client", [_spread(runs, title_of(name), variants[0], name) for name in names])
    found = []
    for name in names:
        plain = title_of(name.removeprefix("client_"))
        found += _section(runs, f"{plain} of each client", [_spread(runs, v, v, name) for v in variants])
    return found


def _section(runs: Runs, title: str, spreads: list[Spread]) -> list[Markup]:
    """A chart and a row of numbers for each; charts of one metric have the same axes."""
    spreads = [spread for spread in spreads if len(spread.values)]
    charts, rows = [], []
    for spread in spreads:
        alike = [other.values for other in spreads if other.metric == spread.metric]
        info = runs.glossary.info(spread.metric)
        of = str(spread.variant) if len(runs.variants) > 1 else ""
        charts.append(Figure(Markup(_chart(spread, info, alike)), of))
        rows.append((spread.label, _numbers(spread.values, info), of))
    return [render("clients.html", title=title, note=_NOTE, charts=charts, rows=rows)] if rows else []


def _spread(runs: Runs, label: str, variant: str, metric: str) -> Spread:
    found = [(run, *run.client_values[metric]) for run in runs.variants[variant] if metric in run.client_values]
    several = len(found) > 1
    seeds = [f", seed {run.seed}" if several else "" for run, _, _ in found]
    names = [f"client {run.client(c)}{s}" for (run, ids, _), s in zip(found, seeds, strict=True) for c in ids.tolist()]
    values = np.concatenate([np.asarray(v, np.float64) for v in [[], *(v for _, _, v in found)]])
    order = np.argsort(values if runs.glossary.higher_is_better(metric) else -values, kind="stable")
    order = order[np.isfinite(values[order])]
    return Spread(label, metric, list(runs.variants).index(variant), values[order], [names[i] for i in order])


def _numbers(values: Floats, info: MetricInfo) -> list[str]:
    """How many there are, then the worst tenth, the median, the mean and the best tenth."""
    tenth = max(1, len(values) // 10)
    numbers = (values[:tenth].mean(), np.median(values), values.mean(), values[-tenth:].mean())
    return [f"{len(values):,}", *(show(float(v), info.unit) for v in numbers)]


def _chart(spread: Spread, info: MetricInfo, alike: list[Floats]) -> str:
    """Bars, or a histogram of many; `alike` are the values of all charts that are compared."""
    values, count = spread.values, len(spread.values)
    ends: Ends = (float(min(v.min() for v in alike)), float(max(v.max() for v in alike)))
    if max(map(len, alike)) <= FEW:
        words = f"{count} values, from worst to best"
        return bars(values, spread.label, max(1, count // 10), info.unit, words, spread.names, ends)
    most = max(fullest(v, ends) for v in alike)
    better = info.higher_is_better
    return histogram(values, spread.label, info.unit, f"{count:,} values", ends, better, spread.names, most)
