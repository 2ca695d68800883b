"""Who a node is: asked once, and believed where its signature, its data and its experiment are right.

A node that is refused is sent the reason, so that it is in the device's own log too.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from turnout.data.agreement import difference
from turnout.data.columns import some
from turnout.data.description import Description
from turnout.data.federation import digest
from turnout.deploy.flower.keys import RegisteredKeys, signed_text
from turnout.deploy.flower.link import Link
from turnout.deploy.flower.mailbox import Mailbox, Request
from turnout.deploy.flower.messages import NEVER, Standing, question
from turnout.running.config.write import to_table
from turnout.runtimes import border
from turnout.runtimes.schema import Refused, shown

HELLO_SECONDS = 60.0  # for which the answer to a first question is taken
LOOK = 0.2  # seconds between two looks for a first device
MARK = 8  # letters of a mark of a parameter's first values
AGAIN_SECONDS = 3.0  # after which a node that could not say who it is is asked again


class Introductions:
    """What nodes were asked, and who was refused.

    data    what the data of all devices must be like, and `digest` what else server and devices must agree on; None
            while only the first description is asked for
    values  a mark of what each parameter and buffer of the model begins with, by name; None where every client has a
            model of its own
    """

    def __init__(
        self,
        keys: RegisteredKeys,
        data: Description | None = None,
        digest: str | None = None,
        values: Mapping[str, str] | None = None,
    ):
        self.keys, self.data, self.digest, self.values = keys, data, digest, values
        self.strangers: set[int] = set()
        self._challenges: dict[int, str] = {}
        self._later: dict[int, float] = {}  # nodes that could not answer, and when they may be asked again

    def not_yet(self, node: int) -> None:
        """A node could not answer: it is asked again, but not at once."""
        self._later[node] = time.monotonic() + AGAIN_SECONDS

    def asked_of(self, nodes: Iterable[int], run: str) -> list[Request]:
        """A question to each node that was not refused, with a text that it has to sign."""
        requests, now = [], time.monotonic()
        for node in (node for node in set(nodes) - self.strangers if self._later.get(node, now) <= now):
            self._challenges[node] = secrets.token_hex(16)
            parts = question("hello", Standing(run, NEVER), challenge=self._challenges[node])
            requests.append(Request(node, "hello", parts))
        return requests

    def wrong(self, node: int, head: dict[str, Any], run: str) -> str | None:
        """Why an introduction, which has the form it must have (runtimes/border.py), is not believed; None: it is."""
        text = signed_text(run, self._challenges.get(node, ""), head["name"], head["data"])
        wrong = self.keys.wrong(head["name"], head["key"], head["signature"], text)
        if wrong is not None:
            return wrong
        try:
            data = border.description(head["data"])
        except Refused as refused:
            return str(refused)
        if self.data is not None and (differs := difference(data, self.data)) is not None:
            return differs
        if self.digest is not None and head["digest"] != self.digest:
            return "its experiment is another one (model, algorithm, task or seed differ): give it the server's file"
        return None if self.values is None else other_values(self.values, head.get("values", ""))

    def refuse(self, node: int, why: str, run: str) -> Request:
        """Refuse a node, and the message that says why."""
        self.strangers.add(node)
        print(f"node {node} is refused: {shown(why)}", file=sys.stderr)
        return Request(node, "refused", question("refused", Standing(run, NEVER), why=why))


def first_description(link: Link, keys: RegisteredKeys, most_bytes: int) -> Description:
    """What the first device whose introduction is right says of its data; waits for one."""
    post, introductions = Mailbox(link, most_bytes), Introductions(keys)
    if not keys.by_name():
        print("no keys are registered: the first device says unverified what the data is like", file=sys.stderr)
    while True:
        post.send(introductions.asked_of(link.nodes() - post.busy(), ""), HELLO_SECONDS)
        for heard in post.collect():
            node, head = heard.request.node, heard.head
            if heard.request.what != "hello":
                continue
            if heard.failed:
                introductions.not_yet(node)
                continue
            try:
                wrong = heard.wrong or introductions.wrong(node, head, "")
            except Exception as error:  # whatever a stranger sends: the next device may know better
                wrong = f"its introduction cannot be used ({type(error).__name__})"
            if wrong is None:
                return border.description(head["data"])
            post.send([introductions.refuse(node, wrong, "")], HELLO_SECONDS)
        time.sleep(LOOK)


def other_values(ours: Mapping[str, str], theirs: str) -> str | None:
    """How a device's model, by its marks one after another, differs from the server's; None where it does not.

    >>> other_values({"base.weight": "00000001", "table": "00000002"}, "0000000500000002")
    "its model begins with other values in base.weight: give it the server's files and the same packages"
    """
    marks = [theirs[i : i + MARK] for i in range(0, len(theirs), MARK)]
    fix = "give it the server's files and the same packages"
    if len(marks) != len(ours):
        return f"its model has {len(marks)} parameters and buffers, and the server's {len(ours)}: {fix}"
    names = [name for (name, mark), own in zip(ours.items(), marks, strict=True) if mark != own]
    return f"its model begins with other values in {some(names, 3)}: {fix}" if names else None


def digest_of(experiment: Any) -> str:
    """What server and devices must agree on."""
    table = to_table(experiment)
    algorithm = {name: part for name, part in table["algorithm"].items() if name not in ("membership", "selection")}
    return digest(repr([algorithm, *(table.get(name) for name in ("model", "task", "seed", "start"))]))
