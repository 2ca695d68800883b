"""A run, or a folder of runs, as text for a terminal: what it is, its results, its curves, who turned up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from turnout.running.charts.text_plot import legend, text_plot
from turnout.running.charts.units import show, sparkline, title_of
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import RunRecords, Runs
from turnout.view.report.lines import metric_named, series_of
from turnout.view.report.page import common_kinds, facts, notes
from turnout.view.report.results import results_table

WIDEST = 100  # columns of a plot
HEIGHT = 12  # rows


def shown(folder: Path, metrics: Sequence[str] = (), width: int = 80) -> Iterator[RenderableType]:
    """The pieces of the page, from top to bottom; `metrics`: which curves (without: the main one)."""
    runs = find_runs(folder)
    drawn = [metric_named(runs, said) for said in metrics] or runs.metrics[:1]
    yield Text(", ".join(f"{name} {kind}" for name, kind in common_kinds(runs)), style="dim")
    yield from (Text(note, style="yellow") for note in notes(runs))
    yield Text("  ".join(f"{name}: {value}" for name, value in facts(runs)))
    yield Text()
    yield results_table(folder, width=width)
    for metric in drawn:
        yield Text()
        yield curve(runs, metric, min(width, WIDEST))
    if len(runs.runs) == 1:
        yield Text()
        yield from happened(runs.runs[0])


def curve(runs: Runs, metric: str, width: int) -> Text:
    """A metric of every variant."""
    over = "rounds trained" if metric in runs.metrics else "rounds"
    series = [s for s in series_of(runs, metric) if np.isfinite(s.y).any()]
    found = text_plot(series, title_of(metric), runs.glossary.unit(metric), width, HEIGHT, over)
    found.no_wrap = True
    return found.append("\n").append_text(legend([s.name for s in series])) if len(series) > 1 else found


def happened(first: RunRecords) -> Iterator[Text]:
    """In a line each: who turned up, how clients' own numbers are spread, who joined and left."""
    work = first.rounds["work"].astype(np.float64)
    if np.isfinite(work).any():
        yield _line("work done of what was asked", sparkline(work, 40), f"mean {show(first.mean('work'), 'percent')}")
    losses = first.rounds["train_loss"].astype(np.float64)
    if np.isfinite(losses).any():
        last = losses[np.isfinite(losses)][-1]
        yield _line("training loss", sparkline(losses, 40), f"at last {show(float(last))}")
    for name, (_, values) in first.client_values.items():
        known = np.sort(values[np.isfinite(values)])
        if len(known) and name.endswith(("_accuracy", "_loss", "_mse")):
            words = ", ".join(f"{w} {show(float(np.quantile(known, q)), first.glossary.unit(name))}" for w, q in SPREAD)
            yield _line(f"{name} of {len(known):,} clients", sparkline(known, 40), words)
    kinds: dict[str, int] = {}
    for event in first.events:
        kinds[event[2]] = kinds.get(event[2], 0) + 1
    if kinds:
        yield _line("members", "", ", ".join(f"{count} × {kind}" for kind, count in kinds.items()))


SPREAD = (("lowest", 0.0), ("median", 0.5), ("highest", 1.0))


def _line(name: str, picture: str, words: str) -> Text:
    return Text.assemble((f"{name}: ", "dim"), (f"{picture} " if picture else "", "blue"), words)
