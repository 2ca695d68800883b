"""Flower's side: messages as parts, the Grid as a link, and the ServerApp and the ClientApp of a Flower app, which the
pyproject.toml that `turnout deploy init` writes names.

    [tool.flwr.app.components]
    serverapp = "turnout.deploy.apps:server_app"
    clientapp = "turnout.deploy.apps:client_app"

The server's run config has `experiment` (a file), `out` (the run's folder) and `keys` (a folder of the devices' public
keys, or ""); a node's config has `device`, the device's own file.

Large parts of a message are byte arrays, so that equal ones are stored once on the way; the small ones are in one
record, because every array of a message costs an exchange of its own.

A node announces a reply before it sends the parts. Flower's own Grid then waits up to two hours for them, and with it
the whole run: a node that loses its connection in between, or a malicious one, would block it. Here a reply whose parts
are not all there is tried again later. It uses the inside of Flower's package, whose version is pinned.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid.http_grid import HttpGrid

from turnout.deploy.answering import ClientDevice
from turnout.deploy.device import open_device
from turnout.deploy.server import serve
from turnout.running.tracking import NO_HOOKS
from turnout.runtimes.remote import Parts

LARGE, SMALL, FORM = "turnout", "turnout.small", "turnout.bytes"
MOST = 1 << 15  # bytes of a small part
MOST_PARTS = 1000  # of a reply
MOST_BYTES = 2 << 30  # of a reply, whatever runtime.most_bytes says
PULLS = 8  # parts pulled at the same time
FRESH = 1.0  # seconds for which the list of nodes is good
FIRST, LAST = 0.1, 1.0  # seconds until missing parts are asked for again: at first, and at most


def content_of(parts: Parts) -> RecordDict:
    """Parts as a message's content."""
    small: dict[str, Any] = {name: data for name, data in parts.items() if len(data) <= MOST}
    large = {
        name: Array(dtype="uint8", shape=(len(data),), stype=FORM, data=data)
        for name, data in parts.items()
        if name not in small
    }
    content = RecordDict({SMALL: ConfigRecord(small)})
    if large:
        content[LARGE] = ArrayRecord(large)
    return content


def parts_of(content: RecordDict) -> Parts:
    """The parts in a message's content; none in that of another program."""
    small, large = content.get(SMALL), content.get(LARGE)
    parts: Parts = {}
    if isinstance(small, ConfigRecord):
        parts |= {name: data for name, data in small.items() if isinstance(data, bytes)}
    if isinstance(large, ArrayRecord):
        parts |= {name: array.data for name, array in large.items() if array.stype == FORM}
    return parts


def answered(device: ClientDevice, message: Message) -> Message:
    """A device's answer to a message of Flower's; it is valid as long as that, by the clock of the server alone."""
    reply = Message(content_of(device.answer(parts_of(message.content))), reply_to=message)
    reply.metadata.__dict__ |= {"_created_at": message.metadata.created_at, "_ttl": message.metadata.ttl}
    return reply


