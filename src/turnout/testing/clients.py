"""Checks of the clients' parts: optimizers, learning-rate schedules, compression, terms of the gradient.

Shape letters: c clients of a chunk, C of a cohort, P parameters.
"""

from __future__ import annotations

import math
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.parts.compression.base import Compression, Sending
from turnout.parts.optimizers import MOMENTS, Optimizer
from turnout.parts.schedules import Schedule
from turnout.parts.terms.base import (
    OPTIONAL,
    At,
    Departures,
    FusedStep,
    Notifies,
    ObjectiveChange,
    PersonalModel,
    PostStep,
    SelectiveDownload,
    ServerShift,
    Term,
    public_names,
    sends,
)
from turnout.parts.updates import Applied
from turnout.testing.examples import (
    all_finite,
    check_numbers,
    checkpointed,
    copied,
    example_applied,
    expect,
    expect_part,
    unchanged,
)
from turnout.types import Message, State, Tensors, Turnout, row_bytes

SLOTS = (Slot("weight", (3, 4), 0, 12), Slot("bias", (3,), 12, 3))


def check_schedule(schedule: Schedule) -> None:
    """Promises of a schedule: a finite rate above 0 at any clock, and the same when asked again."""
    expect_part(schedule, Schedule)
    for clock in (0, 1, 2, 10, 1000, 10**6):
        rate = schedule.rate(0.1, clock)
        expect(math.isfinite(rate) and rate > 0, f"rate: a number above 0, not {rate!r} at clock {clock}")
        expect(rate == schedule.rate(0.1, clock), f"rate: not the same again at clock {clock}")


def check_optimizer(optimizer: Optimizer, width: int = 6) -> None:
    """Promises of a local optimizer: a chunk of clients gets the same results as each client alone; they stay finite;
    no steps make no progress; `moments` is a known value."""
    expect_part(optimizer, Optimizer)
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
    expect_part(compression, Compression)
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


# -- terms


def check_term(term: Term, width: int = 6) -> None:
    """Promises of a term, before any client has replied and after the server has used their uploads:

    - its hooks are spelt right and it derives from the class of each optional one;
    - a chunk of clients gets the same results as each client alone, and all of them are finite;
    - the state of both sides keeps its names and fits into a checkpoint;
    - a step that a GPU may record and repeat does not depend on its number;
    - the server's side does not depend on the factor E/s by which clients scaled their updates.
    """
    expect_part(term, Term)
    _check_hooks(term)
    generator = torch.Generator().manual_seed(0)
    start_P, work_C = torch.randn(width, generator=generator), torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
    turnout = Turnout(torch.arange(3), work_C, 3.0, work_C, torch.full_like(work_C, 3.0))
    server_state, third_C = term.server_state(start_P), torch.full_like(work_C, 1 / 3)
    for t in range(2):
        server_state = checkpointed({term.name: server_state}, "server_state")[term.name]
        x_cP, grad_cP = torch.randn(2, 3, width, generator=generator)
        sent = term.broadcast(server_state) if isinstance(term, SelectiveDownload) else server_state
        whole, upload, kept = _train(term, sent, t, x_cP, grad_cP, start_P, slice(0, 3))
        expect(all_finite(*whole), "transform_grad, post_step, finish: must stay finite")
        for i in range(3):
            each, _, _ = _train(term, sent, t, x_cP, grad_cP, start_P, slice(i, i + 1))
            for together, alone in zip(whole, each, strict=True):
                same = torch.allclose(together[i], alone[0], atol=1e-6)
                expect(same, f"client {i} gets other results together with other clients than alone")
        update_CP, sum_P = x_cP - start_P, (x_cP - start_P).mean(0)
        plain = example_applied(update_CP, turnout.client_C, turnout, third_C, start_P, t)
        scale_C = plain.scaled_R  # E/s of each client; the same sum, of scaled updates by smaller weights
        scaled = replace(
            plain,
            update_RP=update_CP * scale_C[:, None].to(update_CP),
            weight_R=third_C / scale_C,
            sum_P=sum_P,
            update_P=sum_P,
            new_P=start_P + sum_P,
        )
        plain = replace(scaled, update_RP=update_CP, weight_R=third_C, sent_scale_R=None)
        found, unscaled = (_serve(term, server_state, upload, kept, applied) for applied in (scaled, plain))
        for name, value in found.items():
            expect(
                torch.allclose(value.double(), unscaled[name].double(), rtol=1e-4, atol=1e-6),
                f"{name}: depends on the factor E/s by which clients scaled their updates: use applied.models(), or "
                "divide update_RP by applied.scaled_R",
            )
        server_state = {name: found[f"server_update, {name}"] for name in server_state}


