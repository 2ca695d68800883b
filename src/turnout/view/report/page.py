"""The report: one HTML file that needs nothing else, put together from the sections; in short for a notebook."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from turnout.errors import UserError
from turnout.machine.files import write_whole
from turnout.running.charts.page import whole_page
from turnout.running.charts.svg import packaged, sample, sheet
from turnout.running.charts.units import show, size, spread
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import Runs
from turnout.running.records.warnings import warnings_in
from turnout.view.report import render, sections
from turnout.view.report.clients import clients_sections, friends_section, turnout_section
from turnout.view.report.history import history_section
from turnout.view.report.lines import metric_charts
from turnout.view.report.results import results
from turnout.view.report.simulated_time import time_section

# The page from top to bottom. A section of your own is a line here: a function of the runs that returns the section in
# a list, or an empty list where there is no data for it (`charts_section` makes one of charts).
SECTIONS: tuple[Callable[[Runs], list[Markup]], ...] = (
    sections.results_section,
    sections.curves_section,
    turnout_section,
    clients_sections,
    history_section,
    sections.bytes_section,
    time_section,
    sections.weights_section,
    friends_section,
    sections.parts_section,
    sections.events_section,
    sections.settings_section,
)


SCOPE = ".turnout"  # class of the picture in a notebook


def write_report(folder: str | Path, target: float | None = None) -> Path:
    """Write `report.html` of a run folder, or of a folder of runs, from the records alone."""
    path = Path(folder) / "report.html"
    write_whole(path, report_page(folder, target))
    return path


def write_picture(folder: str | Path) -> Path:
    """Write `curves.svg`: the curves of a run folder, or of a folder of runs, as one picture."""
    path = Path(folder) / "curves.svg"
    write_whole(path, sheet(metric_charts(find_runs(folder))))
    return path


def report_page(folder: str | Path, target: float | None = None) -> str:
    """The report of a run folder, or of a folder of runs, as one page."""
    runs = find_runs(folder)
    runs = replace(runs, target=target or runs.target)
    made = [section for make in SECTIONS for section in make(runs)]
    return whole_page(**head(runs), sections=made, source="the records of the runs")


def head(runs: Runs) -> dict[str, Any]:
    """The top of a page: title, warnings, notes, kinds of parts, key numbers, and the variants with their lines."""
    return {
        "title": runs.title,
        "warnings": [f"{who}: {words}" if who else words for who, words in warnings_in(runs)],
        "notes": notes(runs),
        "kinds": common_kinds(runs),
        "facts": facts(runs),
        "variants": variants_of(runs),
    }


def variants_of(runs: Runs) -> list[dict[str, Any]]:
    """The variants for the switches of a page: name, and a piece of the line."""
    return [{"name": name, "sample": Markup(sample(i))} for i, name in enumerate(runs.variants)]


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
    members = max((int(run.rounds["members"].max()) for run in every if len(run.rounds["members"])), default=0)
    found.append(("clients", f"{members:,}"))
    leading = results(runs).leading
    if runs.metrics and (leading is not None or len(variants) == 1):  # else several cannot be ranked
        main, variant = runs.metrics[0], list(variants)[leading or 0]
        value = spread([run.final(main) for run in variants[variant]], runs.glossary.unit(main))
        found.append((main if leading is None else f"{main}, {variant}", value))
    found.append(("turnout", show(float(np.mean([run.attendance() for run in every])), "percent")))
    found.append(("work done", show(float(np.mean([run.mean("work") for run in every])), "percent")))
    up, down, seconds = (sum(run.total(name) for run in every) for name in ("bytes_up", "bytes_down", "seconds"))
    found += [("sent up", size(up)), ("sent down", size(down))]
    found.append(("time" if len(every) == 1 else "time of all runs", show(seconds, "seconds")))
    return found


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
