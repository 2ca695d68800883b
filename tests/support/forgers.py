"""Devices that send answers which no working device sends: an honest answer with one thing changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from turnout.deploy.answering import ClientDevice, head_of
from turnout.runtimes import wire
from turnout.runtimes.remote import HEAD, OWN, REPLY, ClientStanding, Parts
from turnout.types import flatten, unflatten

GONE = object()  # in place of a value: the name is missing


@dataclass(frozen=True)
class HandMade:
    """One changed answer: to which question, in which part of it, under which name, and what is there instead.

    A function as `value` makes the new value from the honest one. Without a name the part's bytes are changed.
    """

    question: str
    part: str
    name: str
    value: Any

    def __str__(self) -> str:
        shown = "missing" if self.value is GONE else getattr(self.value, "__name__", repr(self.value))
        return f"{self.question} {self.part} {self.name} = {shown[:40]}"

    def of(self, said: Parts) -> Parts:
        if not self.name:
            return said | {self.part: self.value(said.get(self.part, b""))}
        tensors, plain = flatten(wire.unpack(said[self.part]))
        both, name = {**plain, **tensors}, self.name
        if "CLIENT" in name:
            client = str(wire.unpack(said[HEAD])["client"])
            name = name.replace("CLIENT", f"replies/{client}" if self.question == "work" else client)
        old = both.pop(name, None)
        both = {other: value for other, value in both.items() if not other.startswith(name + "/")}
        if self.value is not GONE:
            both[name] = self.value(old) if callable(self.value) else self.value
        tensors = {n: value for n, value in both.items() if isinstance(value, torch.Tensor)}
        return said | {self.part: wire.pack(unflatten(tensors, {n: v for n, v in both.items() if n not in tensors}))}


class Forger:
    """A device of its own name that sends hand-made answers, one after another, made from those of `honest`.

    `silent`: it sends nothing instead of each, as a device that is absent; all else is the same.
    """

    def __init__(self, honest: ClientDevice, name: str, answers: Iterable[HandMade], silent: bool = False):
        self.honest, self.name, self.answers, self.silent = honest, name, list(answers), silent
        self.given = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.honest, name)

    def answer(self, parts: Parts) -> Parts:
        honest, what = self.honest, head_of(parts)["what"]
        honest.name = self.name
        made = self.answers[self.given % len(self.answers)]
        said = honest.answer(parts)
        head = wire.unpack(said[HEAD])
        if made.question == "request" != what:  # or it is not asked whether it takes work
            said |= {HEAD: wire.pack(head | {"next": False, "why": "later"})}
        if what != {"leave": "work", "unfinished": "work"}.get(made.question, made.question):
            return said
        self.given += 1
        if self.silent:
            return {HEAD: wire.pack(head | ({"next": False, "why": "later"} if what == "request" else {}))}
        if made.question == "leave":  # it has done its work, and says goodbye with the same answer
            said |= {HEAD: wire.pack(head | {"leaving": True}), OWN: wire.pack({"rows": first_rows(honest)})}
        if made.question == "unfinished":  # it has done too little for its work to count
            said |= {HEAD: wire.pack(head | {"steps": 1}), REPLY: too_little(honest, parts)}
        return made.of(said)


def first_rows(device: Any) -> dict[str, torch.Tensor]:
    """What a device that leaves sends for the terms."""
    rows = device.tasks.clients.store.initial
    return {name: value[None] for name, value in rows.items() if name.startswith("term/")}


def too_little(device: Any, parts: Parts) -> bytes:
    """The reply of a device whose work does not count."""
    head = head_of(parts)
    download = device.tasks.read_download(head, ClientStanding.of(head), parts)
    return wire.pack(wire.replies_tree(device.tasks.clients.unfinished(download.client_C, download)))
