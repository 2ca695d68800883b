"""The server process: where it listens, the token it makes, and how it ends."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from turnout.errors import UserError
from turnout.view.live.app import make_app
from turnout.view.live.guard import Rules, is_loopback

PORT = 8811
TRIED = 20  # ports from there on, where none is asked for


def serve(
    folder: Path, host: str, port: int | None, token: str | None = None, said: Callable[[str], None] = print
) -> None:
    """Serve the pages of a folder until it is interrupted; `said` gets the address to open."""
    with listening(host, port) as listener:
        rules = Rules(host, listener.getsockname()[1], token or secrets.token_urlsafe(24))
        said(address(rules))
        app = make_app(folder, rules)
        config = uvicorn.Config(
            app, log_level="warning", timeout_graceful_shutdown=3, server_header=False, lifespan="off"
        )
        _Server(config).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends the endless answers first, so that it can end in order."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.changes.close()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def address(rules: Rules) -> str:
    """Where to look, with the token."""
    name = "127.0.0.1" if rules.host in ("localhost", "0.0.0.0") else rules.host.strip("[]")
    name = "[::1]" if name == "::" else f"[{name}]" if ":" in name else name
    return f"http://{name}:{rules.port}/?token={rules.token}"


def listening(host: str, port: int | None) -> socket.socket:
    """A socket on the port that is asked for, or on the first that is free."""
    for tried in [port] if port is not None else [*range(PORT, PORT + TRIED), 0]:
        try:
            return _bound(host, tried)
        except OSError as error:
            last = error
    hint = "choose another --port" if is_loopback(host) else "is it an address of this machine? choose another --port"
    raise UserError(f"{host}:{port if port is not None else PORT} cannot be listened on ({last.strerror}): {hint}")


def _bound(host: str, port: int) -> socket.socket:
    family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    found = socket.socket(family, kind)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(where)
        found.listen(128)  # from now on a browser waits until the pages are there
    except OSError:
        found.close()
        raise
    return found
