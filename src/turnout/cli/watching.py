"""`turnout watch`: runs in the browser, as they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of runs to watch.", show_default="this folder")]
Host = Annotated[str, typer.Option(help="The address to listen on; others than loopback need the token to look, too.")]
Port = Annotated[int | None, typer.Option(help="The port. [default: 8811, or the next that is free]", min=0, max=65535)]
Browser = Annotated[bool, typer.Option("--open", help="Open the page in this machine's browser.")]


def watch(folder: Folder = Path("."), host: Host = "127.0.0.1", port: Port = None, browser: Browser = False) -> None:
    """Watch runs in the browser, as they go on.

    Running and finished runs, pictures that follow the rounds, who is training now, every client's history, runs
    compared, studies and their claims; runs can be started, stopped and resumed. The printed address has a token:
    without it one may look (from this machine only), but not press buttons. Ctrl-C ends the page, not the runs.

    \b
    turnout watch
    turnout watch experiments --port 9000 --open
    turnout watch --host 0.0.0.0
    """
    from turnout.cli.screen import say
    from turnout.errors import UserError
    from turnout.machine.optional import optional

    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder of runs")
    for name in ("starlette", "uvicorn"):
        optional(name, "turnout watch", "watch")
    from turnout.view.live.serving import serve

    def show(address: str) -> None:
        say(f"{folder.absolute()} is on {address}", stderr=False)
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(folder, host, port, say=show)
