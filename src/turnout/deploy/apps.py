"""Flower's side, with its public API alone: messages as parts, the Grid as a link, and the ServerApp and the ClientApp.

    server_app = server_app_of(Path("experiment.toml"))
    client_app = client_app_of(Path("experiment.toml"))

The server's run config has `out` (the run's folder; a new one by default), `keys` (a folder of the devices' public
keys, or ""), `experiment` (another file than the app's own, or "") and `shortcuts` (shortcuts.py). A node's config says
which client it is: `client`, or Flower's `partition-id`, and `folder` where it keeps its rows; or it has `device`, a
device's file (device.py).

Large parts of a message are byte arrays, so that equal ones are stored once on the way; the small ones are in one
record, because every array of a message costs an exchange of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from turnout.deploy.answering import ClientDevice
from turnout.deploy.device import DeviceSettings, make_device, open_device
from turnout.deploy.server import serve
from turnout.deploy.shortcuts import AnnouncedReplies, chosen
from turnout.errors import UserError
from turnout.running.config.read import load
from turnout.running.tracking import NO_HOOKS
from turnout.runtimes.remote import Parts

LARGE, SMALL, FORM = "turnout", "turnout.small", "turnout.bytes"
MOST = 1 << 15  # bytes of a small part
FRESH = 1.0  # seconds for which the list of nodes is good
PATIENCE = 1.0  # seconds that the server waits for a reply whose parts are on their way
FIRST, LAST = 0.05, 1.0  # seconds until the next look for replies: at first, and at most


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


# -- the server's link

Replies = Iterable[tuple[str, Message | str]]  # the message that is answered, and the answer, or why there is none


class GridLink:
    """Nodes reached through a Grid; messages are of type "query". `take`: another way to pull replies (shortcuts)."""

    def __init__(self, grid: Grid, take: Callable[[Sequence[str]], Replies] | None = None):
        self.grid, self._take = grid, take or SeparateReplies(grid).take
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
        for asked, reply in self._take(list(messages)):
            try:
                if isinstance(reply, str) or reply.has_error():
                    found[asked] = f"Flower says: {reply if isinstance(reply, str) else reply.error.reason}"
                else:
                    found[asked] = parts_of(reply.content)
            except Exception as error:  # a node may send records of any form
                found[asked] = f"its message cannot be read ({type(error).__name__})"
        return found


class SeparateReplies:
    """Replies through the Grid's public functions: each with a request and, if it takes long, a thread of its own.

    A node announces a reply before it sends the parts. Flower's Grid then waits up to two hours for them: a node that
    loses its connection in between, or a malicious one, would block the run, and every other reply of the same request.
    """

    def __init__(self, grid: Grid):
        self.grid, self._coming = grid, dict[str, Future[Message | None]]()
        self._pause, self._again = FIRST, -math.inf

    def take(self, messages: Sequence[str]) -> Replies:
        """The replies that are complete; those to other messages are forgotten."""
        if time.monotonic() < self._again:
            return []
        self._coming = {asked: reply for asked, reply in self._coming.items() if asked in messages}
        found: list[tuple[str, Message | str]] = []
        for asked in messages:
            if asked not in self._coming:
                self._coming[asked] = Future()
                threading.Thread(target=self._pull, args=(asked, self._coming[asked]), daemon=True).start()
                wait([self._coming[asked]], PATIENCE)
            if self._coming[asked].done():
                reply = self._coming.pop(asked)
                if (error := reply.exception()) is not None:  # a node may have stored anything as its reply
                    found.append((asked, f"it cannot be read ({type(error).__name__})"))
                elif (message := reply.result()) is not None:
                    is_answer = message.metadata.reply_to_message_id == asked  # else it would count as another node's
                    found.append((asked, message if is_answer else "it answers another message than it was sent"))
        self._pause = FIRST if found else min(2 * self._pause, LAST)
        self._again = time.monotonic() + self._pause
        return found

    def _pull(self, asked: str, reply: Future[Message | None]) -> None:
        try:
            reply.set_result(next(iter(self.grid.pull_messages([asked])), None))
        except BaseException as error:
            reply.set_exception(error)


# -- the apps


def server_app_of(experiment: Path | None = None) -> ServerApp:
    """The ServerApp of an experiment's file; without one, the run config names it."""
    app = ServerApp()

    @app.main()
    def run(grid: Grid, context: Context) -> None:
        """Run the experiment; a run that is in its folder already is resumed."""
        given = {name: str(value) for name, value in context.run_config.items()}
        file, keys = given.get("experiment") or experiment, given.get("keys")
        if not file:
            raise UserError('the run config does not name the experiment: experiment = "FILE"')
        out = Path(given.get("out") or f"runs/flower-{context.run_id}").absolute()
        print(f"the run's folder is {out}", flush=True)
        # No caller is above this process: the report writer and trackers are found by name, if they are installed.
        has_view = importlib.util.find_spec("turnout.view") is not None
        hooks = importlib.import_module("turnout.view").HOOKS if has_view else NO_HOOKS
        serve(
            link_to(grid, given.get("shortcuts") == "True"), Path(file), out, Path(keys) if keys else None, hooks=hooks
        )
        print(f"done: turnout show {out}", flush=True)

    return app


def client_app_of(experiment: Path | None = None) -> ClientApp:
    """The ClientApp of an experiment's file; without one, the device's file names it."""
    app = ClientApp()

    @app.query()
    def answer(message: Message, context: Context) -> Message:
        """Answer the server's question for the client that the node's config names."""
        config = context.node_config
        device = config.get("device")
        found = device_of(Path(str(device)), experiment) if device else client_at(experiment, *client_of(config))
        return answered(found, message)

    return app


server_app = server_app_of()
client_app = client_app_of()


def link_to(grid: Grid, shortcuts: bool) -> GridLink:
    """The Grid as a link, with or without the shortcuts."""
    return GridLink(grid, AnnouncedReplies(grid).take if chosen(shortcuts, print) else None)  # type: ignore[arg-type]


def client_of(config: Mapping[str, Any]) -> tuple[str, Path]:
    """The client's name and its folder, by a node's config."""
    name = config.get("client", config.get("partition-id"))
    if name is None:
        raise UserError(
            "this node's config does not say which client it is: flower-supernode --node-config 'client=\"NAME\"' "
            '(or partition-id=NUMBER, or device="FILE")'
        )
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    return str(name), Path(str(config.get("folder") or home / "turnout" / str(name)))


# one in a process, as long as it stays
device_of = cache(open_device)


@cache
def client_at(experiment: Path | None, name: str, folder: Path) -> ClientDevice:
    """The device of a node without a device's file: the app's experiment and its data."""
    if experiment is None:
        raise UserError("this app has no experiment: the node's config must name a device's file, device=\"FILE\"")
    return make_device(load(experiment), DeviceSettings(client=name, folder=folder))
