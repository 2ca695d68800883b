"""The picture of what replicates is drawn from the pages beside it."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_picture_is_what_the_pages_say() -> None:
    drawing = runpy.run_path(str(DOCS / "draw_replication.py"))
    panels = [drawing["panel"](title, page, columns) for title, (page, columns) in drawing["PANELS"].items()]
    assert drawing["sheet"](panels) == (DOCS / "replication.svg").read_text("utf-8")
