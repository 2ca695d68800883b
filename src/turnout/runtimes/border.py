"""The border: what a device may send. Each kind of answer has a typed schema, and an answer that fails it is refused.

A refused answer counts as an absence: nothing of it is used, neither its content nor what its head says, and the
record of the round names the device and what was wrong. Clients of a simulation are trusted and do not come here.

A message is read as flat names ("message/tensors/update"). A schema lists every name with a kind: type,
shape, range. Names come from the task, the model and the algorithm, never from the device: an unknown one is refused,
except in a head and among the numbers of a report, where it is dropped.

head         what every answer says of its device, and what the question at hand adds; hello is a head alone
description  of a client's data, which is in its hello
work         a trained update, with what goes beside it; `unfinished`: work that does not count
measured     metrics of a model
gradient     of a client's whole data
rows         of a client that leaves, for the terms

Another track reads its replies by schemas of its own.

Shape letters: R replies, P shared parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from turnout.data.description import Description, read_text
from turnout.exchange import Measured
from turnout.experiment import Algorithm
from turnout.parts.compression.base import Sending
from turnout.parts.terms.base import TermTraits
from turnout.runtimes import wire
from turnout.tasks import TaskSpec, metric_infos
from turnout.types import BYTE, Replies, State, Tensors, flatten, row_bytes, unflatten

COUNT = 1 << 40  # no counter is higher, so that the sum over all devices is far below 2^63
LARGE = 1e18  # no reported number is further from 0: float32 can hold its square
LONGEST = 1e9  # the Euclidean length of any tensor: no honest update, statistic or upload comes near it
HEAD_BYTES = 1 << 16
NAME_BYTES = 512  # of a message's header, for each name that the schema has
FLOATS = (torch.float32, torch.float64)
WHOLE = (torch.int64,)
# Endings of states that are never below 0: one negative entry would make the mean of all clients useless.
NOT_NEGATIVE = ("running_var", "num_batches_tracked", "moment/second", "moment/count")


class Refused(Exception):
    """What is wrong with an answer."""


class Kind(Protocol):
    """What a value must be."""

    def wrong(self, value: Any) -> str | None:
        """What is wrong with a value, as the rest of a sentence; None: nothing."""
        ...


Schema = Mapping[str, Kind]


@dataclass(frozen=True)
class Whole:
    """A whole number in a range."""

    low: int = 0
    high: int = COUNT

    def wrong(self, value: Any) -> str | None:
        good = type(value) is int and self.low <= value <= self.high
        return None if good else f"must be a whole number from {self.low} to {self.high}"


@dataclass(frozen=True)
class Number:
    """A number in a range."""

    low: float = -LARGE
    high: float = LARGE

    def wrong(self, value: Any) -> str | None:
        good = type(value) in (int, float) and self.low <= value <= self.high
        return None if good else f"must be a number from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def wrong(self, value: Any) -> str | None:
        return None if type(value) is bool else "must be true or false"


@dataclass(frozen=True)
class Text:
    """A text of `least` to `most` characters; all of a `name` can be printed."""

    most: int = 1000
    least: int = 0
    name: bool = False

    def wrong(self, value: Any) -> str | None:
        if type(value) is not str or not self.least <= len(value) <= self.most:
            return f"must be a text of {self.least} to {self.most} characters"
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            return "has half a character (a surrogate)"
        return "has a control character" if self.name and not value.isprintable() else None


@dataclass(frozen=True)
class ListOf:
    """A list of values of one kind."""

    each: Kind

    def wrong(self, value: Any) -> str | None:
        if not isinstance(value, list | tuple):
            return "must be a list"
        return next((f"has an entry that {why}" for entry in value if (why := self.each.wrong(entry))), None)


@dataclass(frozen=True)
class Maybe:
    """A value that may be missing."""

    kind: Kind

    def wrong(self, value: Any) -> str | None:
        return None if value is None else self.kind.wrong(value)


@dataclass(frozen=True)
class RowSchema:
    """A tensor.

    shape      its sizes; None: any
    types      its possible types
    low, high  the range of its entries; None: any
    gaps       whether entries may be not finite, which means that there is no value
    """

    shape: tuple[int | None, ...]
    types: tuple[torch.dtype, ...] = FLOATS
    low: float | None = None
    high: float | None = None
    gaps: bool = False

    def wrong(self, value: Any) -> str | None:
        if not isinstance(value, Tensor):
            return "must be a tensor"
        fits = len(value.shape) == len(self.shape)
        fits = fits and all(want in (None, size) for size, want in zip(value.shape, self.shape, strict=True))
        if not fits or value.dtype not in self.types:
            return f"is {tuple(value.shape)} of {value.dtype}, not {self.shape} of {self.types[0]}"
        if value.is_floating_point():
            if self.gaps:
                value = value[torch.isfinite(value)]
            elif not bool(torch.isfinite(value).all()):
                return "is not finite"
            if self.high is None and float(torch.linalg.vector_norm(value, dtype=torch.float64)) > LONGEST:
                return f"is longer than {LONGEST:g}"
        low, high = self.low, self.high
        if (low is not None and bool((value < low).any())) or (high is not None and bool((value > high).any())):
            return f"is not in the range from {low} to {high}"
        return None


def check(found: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The values that a schema names, in its order; refused where one is missing or not of its kind."""
    for name, kind in schema.items():
        if (why := kind.wrong(found.get(name))) is not None:
            raise Refused(f"its {name} {why}")
    return {name: found[name] for name in schema if found.get(name) is not None}


