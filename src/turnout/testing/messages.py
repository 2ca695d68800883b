"""The check of a compression: what clients send, what they keep back, what the server broadcasts.

Shape letters: C replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.parts.compression.base import Compression, Sending
from turnout.testing.examples import check_numbers, checkpointed, copied, expect, unchanged
from turnout.types import Message, State, Tensors, row_bytes

SLOTS = (Slot("weight", (3, 4), 0, 12), Slot("bias", (3,), 12, 3))


def check_compression(compression: Compression) -> None:
    """Promises of a compression: a message is one client's alone, what is decoded is numbers in the server's precision,
    all of its bytes are counted, a state that was given is not written on, and a checkpoint can hold it; who has missed
    messages and receives them holds the server's model. One with a setting `feedback` that is true loses nothing:
    message + residual = input."""
    generator = torch.Generator().manual_seed(0)
    start_P, state = torch.randn(15, generator=generator), checkpointed(compression.begin(SLOTS), "begin")
    blank = checkpointed(compression.residuals(SLOTS), "residuals")
    kept, model_P = {n: torch.stack([v, v, v]) for n, v in blank.items()}, start_P
    for t in range(4):
        update_CP = torch.randn(3, 15, generator=generator)
        sending = Sending(t, 0, torch.tensor([2, 5, 9]), SLOTS)
        message, after = compression.encode(update_CP.clone(), _copies(kept), sending)
        decoded_CP = compression.decode(message, sending, start_P)
        longest = int(message.bytes_C.max())
        expect(longest <= compression.longest(sending), f"longest: a message of {longest} bytes is longer than said")
        expect(after.keys() == kept.keys(), f"encode: keeps {sorted(after)}, but `residuals` has {sorted(kept)}")
        check_numbers("decode", decoded_CP, update_CP)
        _check_alone(compression, update_CP, kept, sending, message, after, start_P)
        _check_bytes(compression, message, kept, state, sending)
        if getattr(compression, "feedback", False):
            _check_nothing_lost(update_CP, kept, after, decoded_CP)
        applied_P, state = _broadcast(compression, decoded_CP.mean(0), state, sending)
        kept, model_P = after, model_P + applied_P
        messages = compression.missed(state, 0, SLOTS)
        if messages is not None:
            held_P = compression.received(start_P.clone(), messages, sending)
            expect(torch.equal(held_P, model_P), "received: the model after missed messages is the server's to the bit")


def _copies(kept: Tensors, rows: slice = slice(None)) -> Tensors:
    return {name: value[rows].clone() for name, value in kept.items()}


def _check_alone(
    compression: Compression, update_CP: Tensor, kept: Tensors, sending: Sending, message: Message, after: Tensors,
    start_P: Tensor,
) -> None:  # fmt: skip
    """Each client's message is what it would have sent alone, and can be read by itself."""
    decoded_CP = compression.decode(message, sending, start_P)
    for i in range(3):
        here = slice(i, i + 1)
        one = replace(sending, client_C=sending.client_C[here])
        alone, left = compression.encode(update_CP[here].clone(), _copies(kept, here), one)
        same = torch.equal(compression.decode(alone, one, start_P)[0], decoded_CP[i])
        same &= all(torch.equal(left[n][0], after[n][i]) for n in left)
        same &= bool(alone.bytes_C[0] == message.bytes_C[i])
        expect(same, f"encode: the message of client {i} depends on its company in round {sending.t}")
        part = compression.decode(message.take(torch.tensor([i])), one, start_P)
        expect(torch.equal(part[0], decoded_CP[i]), f"decode: client {i} must be readable by itself")


def _check_bytes(compression: Compression, message: Message, kept: Tensors, state: State, sending: Sending) -> None:
    """Bytes are whole numbers, and no row of the message is longer than the longest that is counted.

    Rows of bytes are padded to the longest; one number a client (a round, a scale) may go with the header.
    """
    held = compression.held(kept)
    fetched_C = compression.catch_up(state, held, sending)
    same = torch.equal(fetched_C, compression.catch_up(state, message.tensors, sending))
    expect(same, f"catch_up: must follow from `held` ({sorted(held)}), which the message has to say too")
    for name, bytes_C in (("bytes_C", message.bytes_C), ("catch_up", fetched_C)):
        whole = bytes_C.shape == (3,) and not bytes_C.is_floating_point() and bool((bytes_C >= 0).all())
        expect(whole, f"{name}: a number of bytes for each client, not {bytes_C.tolist()}")
    long = {name: value for name, value in message.tensors.items() if value[0].numel() > 1}
    counted, sent = int(message.bytes_C.max()), row_bytes(long)
    expect(sent <= counted, f"bytes_C: counts {counted} bytes, but {', '.join(long)} are {sent} for each client")


def _check_nothing_lost(update_CP: Tensor, kept: Tensors, after: Tensors, decoded_CP: Tensor) -> None:
    """What was not sent is kept, in the residuals that are as wide as the update."""
    wide = [name for name, value in kept.items() if value.shape == update_CP.shape]
    before_CP = sum((kept[name] for name in wide), update_CP)
    after_CP = sum((after[name] for name in wide), decoded_CP)
    same = bool(wide) and torch.allclose(before_CP, after_CP, atol=1e-5)
    expect(same, "encode: with `feedback` message + residual = input, and here something is lost or sent twice")


def _broadcast(compression: Compression, change_P: Tensor, state: State, sending: Sending) -> tuple[Tensor, State]:
    before = copied(state)
    applied_P, after = compression.broadcast(change_P.clone(), state, sending)
    again_P, _ = compression.broadcast(change_P.clone(), state, sending)
    check_numbers("broadcast", applied_P, change_P)
    kept = unchanged(state, before) and torch.equal(applied_P, again_P)
    expect(kept, "broadcast: must not write into the state it was given")
    checkpointed(compression.forget(after, sending.client_C[:1]), "forget")
    return applied_P, checkpointed(after, "broadcast")
