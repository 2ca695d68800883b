"""Shortcuts through the inside of Flower's package, for the versions in SUPPORTED: an option (`--shortcuts`).

Without them, Turnout uses Flower's own programs and its public API only (apps.py). With another version of Flower,
`chosen` says that they are not available, and Flower's own programs are used.

    SuperLink (`python -m turnout.deploy.shortcuts OPTIONS`)   a shorter path for frequent requests
    server (`AnnouncedReplies`)                                all replies with one request
    device (`run_devices`)                                     SuperNode and ClientApp in one process that stays

SuperLink. Flower's HTTP server has nine layers around every request, each of which runs the one below it as a task of
its own with a channel for the answer, so that answers may be streams; below them is a search for the route, and
several threads for dependencies. With many devices, that is nine tenths of a SuperLink's work. Here, frequent requests
of nodes call Flower's own checks and handlers at once, in one thread (`NodeRequests`); for frequent requests of the
server, a layer calls the one below and passes its short answer on (`straight`). Flower's own functions still decide
who may speak to the SuperLink; all other requests take Flower's path. It waits longer for its database than Flower
does, as a disk or a whole machine may stall. If that is not enough, a node gets the status "try again", which nodes
do, instead of an error, after which they end.

Device. A stock SuperNode starts a process for every message and looks for messages every three seconds. This one uses
the same connection and answers at once. It ends when the device has left, or when the connection is lost for good;
`turnout device run` then restarts it.

Everything is imported where it is used: a SuperLink does not load torch, and other versions of Flower may lack it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.superlink.grid.http_grid import HttpGrid
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from turnout.deploy.answering import ClientDevice
    from turnout.deploy.device import DeviceSettings

SUPPORTED = ("1.41", "1.42")  # versions of Flower whose inside is known


def chosen(wanted: bool, say: Callable[[str], None]) -> bool:
    """Whether to use the shortcuts; says why not if they are wanted and this version of Flower is not supported."""
    here = version("flwr")
    if not wanted or ".".join(here.split(".")[:2]) in SUPPORTED:
        return wanted
    say(f"the shortcuts know Flower {' and '.join(SUPPORTED)}, not {here}: Flower's own programs are used")
    return False


# -- the SuperLink

OFTEN = ("pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received")
SERVERS = frozenset(f"/v1/runtime/{what}" for what in (*OFTEN, "get-nodes"))
NODES = frozenset(f"/v1/fleet/{what}" for what in (*OFTEN, "send-node-heartbeat"))
BUSY = ("busy_timeout", "60000")  # milliseconds to wait for the database
TRY_AGAIN = 503


class NodeRequests:
    """The outermost layer: answers frequent requests of nodes, and leaves the rest to the layers below."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from flwr.supercore.error.http import http_error_translator
        from starlette.requests import Request

        often = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in NODES
        if not often or scope["app"].state.fleet_event_log_plugin is not None:
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        response = await http_error_translator(request, _answered)
        await response(scope, receive, send)


async def _answered(request: Request) -> Response:
    from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES, ProtobufTranslationMiddleware
    from flwr.superlink.dependencies.linkstate import get_linkstate
    from flwr.superlink.routers.fleet import router
    from flwr.superlink.routers.fleet.node_auth import authenticate_node
    from sqlalchemy.exc import OperationalError
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import Response

    path = request.scope["path"]
    ProtobufTranslationMiddleware._check_request_media_type(request)
    kind, body = PROTOBUF_REQUEST_TYPES["POST", path], await request.body()
    request.state.protobuf_request = ProtobufTranslationMiddleware._parse_request(body, kind)

    def handle() -> Response:
        authenticate_node(request)
        handler = getattr(router, f"fleet_{path.rpartition('/')[2].replace('-', '_')}")
        found = handler(request=request.state.protobuf_request, state=get_linkstate(request))
        return Response(found.SerializeToString(), media_type=PROTOBUF_MEDIA_TYPE)

    try:
        return await run_in_threadpool(handle)
    except OperationalError as error:
        if "database is locked" not in str(error.orig):
            raise
        return Response(status_code=TRY_AGAIN)


