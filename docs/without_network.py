"""Hooks of MkDocs: pages of papers/docs and benchmarks are part of the site, which needs no network, also as files.

The theme's offline plugin has pages fetch a script from a public server, without which the search does nothing; ours
(worker_in_frame.js) is in the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ADDED = {"papers": ROOT / "papers" / "docs", "benchmarks": ROOT / "benchmarks"}  # folder in the site: folder of pages


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and pictures of papers/docs and benchmarks."""
    from mkdocs.structure.files import File

    for name, folder in ADDED.items():
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".md", ".svg") and ".venv" not in p.as_posix()):
            place = f"{name}/{path.relative_to(folder).as_posix()}"
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Make links between docs/, papers/docs/ and benchmarks/ lead to where the pages are in the site."""
    markdown = markdown.replace("](../papers/docs/", "](papers/").replace("](../../docs/", "](../")
    if page.file.src_uri.startswith("benchmarks/"):
        return markdown.replace("](papers/", "](../papers/").replace("](../docs/", "](../")
    return markdown.replace("](../benchmarks/", "](benchmarks/")


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Replace the script's address, relative to the page."""
    up = "../" * page.file.dest_uri.count("/")
    return re.sub(r'src="https://[^"]*iframe-worker[^"]*"', f'src="{up}worker_in_frame.js"', output)
