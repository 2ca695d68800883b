"""A SuperNode and its ClientApp in one process that stays: a round costs a second or two instead of ten.

A stock SuperNode starts a process for every message and looks for messages every three seconds. This one uses the same
connection to the SuperLink, from inside Flower's package (so its version is pinned), and answers at once. It ends when
the device has left, or when the connection is lost for good; `turnout device run` starts it again then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

from turnout.deploy.flower.answering import LEFT, Device
from turnout.deploy.flower.apps import answered

CALM = 10  # times as long between two looks for a message, when there was none for a while
BUSY = 30.0  # seconds after a message that count as a busy time
BACK_OFF = 0.25  # of a look: until a part of a message that was not there yet is asked for again


@dataclass(frozen=True)
class Way:
    """How a device reaches the SuperLink: seconds between two looks for a message, and speeds it keeps to (0: none)."""

    look: float = 0.2
    down_mbps: float = 0.0
    up_mbps: float = 0.0


def stay(device: Device, superlink: str, root: Path | None, key: Path | None, way: Way) -> None:
    """Answer the server's questions until the device has left."""
    keys = None if key is None else _key_pair(key)
    certificate = None if root is None else root.read_bytes()
    with http_request_response(superlink, root is None, certificate, keys) as connection:
        node, receive, send, _, _, pull, push, confirm = connection
        print(f"{device.identity.name} is connected as node {node}", flush=True)
        last = time.monotonic()
        while not (device.folder / LEFT).exists():
            message = _received(device, receive, pull, confirm, way)
            if message is not None:
                _reply(device, _answer(device, message), send, push, way)
                last = time.monotonic()
            else:
                busy = time.monotonic() - last < BUSY
                time.sleep(way.look if busy else min(CALM * way.look, max(1.0, way.look)))


def _received(
    device: Device, receive: Callable[[], Any], pull: Callable[[int, str], bytes], confirm: Callable[[int, str], None],
    way: Way,
) -> Message | None:  # fmt: skip
    """The next message with all its parts; None where there is none.

    A message is announced before its parts are there: each is asked for again after a while, then after twice as long.
    Where many devices ask too often, the SuperLink has no time to take the parts.
    """
    try:
        found, began = receive(), time.monotonic()
        if found is None:
            return None
        head, tree = found
        run, ids = head.metadata.run_id, [part.object_id for part in iterate_object_tree(tree)]
        again = BACK_OFF * way.look
        contents = pull_objects(ids, lambda part: pull(run, part), initial_backoff=again, backoff_cap=max(1.0, again))
        confirm(run, head.metadata.message_id)
        _keep_to(way.down_mbps, sum(map(len, contents.values())), began)
        device.arrived(time.monotonic() - began)
    except RunNotRunningException:
        return None
    message = inflate_object_from_contents(tree.object_id, contents)
    assert isinstance(message, Message)
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def _answer(device: Device, message: Message) -> Message:
    """The device's answer; a mistake in it is one message's, not the node's."""
    try:
        return answered(device, message)
    except Exception as error:
        print(f"a message could not be answered: {type(error).__name__}: {error}", flush=True)
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        return Message(Error(code=code, reason=f"{type(error).__name__}: {error}"), reply_to=message)


def _reply(device: Device, reply: Message, send: Callable[..., Any], push: Callable[..., None], way: Way) -> None:
    reply.metadata.__dict__["_message_id"] = reply.object_id
    began, sizes = time.monotonic(), list[int]()
    try:
        with no_object_id_recompute():
            wanted, session = send(reply, get_object_tree(reply), 0.0)
            run, parts = reply.metadata.run_id, get_all_nested_objects(reply)

            def pushed(part: str, data: bytes) -> None:
                sizes.append(len(data))
                _keep_to(way.up_mbps, sum(sizes), began)
                push(run, session, part, data)

            push_objects(parts, pushed, object_ids_to_push=wanted)
    except RunNotRunningException:
        print("the run has ended before the answer arrived", flush=True)
    device.sent(time.monotonic() - began)


def _keep_to(mbps: float, size: int, began: float) -> None:
    """Wait until so many bytes would be through a link of this speed (0: as fast as it is)."""
    if mbps:
        time.sleep(max(0.0, began + 8e-6 * size / mbps - time.monotonic()))


def _key_pair(path: Path) -> Any:
    from turnout.deploy.flower.keys import private_key

    key = private_key(path)
    return key, key.public_key()