def _check_hooks(term: Term) -> None:
    """The term has a name, and no method that was meant to be a hook but is never called."""
    name: Any = getattr(term, "name", None)
    named = isinstance(name, str) and bool(name) and "/" not in name
    expect(named, f"name: a term needs a name without '/', such as `name: str = \"mine\"`, not {name!r}")
    known = {hook: base for base in (Term, *OPTIONAL) for hook in public_names(base)}
    for kind in type(term).__mro__:
        for hook in public_names(kind) if kind not in (Term, *OPTIONAL) else ():
            if hook in known:
                base = known[hook]
                declared = base is Term or isinstance(term, base)
                expect(declared, f"{hook}: is only called of a term that derives from {base.__name__}")
            elif callable(vars(kind)[hook]) or isinstance(vars(kind)[hook], property):
                near = get_close_matches(hook, known, n=1, cutoff=0.8)
                expect(not near, f"{hook}: did you mean {', '.join(near)}? (the name of a helper starts with _)")


def _train(
    term: Term, server_state: Tensors, t: int, x_cP: Tensor, grad_cP: Tensor, start_P: Tensor, rows: slice
) -> tuple[list[Tensor], Tensors, Tensors]:
    """All results of a term's local step and end of training for some clients; their uploads; their next state."""
    at = At(
        x_cP=x_cP[rows].clone(),
        start_cP=start_P[None],
        lr=0.1,
        step=0,
        steps_c=torch.tensor([3.0, 2.0, 1.0])[rows],
        examples_c=torch.tensor([9, 5, 2])[rows],
        gradient=lambda x: x * 0.5,
        squared_gradients=lambda samples: (x_cP[rows] * 0.1).square(),
        full_gradient=lambda x: x * 0.4,
        t=t,
    )
    initial = checkpointed({term.name: term.client_state(start_P)}, "client_state")[term.name]
    for name, value in initial.items():
        expect(value.dim() > 0, f"client_state: {name} has no dimension: use one of shape [1], such as torch.zeros(1)")
    client_state = {n: v.expand(len(at.x_cP), *v.shape).clone() for n, v in initial.items()}
    again = {n: v.clone() for n, v in client_state.items()}
    grad = _step(term, at, grad_cP[rows].clone(), server_state, client_state)
    if isinstance(term, FusedStep):
        for one, other in ((0, 0), (1, 3)) if term.cuda_graph_safe else ():  # first steps are recorded apart
            found: list[list[Tensor]] = []
            recorded: Any = torch.tensor(at.lr)  # a tensor, as in a step that a GPU records
            for step, lr, round_ in ((one, at.lr, t), (other, recorded, t + 4)):
                here = replace(at, x_cP=x_cP[rows].clone(), lr=lr, step=step, t=round_)
                mine = {name: value.clone() for name, value in again.items()}
                stepped = _step(term, here, grad_cP[rows].clone(), server_state, mine)
                found.append([stepped, here.x_cP, *mine.values()])
            same = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*found, strict=True))
            expect(same, "cuda_graph_safe: a later step (at.step > 0) or round (at.t) must give the same result")
        quadratic = term.as_quadratic(start_P[None], server_state)
        if quadratic is not None:
            same = torch.allclose(grad, grad_cP[rows] + quadratic[0] * x_cP[rows] - quadratic[1], atol=1e-6)
            expect(same, "as_quadratic: transform_grad must add k w - f and nothing else")
        shift = term.as_constant_shift(server_state, client_state)
        if shift is not None:
            expected = grad_cP[rows] - shift[0] + (0 if shift[1] is None else shift[1])
            same = torch.allclose(grad, expected, atol=1e-6)
            expect(same, "as_constant_shift: transform_grad must add e - d and nothing else")
    upload, kept = term.finish(at, server_state, client_state)
    for name, value in {**upload, **kept}.items():
        right = value.dim() > 0 and value.shape[0] == len(at.x_cP)
        expect(
            right,
            f"finish: {name} needs one row per client, not {tuple(value.shape)} (at.start_cP has a single row where "
            "all clients start alike: at.start_cP.expand_as(at.x_cP) has one for each)",
        )
    numbers, declared = sum(value[0].numel() for value in upload.values()), sends(term)
    fits = numbers <= declared * at.x_cP.shape[1] + 2
    expect(
        fits, f"finish: sends {numbers} numbers, `sends` says {declared:g} each: derive from TermTraits to change it"
    )
    _check_names("finish", kept, "client_state", initial)
    own = [term.own(at.x_cP, kept)] if isinstance(term, PersonalModel) else []
    return [grad, at.x_cP, *upload.values(), *kept.values(), *own], upload, kept


