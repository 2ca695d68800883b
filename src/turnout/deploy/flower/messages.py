"""What server and devices say to each other: a head of plain values, and larger parts beside it.

Parts that are the same for all are the same bytes, so that they are stored once on the way. The server asks, a device
answers; the questions are

    hello      who are you?                        name, key, sample count, what your data is like
    request    will you work in this round?        yes, or no and why
    work       train from this model               the reply, steps taken, and whether you accept the next round
    measure    test these models on your data      metrics, and on how many samples
    gradient   the gradient of your whole data     one vector
    bye        your leaving is on record           nothing
    refused    you are no client of this run: why  nothing

Every question says which run it is about, the client's number, and which of its replies was used last (and which of
them will be remembered by the server come what may), so that the device can go back to those rows. Every answer says
whether the device is about to leave.

Shape letters: P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from turnout.deploy.flower.link import Parts
from turnout.errors import UserError
from turnout.exchange import Download
from turnout.runtimes import wire
from turnout.types import State

HEAD, COMMON, SHARED, OWN, REPLY = "head", "common", "shared", "own", "reply"
NEVER = -1  # no reply of the client was ever used


@dataclass(frozen=True)
class Standing:
    """Where a client stands with the server."""

    run: str
    client: int
    used: int = NEVER  # the round of its last reply that was used
    durable: int = NEVER  # the same at the last checkpoint: the server never goes back behind it

    def head(self) -> dict[str, Any]:
        return {"run": self.run, "client": self.client, "used": self.used, "durable": self.durable}

    @classmethod
    def of(cls, head: State) -> Standing:
        return cls(head["run"], head["client"], head["used"], head["durable"])


def question(what: str, standing: Standing, **more: Any) -> Parts:
    return {HEAD: wire.pack({"what": what, **standing.head(), **more})}


def head_of(parts: Parts) -> State:
    """The head of a message; one without is a mistake."""
    if HEAD not in parts:
        raise UserError(f"a message has no head, only {sorted(parts)[:3]}")
    return wire.unpack(parts[HEAD])


def work_parts(download: Download, standing: Standing, holds: int, seconds: float) -> Parts:
    """A model for one of those who accepted: whole, or what it missed since the round whose model it `holds`."""
    missed = download.missed(holds) if holds > NEVER and download.start_CP is None else None
    parts = question("work", standing, seconds=seconds, missed=None if missed is None else [t for t, _ in missed])
    parts[COMMON] = common_part(download)
    if missed is None:
        parts[SHARED] = wire.pack({"shared": download.shared_P})
    else:
        parts |= {f"missed-{i}": message for i, (_, message) in enumerate(missed)}
    start = {} if download.start_CP is None else {"start": download.start_CP}
    parts[OWN] = wire.pack({"outbox": download.outbox.to_state(), **start})
    return parts


def common_part(download: Download) -> bytes:
    return wire.pack({"t": download.t, "lr": download.lr, "states": download.states, "down": download.down})


def missed_of(head: State, parts: Parts) -> list[tuple[int, bytes]] | None:
    if head.get("missed") is None:
        return None
    return [(int(t), parts[f"missed-{i}"]) for i, t in enumerate(head["missed"])]
