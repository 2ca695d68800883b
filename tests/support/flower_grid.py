"""Flower's Grid without processes: real messages go to the devices' ClientApp code in this process, as bytes.

A device answers when the server looks for its answer: a node that `waits` after so many messages, one `gone` never.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

import turnout as to
from turnout.deploy import apps
from turnout.deploy.answering import ClientDevice
from turnout.deploy.apps import answered
from turnout.deploy.device import DeviceSettings, make_device

apps.PATIENCE = 600.0  # a device works while the server looks for its answer


class HereGrid(Grid):
    """Nodes with devices in this process; nodes are numbered from 100."""

    def __init__(self, devices: Iterable[ClientDevice]):
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.devices = {100 + i: device for i, device in enumerate(devices)}
        self.gone: set[int] = set()
        self.waits: dict[int, int] = {}  # messages to anybody before a node answers its second one
        self.heard: set[int] = set()
        self.failing: dict[int, int] = {}  # how many messages to a node end in an error of Flower's
        self.out: dict[str, Message] = {}
        self.sent: list[tuple[int, int]] = []  # node, bytes

    def set_run(self, run: Run) -> None:
        """Flower's own server program calls it; a server in this process has no run of Flower's."""
        raise AssertionError("nobody sets a run here")

    @property
    def run(self) -> Run:
        """Turnout's server never asks which run of Flower's it is in: it has its own runs."""
        raise AssertionError("there is no run of Flower's here")

    def create_message(self, *args, **kwargs):
        """Turnout makes its messages itself, with their class."""
        raise AssertionError("messages are made without the grid")

    def send_and_receive(self, messages, *, timeout=None):
        """Turnout looks for answers itself (`pull_messages`), so that it can close a round before the last one."""
        raise AssertionError("messages are pushed and pulled")

    def get_node_ids(self) -> Iterable[int]:
        return self.devices.keys() - self.gone

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            key = f"{message.metadata.message_id}-{len(self.sent)}"
            self.out[key] = travelled(message)
            contents = get_all_nested_objects(message).values()
            self.sent.append((message.metadata.dst_node_id, sum(len(o.deflate()) for o in contents)))
            ids.append(key)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = []
        for key in [key for key in message_ids if key in self.out]:
            node = self.out[key].metadata.dst_node_id
            if node in self.heard and len(self.sent) < self.waits.get(node, 0):
                continue
            if node in self.gone:
                continue
            self.heard.add(node)
            reply = self._reply(node, self.out.pop(key))
            reply = travelled(reply)
            reply.metadata.__dict__["_reply_to_message_id"] = key
            found.append(reply)
        return found

    def _reply(self, node: int, message: Message) -> Message:
        if self.failing.get(node, 0) > 0:
            self.failing[node] -= 1
            return Message(Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason="not now"), reply_to=message)
        return answered(self.devices[node], message)


def travelled(message: Message) -> Message:
    """The message as it is after its way as bytes."""
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
    found = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(found, Message)
    found.metadata.__dict__["_message_id"] = message.object_id
    return found


def devices_of(experiment: to.Experiment, names: Iterable[str], folder: Path, **settings) -> list[ClientDevice]:
    return [make_device(experiment, DeviceSettings(client=n, folder=folder / n, **settings)) for n in names]
