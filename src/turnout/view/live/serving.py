"""The server process: its address, its token, and how it ends."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from turnout.errors import UserError
from turnout.view.live.app import make_app
from turnout.view.live.guard import Rules, is_loopback

PORT = 8811
REQUEST_SECONDS = 10.0  # until a request must be there
MOST_CONNECTIONS = 100  # at the same time; a further one is answered that the server is busy
TRIED = 20  # ports from there on, where none is asked for


def serve(
    folder: Path, host: str, port: int | None, token: str | None = None, say: Callable[[str], None] = print
) -> None:
    """Serve the pages of a folder until interrupted; `say` gets the address to open."""
    with listening(host, port) as listener:
        rules = Rules(host, listener.getsockname()[1], token or secrets.token_urlsafe(24))
        say(address(rules))
        app = make_app(folder, rules)
        config = uvicorn.Config(
            app, http=_Connection, ws="none", log_level="warning", timeout_graceful_shutdown=3, server_header=False,
            lifespan="off", limit_concurrency=MOST_CONNECTIONS,
        )  # fmt: skip
        _Server(config).run(sockets=[listener])


class _Connection(H11Protocol):
    """A connection that is closed where a request takes too long to arrive; uvicorn itself would wait for ever."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(REQUEST_SECONDS, self._look, None)

    def _look(self, before: object) -> None:
        """Close if no request has begun since the last look: `before` is the request that was answered last then."""
        waits = self.cycle is before and (self.cycle is None or self.cycle.response_complete)
        if waits or self.transport.is_closing():
            self.transport.close()
        else:
            self.loop.call_later(REQUEST_SECONDS, self._look, self.cycle)


class _Server(uvicorn.Server):
    """A server that ends the endless answers first, so that it can shut down."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.changes.close()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def address(rules: Rules) -> str:
    """The address to open, with the token."""
    name = "127.0.0.1" if rules.host in ("localhost", "0.0.0.0") else rules.host.strip("[]")
    name = "[::1]" if name == "::" else f"[{name}]" if ":" in name else name
    return f"http://{name}:{rules.port}/?token={rules.token}"


def listening(host: str, port: int | None) -> socket.socket:
    """A socket on the port that is asked for, or on the first that is free; from now on a browser waits for pages."""
    for tried in [port] if port is not None else [*range(PORT, PORT + TRIED), 0]:
        found = None
        try:
            family, kind, _, _, where = socket.getaddrinfo(
                host, tried, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            found = socket.socket(family, kind)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(where)
            found.listen(128)
            return found
        except OSError as error:
            last = error
            if found is not None:
                found.close()
    hint = "choose another --port" if is_loopback(host) else "is it an address of this machine? choose another --port"
    raise UserError(f"{host}:{port if port is not None else PORT} cannot be listened on ({last.strerror}): {hint}")
