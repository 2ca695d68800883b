"""Pages from the templates of this package (*.html): what a person wrote is escaped, and a missing value is an error.

A chart is SVG that we made ourselves, and its text is escaped already (svg.py); `trusted` says so to a template.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from turnout.view.report.svg import printable


def render(template: str, **values: Any) -> Markup:
    """A template filled in."""
    return Markup(environment("turnout.view.report").get_template(template).render(values))


class Figure(NamedTuple):
    """A chart for a template; `of` are the numbers of the variants it belongs to, where it can be switched off."""

    chart: Markup
    of: str = ""


def trusted(charts: Iterable[str]) -> list[Figure]:
    """Charts as a template may show them; those without data are left out."""
    return [Figure(Markup(chart)) for chart in charts if chart]


@cache
def environment(*packages: str) -> Environment:
    """Where templates are found, in this order, and how they are filled in."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, ".") for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
