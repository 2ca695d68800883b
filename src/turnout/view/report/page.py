"""The report: one HTML file that needs nothing else, put together from the sections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from turnout.machine.files import write_whole
from turnout.running.charts.page import whole_page
from turnout.running.charts.svg import sample, sheet
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import Runs
from turnout.running.records.warnings import warnings_in
from turnout.view.report import sections
from turnout.view.report.clients import clients_sections, friends_section, turnout_section
from turnout.view.report.lines import metric_charts
from turnout.view.report.short import common_kinds, facts, notes

# The page from top to bottom. A section of your own is a line here: a function of the runs that returns the section in
# a list, or an empty list where there is no data for it (`charts_section` makes one of charts).
SECTIONS: tuple[Callable[[Runs], list[Markup]], ...] = (
    sections.results_section,
    sections.curves_section,
    turnout_section,
    clients_sections,
    sections.bytes_section,
    sections.time_section,
    sections.weights_section,
    friends_section,
    sections.privacy_section,
    sections.parts_section,
    sections.events_section,
    sections.settings_section,
)


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
        "variants": [{"name": name, "sample": Markup(sample(i))} for i, name in enumerate(runs.variants)],
    }