class GridLink:
    """Nodes reached through a Grid; messages are of type "query"."""

    def __init__(self, grid: Grid):
        self.grid, self.announced = grid, AnnouncedReplies(grid) if isinstance(grid, HttpGrid) else None
        self._nodes, self._seen = set[int](), -math.inf

    def nodes(self) -> set[int]:
        """The connected nodes as of the last second: the server looks often."""
        if time.monotonic() - self._seen > FRESH:
            self._nodes, self._seen = set(self.grid.get_node_ids()), time.monotonic()
        return set(self._nodes)

    def send(self, requests: Sequence[tuple[int, Parts]], seconds: float) -> list[str | None]:
        messages = [Message(content_of(parts), node, "query", ttl=seconds) for node, parts in requests]
        ids = list(self.grid.push_messages(messages))
        return [message or None for message in ids] if len(ids) == len(requests) else [None] * len(requests)

    def take(self, messages: Sequence[str]) -> dict[str, Parts | str]:
        found: dict[str, Parts | str] = {}
        for message in (self.announced.take if self.announced else self.grid.pull_messages)(list(messages)):
            asked = message.metadata.reply_to_message_id
            try:
                failed = f"Flower says: {message.error.reason}" if message.has_error() else None
                found[asked] = failed or parts_of(message.content)
            except Exception as error:  # a node may send records of any form
                found[asked] = f"its message cannot be read ({type(error).__name__})"
        return found


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

    def take(self, messages: Sequence[str]) -> list[Message]:
        """The replies that are complete; those to other messages are forgotten."""
        self.coming = {asked: reply for asked, reply in self.coming.items() if asked in messages}
        request = PullAppMessagesRequest(message_ids=[asked for asked in messages if asked not in self.coming])
        found = self.grid._runtime_client.PullMessages(request)
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            if head.metadata.reply_to_message_id in messages:
                parts = [part.object_id for part in iterate_object_tree(tree)]
                self.coming[head.metadata.reply_to_message_id] = PartialReply(head.metadata.message_id, parts)
        return list(self._complete([asked for asked, reply in self.coming.items() if time.monotonic() >= reply.again]))

    def _complete(self, due: Sequence[str]) -> Iterable[Message]:
        for asked in due:
            reply = self.coming[asked]
            try:
                self._pull(reply)
                if unpacked_size(reply) > MOST_BYTES:
                    raise ObjectPullError(reply.message, f"it has more than {MOST_BYTES:,} bytes")
                self.grid._runtime_client.ConfirmMessageReceived(ConfirmMessageReceivedRequest(
                    node=self.grid.node, run_id=self.grid.run.run_id, message_object_id=reply.message
                ))  # fmt: skip
                try:
                    message = inflate_object_from_contents(reply.message, reply.here)
                except Exception as error:  # a node may have stored anything under these names
                    raise ObjectPullError(reply.message, f"it cannot be read ({type(error).__name__})") from error
                if not isinstance(message, Message):
                    raise ObjectPullError(reply.message, "it is not a message")
                if message.metadata.reply_to_message_id != asked:  # it would count as another node's
                    raise ObjectPullError(reply.message, "it answers another message than the one it was announced for")
            except ObjectUnavailableError:
                reply.again, reply.pause = time.monotonic() + reply.pause, min(2 * reply.pause, LAST)
                continue
            except ObjectPullError as error:
                node = self.grid.node.node_id
                about = Metadata(self.grid.run.run_id, "", node, node, asked, "", time.time(), 0.0, SYSTEM_MESSAGE_TYPE)
                message = make_message(about, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, str(error)))
            del self.coming[asked]
            yield message

    def _pull(self, reply: PartialReply) -> None:
        """Pull missing parts, once; ObjectUnavailableError if one is not there yet.

        A reply of too many parts or bytes is given up, and so is one that is larger than its parts: an array may name
        the same piece any number of times.
        """
        if len(reply.parts) > MOST_PARTS:
            raise ObjectPullError(reply.message, f"it has more than {MOST_PARTS} parts")
        client, run = self.grid._runtime_client, self.grid.run.run_id
        pull_part = make_pull_object_fn_protobuf(client.PullObject, self.grid.node, run)

        def pull(part: str) -> None:
            if sum(map(len, reply.here.values())) <= MOST_BYTES:
                reply.here[part] = pull_part(part)

        with ThreadPoolExecutor(PULLS) as threads:
            list(threads.map(pull, [part for part in reply.parts if part not in reply.here]))
        if len(reply.here) < len(set(reply.parts)):
            raise ObjectPullError(reply.message, f"it has more than {MOST_BYTES:,} bytes")


def unpacked_size(reply: PartialReply) -> int:
    """Bytes of the arrays in a reply, with each piece counted as often as it is named."""
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


# -- the apps

server_app = ServerApp()
client_app = ClientApp()
device_of = cache(open_device)  # one in a process, as long as it stays


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the run config; a run that is in its folder already is resumed."""
    config = context.run_config
    keys = str(config.get("keys") or "")
    places = Path(str(config["experiment"])), Path(str(config["out"])), Path(keys) if keys else None
    # No caller is above this process: the report writer and trackers are found by name, if they are installed.
    has_view = importlib.util.find_spec("turnout.view") is not None
    serve(GridLink(grid), *places, hooks=importlib.import_module("turnout.view").HOOKS if has_view else NO_HOOKS)


@client_app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer the server's question for the device that the node's config names."""
    return answered(device_of(Path(str(context.node_config["device"]))), message)
