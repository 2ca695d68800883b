"""A device that answers the server's questions (messages.py), whatever it trains. It never speaks first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.deploy.flower.keys import sign, signed_text
from turnout.deploy.flower.link import Parts
from turnout.deploy.flower.messages import HEAD, NEVER, OWN, Standing, head_of
from turnout.deploy.flower.policy import Policy
from turnout.runtimes import wire
from turnout.runtimes.schema import shown
from turnout.types import State, Tensors

LEAVING, LEFT = "leaving", "left"  # files in a device's folder
Answering = Callable[[State, Standing, Parts], Parts]


@dataclass(frozen=True)
class Identity:
    """Who a device is: its client's name, what its data is like, its private key, and what it trains."""

    name: str
    data: str  # a description as JSON (turnout.data.description)
    digest: str  # of the experiment's model, algorithm, task and seed: the server's must be the same
    key: Path | None = None
    values: str = ""  # marks of what its model begins with, one after another; none for a model of its own


class Device:
    """Answers questions about one client. `folder` is the device's own."""

    def __init__(self, identity: Identity, folder: Path, policy: Policy | None = None):
        self.identity, self.folder, self.policy = identity, folder, policy or Policy()
        self.standing: Standing | None = None  # whose rows are in memory
        self.slowness = 0.0  # seconds added at every look at the clock, to try what slow devices do
        self.download: float | None = None  # seconds that the question at hand was on its way, from its announcement on
        self.upload: float | None = None  # and that the last reply to work was
        self._work_done = False
        folder.mkdir(parents=True, exist_ok=True)

    def questions(self) -> dict[str, Answering]:
        """What it can be asked, beside who it is and whether it takes work."""
        return {}

    def settle(self, standing: Standing) -> bool:
        """Go to the rows of the reply that was used last; False where they are lost."""
        return True

    def introduction(self) -> dict[str, Any]:
        """What it says of its data, beside the description."""
        return {}

    def mine(self, standing: Standing) -> Tensors:
        """What the server needs to forget or to remember this client."""
        return {}

    def holds(self, standing: Standing) -> int:
        """The round of the model on this device's disk."""
        return NEVER

    def answer(self, parts: Parts) -> Parts:
        """The answer to a question."""
        head = head_of(parts)
        standing, what = Standing.of(head), str(head["what"])
        self._work_done = what == "work"
        if what == "hello":  # the server does not know yet whose rows these are
            return self.said(standing, **self._introduction(head, standing))
        if what == "refused":
            print(f"the server refuses {self.identity.name}: {shown(str(head['why']))}", flush=True)
            return self.said(standing)
        if what == "bye":
            (self.folder / LEFT).touch()
            return self.said(standing)
        if not self.settle(standing):
            return self.said(standing, lost=True)
        if what == "request" or (what == "work" and self.leaves):
            return self.said(standing)
        questions = self.questions()
        if what not in questions:
            return self.said(standing, error=f"no question is called {what!r}")
        return questions[what](head, standing, parts)

    def arrived(self, seconds: float) -> None:
        """The question that is answered next took so long to download."""
        self.download = seconds

    def sent(self, seconds: float) -> None:
        """The last answer took so long to upload; told with the next reply to work, if it was one."""
        if self._work_done:
            self.upload = seconds

    @property
    def leaves(self) -> bool:
        return (self.folder / LEAVING).exists()

    def said(self, standing: Standing, **more: Any) -> Parts:
        """An answer: what every answer says, and some more."""
        refusal = "leaving" if self.leaves else self.policy.refusal()
        head = {
            "name": self.identity.name, "client": standing.client, "leaving": self.leaves,
            "holds": self.holds(standing), "next": refusal is None, "why": refusal or "",
        }  # fmt: skip
        parts = {HEAD: wire.pack(head | more)}
        if self.leaves and standing.used > NEVER and standing == self.standing:
            parts[OWN] = wire.pack({"rows": self.mine(standing)})
        return parts

    def _introduction(self, head: State, standing: Standing) -> dict[str, Any]:
        identity = self.identity
        said = {"data": identity.data, "digest": identity.digest, "values": identity.values, "key": "", "signature": ""}
        said |= self.introduction()
        if identity.key is not None:
            text = signed_text(standing.run, str(head["challenge"]), identity.name, identity.data)
            said["key"], said["signature"] = sign(identity.key, text)
        return said
