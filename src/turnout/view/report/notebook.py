"""What a notebook shows of a run, or of a folder of runs: a line of facts or a table, the curves, where the report is.

The style of the curves is made to reach them only: a notebook is one page, and has pictures of others too.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from turnout.errors import UserError
from turnout.running.charts.svg import packaged, sheet
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import Runs
from turnout.view.report import render
from turnout.view.report.lines import metric_charts
from turnout.view.report.page import facts, notes
from turnout.view.report.results import Results, results

SCOPE = ".turnout"  # the class of the picture, without which its style reaches nothing


def runs_html(folder: Path) -> str:
    """A run, or a folder of runs, in short: from its records alone, also while it runs."""
    try:
        runs = find_runs(folder)
    except UserError as mistake:
        return _page(folder, str(folder), [str(mistake)])
    table = results(runs) if len(runs.variants) > 1 else None
    lines = [*notes(runs), *([] if table else [" · ".join(_facts(runs))])]
    return _page(folder, runs.title, lines, table, _picture(runs))


def _page(folder: Path, title: str, lines: list[str], table: Results | None = None, picture: str = "") -> str:
    path = folder / "report.html"
    report = quote(Path(os.path.relpath(path)).as_posix()) if path.is_file() else ""
    values = {"title": title, "folder": str(folder), "lines": lines, "table": table, "picture": picture}
    return render("notebook.html", **values, report=report)


def _facts(runs: Runs) -> list[str]:
    counted = ("rounds", "clients", "runs")
    return [f"{value} {name}" if name.startswith(counted) else f"{name} {value}" for name, value in facts(runs)]


def _picture(runs: Runs) -> Markup:
    """The main metric and the training loss."""
    charts = metric_charts(runs)
    found = [chart for chart in (charts[0], charts[-1] if len(charts) > 1 else "") if chart]
    if not found:
        return Markup()
    head = f'class="{SCOPE[1:]}" style="display: block; width: 100%; max-width: {380 * len(found)}px" '
    return Markup(sheet(found, scoped_style(), head))


@cache
def scoped_style() -> str:
    """charts.css for pictures of class `turnout` only."""
    style = re.sub(r"(?m)^(\s*):root\b", rf"\1{SCOPE}", packaged("charts.css"))
    return re.sub(r"(?m)^(?:svg |(?=\.(?!turnout)))", f"{SCOPE} ", style)
