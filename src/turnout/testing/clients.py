"""Checks of the clients' parts: optimizers, learning-rate schedules, compression.

Shape letters: c clients of a chunk, C of a cohort, P parameters.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.parts.compression.base import Compression, Sending
from turnout.parts.optimizers import MOMENTS, Optimizer
from turnout.parts.schedules import Schedule
from turnout.testing.examples import all_finite, check_numbers, checkpointed, copied, expect, unchanged
from turnout.types import Message, State, Tensors, row_bytes

SLOTS = (Slot("weight", (3, 4), 0, 12), Slot("bias", (3,), 12, 3))


def check_schedule(schedule: Schedule) -> None:
    """Promises of a schedule: a finite rate above 0 at any clock, and the same when asked again."""
    for clock in (0, 1, 2, 10, 1000, 10**6):
        rate = schedule.rate(0.1, clock)
        expect(math.isfinite(rate) and rate > 0, f"rate: a number above 0, not {rate!r} at clock {clock}")
        expect(rate == schedule.rate(0.1, clock), f"rate: not the same again at clock {clock}")


def check_optimizer(optimizer: Optimizer, width: int = 6) -> None:
    """Promises of a local optimizer: a chunk of clients gets the same results as each client alone; they stay finite;
    no steps make no progress; `moments` is a known value."""
    expect(optimizer.moments in MOMENTS, f"moments: one of {', '.join(MOMENTS)}, not {optimizer.moments!r}")
    generator = torch.Generator().manual_seed(0)
    x_cP, grad_scP = torch.randn(3, width, generator=generator), torch.randn(4, 3, width, generator=generator)

    def train(rows: slice) -> list[Tensor]:
        x = x_cP[rows].clone()
        slots = {name: torch.zeros_like(x) for name in optimizer.slots}
        for step, grad_cP in enumerate(grad_scP):
            optimizer.step(x, grad_cP[rows].clone(), slots, torch.full((len(x),), step + 1), 0.1)
        return [x, *(slots[name] for name in optimizer.slots)]

    whole = train(slice(0, 3))
    expect(all_finite(*whole), "step: must stay finite")
    expect(not torch.equal(whole[0], x_cP), "step: must change the parameters in place")
    for i in range(3):
        for together, alone in zip(whole, train(slice(i, i + 1)), strict=True):
            expect(torch.allclose(together[i], alone[0], atol=1e-6), f"step: client {i} depends on other clients")
    progress_C = optimizer.progress(torch.tensor([0, 1, 2, 5]))
    expect(float(progress_C[0]) == 0, f"progress: 0 for no steps, not {float(progress_C[0]):g}")
    expect(bool((progress_C.diff() > 0).all()), f"progress: grows with the steps, but is {progress_C.tolist()}")


def check_compression(compression: Compression) -> None:
    """Promises of a compression:

    - a client's message does not depend on other clients, and all of its bytes are counted;
    - decoded updates are finite and in the server's precision;
    - a state that was passed in is not changed, and a checkpoint can hold it;
    - a client that receives the messages it missed holds the server's model;
    - with a setting `feedback` that is true nothing is lost: message + residual = input.
    """
    generator = torch.Generator().manual_seed(0)
    start_P, state = torch.randn(15, generator=generator), checkpointed(compression.begin(SLOTS), "begin")
    initial = checkpointed(compression.residuals(SLOTS), "residuals")
    kept, model_P = {n: torch.stack([v, v, v]) for n, v in initial.items()}, start_P
    for t in range(4):
        update_CP = torch.randn(3, 15, generator=generator)
        sending = Sending(t, 0, torch.tensor([2, 5, 9]), SLOTS)
        message, after = compression.encode(update_CP.clone(), _copies(kept), sending)
        decoded_CP = compression.decode(message, sending, start_P)
        expect(after.keys() == kept.keys(), f"encode: keeps {sorted(after)}, but `residuals` has {sorted(kept)}")
        check_numbers("decode", decoded_CP, update_CP)
        for i in range(3):
            here = slice(i, i + 1)
            one = replace(sending, client_C=sending.client_C[here])
            alone, left = compression.encode(update_CP[here].clone(), _copies(kept, here), one)
            same = torch.equal(compression.decode(alone, one, start_P)[0], decoded_CP[i])
            same &= all(torch.equal(left[n][0], after[n][i]) for n in left)
            same &= bool(alone.bytes_C[0] == message.bytes_C[i])
            expect(same, f"encode: the message of client {i} depends on other clients in round {t}")
            part = compression.decode(message.take(torch.tensor([i])), one, start_P)
            expect(torch.equal(part[0], decoded_CP[i]), f"decode: the message of client {i} must be readable alone")
        _check_bytes(compression, message, kept, state, sending)
        if getattr(compression, "feedback", False):
            wide = [name for name, value in kept.items() if value.shape == update_CP.shape]
            put_in_CP, came_out_CP = sum((kept[n] for n in wide), update_CP), sum((after[n] for n in wide), decoded_CP)
            same = bool(wide) and torch.allclose(put_in_CP, came_out_CP, atol=1e-5)
            expect(same, "encode: with `feedback` message + residual = input; something is lost or sent twice")
        before, change_P = copied(state), decoded_CP.mean(0)
        applied_P, next_state = compression.broadcast(change_P.clone(), state, sending)
        again_P, _ = compression.broadcast(change_P.clone(), state, sending)
        check_numbers("broadcast", applied_P, change_P)
        same = unchanged(state, before) and torch.equal(applied_P, again_P)
        expect(same, "broadcast: must not write into the state it was given")
        state, kept, model_P = checkpointed(next_state, "broadcast"), after, model_P + applied_P
        messages = compression.missed(state, 0, SLOTS)
        if messages is not None:
            held_P = compression.received(start_P.clone(), messages, sending)
            expect(torch.equal(held_P, model_P), "received: the model after missed messages is the server's to the bit")


def _copies(kept: Tensors, rows: slice = slice(None)) -> Tensors:
    return {name: value[rows].clone() for name, value in kept.items()}


def _check_bytes(compression: Compression, message: Message, kept: Tensors, state: State, sending: Sending) -> None:
    """Bytes are whole numbers, and no row of the message is longer than the longest that is counted.

    Rows of bytes are padded to the longest; one number per client (a round, a scale) may go with the header.
    """
    longest = int(message.bytes_C.max())
    expect(longest <= compression.longest(sending), f"longest: a message has {longest} bytes, which is more")
    held = compression.held(kept)
    fetched_C = compression.catch_up(state, held, sending)
    same = torch.equal(fetched_C, compression.catch_up(state, message.tensors, sending))
    expect(same, f"catch_up: must follow from `held` ({sorted(held)}), which the message must also contain")
    for name, bytes_C in (("bytes_C", message.bytes_C), ("catch_up", fetched_C)):
        whole = bytes_C.shape == (3,) and not bytes_C.is_floating_point() and bool((bytes_C >= 0).all())
        expect(whole, f"{name}: a number of bytes for each client, not {bytes_C.tolist()}")
    long = {name: value for name, value in message.tensors.items() if value[0].numel() > 1}
    sent = row_bytes(long)
    expect(sent <= longest, f"bytes_C: counts {longest} bytes, but {', '.join(long)} are {sent} for each client")
