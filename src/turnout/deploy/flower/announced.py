"""Replies as their parts arrive at the SuperLink; nobody waits for them.

A node announces a reply before it sends the parts. Flower's own Grid then waits up to two hours for them, and with it
everybody: a node that loses its connection between the two, or means harm, would hold up the whole run. Here a reply
whose parts are not all there is looked at again the next time. It is from inside Flower's package, whose version is
pinned.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flwr.app import Error, Message
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid.http_grid import HttpGrid

FIRST, LAST = 0.1, 1.0  # seconds until missing parts are asked for again: at first, and at most


@dataclass
class Coming:
    """A reply that was announced: its parts, those that are here, and when the others are asked for again."""

    message: str
    parts: list[str]
    here: dict[str, bytes] = field(default_factory=dict)
    pause: float = FIRST
    again: float = 0.0

    def later(self) -> None:
        self.again, self.pause = time.monotonic() + self.pause, min(2 * self.pause, LAST)


class Announced:
    """Replies that were announced, each handed out when all of it is there."""

    def __init__(self, grid: HttpGrid):
        self.grid, self.coming = grid, dict[str, Coming]()  # by the message that is answered

    def take(self, messages: Sequence[str]) -> list[Message]:
        """The replies that are complete; who is not asked for any more is forgotten."""
        self.coming = {asked: one for asked, one in self.coming.items() if asked in messages}
        request = PullAppMessagesRequest(message_ids=[asked for asked in messages if asked not in self.coming])
        found = self.grid._runtime_client.PullMessages(request)
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            if head.metadata.reply_to_message_id in messages:
                parts = [part.object_id for part in iterate_object_tree(tree)]
                self.coming[head.metadata.reply_to_message_id] = Coming(head.metadata.message_id, parts)
        due = [asked for asked, one in self.coming.items() if time.monotonic() >= one.again]
        return list(self._complete(due))

    def _complete(self, due: Sequence[str]) -> Iterable[Message]:
        for asked in due:
            one = self.coming[asked]
            try:
                self._pull(one)
                message = self._made(one, asked)
            except ObjectUnavailableError:
                one.later()
                continue
            except ObjectPullError as error:
                message = self._lost(asked, str(error))
            del self.coming[asked]
            yield message

    def _pull(self, one: Coming) -> None:
        """Pull what is missing, once; ObjectUnavailableError where something is not there yet."""
        asked_for = make_pull_object_fn_protobuf(
            self.grid._runtime_client.PullObject, self.grid.node, self.grid.run.run_id
        )
        missing = list[ObjectUnavailableError]()

        def pull(part: str) -> bytes:
            try:
                one.here[part] = asked_for(part)
            except ObjectUnavailableError as error:
                missing.append(error)
                raise
            return one.here[part]

        try:
            pull_objects([part for part in one.parts if part not in one.here], pull, max_tries_per_object=1)
        except ObjectPullError:
            if missing:
                raise missing[0] from None
            raise

    def _made(self, one: Coming, asked: str) -> Message:
        client, run = self.grid._runtime_client, self.grid.run.run_id
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.grid.node, run_id=run, message_object_id=one.message)
        )
        try:
            message = inflate_object_from_contents(one.message, one.here)
        except Exception as error:  # a node may have stored anything under these names
            raise ObjectPullError(one.message, f"it cannot be read ({type(error).__name__})") from error
        if not isinstance(message, Message):
            raise ObjectPullError(one.message, "it is not a message")
        if message.metadata.reply_to_message_id != asked:  # it would be taken for another node's
            raise ObjectPullError(one.message, "it answers another message than the one it was announced for")
        return message

    def _lost(self, asked: str, why: str) -> Message:
        node = self.grid.node.node_id
        about = Metadata(self.grid.run.run_id, "", node, node, asked, "", time.time(), 0.0, SYSTEM_MESSAGE_TYPE)
        return make_message(about, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, why))
