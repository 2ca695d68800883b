"""The records of exchange.py as bytes: safetensors for the tensors, JSON in its header for the rest. Never pickle.

`pack` and `unpack` take trees (dicts of dicts whose leaves are tensors and plain values); the functions below turn each
record into a tree and back. A reader gets exactly the tensors that were written, to the bit.

Shape letters: C clients of the cohort, R replies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from turnout.errors import UserError
from turnout.exchange import Assignment, Download, Measure, Measured, Outbox
from turnout.types import Message, Replies, State, Tensors, flatten, unflatten
from turnout.world.members import Members

PLAIN = "turnout"  # the header's entry for everything but tensors
ALONE = 1 << 16  # bytes from which copying a tensor costs more than a message of its own


def pack(tree: State) -> bytes:
    """A tree as bytes; it has no entries that are None.

    >>> unpack(pack({"a": {"x": torch.tensor([1, 2]), "n": 3}, "none": {}}))
    {'a': {'n': 3, 'x': tensor([1, 2])}, 'none': {}}
    """
    return _packed(*flatten(tree))


def _packed(tensors: Tensors, plain: dict[str, Any]) -> bytes:
    ready = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return bytes(save(ready, {PLAIN: json.dumps(plain)}))


def unpack(message: bytes) -> State:
    """The tree of such bytes; a message that cannot be one is a mistake."""
    try:
        return unflatten(*flat(message))
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"a message of {len(message)} bytes cannot be read: {error}") from error


def flat(message: bytes) -> tuple[Tensors, dict[str, Any]]:
    """The tensors and the plain values of such bytes by their full names; bytes that are not such raise anything."""
    length = int.from_bytes(message[:8], "little")
    header = json.loads(message[8 : 8 + length])
    plain = json.loads(header["__metadata__"][PLAIN])
    return load(message), dict(plain.items())


def write_tree(tree: State, out: Callable[[Tensor], Any], by_gpu: bool = False) -> None:
    """Send a tree as tensors: a length, as many bytes with the small ones, and those that are large or on a GPU."""
    tensors, plain = flatten(tree)
    ready = {name: (value if by_gpu else value.cpu()).detach().contiguous() for name, value in tensors.items()}
    alone = {name: value for name, value in ready.items() if value.device.type != "cpu" or value.nbytes >= ALONE}
    about = {n: (str(v.dtype)[6:], list(v.shape), v.device.type) if n in alone else None for n, v in ready.items()}
    packed = _packed({n: v for n, v in ready.items() if n not in alone}, {"plain": plain, "about": about})
    first = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    for value in (torch.tensor([len(first)]), first, *(value for value in alone.values() if value.numel())):
        out(value)


def read_tree(into: Callable[[Tensor], Any]) -> State:
    """Receive a tree; `into` fills a tensor with the next bytes."""
    length = torch.zeros(1, dtype=torch.int64)
    into(length)
    first = torch.empty(int(length), dtype=torch.uint8)
    into(first)
    small, header = flat(first.numpy().tobytes())
    tensors: Tensors = {}
    for name, kind in header["about"].items():
        if kind is None:
            tensors[name] = small[name]
            continue
        dtype, shape, device = kind
        tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        if tensors[name].numel():
            into(tensors[name])
    return unflatten(tensors, header["plain"])


def _names(tree: State) -> Tensors:
    """Tensors by their full name: "moment/first" is one name among the states, not a branch of the tree."""
    return flatten(tree)[0]


def download_tree(download: Download) -> State:
    own = {} if download.start_CP is None else {"start": download.start_CP}
    return {
        "t": download.t,
        "lr": download.lr,
        "shared": download.shared_P,
        "states": download.states,
        "term_states": download.term_states,
        "client": download.client_C,
        "outbox": download.outbox.to_state(),
        **own,
    }


def download_of(tree: State) -> Download:
    return Download(
        t=tree["t"],
        lr=tree["lr"],
        shared_P=tree["shared"],
        states=_names(tree["states"]),
        term_states=tree["term_states"],
        client_C=tree["client"],
        start_CP=tree.get("start"),
        outbox=Outbox.from_state(tree["outbox"]),
    )


def assignment_tree(asked: Assignment) -> State:
    scale = {} if asked.scale_R is None else {"scale": asked.scale_R}
    return {"client": asked.client_R, "steps": asked.steps_R, **scale}


def assignment_of(tree: State) -> Assignment:
    return Assignment(tree["client"], tree["steps"], tree.get("scale"))


def replies_tree(replies: Replies) -> State:
    tree = {field.name: getattr(replies, field.name) for field in fields(replies)}
    return tree | {"message": {"tensors": replies.message.tensors, "bytes": replies.message.bytes_C}}


def replies_of(tree: State) -> Replies:
    return Replies(
        client_R=tree["client_R"],
        message=Message(tree["message"]["tensors"], tree["message"]["bytes"]),
        states=_names(tree["states"]),
        uploads=tree["uploads"],
        report=_names(tree["report"]),
        hints=tree["hints"],
    )


def measure_tree(asked: Measure, client_c: Tensor) -> State:
    """What some of the clients are asked to measure; only a process with pooled test data uses `central`."""
    start = {} if asked.start is None else {"start": asked.start(client_c)}
    return {
        "t": asked.t,
        "shared": asked.shared_P,
        "states": asked.states,
        "client": client_c,
        "central": {name: members.to_state() for name, members in asked.central.items()},
        "common": asked.common,
        "own": asked.own,
        "outbox": asked.outbox.among(client_c).to_state(),
        **start,
    }


def measure_of(tree: State) -> Measure:
    client_c, start_cP = tree["client"], tree.get("start")
    some = len(client_c) > 0
    return Measure(
        t=tree["t"],
        shared_P=tree["shared"],
        states=_names(tree["states"]),
        client_C=client_c,
        central={name: Members.from_state(members) for name, members in tree["central"].items()},
        common=tree["common"] and some,
        own=tree["own"] and some,
        start=None if start_cP is None else lambda wanted: start_cP[torch.searchsorted(client_c, wanted)],
        outbox=Outbox.from_state(tree["outbox"]),
    )


def measured_tree(measured: Measured) -> State:
    noisy = {} if measured.noisy_C is None else {"noisy": measured.noisy_C}
    return {"central": measured.central, "common": measured.common, "own": measured.own, **noisy}


def measured_of(tree: State) -> Measured:
    return Measured(tree["central"], tree["common"], tree["own"], tree.get("noisy"))


def placed(tree: State, device: torch.device, names: Sequence[str] | None = None) -> State:
    """A tree with all tensors on a device, or with the branches of these names there."""

    def moved(name: str, value: Any) -> Any:
        chosen = None if names is None or name in names else names
        if isinstance(value, Tensor):
            return value.to(device) if chosen is None else value
        return placed(value, device, chosen) if isinstance(value, dict) else value

    return {name: moved(name, value) for name, value in tree.items()}
