"""Messages as real bytes: rows of unequal length, and the pieces of a row.

Shape letters: C rows (messages), B bytes, S pieces (tensors, or the whole row).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.layout import Slot
from turnout.types import BYTE, Message

_GOLDEN = (math.sqrt(5) + 1) / 2


def message_of(rows: Sequence[bytes], longest: int) -> Message:
    """Encoded rows that have arrived; one that is too long is refused before it takes memory."""
    bytes_C = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    refuse(bytes_C > longest, f"it is longer than {longest} bytes")
    width = int(bytes_C.max()) if len(rows) else 0
    whole = b"".join(row.ljust(width, b"\0") for row in rows)
    byte_B = torch.frombuffer(bytearray(whole), dtype=torch.uint8) if whole else torch.empty(0, dtype=torch.uint8)
    return Message({BYTE: byte_B.view(len(rows), width)}, bytes_C)


def refuse(bad_C: Tensor, why: str) -> None:
    """Raise an error that names the first bad message and the reason."""
    if bool(bad_C.any()):
        raise UserError(f"message {int(bad_C.nonzero()[0, 0])} cannot be decoded: {why}")


@dataclass(frozen=True)
class Piece:
    """The `size` columns from `start` on, of which the `keep` largest are sent."""

    start: int
    size: int
    keep: int

    @property
    def golomb(self) -> int:
        """Bits of a gap's remainder: b* = 1 + floor(log2(log(φ - 1) / log(1 - q))), q the share really kept.

        >>> Piece(0, 10_000, 100).golomb, Piece(0, 10, 1).golomb, Piece(0, 10, 10).golomb
        (6, 3, 0)
        """
        q = self.keep / self.size
        if q >= _GOLDEN - 1:
            return 0
        return max(0, 1 + math.floor(math.log2(math.log(_GOLDEN - 1) / math.log(1 - q))))


def kept_of(size: int, keep: float) -> int:
    """k = max(⌈n q⌉, 1); a product that is whole except for rounding is not rounded up.

    >>> kept_of(30, 0.1), kept_of(31, 0.1), kept_of(5, 0.01)
    (3, 4, 1)
    """
    return min(size, max(1, math.ceil(size * keep - 1e-9)))


@lru_cache(maxsize=64)
def pieces_of(slots: tuple[Slot, ...], keep: float, scope: str) -> tuple[Piece, ...]:
    """The pieces of a row: its tensors, or all of it as one."""
    if scope == "tensor":
        return tuple(Piece(s.start, s.size, kept_of(s.size, keep)) for s in slots if s.size)
    size = sum(s.size for s in slots)
    return (Piece(0, size, kept_of(size, keep)),) if size else ()


def floats_of(byte_CB: Tensor) -> Tensor:
    """Four bytes each as little-endian float32 (the order of every machine that torch runs on)."""
    rows, width = byte_CB.shape
    return byte_CB.flatten().clone().view(torch.float32).view(rows, width // 4)


def bytes_of(float_CF: Tensor) -> Tensor:
    """The inverse of `floats_of`."""
    rows, width = float_CF.shape
    return float_CF.to(torch.float32).flatten().view(torch.uint8).view(rows, 4 * width)