async def straight(layer: BaseHTTPMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
    """Run one of Flower's layers around a request whose answer is short."""
    from starlette.middleware.base import _CachedRequest
    from starlette.responses import Response

    request = _CachedRequest(scope, receive)

    async def below(_: Request) -> Response:
        answer: list[Any] = []

        async def keep(message: Any) -> None:
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
    from flwr.supercore import sql_mixin
    from flwr.superlink import extensions
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware

    theirs, by_tasks = extensions.get_middleware, BaseHTTPMiddleware.__call__

    async def call(layer: BaseHTTPMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
        short = scope["type"] == "http" and scope["path"] in SERVERS
        await (straight if short else by_tasks)(layer, scope, receive, send)

    extensions.get_middleware = lambda: (*theirs(), Middleware(NodeRequests))
    # with `setattr`, as a type checker takes assignments for mistakes
    setattr(sql_mixin, "SQLITE_PRAGMAS", (*sql_mixin.SQLITE_PRAGMAS, BUSY))  # noqa: B010 (the later one counts)
    setattr(BaseHTTPMiddleware, "__call__", call)  # noqa: B010


def main() -> None:
    """Run the SuperLink with the options of `flower-superlink`."""
    from flwr.superlink.cli import flower_superlink

    shorten()
    sys.argv[0] = "flower-superlink"
    flower_superlink()


# -- the server

MOST_PARTS = 1000  # of a reply
MOST_BYTES = 2 << 30  # of a reply, whatever runtime.most_bytes says
PULLS = 8  # parts pulled at the same time
FIRST, LAST = 0.1, 1.0  # seconds until missing parts are asked for again: at first, and at most


@dataclass
class PartialReply:
    """A reply that was announced.

    message  its id
    parts    ids of its parts
    here     the parts that have arrived
    pause    seconds until the others are asked for again
    again    when that is
    """

    message: str
    parts: list[str]
    here: dict[str, bytes] = field(default_factory=dict)
    pause: float = FIRST
    again: float = 0.0


class AnnouncedReplies:
    """Replies that were announced, each handed out once all of it is there."""

    def __init__(self, grid: HttpGrid):
        self.grid, self.coming = grid, dict[str, PartialReply]()  # by the message that is answered

    def take(self, messages: Sequence[str]) -> Iterable[tuple[str, Message | str]]:
        """The replies that are complete; those to other messages are forgotten."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        self.coming = {asked: reply for asked, reply in self.coming.items() if asked in messages}
        request = PullAppMessagesRequest(message_ids=[asked for asked in messages if asked not in self.coming])
        found = self.grid._runtime_client.PullMessages(request)
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            if head.metadata.reply_to_message_id in messages:
                parts = [part.object_id for part in iterate_object_tree(tree)]
                self.coming[head.metadata.reply_to_message_id] = PartialReply(head.metadata.message_id, parts)
        return list(self._complete([asked for asked, reply in self.coming.items() if time.monotonic() >= reply.again]))

    def _complete(self, due: Sequence[str]) -> Iterable[tuple[str, Message | str]]:
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

        for asked in due:
            reply = self.coming[asked]
            found: Message | str
            try:
                found = self._pulled(asked, reply)
            except ObjectUnavailableError:
                reply.again, reply.pause = time.monotonic() + reply.pause, min(2 * reply.pause, LAST)
                continue
            except ObjectPullError as error:
                found = str(error)
            del self.coming[asked]
            yield asked, found

    def _pulled(self, asked: str, reply: PartialReply) -> Message:
        """The reply, its missing parts pulled once; ObjectUnavailableError if one is not there yet.

        A reply of too many parts or bytes is given up, and so is one that is larger than its parts: an array may name
        the same piece any number of times.
        """
        from flwr.app import Message
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents

        if len(reply.parts) > MOST_PARTS:
            raise ObjectPullError(reply.message, f"it has more than {MOST_PARTS} parts")
        client, node, run = self.grid._runtime_client, self.grid.node, self.grid.run.run_id
        pull_part = make_pull_object_fn_protobuf(client.PullObject, node, run)

        def pull(part: str) -> None:
            if sum(map(len, reply.here.values())) <= MOST_BYTES:
                reply.here[part] = pull_part(part)

        with ThreadPoolExecutor(PULLS) as threads:
            list(threads.map(pull, [part for part in reply.parts if part not in reply.here]))
        if len(reply.here) < len(set(reply.parts)) or unpacked_size(reply) > MOST_BYTES:
            raise ObjectPullError(reply.message, f"it has more than {MOST_BYTES:,} bytes")
        confirmed = ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=reply.message)
        client.ConfirmMessageReceived(confirmed)
        try:
            message = inflate_object_from_contents(reply.message, reply.here)
        except Exception as error:  # a node may have stored anything under these names
            raise ObjectPullError(reply.message, f"it cannot be read ({type(error).__name__})") from error
        if not isinstance(message, Message):
            raise ObjectPullError(reply.message, "it is not a message")
        if message.metadata.reply_to_message_id != asked:  # it would count as another node's
            raise ObjectPullError(reply.message, "it answers another message than the one it was announced for")
        return message


def unpacked_size(reply: PartialReply) -> int:
    """Bytes of the arrays in a reply, with each piece counted as often as it is named."""
    from flwr.app import Array
    from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    total = 0
    try:
        for content in reply.here.values():
            kind, children, _ = get_object_head_values_from_object_content(content)
            if kind == Array.__qualname__:
                pieces = json.loads(get_object_body(content, Array))["arraychunk_ids"]
                total += sum(len(reply.here[children[piece]]) for piece in pieces)
    except Exception as error:  # a node may have stored anything under these names
        raise ObjectPullError(reply.message, f"it cannot be read ({type(error).__name__})") from error
    return total


# -- devices

CALM = 10  # times as long between two looks for a message, if there was none for a while
ACTIVE = 30.0  # seconds after a message that count as a busy time
BACK_OFF = 0.25  # of a look: until a part of a message that was not there yet is asked for again


def run_devices(paths: Sequence[Path]) -> None:
    """Run these devices, a thread each, until they have left or their connections are lost for good."""
    from turnout.deploy.device import open_device, read_device

    devices = [(open_device(path), read_device(path)) for path in paths]
    threads = [threading.Thread(target=stay, args=own, daemon=True) for own in devices[1:]]
    for thread in threads:
        thread.start()
    stay(*devices[0])
    for thread in threads:
        thread.join()


def stay(device: ClientDevice, settings: DeviceSettings) -> None:
    """Answer the server's questions, connected as the device's file says, until the device has left."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode
    from flwr.supernode.fleet_http_connection import http_request_response

    from turnout.deploy.answering import LEFT
    from turnout.deploy.apps import answered
    from turnout.deploy.device import report_wrong_clock
    from turnout.deploy.keys import private_key

    report_wrong_clock(settings)
    private = None if settings.key is None else private_key(settings.key)
    keys = None if private is None else (private, private.public_key())
    certificate = None if settings.root is None else settings.root.read_bytes()
    with http_request_response(settings.superlink, certificate is None, certificate, keys) as connection:
        node, receive, send, _, _, pull, push, confirm = connection
        print(f"{device.name} is connected as node {node}", flush=True)
        last = time.monotonic()
        while not (device.folder / LEFT).exists():
            message = _received(device, receive, pull, confirm, settings)
            if message is not None:
                try:
                    answer = answered(device, message)
                except Exception as error:  # it costs one message, not the node
                    why = f"{type(error).__name__}: {error}"
                    print(f"a message could not be answered: {why}", flush=True)
                    answer = Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=why), reply_to=message)
                _reply(device, answer, send, push, settings)
                last = time.monotonic()
            else:
                active = time.monotonic() - last < ACTIVE
                time.sleep(settings.look if active else min(CALM * settings.look, max(1.0, settings.look)))


