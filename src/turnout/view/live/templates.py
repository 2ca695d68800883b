"""The templates of the live page, beside those of the report, which it uses too."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from turnout.view.report.templates import environment


def render(template: str, **values: Any) -> Markup:
    """A template filled in."""
    return Markup(environment("turnout.view.live", "turnout.view.report").get_template(template).render(values))
