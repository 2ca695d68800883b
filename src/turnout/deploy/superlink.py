"""Flower's SuperLink with a shorter path for frequent requests: `python -m turnout.deploy.superlink OPTIONS`.

Flower's HTTP server has nine layers around every request, each of which runs the one below it as a task of its own with
a channel for the answer, so that answers may be streams; below them is a search for the route, and several threads for
dependencies. With many devices, that is nine tenths of a SuperLink's work. Here,

    frequent requests of nodes (`NodeRequests`)   call Flower's own checks and handlers at once, in one thread
    requests of the server (`straight`)           a layer calls the one below and passes its short answer on

Flower's own functions still decide who may speak to the SuperLink; all other requests take Flower's path.

It waits longer for its database than Flower does, as a disk or a whole machine may stall. If that is not enough, a node
gets the status "try again", which nodes do, instead of an error, after which they end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from flwr.supercore import sql_mixin
from flwr.supercore.error.http import http_error_translator
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES, ProtobufTranslationMiddleware
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink
from flwr.superlink.dependencies.linkstate import get_linkstate
from flwr.superlink.routers.fleet import router as fleet
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from sqlalchemy.exc import OperationalError
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, _CachedRequest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OFTEN = ("pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received")
SERVERS = frozenset(f"/v1/runtime/{what}" for what in (*OFTEN, "get-nodes"))
NODES: dict[str, Callable[..., Any]] = {
    f"/v1/fleet/{what}": getattr(fleet, f"fleet_{what.replace('-', '_')}") for what in (*OFTEN, "send-node-heartbeat")
}
BUSY = ("busy_timeout", "60000")  # milliseconds to wait for the database
TRY_AGAIN = 503
_by_tasks = BaseHTTPMiddleware.__call__


class NodeRequests:
    """The outermost layer: answers frequent requests of nodes, and leaves the rest to the layers below."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        often = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in NODES
        if not often or scope["app"].state.fleet_event_log_plugin is not None:
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        response = await http_error_translator(request, _answered)
        await response(scope, receive, send)


async def _answered(request: Request) -> Response:
    ProtobufTranslationMiddleware._check_request_media_type(request)
    kind, body = PROTOBUF_REQUEST_TYPES["POST", request.scope["path"]], await request.body()
    request.state.protobuf_request = ProtobufTranslationMiddleware._parse_request(body, kind)

    def handle() -> Response:
        authenticate_node(request)
        handler = NODES[request.scope["path"]]
        found = handler(request=request.state.protobuf_request, state=get_linkstate(request))
        return Response(found.SerializeToString(), media_type=PROTOBUF_MEDIA_TYPE)

    try:
        return await run_in_threadpool(handle)
    except OperationalError as error:
        if "database is locked" not in str(error.orig):
            raise
        return Response(status_code=TRY_AGAIN)


async def straight(layer: BaseHTTPMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
    """Run one of Flower's layers around a request whose answer is short; others take Starlette's path."""
    if scope["type"] != "http" or scope["path"] not in SERVERS:
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


def shorten() -> None:
    """Make the SuperLinks of this process take the shorter path."""
    theirs = extensions.get_middleware
    extensions.get_middleware = lambda: (*theirs(), Middleware(NodeRequests))
    # with `setattr`, as a type checker takes assignments for mistakes
    setattr(sql_mixin, "SQLITE_PRAGMAS", (*sql_mixin.SQLITE_PRAGMAS, BUSY))  # noqa: B010 (the later one counts)
    setattr(BaseHTTPMiddleware, "__call__", straight)  # noqa: B010


def main() -> None:
    """Run the SuperLink with the options of `flower-superlink`."""
    shorten()
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()