def read(message: bytes, schema: Schema, others: str | None = None) -> dict[str, Any]:
    """The values of a message by flat name, as its schema says; unknown names are dropped if they begin with `others`,
    else refused."""
    if int.from_bytes(message[:8], "little") > HEAD_BYTES + sum(NAME_BYTES + len(name) for name in schema):
        raise Refused("its answer has more names than it should")
    try:
        tensors, plain = wire.flat(message)
    except Exception as error:  # parsers of bytes that a stranger has written
        raise Refused(f"its answer cannot be read ({type(error).__name__})") from error
    found = {**{name: value for name, value in plain.items() if value != {}}, **tensors}
    if unknown := [n for n in found if n not in schema and (others is None or not n.startswith(others))]:
        raise Refused(f"its answer has something called {unknown[0]!r:.60}, which was not asked for")
    return check(found, schema)


def shown(text: str, most: int = 200) -> str:
    """A text that can be printed and recorded: shortened, on one line, without what would command a terminal.

    >>> shown("a \\x1b[2J\\nb")
    'a �[2J�b'
    """
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:most])


# -- what every answer says of its device

EVERY: Schema = {
    "name": Text(200, least=1, name=True), "client": Whole(-1), "leaving": Flag(), "holds": Whole(-1), "next": Flag(),
    "why": Text(), "lost": Maybe(Flag()), "error": Maybe(Text()),
}  # fmt: skip
HEADS: Mapping[str, Schema] = {
    "hello": {
        "examples": Whole(1), "data": Text(HEAD_BYTES), "digest": Text(), "key": Text(), "signature": Text(),
        "labels": Maybe(ListOf(Whole())), "values": Maybe(Text(HEAD_BYTES)),
    },
    "work": {"steps": Maybe(Whole())} | dict.fromkeys(("training", "download", "upload"), Maybe(Number(0.0))),
    "measure": {"tested": Maybe(Whole())},
}  # fmt: skip


def head(what: str, message: bytes | None) -> State:
    """What an answer to a question says of its device."""
    if message is None or len(message) > HEAD_BYTES:
        raise Refused("its answer has no head" if message is None else "its head is too large")
    return read(message, {**EVERY, **HEADS.get(what, {})}, others="")


def description(text: str) -> Description:
    """What a client's data is like."""
    try:
        found = read_text(text, "its description")
    except Exception as error:  # a parser of a text that a stranger has written
        raise Refused(f"its description cannot be read ({type(error).__name__})") from error
    sizes = ListOf(Whole(1, 1 << 24))
    schema: Schema = {
        "input_shape": sizes,
        "target_shape": sizes,
        "classes": Whole(0, 1 << 24),
        "labels": ListOf(Text()),
        "words": Text(),
    }
    check(vars(found), schema)
    for name, (shape, _) in found.inputs.items():
        check({"name": name, "shape": list(shape)}, {"name": Text(200, least=1, name=True), "shape": sizes})
    if {found.input_type, found.target_type, *(kind for _, kind in found.inputs.values())} - {"float32", "int64"}:
        raise Refused("its samples are neither float32 nor int64")
    return found


# -- weights


def work(message: bytes, like: Replies, algorithm: Algorithm, sending: Sending) -> Replies:
    """Replies to work of the clients of `sending`, for which `like` is a pattern; everything in them is finite."""
    client_R, rows = sending.client_C, len(sending.client_C)
    traits = [term for term in algorithm.terms if isinstance(term, TermTraits)]
    positive = tuple(f"{term.name}/{name}" for term in traits for name in term.not_negative)
    schema = _replies_schema(rows, algorithm.compression.longest(sending)) | {
        **{f"message/tensors/{name}": _like(rows, value, name) for name, value in like.message.tensors.items()},
        **{f"states/{name}": _like(rows, value, name) for name, value in like.states.items()},
        **{f"uploads/{name}": _like(rows, value, name, positive) for name, value in flatten(like.uploads)[0].items()},
        **{f"hints/{name}": _like(rows, value) for name, value in like.hints.items()},
        **{f"report/{name}": _reported(rows, value) for name, value in like.report.items()},
    }
    found = _replies(read(message, schema, others="report/"), client_R)
    found = replace(found, uploads={term: found.uploads.get(term, {}) for term in like.uploads})
    if not bool(found.report["finite"].all()):
        raise Refused("its training was not finite")
    beside = row_bytes(found.states) + row_bytes(found.hints) + sum(map(row_bytes, found.uploads.values()))
    if not torch.equal(found.report["bytes_up"], found.message.bytes_C + beside):
        raise Refused("its report/bytes_up is not what it sends")
    _check_decoded(found, algorithm, sending)
    return found


