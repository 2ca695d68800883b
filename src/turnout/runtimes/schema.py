"""Kinds of values, and messages read by a schema: a kind for every name. Nothing here trusts what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from turnout.runtimes import wire

COUNT = 1 << 40  # no counter is higher, so that the sum over all devices is far below 2^63
LARGE = 1e18  # no reported number is further from 0: float32 can hold its square
HEAD_BYTES = 1 << 16
NAME_BYTES = 512  # of a message's header, for each name that the schema has
FLOATS = (torch.float32, torch.float64)
WHOLE = (torch.int64,)


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
            if not bool(torch.isfinite(value.square().sum())):
                return "is longer than can be counted"
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