def _received(
    device: ClientDevice, receive: Callable[[], Any], pull: Callable[[int, str], bytes],
    confirm: Callable[[int, str], None], settings: DeviceSettings,
) -> Message | None:  # fmt: skip
    """The next message with all its parts; None if there is none.

    A message is announced before its parts are there: each is asked for again after a while, then after twice as long.
    If many devices ask too often, the SuperLink has no time to receive the parts.
    """
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
    from flwr.supercore.run import RunNotRunningException

    try:
        found, began = receive(), time.monotonic()
        if found is None:
            return None
        head, tree = found
        run, ids = head.metadata.run_id, [part.object_id for part in iterate_object_tree(tree)]
        again = BACK_OFF * settings.look
        contents = pull_objects(ids, lambda part: pull(run, part), initial_backoff=again, backoff_cap=max(1.0, again))
        confirm(run, head.metadata.message_id)
        _wait_for(settings.down_mbps, sum(map(len, contents.values())), began)
        device.download = time.monotonic() - began
    except RunNotRunningException:
        return None
    message = inflate_object_from_contents(tree.object_id, contents)
    assert isinstance(message, Message)
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def _reply(
    device: ClientDevice, reply: Message, send: Callable[..., Any], push: Callable[..., None], settings: DeviceSettings
) -> None:
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import push_objects
    from flwr.supercore.run import RunNotRunningException

    reply.metadata.__dict__["_message_id"] = reply.object_id
    began, sizes = time.monotonic(), list[int]()
    try:
        with no_object_id_recompute():
            wanted, session = send(reply, get_object_tree(reply), 0.0)
            run, parts = reply.metadata.run_id, get_all_nested_objects(reply)

            def pushed(part: str, data: bytes) -> None:
                sizes.append(len(data))
                _wait_for(settings.up_mbps, sum(sizes), began)
                push(run, session, part, data)

            push_objects(parts, pushed, object_ids_to_push=wanted)
    except RunNotRunningException:
        print("the run has ended before the answer arrived", flush=True)
    device.sent(time.monotonic() - began)


def _wait_for(mbps: float, size: int, began: float) -> None:
    """Wait as long as so many bytes take on a link of this speed (0: no limit)."""
    if mbps:
        time.sleep(max(0.0, began + 8e-6 * size / mbps - time.monotonic()))


if __name__ == "__main__":
    main()