def unfinished(message: bytes, algorithm: Algorithm, sending: Sending) -> Replies:
    """Replies to work that does not count: what was downloaded, and no update."""
    rows, compression = len(sending.client_C), algorithm.compression
    kept = {name: value[None] for name, value in compression.residuals(sending.slots).items()}
    held = {f"message/tensors/{name}": _like(rows, value) for name, value in compression.held(kept).items()}
    schema = _replies_schema(rows, most=0) | held | {"report/bytes_down": RowSchema((rows,), WHOLE, 0, COUNT)}
    return _replies(read(message, schema, others="report/"), sending.client_C)


def _replies_schema(rows: int, most: int) -> dict[str, Kind]:
    return {"client_R": RowSchema((rows,), WHOLE), "message/bytes": RowSchema((rows,), WHOLE, 0, most)}


def _like(rows: int, value: Tensor, name: str = "", not_negative: tuple[str, ...] = NOT_NEGATIVE) -> RowSchema:
    """RowSchema of the shape and type of a pattern; encoded ones are as long as they are."""
    shape = (rows, None) if name == BYTE else (rows, *value.shape[1:])
    return RowSchema(shape, (value.dtype,), 0 if name.endswith(not_negative) else None)


def _reported(rows: int, value: Tensor) -> RowSchema:
    if value.is_floating_point():
        return RowSchema((rows,), FLOATS, -LARGE, LARGE)
    return RowSchema((rows,), (torch.bool,)) if value.dtype == torch.bool else RowSchema((rows,), WHOLE, 0, COUNT)


def _replies(found: Mapping[str, Any], client_R: Tensor) -> Replies:
    if not torch.equal(found["client_R"], client_R):
        raise Refused("it replies for another client")
    blank: State = {"message": {"tensors": {}}, "states": {}, "uploads": {}, "report": {}, "hints": {}}
    tree = blank | unflatten(found, {})
    return wire.replies_of(tree | {"message": {"tensors": {}} | tree["message"]})


def _check_decoded(replies: Replies, algorithm: Algorithm, sending: Sending) -> None:
    """Decode updates once, as the server will."""
    bytes_R, width = replies.message.bytes_C, sum(slot.size for slot in sending.slots)
    if BYTE in replies.message.tensors and bool((bytes_R > replies.message.tensors[BYTE].shape[1]).any()):
        raise Refused("its message is shorter than it says")
    try:
        update_RP = algorithm.compression.decode(replies.message, sending, torch.zeros(width))
    except Exception as error:  # decoders of bytes that a stranger has written
        raise Refused(f"its message cannot be decoded ({shown(str(error), 100)})") from error
    if (why := RowSchema((len(bytes_R), width)).wrong(update_RP)) is not None:
        raise Refused(f"its update {why}")


def measured(message: bytes, task: TaskSpec, common: bool, own: bool) -> Measured:
    """A client's metrics, which are the task's; one that is not finite is NaN, and shares are from 0 to 1."""
    kinds = {name: RowSchema((1,), FLOATS, *((0.0, 1.0) if info.unit == "percent" else (-LARGE, LARGE)), gaps=True)
             for name, info in metric_infos(task).items()}  # fmt: skip
    asked = {"common": common, "own": own}
    schema: dict[str, Kind] = {f"{g}/{name}": kind for g in asked if asked[g] for name, kind in kinds.items()}
    found = read(message, schema | {"noisy": Maybe(RowSchema((1,), (torch.bool,)))})
    values = {g: {name: found[f"{g}/{name}"] for name in kinds} if asked[g] else {} for g in asked}
    for group in values.values():
        group |= {name: torch.where(torch.isfinite(value), value, torch.nan) for name, value in group.items()}
    return Measured(common=values["common"], own=values["own"], noisy_C=found.get("noisy"))


def gradient(message: bytes, like_P: Tensor) -> Tensor:
    """A client's gradient."""
    found: Tensor = read(message, {"gradient": RowSchema(tuple(like_P.shape))})["gradient"]
    return found.to(like_P)


def rows(message: bytes, like: Tensors) -> Tensors:
    """What a client that leaves has kept for the terms; `like` is one row of each."""
    schema = {
        f"rows/{n}": RowSchema((1, *v.shape), FLOATS if v.is_floating_point() else (v.dtype,)) for n, v in like.items()
    }
    return {name.removeprefix("rows/"): value for name, value in read(message, schema).items()}
