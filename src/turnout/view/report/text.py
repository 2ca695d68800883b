"""A run, or a folder of runs, as text for a terminal: what it is, its results, its curves, who turned up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from turnout.running.charts.text_plot import legend, text_plot
from turnout.running.charts.units import show, sparkline, title_of
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import RunRecords
from turnout.view.report.lines import check_metrics, series_of
from turnout.view.report.page import common_kinds, facts, notes
from turnout.view.report.results import results_table

WIDEST = 100  # columns of a plot
HEIGHT = 12  # rows
SPREAD = (("lowest", 0.0), ("median", 0.5), ("highest", 1.0))


def shown(folder: Path, metrics: Sequence[str] = (), width: int = 80) -> Iterator[RenderableType]:
    """The pieces from top to bottom; `metrics`: which curves (default: the main one)."""
    runs = find_runs(folder)
    drawn = check_metrics(runs, metrics)
    yield Text(", ".join(f"{name} {kind}" for name, kind in common_kinds(runs)), style="dim")
    yield from (Text(note, style="yellow") for note in notes(runs))
    yield Text("  ".join(f"{name}: {value}" for name, value in facts(runs)))
    yield Text()
    yield results_table(folder, width=width)
    for metric in drawn:
        over = "rounds trained" if metric in runs.metrics else "rounds"
        series = [s for s in series_of(runs, metric) if np.isfinite(s.y).any()]
        plot = text_plot(series, title_of(metric), runs.glossary.unit(metric), min(width, WIDEST), HEIGHT, over)
        plot.no_wrap = True
        yield Text()
        yield plot.append("\n").append_text(legend([s.name for s in series])) if len(series) > 1 else plot
    if len(runs.runs) == 1:
        yield Text()
        yield from _events(runs.runs[0])


def _events(run: RunRecords) -> Iterator[Text]:
    """In a line each: work done, training loss, how clients' own numbers are spread, joins and leaves."""
    work, losses = (run.rounds[name].astype(np.float64) for name in ("work", "train_loss"))
    if np.isfinite(work).any():
        yield _line("work done of what was asked", sparkline(work, 40), f"mean {show(run.mean('work'), 'percent')}")
    if np.isfinite(losses).any():
        last = float(losses[np.isfinite(losses)][-1])
        yield _line("training loss", sparkline(losses, 40), f"at last {show(last)}")
    for name, (_, values) in run.client_values.items():
        known = np.sort(values[np.isfinite(values)])
        if len(known) and name.endswith(("_accuracy", "_loss", "_mse")):
            words = ", ".join(f"{w} {show(float(np.quantile(known, q)), run.glossary.unit(name))}" for w, q in SPREAD)
            yield _line(f"{name} of {len(known):,} clients", sparkline(known, 40), words)
    if run.events:
        kinds = Counter(kind for _, _, kind, _ in run.events)
        yield _line("members", "", ", ".join(f"{count} × {kind}" for kind, count in kinds.items()))


def _line(name: str, picture: str, words: str) -> Text:
    return Text.assemble((f"{name}: ", "dim"), (f"{picture} " if picture else "", "blue"), words)
