"""A SuperNode and its ClientApp in one process that stays: a round costs a second or two instead of ten.

A stock SuperNode starts a process for every message and looks for messages every three seconds. This one uses the same
connection to the SuperLink, from inside Flower's package (so its version is pinned), and answers at once. It ends when
the device has left, or when the connection is lost for good; `turnout device run` then restarts it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
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

from turnout.deploy.answering import LEFT, ClientDevice
from turnout.deploy.apps import answered
from turnout.deploy.device import DeviceSettings, open_device, read_device
from turnout.deploy.keys import private_key

CALM = 10  # times as long between two looks for a message, if there was none for a while
BUSY = 30.0  # seconds after a message that count as a busy time
BACK_OFF = 0.25  # of a look: until a part of a message that was not there yet is asked for again


def run_once(paths: Sequence[Path]) -> None:
    """Run these devices, a thread each, until they have left or their connections are lost for good."""
    devices = [(open_device(path), read_device(path)) for path in paths]
    threads = [threading.Thread(target=stay, args=own, daemon=True) for own in devices[1:]]
    for thread in threads:
        thread.start()
    stay(*devices[0])
    for thread in threads:
        thread.join()


def stay(device: ClientDevice, settings: DeviceSettings) -> None:
    """Answer the server's questions, connected as the device's file says, until the device has left."""
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
                busy = time.monotonic() - last < BUSY
                time.sleep(settings.look if busy else min(CALM * settings.look, max(1.0, settings.look)))


def _received(
    device: ClientDevice, receive: Callable[[], Any], pull: Callable[[int, str], bytes],
    confirm: Callable[[int, str], None], settings: DeviceSettings,
) -> Message | None:  # fmt: skip
    """The next message with all its parts; None if there is none.

    A message is announced before its parts are there: each is asked for again after a while, then after twice as long.
    If many devices ask too often, the SuperLink has no time to receive the parts.
    """
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
