"""Hooks of MkDocs: the pages of papers/docs are part of the site, and the site needs no network, also as files.

The theme's offline plugin has pages fetch a script from a public server, without which the search does nothing; ours
(worker_in_frame.js) is in the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAPERS = Path(__file__).parent.parent / "papers" / "docs"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and pictures of papers/docs, below papers/ in the site."""
    from mkdocs.structure.files import File

    for path in sorted(p for p in PAPERS.rglob("*") if p.suffix in (".md", ".svg")):
        files.append(File.generated(config, f"papers/{path.relative_to(PAPERS).as_posix()}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Make links between docs/ and papers/docs/ lead to where the pages are in the site."""
    return markdown.replace("](../papers/docs/", "](papers/").replace("](../../docs/", "](../")


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Replace the script's address, relative to the page."""
    up = "../" * page.file.dest_uri.count("/")
    return re.sub(r'src="https://[^"]*iframe-worker[^"]*"', f'src="{up}worker_in_frame.js"', output)
