"""A page that needs nothing else: it carries its style and its script, and may show and run only these."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

from markupsafe import Markup

from turnout import __version__
from turnout.view.report.svg import packaged
from turnout.view.report.templates import render

STYLES, SCRIPTS = ("charts.css", "page.css"), ("page.js", "history.js")


def whole_page(**values: Any) -> str:
    """The page of a report: title, warnings, notes, kinds, facts, variants, sections, and what it was written from."""
    style, script = (Markup(_joined(names)) for names in (STYLES, SCRIPTS))
    defaults: dict[str, Any] = {"warnings": [], "notes": [], "kinds": [], "variants": []}
    return (
        render("page.html", **defaults | values, version=__version__, style=style, script=script, policy=policy())
        + "\n"
    )


@cache
def policy() -> str:
    """The page's own rules: it may show and run only what it carries, known by its hash; nothing is ever fetched."""
    digests = [hashlib.sha256(_joined(names).encode()).digest() for names in (STYLES, SCRIPTS)]
    style, script = (f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return f"default-src 'none'; img-src data:; style-src {style}; script-src {script}"


def _joined(names: tuple[str, ...]) -> str:
    return "\n".join(map(packaged, names))
