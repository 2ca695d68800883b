"""The sections about single clients: how a metric is spread over them at the end, the worst tenth marked."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from turnout.report.axes import Floats
from turnout.report.charts import bars, histogram
from turnout.report.runs import Runs
from turnout.report.templates import render, trusted
from turnout.report.units import show, title_of
from turnout.task import MetricInfo

_NOTE = "The last time each client was measured, all seeds together; the worst tenth is marked."


def clients_sections(runs: Runs) -> list[Markup]:
    """One section for all metrics of a single variant, or one for each metric that compares the variants."""
    names = runs.glossary.in_order({name for run in runs.runs for name in run.client_values})
    variants = list(runs.variants)
    if len(variants) == 1:
        return _section(runs, "Each client", [(title_of(name), variants[0], name) for name in names])
    found = []
    for name in names:
        plain = title_of(name.removeprefix("client_"))
        found += _section(runs, f"{plain} of each client", [(variant, variant, name) for variant in variants])
    return found


def _section(runs: Runs, title: str, shown: list[tuple[str, str, str]]) -> list[Markup]:
    """A chart and a row of numbers for each (label, variant, metric); charts of one metric have the same axis."""
    spreads = [(label, name, _values(runs, variant, name)) for label, variant, name in shown]
    spreads = [item for item in spreads if len(item[2])]
    charts, rows = [], []
    for label, name, values in spreads:
        alike = np.concatenate([v for _, other, v in spreads if other == name])
        info = runs.glossary.info(name)
        charts.append(_chart(values, label, info, (float(alike.min()), float(alike.max()))))
        rows.append((label, _numbers(values, info)))
    return [render("clients.html", title=title, note=_NOTE, charts=trusted(charts), rows=rows)] if rows else []


def _values(runs: Runs, variant: str, name: str) -> Floats:
    """What was last measured on each client, all seeds together, from worst to best."""
    found = [run.client_values[name][1] for run in runs.variants[variant] if name in run.client_values]
    values = np.concatenate([np.asarray(v, np.float64) for v in [[], *found]])
    values = np.sort(values[np.isfinite(values)])
    return values if runs.glossary.higher_is_better(name) else values[::-1]


def _numbers(values: Floats, info: MetricInfo) -> list[str]:
    """How many there are, then the worst tenth, the median, the mean and the best tenth."""
    tenth = max(1, len(values) // 10)
    numbers = (values[:tenth].mean(), np.median(values), values.mean(), values[-tenth:].mean())
    return [f"{len(values):,}", *(show(float(v), info.unit) for v in numbers)]


def _chart(values: Floats, title: str, info: MetricInfo, ends: tuple[float, float]) -> str:
    if len(values) <= 200:
        words = f"{len(values)} values, from worst to best"
        return bars(values, title, max(1, len(values) // 10), info.unit, words)
    return histogram(values, title, info.unit, f"{len(values):,} values", ends, info.higher_is_better)
