"""A hook of MkDocs: the site asks for nothing from elsewhere, also when it is opened as files.

The theme's offline plugin has pages fetch a script from a public server, without which the search does nothing; ours
(worker_in_frame.js) is in the site.
"""

from __future__ import annotations

import re
from typing import Any


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Replace the script's address, relative to the page."""
    up = "../" * page.file.dest_uri.count("/")
    return re.sub(r'src="https://[^"]*iframe-worker[^"]*"', f'src="{up}worker_in_frame.js"', output)
