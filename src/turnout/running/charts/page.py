"""Pages from jinja2 templates: one HTML file that carries its style and its script and loads nothing else.

Values are escaped, and a missing value is an error. Charts are SVG made here whose text is escaped already (svg.py), so
`trusted` passes them on as they are.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from turnout import __version__
from turnout.running.charts.svg import packaged, printable

STYLES, SCRIPTS = ("charts.css", "page.css"), ("page.js",)


class Figure(NamedTuple):
    """A chart for a template.

    chart  the SVG
    of     numbers of the variants it belongs to, where the page can hide it; "" where it cannot
    """

    chart: Markup
    of: str = ""


def trusted(charts: Iterable[str]) -> list[Figure]:
    """Charts as a template may show them; empty ones are left out."""
    return [Figure(Markup(chart)) for chart in charts if chart]


def renderer(*packages: str) -> Callable[..., Markup]:
    """A function that fills in a template of these packages, or of this one: `render("page.html", title=...)`."""

    @cache
    def environment() -> Environment:
        return Environment(
            loader=ChoiceLoader([PackageLoader(package, ".") for package in (*packages, __package__)]),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=lambda value: value if isinstance(value, Markup) else printable(value),
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def render(template: str, **values: Any) -> Markup:
        return Markup(environment().get_template(template).render(values))

    return render


render = renderer()


def charts_section(title: str, charts: Iterable[str], note: str = "") -> list[Markup]:
    """Charts under a heading; an empty list where there are none."""
    shown = trusted(charts)
    return [render("charts.html", title=title, note=note, charts=shown)] if shown else []


def whole_page(**values: Any) -> str:
    """A complete page: title, facts, sections, source; optionally warnings, notes, kinds, variants."""
    style, script = (Markup("\n".join(map(packaged, names))) for names in (STYLES, SCRIPTS))
    optional: dict[str, Any] = {"warnings": [], "notes": [], "kinds": [], "variants": []}
    page = render("page.html", **optional | values, version=__version__, style=style, script=script, policy=policy())
    return page + "\n"


@cache
def policy() -> str:
    """The page's Content-Security-Policy: only the style and script it carries, by their hashes; no requests."""
    joined = ["\n".join(map(packaged, names)) for names in (STYLES, SCRIPTS)]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in joined]
    return f"default-src 'none'; img-src data:; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'"
