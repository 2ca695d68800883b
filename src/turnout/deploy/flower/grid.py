"""Flower's Grid as a link. Large parts of a message are byte arrays, so that equal ones are stored once on the way; the
small ones go together in one record, since every array of a message costs exchanges of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

from turnout.deploy.flower.announced import Announced
from turnout.deploy.flower.link import Answer, Parts

LARGE, SMALL, FORM = "turnout", "turnout.small", "turnout.bytes"
MOST = 1 << 15  # bytes of a small part
FRESH = 1.0  # seconds for which the list of nodes is good


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
    """The parts in a message's content; none where it is somebody else's."""
    small, large = content.get(SMALL), content.get(LARGE)
    parts: Parts = {}
    if isinstance(small, ConfigRecord):
        parts |= {name: data for name, data in small.items() if isinstance(data, bytes)}
    if isinstance(large, ArrayRecord):
        parts |= {name: array.data for name, array in large.items() if array.stype == FORM}
    return parts


class GridLink:
    """Nodes reached through a Grid; messages are of type "query"."""

    def __init__(self, grid: Grid):
        self.grid, self.announced = grid, Announced(grid) if isinstance(grid, HttpGrid) else None
        self._nodes, self._seen = set[int](), -math.inf

    def nodes(self) -> set[int]:
        """Who is connected, as of the last second: the server looks often."""
        if time.monotonic() - self._seen > FRESH:
            self._nodes, self._seen = set(self.grid.get_node_ids()), time.monotonic()
        return set(self._nodes)

    def send(self, requests: Sequence[tuple[int, Parts]], seconds: float) -> list[str | None]:
        messages = [Message(content_of(parts), node, "query", ttl=seconds) for node, parts in requests]
        ids = list(self.grid.push_messages(messages))
        return [message or None for message in ids] if len(ids) == len(requests) else [None] * len(requests)

    def take(self, messages: Sequence[str]) -> list[Answer]:
        found, pull = [], self.announced.take if self.announced else self.grid.pull_messages
        for message in pull(list(messages)):
            asked = message.metadata.reply_to_message_id
            if message.has_error():
                found.append(Answer(asked, {}, f"Flower says: {message.error.reason}"))
                continue
            try:
                found.append(Answer(asked, parts_of(message.content)))
            except Exception as error:  # a node may send records of any form
                found.append(Answer(asked, {}, f"its message cannot be read ({type(error).__name__})"))
        return found
