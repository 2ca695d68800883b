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
from turnout.view.report.lines import metric_chart, metric_named

FORMS = (".svg", ".png", ".pdf")
SHARPNESS = 2.0  # dots of a PNG for each of the SVG's


def write_figure(folders: Sequence[Path], metrics: Sequence[str], path: Path) -> list[str]:
    """Draw metrics (without: the main one), a chart each, with a line for each variant; the titles of the charts."""
    check_form(path)
    runs = together([find_runs(folder) for folder in folders], folders)
    named = [metric_named(runs, said) for said in metrics] or runs.metrics[:1]
    charts = {metric: metric_chart(runs, metric) for metric in named}
    if not any(charts.values()):
        raise UserError(f"nothing was measured yet in {', '.join(map(str, folders))}: there is no curve to draw")
    picture = sheet(list(charts.values()))
    if path.suffix == ".svg":
        write_whole(path, picture)
    else:
        write_whole(path, _converted(picture, path.suffix))
    return [title for title, chart in charts.items() if chart]


def check_form(path: Path) -> None:
    """Refuse a suffix that says no form, and a form whose library is not here, before anything is read."""
    if path.suffix not in FORMS:
        raise UserError(f"{path}: a picture's file ends in {', '.join(FORMS)}, which says its form")
    if path.suffix != ".svg":
        _cairo()


def together(found: Sequence[Runs], folders: Sequence[Path]) -> Runs:
    """Runs of several folders as one; variants are called after their folders too, where there are several."""
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


def _cairo() -> Any:
    return optional("cairosvg", "a PNG or PDF", "pictures")


def _converted(picture: str, suffix: str) -> bytes:
    convert = _cairo().svg2png if suffix == ".png" else _cairo().svg2pdf
    made: bytes = convert(bytestring=in_plain_colours(picture).encode(), scale=SHARPNESS if suffix == ".png" else 1.0)
    return made


def in_plain_colours(picture: str) -> str:
    """The picture with its light colours written out: converters know neither CSS variables nor dark screens.

    >>> in_plain_colours(":root {\\n --ink: #123;\\n}\\n@media dark {\\n --ink: #fff;\\n}\\na { fill: var(--ink) }")
    'a { fill: #123 }'
    """
    light = dict(re.findall(r"(--\w+):\s*(#\w+)", picture.partition("@media")[0]))
    plain = re.sub(r"@media.*?\n}\n", "", picture, flags=re.DOTALL)
    plain = re.sub(r":root \{.*?\}\n", "", plain, flags=re.DOTALL)
    return re.sub(r"var\((--\w+)\)", lambda found: light[found[1]], plain)
