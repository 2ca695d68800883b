"""Example rounds with absent and partial clients, and promises that all parts with a state share.

Shape letters: C clients of the cohort, R replies, P shared parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from turnout.errors import UserError, lacking
from turnout.inputs import tensors_of
from turnout.parts.updates import Applied
from turnout.types import State, Tensors, Turnout, flatten, storable, unflatten
from turnout.world.enrolment import Enrolment

ROUNDS = 4  # that a part of the world is drawn for


def example_enrolment(clients: int) -> Enrolment:
    """Clients without names, of 10 to 16 samples in three clusters."""
    samples = torch.zeros(2, 4), torch.tensor([0, 1])
    groups_N = torch.arange(clients) % 3
    held = (samples, groups_N, "example", lambda client_C: 10 + client_C % 7)
    return Enrolment(clients, None, (4,), 2, ("no", "yes"), *held)


def example_turnouts() -> Iterator[tuple[Turnout, Tensor]]:
    """Cohorts and their shares: all complete; one absent and one partial; a single client; all absent."""
    for work, share in [
        ([4.0, 4.0, 4.0], [0.5, 0.25, 0.25]),
        ([4.0, 1.0, 0.0], [0.5, 0.3, 0.2]),
        ([2.0], [1.0]),
        ([0.0, 0.0], [0.4, 0.6]),
    ]:
        work_C = torch.tensor(work, dtype=torch.float64)
        steps_C = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)[: len(work)]
        turnout = Turnout(torch.arange(len(work)), work_C, 4.0, work_C * steps_C, 4.0 * steps_C)
        yield turnout, torch.tensor(share, dtype=torch.float64)


def example_applied(
    update_RP: Tensor, client_R: Tensor, turnout: Turnout, share_C: Tensor, start_P: Tensor, t: int = 0
) -> Applied:
    """Replies as the round hands them to the server's parts, with everything that `Applied` promises them.

    A client that did part of the work has scaled its update by full work / work; losses are each client's own.
    """
    position_R = torch.searchsorted(turnout.client_C, client_R)
    scale_C = turnout.full_progress_C / turnout.progress_C.clamp(min=1e-9)
    weight_R = share_C[position_R]
    sum_P = weight_R.to(update_RP) @ update_RP
    return Applied(
        t, 0, client_R, update_RP, start_P, turnout, position_R, loss_R=0.5 + 0.7 * client_R.float(), lr=0.1,
        sent_scale_R=scale_C[position_R], objective_size=len(turnout.client_C), objective_share=lambda: weight_R,
        weight_R=weight_R, sum_P=sum_P, update_P=sum_P, new_P=start_P + sum_P,
    )  # fmt: skip


def expect(holds: bool, promise: str) -> None:
    if not holds:
        raise AssertionError(promise)


def expect_part(part: Any, role: type) -> None:
    """An object, not its class, with all methods of its role."""
    kind = part if isinstance(part, type) else type(part)
    expect(kind is not part, f"{kind.__name__} is a class: give an object, {kind.__name__}()")
    missing = ", ".join(lacking(part, role))
    expect(not missing, f"{kind.__name__} lacks {missing}: help(turnout.roles.{role.__name__}) says what it needs")


def checkpointed(state: State, what: str) -> State:
    """The state as a resumed run has it: through a checkpoint and back."""
    try:
        storable(state, what)
    except UserError as mistake:
        raise AssertionError(str(mistake)) from mistake
    tensors, plain = flatten(state)
    return unflatten({name: value.clone() for name, value in tensors.items()}, json.loads(json.dumps(plain)))


def copied(state: State) -> Tensors:
    """Copies of the tensors of a state."""
    return {name: value.clone() for name, value in flatten(state)[0].items()}


def unchanged(state: State, before: Tensors) -> bool:
    """Whether a state still has the tensors of an earlier copy."""
    now = flatten(state)[0]
    return now.keys() == before.keys() and all(torch.equal(now[name], before[name]) for name in before)


def all_finite(*values: Tensor) -> bool:
    parts = [part for value in values for part in tensors_of(value)]
    return all(bool(torch.isfinite(part).all()) for part in parts if part.is_floating_point())


def check_factor(name: str, factor_C: Tensor, share_C: Tensor, where: str) -> None:
    """One finite factor per client, not negative."""
    expect(factor_C.shape == share_C.shape, f"{name}: one factor per client, not {tuple(factor_C.shape)}, {where}")
    right = all_finite(factor_C) and bool((factor_C >= 0).all())
    expect(right, f"{name}: finite and not negative, but {factor_C.tolist()} {where}")


def check_numbers(name: str, value: Tensor, like: Tensor) -> None:
    """Finite numbers of the shape and precision of another tensor."""
    right = value.shape == like.shape and value.dtype == like.dtype and all_finite(value)
    expect(right, f"{name}: finite numbers of shape {tuple(like.shape)}, {like.dtype}, not {value}")
