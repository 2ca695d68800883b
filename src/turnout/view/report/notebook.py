"""A run, or a folder of runs, in a notebook: a line of facts or a table, the curves, and a link to the report."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from turnout.errors import UserError
from turnout.running.charts.svg import packaged, sheet
from turnout.running.records.finding import find_runs
from turnout.view.report import render
from turnout.view.report.lines import metric_charts
from turnout.view.report.page import facts, notes
from turnout.view.report.results import results

SCOPE = ".turnout"  # class of the picture


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
    head = f'class="{SCOPE[1:]}" style="display: block; width: 100%; max-width: {380 * len(drawn)}px" '
    picture = Markup(sheet(drawn, scoped_style(), head)) if drawn else ""
    return render("notebook.html", **values, lines=lines, picture=picture)


@cache
def scoped_style() -> str:
    """charts.css for pictures of class `turnout` only: a notebook is one page with other pictures too."""
    style = re.sub(r"(?m)^(\s*):root\b", rf"\1{SCOPE}", packaged("charts.css"))
    return re.sub(r"(?m)^(?:svg |(?=\.(?!turnout)))", f"{SCOPE} ", style)
