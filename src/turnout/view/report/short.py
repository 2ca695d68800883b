"""A run, or a folder of runs, in short: its key numbers, as text for a terminal, as the output of a notebook's cell."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from markupsafe import Markup
from rich.console import RenderableType
from rich.text import Text

from turnout.errors import UserError
from turnout.running.charts.svg import packaged, sheet
from turnout.running.charts.units import show, size, sparkline, spread
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import RunRecords, Runs
from turnout.view.report import render
from turnout.view.report.lines import check_metrics, metric_charts, series_of
from turnout.view.report.results import results, results_table

SPREAD = (("lowest", 0.0), ("median", 0.5), ("highest", 1.0))
SCOPE = ".turnout"  # class of the picture in a notebook


def notes(runs: Runs) -> list[str]:
    """How many runs have not begun, and why rounds changed nothing, the most frequent reasons first."""
    found = [f"{runs.waiting} runs of this folder have not begun."] if runs.waiting else []
    reasons = Counter(why for run in runs.runs for why in run.rounds["skipped"].tolist() if isinstance(why, str))
    counted = [f"{n} × {why}" for why, n in reasons.most_common(5)]
    return [*found, *([f"Rounds that changed nothing: {'; '.join(counted)}."] if counted else [])]


def facts(runs: Runs) -> list[tuple[str, str]]:
    """(name, value) of the key numbers."""
    variants, every = runs.variants, runs.runs
    found = []
    if len(every) > 1:
        found.append((f"runs of {len(variants)} variants" if len(variants) > 1 else "runs", f"{len(every)}"))
    rounds = sorted({len(run.rounds["round"]) for run in every})
    found.append(("rounds", f"{rounds[0]:,}" if len(rounds) == 1 else f"{rounds[0]:,} – {rounds[-1]:,}"))
    members = max((int(np.nan_to_num(run.rounds["members"]).max(initial=0)) for run in every), default=0)
    found.append(("clients", f"{members:,}"))
    leading = results(runs).leading
    if runs.metrics and (leading is not None or len(variants) == 1):  # else several cannot be ranked
        main, variant = runs.metrics[0], list(variants)[leading or 0]
        value = spread([run.final(main) for run in variants[variant]], runs.glossary.unit(main))
        found.append((main if leading is None else f"{main}, {variant}", value))
    found.append(("turnout", show(float(np.mean([run.attendance() for run in every])), "percent")))
    found.append(("work done", show(float(np.mean([run.mean("work") for run in every])), "percent")))
    found += privacy_facts(runs)
    up, down, seconds = (sum(run.total(name) for run in every) for name in ("bytes_up", "bytes_down", "seconds"))
    found += [("sent up", size(up)), ("sent down", size(down))]
    found.append(("time" if len(every) == 1 else "time of all runs", show(seconds, "seconds")))
    return found


def privacy_facts(runs: Runs) -> list[tuple[str, str]]:
    """ε of private runs: the largest that is promised, and that of the turnout that happened."""
    private = [run for run in runs.runs if "epsilon" in run.rounds]
    if not private:
        return []
    words = [
        max(float(np.nanmax(run.rounds[name].astype(np.float64))) for run in private)
        for name in ("epsilon", "epsilon_realised")
    ]
    setting = private[0].settings().get("algorithm", {}).get("privacy", {})
    return [(f"ε (δ = {setting.get('delta', 'unknown')})", show(words[0])), ("ε of this turnout", show(words[1]))]


def common_kinds(runs: Runs) -> list[tuple[str, str]]:
    """(part, kind) pairs that the experiment files of all variants share."""
    lists = [list(dict.fromkeys(_kinds(found[0].settings()))) for found in runs.variants.values()]
    return [pair for pair in lists[0] if all(pair in other for other in lists)][:14]


def _kinds(tree: dict[str, Any], name: str = "") -> list[tuple[str, str]]:
    """Every `kind` in an experiment file with the name of the table it stands in.

    >>> _kinds({"world": {"data": {"kind": "digits"}}, "rounds": 3})
    [('data', 'digits')]
    """
    found = [(name, tree["kind"])] if isinstance(tree.get("kind"), str) else []
    for key, value in tree.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                found += _kinds(item, key)
    return found


# -- for a terminal


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
        for series in series_of(runs, metric):
            if len(known := series.y[np.isfinite(series.y)]):
                which = f"{metric}, {series.name}" if len(runs.variants) > 1 else metric
                first, last = (show(float(known[i]), runs.glossary.unit(metric)) for i in (0, -1))
                yield _line(which, sparkline(series.y, 40), f"{first} to {last}")
    if len(runs.runs) == 1:
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


# -- for a notebook


def runs_html(folder: Path) -> str:
    """A run, or a folder of runs, in short: from its records alone, also while it runs."""
    path = folder / "report.html"
    report = quote(Path(os.path.relpath(path)).as_posix()) if path.is_file() else ""
    values: dict[str, Any] = {"title": str(folder), "folder": str(folder), "report": report, "table": None}
    try:
        runs = find_runs(folder)
    except UserError as error:
        return render("notebook.html", **values, lines=[str(error)], picture="")
    lines, values["title"] = notes(runs), runs.title
    if len(runs.variants) > 1:
        values["table"] = results(runs)
    else:
        counted = ("rounds", "clients", "runs")
        words = [f"{value} {name}" if name.startswith(counted) else f"{name} {value}" for name, value in facts(runs)]
        lines.append(" · ".join(words))
    charts = metric_charts(runs)
    drawn = [chart for chart in (charts[0], charts[-1] if len(charts) > 1 else "") if chart]  # main metric and loss
    attributes = f'class="{SCOPE[1:]}" style="display: block; width: 100%; max-width: {380 * len(drawn)}px" '
    picture = Markup(sheet(drawn, scoped_style(), attributes)) if drawn else ""
    return render("notebook.html", **values, lines=lines, picture=picture)


@cache
def scoped_style() -> str:
    """charts.css for pictures of class `turnout` only: a notebook is one page with other pictures too."""
    style = re.sub(r"(?m)^(\s*):root\b", rf"\1{SCOPE}", packaged("charts.css"))
    return re.sub(r"(?m)^(?:svg |(?=\.(?!turnout)))", f"{SCOPE} ", style)
