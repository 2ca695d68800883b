"""The check of a term of the gradient: on clients, on the server, and back to clients.

Shape letters: c clients of a chunk, C replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from turnout.parts.terms.base import At, ObjectiveChange, Term
from turnout.parts.updates import Applied
from turnout.testing.examples import all_finite, check_numbers, checkpointed, example_arrived, expect
from turnout.types import Tensors, Turnout


def check_term(term: Term, width: int = 6) -> None:
    """Promises of a term: what it does to a chunk of clients is what it does to each alone, and stays finite; before
    anybody has replied, and after the server has merged what these clients sent. What either side holds fits into a
    checkpoint."""
    generator = torch.Generator().manual_seed(0)
    start_P, work_C = torch.randn(width, generator=generator), torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
    turnout = Turnout(torch.arange(3), work_C, 3.0, work_C, torch.full_like(work_C, 3.0))
    down, third_C = term.server_state(start_P), torch.full_like(work_C, 1 / 3)
    for t in range(2):
        down = checkpointed({term.name: down}, "server_state")[term.name]
        x_cP, grad_cP = torch.randn(2, 3, width, generator=generator)
        heard = term.broadcast(down)
        whole, up, kept = _locally(term, heard, t, x_cP, grad_cP, start_P, slice(0, 3))
        expect(all_finite(*whole), "transform_grad, post_step, finish: must stay finite")
        for i in range(3):
            each, _, _ = _locally(term, heard, t, x_cP, grad_cP, start_P, slice(i, i + 1))
            for together, alone in zip(whole, each, strict=True):
                expect(torch.allclose(together[i], alone[0], atol=1e-6), f"client {i} depends on its company")
        update_CP = x_cP - start_P
        sum_P = update_CP.mean(0)
        arrived = example_arrived(update_CP, turnout.client_C, turnout, third_C, start_P, t)
        arrived = replace(arrived, weight_R=third_C, sum_P=sum_P, new_P=start_P + sum_P)
        down = _on_the_server(term, down, up, kept, arrived)


def _on_the_server(term: Term, down: Tensors, up: Tensors, kept: Tensors, arrived: Applied) -> Tensors:
    """The names of what either side holds are for good, or a checkpoint could not be read; nothing becomes a NaN."""
    outbox = checkpointed({"outbox": term.notify(down, arrived)}, "notify")["outbox"]
    moved_P = term.server_shift(down, arrived)
    if moved_P is not None:
        check_numbers("server_shift", moved_P, arrived.start_P)
    merged, _ = term.server_update(down, up, arrived)
    heard = _hearing(term, outbox, kept) if outbox else kept  # clients who are told nothing hear nothing
    said = {name: value[:1] for name, value in term.on_leave(heard).items()}
    after = term.on_objective_change(merged, said, ObjectiveChange(arrived.objective_share_R[:1], 1.5))
    for what, held in (("server_update", merged), ("on_objective_change", after)):
        expect(held.keys() == down.keys(), f"{what}: holds {sorted(held)}, but `server_state` declares {sorted(down)}")
    values = [*outbox.values(), *heard.values(), *after.values()]
    expect(all_finite(*values), "notify, on_notify, server_update, on_objective_change: must stay finite")
    return after


def _hearing(term: Term, outbox: Tensors, kept: Tensors) -> Tensors:
    """What clients keep after they have heard: in any company, since each hears when it is asked the next time."""
    heard = term.on_notify(outbox, {name: value.clone() for name, value in kept.items()})
    expect(heard.keys() == kept.keys(), f"on_notify: keeps {sorted(heard)}, but `client_state` declares {sorted(kept)}")
    for rows in (slice(1, 3), slice(2, 3)):
        one_message = "notify: one message [P] for all who replied, and client {} hears another one in other company"
        try:
            some = term.on_notify(outbox, {name: value[rows].clone() for name, value in kept.items()})
        except (RuntimeError, IndexError) as error:
            raise AssertionError(one_message.format(rows.start) + f" ({error})") from error
        same = all(v.shape == heard[n][rows].shape and torch.equal(v, heard[n][rows]) for n, v in some.items())
        expect(same, one_message.format(rows.start))
    return heard


def _locally(
    term: Term, down: Tensors, t: int, x_cP: Tensor, grad_cP: Tensor, start_P: Tensor, rows: slice
) -> tuple[list[Tensor], Tensors, Tensors]:
    """What a term does to some clients, what they send, and what they keep."""
    at = _place(t, x_cP, start_P, rows)
    blank = checkpointed({term.name: term.client_state(start_P)}, "client_state")[term.name]
    mine = {n: v.expand(len(at.x_cP), *v.shape).clone() for n, v in blank.items()}
    grad = term.transform_grad(grad_cP[rows].clone(), at, down, mine)
    shape = tuple(at.x_cP.shape)
    expect(
        grad.shape == at.x_cP.shape, f"transform_grad: gives a gradient of {tuple(grad.shape)}, it was given {shape}"
    )
    spring = term.as_quadratic(start_P[None], down)
    if spring is not None:
        expected = grad_cP[rows] + spring[0] * at.x_cP - spring[1]
        expect(
            torch.allclose(grad, expected, atol=1e-6), "as_quadratic: transform_grad must add k w - f and nothing else"
        )
    drift = term.as_constant_shift(down, mine)
    if drift is not None:
        expected = grad_cP[rows] - drift[0] + (0 if drift[1] is None else drift[1])
        expect(
            torch.allclose(grad, expected, atol=1e-6),
            "as_constant_shift: transform_grad must add e - d and nothing else",
        )
    term.post_step(at, down, mine)
    up, kept = term.finish(at, down, mine)
    _check_after(term, up, kept, blank, at)
    own_cP = term.own(at.x_cP, kept)
    if not term.personal:
        silent = torch.equal(own_cP, at.x_cP)
        expect(silent, "own: gives other weights, but without `personal = True` nobody predicts with them")
    return [grad, at.x_cP, *up.values(), *kept.values(), own_cP], up, kept


def _check_after(term: Term, up: Tensors, kept: Tensors, blank: Tensors, at: At) -> None:
    for name, value in {**up, **kept}.items():
        expect(value.shape[0] == len(at.x_cP), f"finish: {name} needs one row a client, not {tuple(value.shape)}")
    numbers = sum(value[0].numel() for value in up.values())
    most = term.sends * at.x_cP.shape[1] + 2
    expect(numbers <= most, f"finish: sends {numbers} numbers, `sends` says {term.sends} each")
    expect(kept.keys() == blank.keys(), f"finish: keeps {sorted(kept)}, but `client_state` declares {sorted(blank)}")


def _place(t: int, x_cP: Tensor, start_P: Tensor, rows: slice) -> At:
    """Some clients in the middle of their training."""
    return At(
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
