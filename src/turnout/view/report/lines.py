"""Charts over the rounds: a line for each variant, its mean over seeds with a band of one standard deviation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from turnout.errors import UserError, nearest
from turnout.running.charts.axes import Floats
from turnout.running.charts.lines import Mark, Series, line_chart
from turnout.running.charts.units import title_of
from turnout.running.records.runs import Runs
from turnout.view.report.marks import marks_of

Line = tuple[Floats, Floats, Floats]  # x, mean, deviation (NaN for one seed)


def metric_charts(runs: Runs) -> list[str]:
    """One chart for each evaluated metric, and one of the training loss, with what happened marked.

    Charts of one metric, measured of several things (the global model, personal ones), have the same scale.
    """
    loss = column_chart(runs, "train_loss", "Training loss", marks=marks_of(runs, -0.5))
    return [*(metric_chart(runs, metric, alike(runs, metric)) for metric in runs.metrics), loss]


def alike(runs: Runs, metric: str) -> list[str]:
    """The other names of what was measured, of something else: personal_accuracy beside global_accuracy."""
    plain = runs.glossary.plain(metric)
    return [other for other in runs.metrics if other != metric and runs.glossary.plain(other) == plain]


def metric_chart(runs: Runs, metric: str, beside: Sequence[str] = ()) -> str:
    """A chart of one evaluated metric, or of a column of the rounds, with what happened marked.

    `beside`: metrics whose charts have the same scale.
    """
    if metric not in runs.metrics:
        return column_chart(runs, metric, title_of(metric), marks=marks_of(runs, -0.5))
    lines, title = _joint(runs, series_of(runs, metric), title_of(metric))
    others = [s for other in beside for s in series_of(runs, other)]
    unit, marks = runs.glossary.unit(metric), marks_of(runs, 0.5)
    return line_chart(lines, title, "rounds trained", unit, marks=marks, beside=others)


def series_of(runs: Runs, metric: str) -> list[Series]:
    """A line for each variant: a metric over the rounds trained, or a column over the rounds."""
    read = runs.curve if metric in runs.metrics else runs.column
    return _series(runs, lambda variant: read(variant, metric))


def metric_named(runs: Runs, said: str) -> str:
    """A metric or a column of the rounds by its name; an unknown one is a mistake with the names there are."""
    columns = [item for run in runs.runs for item in run.rounds.items() if item[1].dtype != object]
    known = [*runs.metrics, *sorted({name for name, column in columns if np.isfinite(column).any()} - {"round"})]
    if said not in known:
        raise UserError(f"nothing called {said!r} was measured here: {nearest(said, known)}")
    return said


def column_chart(
    runs: Runs, name: str, title: str, total: bool = False, marks: Sequence[Mark] = (), beside: str | None = None
) -> str:
    """A column of the rounds, or its running total; `beside`: another column whose chart has the same scale."""
    series, others = _columns(runs, name, total), _columns(runs, beside, total) if beside else []
    ends = [float(s.y[-1]) for s in [*series, *others]] or [1.0]
    apart = total and min(ends) > 0 and max(ends) / min(ends) > 20
    lines, title = _joint(runs, series, title)
    unit, log_y = runs.glossary.unit(name), apart if total else None
    return line_chart(lines, title, "round", unit, log_y=log_y, marks=marks, beside=others)


def _columns(runs: Runs, name: str, total: bool) -> list[Series]:
    def line(variant: str) -> Line:
        x, mean, deviation = runs.column(variant, name)
        return (x, np.cumsum(mean), np.full_like(mean, np.nan)) if total else (x, mean, deviation)

    return [s for s in _series(runs, line) if np.any(s.y != 0)]


def metric_by_bytes(runs: Runs, metric: str) -> str:
    """A metric over the bytes that were spent until it was measured."""

    def line(variant: str) -> Line:
        rounds, mean, deviation = runs.curve(variant, metric)
        x, up, _ = runs.column(variant, "bytes_up")
        spent = np.cumsum(up + runs.column(variant, "bytes_down")[1])
        done = np.searchsorted(x + 1, rounds, side="right")  # an evaluation after n rounds has paid for n
        return np.concatenate([[0.0], spent])[done], mean, deviation

    series = _series(runs, line)
    ends = [s.x[-1] for s in series if len(s.x) and s.x[-1] > 0]
    wide = bool(ends) and max(ends) / min(ends) > 10
    title = f"{title_of(metric)} for bytes spent, both ways"
    return line_chart(series, title, "bytes", runs.glossary.unit(metric), "bytes", log_x=wide)


def _series(runs: Runs, line: Callable[[str], Line]) -> list[Series]:
    """A line for each variant, in the variant's colour, with a band where there are several seeds."""
    found = []
    for i, variant in enumerate(runs.variants):
        x, mean, deviation = line(variant)
        band = np.isfinite(deviation).any()
        low, high = (mean - deviation, mean + deviation) if band else (None, None)
        found.append(Series(variant, x, mean, i, low, high, str(i) if len(runs.variants) > 1 else ""))
    return found


def _joint(runs: Runs, series: list[Series], title: str) -> tuple[list[Series], str]:
    """The lines that differ; where only one is left, the title says whose it is."""
    known = [s for s in series if np.isfinite(s.y).any()]
    lines = merged(known)
    if len(lines) == 1 and len(runs.variants) > 1:
        title += ", all variants" if len(known) == len(runs.variants) else f", {lines[0].name}"
    return lines, title


def merged(series: list[Series]) -> list[Series]:
    """Lines that coincide are drawn once under a joint name: paired variants often see the same turnout."""
    found: list[list[Series]] = []
    for s in series:
        alike = next((group for group in found if _coincide(group[0], s)), None)
        if alike is None:
            found.append([s])
        else:
            alike.append(s)
    return [
        replace(group[0], name=" = ".join(s.name for s in group), of=" ".join(s.of for s in group)) for group in found
    ]


def _coincide(a: Series, b: Series) -> bool:
    """Equal but for rounding: weights that add up to 1 in another order are the same line."""
    return np.array_equal(a.x, b.x) and np.allclose(a.y, b.y, rtol=1e-6, atol=0, equal_nan=True)
