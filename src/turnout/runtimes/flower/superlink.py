"""Flower's SuperLink as it is, with one thing done in a shorter way: `python -m turnout.runtimes.flower.superlink OPTIONS`.

Flower's HTTP server has nine layers around every request, and each runs what is below it as a task of its own with a
channel for the answer, so that answers may be streams. Seven tenths of the SuperLink's time went there. The exchanges
of every round have short answers: for them a layer calls the one below and passes its answer on. What the layers do, who
may speak to the SuperLink included, stays Flower's.
"""

from __future__ import annotations

import sys

from flwr.superlink.cli import flower_superlink
from starlette.middleware.base import BaseHTTPMiddleware, _CachedRequest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

OFTEN = frozenset(
    f"/v1/{side}/{what}"
    for side in ("fleet", "runtime")
    for what in ("pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received",
                 "send-node-heartbeat", "get-nodes")
)  # fmt: skip
_by_tasks = BaseHTTPMiddleware.__call__


async def straight(layer: BaseHTTPMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
    """One layer around a request whose answer is short; the others go Starlette's way."""
    if scope["type"] != "http" or scope["path"] not in OFTEN:
        await _by_tasks(layer, scope, receive, send)
        return
    request = _CachedRequest(scope, receive)

    async def below(_: Request) -> Response:
        answer: list[Message] = []

        async def keep(message: Message) -> None:
            answer.append(message)

        await layer.app(scope, request.wrapped_receive, keep)
        body = b"".join(message.get("body", b"") for message in answer[1:])
        response = Response(body, status_code=answer[0]["status"])
        response.raw_headers = list(answer[0]["headers"])
        return response

    response = await layer.dispatch_func(request, below)
    await response(scope, receive, send)


def main() -> None:
    """Run the SuperLink with the options of `flower-superlink`."""
    BaseHTTPMiddleware.__call__ = straight  # type: ignore[method-assign]
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()
