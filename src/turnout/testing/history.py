"""Checks of parts that remember clients: substitution and mixing.

Shape letters: C clients of the cohort, R replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from turnout.parts.mixing import Mixing
from turnout.parts.substitution.base import Substitutes, Substitution
from turnout.parts.updates import Applied
from turnout.testing.examples import (
    all_finite,
    check_factor,
    check_memory,
    checkpointed,
    example_arrived,
    example_turnouts,
    expect,
)
from turnout.types import State, Turnout, flatten


def check_substitution(substitution: Substitution) -> None:
    """Promises of a substitution: only those who count borrow, nothing is invented, an absent client is invisible;
    the first state can be used again, what a round's updates are written over with afterwards does not matter, a
    checkpoint can hold the state, and nothing stands in for who has left."""
    check_memory(substitution.memory(3, 4))
    first, again = _stand_ins(substitution), _stand_ins(substitution)
    for a, b in zip(first, again, strict=True):
        expect(torch.equal(a, b), f"begin: a second run must not know of the first: {a.tolist()} and {b.tolist()}")


def _stand_ins(substitution: Substitution) -> list[Tensor]:
    """What was borrowed in each of the example rounds."""
    state, borrowed = checkpointed(substitution.begin(clients=3, width=4), "begin"), []
    rounds = [pair for pair in example_turnouts() if bool(pair[0].present_C.any())]
    for t, (turnout, share_C) in enumerate(rounds):
        arrived = _replies(substitution, turnout, share_C, t)
        state = substitution.observe(state, arrived)
        lent = _lent(substitution, state, share_C, arrived)
        rows_P = lent.rows_sum(torch.ones_like(share_C))
        borrowed += [lent.borrowed_C] + ([] if rows_P is None else [rows_P])
        arrived.update_RP.fill_(float("nan"))
        expect(
            not any(bool(torch.isnan(value).any()) for value in flatten(state)[0].values()),
            f"observe: copy what is kept, the next round writes over the updates for work {turnout.work_C.tolist()}",
        )
        state = checkpointed(state, "observe")
    _check_left(substitution, state)
    return borrowed


def _replies(substitution: Substitution, turnout: Turnout, share_C: Tensor, t: int) -> Applied:
    client_R = turnout.client_C[turnout.present_C]
    update_RP = torch.arange(4.0 * len(client_R)).view(-1, 4) - 3
    arrived = example_arrived(update_RP, client_R, turnout, share_C, torch.ones(4), t)
    return replace(arrived, hints=substitution.hints(update_RP, t, 0))


def _lent(substitution: Substitution, state: State, share_C: Tensor, arrived: Applied) -> Substitutes:
    """What is lent to whom in a round, within what is promised."""
    counts_C, where = arrived.turnout.present_C, f"for work {arrived.turnout.work_C.tolist()}"
    lent = substitution.lend(state, share_C, counts_C, arrived)
    check_factor("borrowed_C", lent.borrowed_C, share_C, where)
    expect(bool((lent.borrowed_C[~counts_C] == 0).all()), f"borrowed_C: 0 for those who do not count {where}")
    missing = float(share_C[~counts_C].sum())
    given = float(lent.borrowed_C.sum()) + (0.0 if lent.row_weight_S is None else float(lent.row_weight_S.sum()))
    expect(given <= missing + 1e-9, f"borrowed_C: at most the missing {missing:g} is lent, not {given:g} {where}")
    return lent


def _check_left(substitution: Substitution, state: State) -> None:
    """Client 2 has left: its old updates do not stand in any more, and others go on."""
    turnout, share_C = list(example_turnouts())[1]
    state = checkpointed(substitution.forget(state, torch.tensor([2])), "forget")
    arrived = _replies(substitution, turnout, share_C, 4)
    lent = _lent(substitution, substitution.observe(state, arrived), share_C, arrived)
    if lent.row_weight_S is not None and lent.row_position_S is not None:
        used_S = lent.row_weight_S > 0
        old = bool((lent.row_position_S[used_S] == 2).any())
        expect(not old, "forget: what client 2 had sent before it left still stands in for it")


def check_mixing(mixing: Mixing, width: int = 4) -> None:
    """Promises of a mixing: rows are in the order of the clients asked for, finite, the same again; who has left is as
    much a stranger as one never seen; a second run knows nothing of the first; what the updates are written over with
    does not matter; a checkpoint can hold the state."""
    check_memory(mixing.memory(6, width))
    shared_P, everybody = torch.zeros(width), torch.arange(4)
    first = mixing.begin(clients=6, width=width)
    strangers = _mixed(mixing, first, everybody, shared_P)
    work_C, share_C = torch.tensor([1.0, 0.0, 0.5, 1.0], dtype=torch.float64), torch.tensor([0.1, 0.2, 0.3, 0.4])
    turnout = Turnout(everybody, work_C, 1.0, work_C, torch.ones_like(work_C))
    update_RP = torch.arange(3.0 * width).view(3, width) - 5
    arrived = example_arrived(update_RP, torch.tensor([3, 0, 2]), turnout, share_C.double(), shared_P)
    state = mixing.observe(first, arrived)
    update_RP.fill_(float("nan"))
    state = checkpointed(state, "observe")
    mixed = _mixed(mixing, state, everybody, shared_P)
    expect(all_finite(*mixed), "observe: copy what is kept, rows must stay finite")
    for one, all_of_them in zip(_mixed(mixing, state, torch.tensor([3]), shared_P), mixed, strict=True):
        expect(torch.allclose(one[0], all_of_them[3]), "starts, own: a client's row depends on who else is asked")
    for old, new in zip(strangers, _mixed(mixing, first, everybody, shared_P), strict=True):
        expect(torch.equal(old, new), "begin: a second run must not know of the first")
    after = checkpointed(mixing.forget(state, torch.tensor([3])), "forget")
    for rows in _mixed(mixing, after, torch.tensor([3, 5]), shared_P):
        expect(torch.allclose(rows[0], rows[1]), "forget: who left is a stranger, as client 5, who was never seen")


def _mixed(mixing: Mixing, state: State, client_C: Tensor, shared_P: Tensor) -> list[Tensor]:
    """What clients start from, and their own models."""
    starts_CP = mixing.starts(state, client_C, shared_P)
    given = shared_P.expand(len(client_C), -1) if starts_CP is None else starts_CP
    return [given.clone(), mixing.own(state, client_C, shared_P).clone()]
