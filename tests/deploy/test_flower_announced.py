"""Replies through a SuperLink whose parts come late, never, or are nonsense: nobody waits, and nothing ends the run."""

from __future__ import annotations

import time

import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from turnout.deploy.apps import GridLink, content_of
from turnout.deploy.shortcuts import AnnouncedReplies


class SuperLink:
    """What Flower's server program asks of a SuperLink: replies that were announced, and the parts that have come."""

    def __init__(self, *replies: Message):
        self.announced, self.parts, self.confirmed, self.asked = list(replies), dict[str, bytes](), list[str](), 0

    def PullMessages(self, request):
        given = [m for m in self.announced if m.metadata.reply_to_message_id in request.message_ids]
        self.announced = [m for m in self.announced if m not in given]
        trees = [get_object_tree(message) for message in given]
        return PullAppMessagesResponse(messages_list=map(message_to_proto, given), message_object_trees=trees)

    def PullObject(self, request):
        self.asked += 1
        data = self.parts.get(request.object_id)
        return PullObjectResponse(object_found=data != b"gone", object_available=data is not None, object_content=data)

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)

    def push(self, reply: Message, spoilt: dict[str, bytes] | None = None) -> None:
        own = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
        self.parts |= own | (spoilt or {})


def reply_to(asked: str, data: bytes) -> Message:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    made = Message(content_of({"head": b"small", "reply": data}), 5, "query")
    made.metadata.__dict__["_reply_to_message_id"] = asked
    made.metadata.__dict__["_message_id"] = made.object_id
    return made


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.deploy.apps.PATIENCE", 1.0)


def link_to(superlink: SuperLink, shortcuts: bool = True) -> GridLink:
    grid = HttpGrid(insecure=True, token="none")
    grid._client, grid._run, grid.node = superlink, Run.create_empty(1), Node(node_id=1)
    return GridLink(grid, AnnouncedReplies(grid).take if shortcuts else None)


@pytest.fixture
def replies() -> list[Message]:
    return [reply_to("a", bytes(100_000)), reply_to("b", b"1" * 100_000)]


@pytest.mark.parametrize("shortcuts", [True, False])
def test_a_reply_whose_parts_are_not_there_holds_nobody_up(replies: list[Message], shortcuts: bool) -> None:
    superlink = SuperLink(*replies)
    superlink.push(replies[1])
    link, began = link_to(superlink, shortcuts), time.monotonic()
    assert list(link.take(["a", "b"])) == ["b"]
    assert time.monotonic() - began < (1 if shortcuts else 1.5)
    assert link.take(["a"]) == {}
    superlink.push(replies[0])
    found, until = dict[str, object](), time.monotonic() + 10  # Flower's Grid asks again after 1 or 2 s
    while not found and time.monotonic() < until:
        time.sleep(0.25)
        found = dict(link.take(["a"]))
    assert found == {"a": {"head": b"small", "reply": bytes(100_000)}}
    assert superlink.confirmed == [replies[1].object_id, replies[0].object_id]


def test_who_is_given_up_is_forgotten(replies: list[Message]) -> None:
    superlink = SuperLink(*replies)
    link = link_to(superlink)
    link.take(["a", "b"])
    superlink.asked = 0
    time.sleep(0.25)
    link.take([])
    assert superlink.asked == 0


@pytest.mark.parametrize("shortcuts", [True, False])
@pytest.mark.parametrize("bad", [b"gone", b"", b"nonsense", b"Message 0\x00{}", b"\xff" * 50])
def test_parts_of_nonsense_are_that_reply_s_error(replies: list[Message], bad: bytes, shortcuts: bool) -> None:
    superlink = SuperLink(*replies)
    superlink.push(replies[0], {replies[0].object_id: bad})
    superlink.push(replies[1])
    found = link_to(superlink, shortcuts).take(["a", "b"])
    assert "Flower says: " in found["a"]
    assert isinstance(found["b"], dict)


@pytest.mark.parametrize("shortcuts", [True, False])
def test_a_reply_in_the_name_of_another_node_does_not_count(replies: list[Message], shortcuts: bool) -> None:
    """Its announcement says what it answers, and so does its content: a node could write another's question there."""
    forged = reply_to("b", b"2" * 100_000)
    announced = reply_to("b", b"2" * 100_000)
    announced.metadata.__dict__["_reply_to_message_id"] = "a"
    superlink = SuperLink(announced, replies[1])
    superlink.PullMessages = with_content_of(superlink.PullMessages, forged)
    superlink.push(forged)
    superlink.push(replies[1])
    found = link_to(superlink, shortcuts).take(["a", "b"])
    assert "another message" in found["a"]
    assert found["b"]["reply"] == b"1" * 100_000


def with_content_of(pull, forged: Message):
    """Announce the parts of another message than the first one that is announced."""

    def pulled(request):
        found = pull(request)
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            if head.metadata.reply_to_message_id == "a":
                head.metadata.message_id = forged.object_id
                tree.CopyFrom(get_object_tree(forged))
        return found

    return pulled


def test_an_array_that_names_one_piece_many_times_is_not_unpacked(replies: list[Message]) -> None:
    """A few kilobytes that would become terabytes: nothing of it is unpacked, and the other reply is there."""
    superlink = SuperLink(*replies)
    superlink.push(replies[1])
    superlink.push(replies[0])
    (array,) = [name for name, part in get_all_nested_objects(replies[0]).items() if isinstance(part, Array)]
    honest = superlink.parts[array]
    bomb = honest.replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [' + b", ".join([b"0"] * 100_000) + b"]")
    assert len(bomb) > len(honest)
    head, _, body = bomb.partition(b"\x00")
    superlink.parts[array] = b" ".join([*head.split(b" ")[:-1], str(len(body)).encode()]) + b"\x00" + body
    found = link_to(superlink).take(["a", "b"])
    assert "bytes" in found["a"], found["a"]
    assert isinstance(found["b"], dict)


def test_a_reply_of_too_many_parts_is_given_up(replies: list[Message]) -> None:
    many = reply_to("a", b"")
    many.content["more"] = ArrayRecord(
        {str(i): Array("uint8", (40_000,), "turnout.bytes", str(i).encode()) for i in range(1500)}
    )
    many.metadata.__dict__["_message_id"] = many.object_id
    superlink = SuperLink(many, replies[1])
    superlink.push(many)
    superlink.push(replies[1])
    found = link_to(superlink).take(["a", "b"])
    assert "parts" in found["a"]
    assert superlink.asked < 100
    assert isinstance(found["b"], dict)
