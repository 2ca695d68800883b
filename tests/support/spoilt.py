"""Devices whose answers are spoilt, each in its own way."""

from __future__ import annotations

from typing import Any

import torch

from turnout.deploy.answering import ClientDevice
from turnout.runtimes import wire
from turnout.runtimes.remote import HEAD, REPLY, Parts


class Spoilt:
    """A device whose answers to work are spoilt in one way."""

    def __init__(self, device: ClientDevice, kind: str):
        self.device, self.kind = device, kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def answer(self, parts: Parts) -> Parts:
        said = self.device.answer(parts)
        if REPLY not in said:
            return said
        head, reply = wire.unpack(said[HEAD]), wire.unpack(said[REPLY])
        if "message" not in reply:  # it was asked for something else than work
            return said
        update = reply["message"]["tensors"]["update"]
        match self.kind:
            case "cut":
                return said | {REPLY: said[REPLY][: len(said[REPLY]) // 2]}
            case "large":
                return said | {"more": bytes(3_000_000)}
            case "head":
                return said | {HEAD: b"no head"}
            case "steps":
                return said | {HEAD: wire.pack(head | {"steps": 10**6})}
            case "client":
                return said | {HEAD: wire.pack(head | {"client": 0, "name": "0"})}
            case "nan":
                update[0, 3] = torch.nan
            case "shape":
                reply["message"]["tensors"]["update"] = update[:, :-1]
            case "type":
                reply["message"]["tensors"]["update"] = update.double()
            case "uploads":
                reply["uploads"] = {"scaffold": {"c": torch.zeros(1, 2)}}
            case "report":
                reply["report"]["loss"] = torch.zeros(1, 3)
        return said | {REPLY: wire.pack(reply)}


KINDS = ("cut", "large", "head", "steps", "client", "nan", "shape", "type", "uploads", "report")
