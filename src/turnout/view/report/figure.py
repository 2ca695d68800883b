"""Curves of one or several folders as a picture file: SVG of our own, PNG and PDF made from it by CairoSVG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.machine.files import write_whole
from turnout.machine.optional import optional
from turnout.running.charts.svg import sheet
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import Runs
from turnout.view.report.lines import check_metrics, metric_chart

FORMS = (".svg", ".png", ".pdf")
SHARPNESS = 2.0  # dots of a PNG for each of the SVG's


def write_figure(folders: Sequence[Path], metrics: Sequence[str], path: Path) -> list[str]:
    """Draw metrics (default: the main one), a chart each, with a line for each variant; returns those drawn."""
    cairo = check_form(path)
    runs = together(folders)
    charts = {metric: metric_chart(runs, metric) for metric in check_metrics(runs, metrics)}
    if not any(charts.values()):
        raise UserError(f"nothing was measured yet in {', '.join(map(str, folders))}: there is no curve to draw")
    picture = sheet(list(charts.values()))
    if path.suffix == ".svg":
        write_whole(path, picture)
    else:
        plain, is_png = in_plain_colours(picture).encode(), path.suffix == ".png"
        convert = cairo.svg2png if is_png else cairo.svg2pdf
        write_whole(path, convert(bytestring=plain, scale=SHARPNESS if is_png else 1.0))
    return [title for title, chart in charts.items() if chart]


def check_form(path: Path) -> Any:
    """The library that a form needs, None for SVG; an unknown suffix or a missing library is an error."""
    if path.suffix not in FORMS:
        raise UserError(f"{path}: a picture's file ends in {', '.join(FORMS)}, which says its form")
    return None if path.suffix == ".svg" else optional("cairosvg", "a PNG or PDF", "pictures")


def together(folders: Sequence[Path]) -> Runs:
    """The runs of several folders as one; of several, variants are named after their folders too."""
    found = [find_runs(folder) for folder in folders]
    if len(found) == 1:
        return found[0]
    names = [folder.absolute().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    runs = []
    for name, group in zip(names, found, strict=True):
        single = len(group.runs) == 1 and group.runs[0].seed is None
        runs += [replace(run, variant=name if single else f"{name} {run.variant}") for run in group.runs]
    return Runs(", ".join(names), tuple(runs), metric=found[0].metric)


def in_plain_colours(picture: str) -> str:
    """The picture with its light colours written out: converters know neither CSS variables nor dark screens.

    >>> in_plain_colours(":root {\\n --ink: #123;\\n}\\n@media dark {\\n --ink: #fff;\\n}\\na { fill: var(--ink) }")
    'a { fill: #123 }'
    """
    light = dict(re.findall(r"(--\w+):\s*(#\w+)", picture.partition("@media")[0]))
    plain = re.sub(r"@media.*?\n}\n", "", picture, flags=re.DOTALL)
    plain = re.sub(r":root \{.*?\}\n", "", plain, flags=re.DOTALL)
    return re.sub(r"var\((--\w+)\)", lambda found: light[found[1]], plain)
