"""Flower's Grid as a link: parts of a message are byte arrays of one record, so that equal parts are stored once."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from turnout.runtimes.flower.link import Answer, Parts

RECORD, FORM = "turnout", "turnout.bytes"


def content_of(parts: Parts) -> RecordDict:
    """Parts as a message's content."""
    arrays = {name: Array(dtype="uint8", shape=(len(data),), stype=FORM, data=data) for name, data in parts.items()}
    return RecordDict({RECORD: ArrayRecord(arrays)})


def parts_of(content: RecordDict) -> Parts:
    """The parts in a message's content; none where it is somebody else's."""
    record = content.get(RECORD)
    if not isinstance(record, ArrayRecord):
        return {}
    return {name: array.data for name, array in record.items() if array.stype == FORM}


class GridLink:
    """Nodes reached through a Grid; messages are of type "query"."""

    def __init__(self, grid: Grid):
        self.grid = grid

    def nodes(self) -> set[int]:
        return set(self.grid.get_node_ids())

    def send(self, letters: Sequence[tuple[int, Parts]], seconds: float) -> list[str | None]:
        messages = [Message(content_of(parts), node, "query", ttl=seconds) for node, parts in letters]
        ids = list(self.grid.push_messages(messages))
        return [message or None for message in ids] if len(ids) == len(letters) else [None] * len(letters)

    def take(self, messages: Sequence[str]) -> list[Answer]:
        found = []
        for message in self.grid.pull_messages(list(messages)):
            asked = message.metadata.reply_to_message_id
            if message.has_error():
                found.append(Answer(asked, {}, f"Flower says: {message.error.reason}"))
            else:
                found.append(Answer(asked, parts_of(message.content)))
        return found
