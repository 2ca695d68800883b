"""Encoded messages row by row."""

from __future__ import annotations

from turnout.types import BYTE, Message


def bytes_rows(message: Message) -> list[bytes]:
    """Each row of a message by itself, as it travels."""
    whole = message.tensors[BYTE].cpu().numpy()
    return [whole[i, :length].tobytes() for i, length in enumerate(message.bytes_C.tolist())]