def _step(term: Term, at: At, grad_cP: Tensor, server_state: Tensors, client_state: Tensors) -> Tensor:
    """The gradient of one local step; changes the weights and the state of the clients as the term does."""
    grad = term.transform_grad(grad_cP, at, server_state, client_state)
    shape = tuple(at.x_cP.shape)
    right = grad.shape == at.x_cP.shape
    expect(right, f"transform_grad: returns a gradient of shape {tuple(grad.shape)}, it was given {shape}")
    if isinstance(term, PostStep):
        term.post_step(at, server_state, client_state)
    return grad


def _serve(term: Term, server_state: Tensors, upload: Tensors, kept: Tensors, applied: Applied) -> Tensors:
    """All results of a term's hooks after local training, by the hook that gave them."""
    message: Tensors = {}
    shift_P = None
    if isinstance(term, Notifies):
        message = checkpointed({"message": term.notify(server_state, applied)}, "notify")["message"]
        kept = _notified(term, message, kept) if message else kept
    if isinstance(term, ServerShift) and (shift_P := term.server_shift(server_state, applied)) is not None:
        check_numbers("server_shift", shift_P, applied.start_P)
    updated, _ = term.server_update(server_state, upload, applied)
    _check_names("server_update", updated, "server_state", server_state)
    if isinstance(term, Departures):
        left = {name: value[:1] for name, value in term.on_leave(kept).items()}
        updated = term.on_objective_change(updated, left, ObjectiveChange(applied.objective_share_R[:1], 1.5))
        _check_names("on_objective_change", updated, "server_state", server_state)
    groups = {"notify": message, "on_notify": kept, "server_update": updated}
    found = {f"{hook}, {name}": value for hook, group in groups.items() for name, value in group.items()}
    expect(all_finite(*found.values()), "notify, on_notify, server_update, on_objective_change: must stay finite")
    return found | ({} if shift_P is None else {"server_shift": shift_P})


def _notified(term: Notifies, message: Tensors, kept: Tensors) -> Tensors:
    """The clients' next state: the same together with any others, since each gets the message when it is next asked."""
    found = term.on_notify(message, {name: value.clone() for name, value in kept.items()})
    _check_names("on_notify", found, "client_state", kept)
    for rows in (slice(1, 3), slice(2, 3)):
        wrong = (
            "notify: one message [P] for all clients that replied, but client {} gets other results with other clients"
        )
        try:
            some = term.on_notify(message, {name: value[rows].clone() for name, value in kept.items()})
        except (RuntimeError, IndexError) as error:
            raise AssertionError(wrong.format(rows.start) + f" ({error})") from error
        same = all(v.shape == found[n][rows].shape and torch.equal(v, found[n][rows]) for n, v in some.items())
        expect(same, wrong.format(rows.start))
    return found


def _check_names(hook: str, found: Tensors, declaring: str, declared: Tensors) -> None:
    """State keeps its names, so that a checkpoint can be read."""
    same = found.keys() == declared.keys()
    expect(same, f"{hook}: returns {sorted(found)}, but `{declaring}` declares {sorted(declared)}")
