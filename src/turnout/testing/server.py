"""Checks of the server's parts: weighting, aggregation, server step, substitution, mixing, closing.

Shape letters: C clients of the cohort, R replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from turnout.parts.aggregation import Aggregation, combined_of, weighted_sum
from turnout.parts.closing import Closing, close
from turnout.parts.mixing import Mixing
from turnout.parts.server import ServerStep, stepped
from turnout.parts.substitution.base import Substitutes, Substitution
from turnout.parts.updates import Applied
from turnout.parts.weighting import Weighting
from turnout.testing.examples import (
    all_finite,
    check_factor,
    checkpointed,
    copied,
    example_applied,
    example_turnouts,
    expect,
    expect_part,
    unchanged,
)
from turnout.types import State, Turnout, flatten


def check_weighting(weighting: Weighting) -> None:
    """Promises of a weighting: only clients that are present count; factors are finite, not negative, and 0 for the
    absent; a client's own factor does not depend on other clients."""
    expect_part(weighting, Weighting)
    for turnout, share_C in example_turnouts():
        where = f"for work {turnout.work_C.tolist()} of {turnout.full_work}"
        counts_C = weighting.counts(turnout)
        right = counts_C.shape == share_C.shape and counts_C.dtype == torch.bool
        expect(right, f"counts: one boolean per client {where}")
        expect(not bool((counts_C & ~turnout.present_C).any()), f"counts: an absent client must not count {where}")
        scale_C = weighting.client_scale(turnout)
        check_factor("client_scale", scale_C, share_C, where)
        expect(bool((scale_C[~turnout.present_C] == 0).all()), f"client_scale: 0 for the absent {where}")
        for i in range(len(share_C)):
            alone = weighting.client_scale(turnout.take(torch.tensor([i])))
            expect(torch.allclose(alone[0], scale_C[i]), f"client_scale: client {i} depends on other clients {where}")
        if bool(counts_C.any()):
            for lent in (False, True):
                check_factor("server_scale", weighting.server_scale(share_C, counts_C, turnout, lent), share_C, where)


def check_aggregation(aggregation: Aggregation, width: int = 6) -> None:
    """Promises of an aggregation: one finite number per parameter, in any order of the replies; rows of weight 0 do not
    matter; updates are not changed; a `linear` one is the sum by the weights."""
    expect_part(aggregation, Aggregation)
    turnout, share_C = next(example_turnouts())
    update_RP = torch.randn(3, width, generator=torch.Generator().manual_seed(0))

    def combined(update_RP: Tensor, weight_R: Tensor, order: list[int]) -> Tensor:
        given_RP = update_RP[order]
        applied = example_applied(given_RP, turnout.client_C[order], turnout, share_C, torch.ones(width))
        found = combined_of(aggregation.combine(applied, weight_R[order]))
        used = found.used_R is None or (found.used_R.dtype == torch.bool and found.used_R.shape == (3,))
        expect(used, f"combine: used_R is one boolean per reply, not {found.used_R}")
        kept = torch.equal(given_RP.nan_to_num(7.0), update_RP[order].nan_to_num(7.0))
        expect(kept, "combine: must not change update_RP, which others read afterwards")
        _check_row("combine", found.update_P, width)
        return found.update_P.clone()

    same = torch.allclose(combined(update_RP, share_C, [0, 1, 2]), combined(update_RP, share_C, [2, 0, 1]), atol=1e-6)
    expect(same, "combine: the order matters")
    weight_C, row = share_C.clone().index_fill(0, torch.tensor([1]), 0.0), torch.tensor([1])
    without = [combined(update_RP.index_fill(0, row, v), weight_C, [0, 1, 2]) for v in (torch.nan, 0.0, 1e6)]
    same = all(torch.allclose(one_P, without[0], atol=1e-6) for one_P in without)
    expect(same, "combine: leave out rows of weight 0: their values must not matter")
    for scale in (1.0, 1.7) if aggregation.linear else ():
        sum_P = weighted_sum(update_RP, scale * share_C)
        same = torch.allclose(combined(update_RP, scale * share_C, [0, 1, 2]), sum_P, atol=1e-5)
        expect(same, "combine: `linear` says that it is the sum by the weights, and it is not")


def check_server_step(step: ServerStep, width: int = 6) -> None:
    """Promises of a server step: one finite number per parameter, the same for the same state, which is not changed and
    which a checkpoint can hold."""
    expect_part(step, ServerStep)
    generator = torch.Generator().manual_seed(0)
    state, (turnout, share_C) = checkpointed(step.begin(width), "begin"), next(example_turnouts())
    for t in range(3):
        update_P = torch.randn(width, generator=generator)
        rows_RP = update_P.expand(len(share_C), -1)
        applied = example_applied(rows_RP, turnout.client_C, turnout, share_C, torch.ones(width), t)
        applied = replace(applied, weight_R=share_C, sum_P=update_P)
        before = copied(state)
        change_P, after = stepped(step, update_P.clone(), state, applied)
        again_P, _ = stepped(step, update_P.clone(), state, applied)
        _check_row("step", change_P, width)
        same = unchanged(state, before) and torch.equal(change_P, again_P)
        expect(same, "step: must not write into the state it was given")
        state = checkpointed(after, "step")
        expect(flatten(state)[0].keys() == before.keys(), "step: the state keeps its names, so that it can be resumed")


def check_substitution(substitution: Substitution) -> None:
    """Promises of a substitution: only clients that count borrow, and at most the missing shares; updates are copied
    where they are kept; a second run does not depend on the first; a checkpoint can hold the state; nothing stands in
    for a client that has left."""
    expect_part(substitution, Substitution)
    _check_memory(substitution.memory(3, 4))
    first, again = _borrow(substitution), _borrow(substitution)
    for a, b in zip(first, again, strict=True):
        expect(torch.equal(a, b), f"begin: a second run must not know of the first: {a.tolist()} and {b.tolist()}")


def _borrow(substitution: Substitution) -> list[Tensor]:
    """The loans of each of the example rounds."""
    state, borrowed = checkpointed(substitution.begin(clients=3, width=4), "begin"), []
    rounds = [pair for pair in example_turnouts() if bool(pair[0].present_C.any())]
    for t, (turnout, share_C) in enumerate(rounds):
        applied = _reply(substitution, turnout, share_C, t)
        state = substitution.observe(state, applied)
        lent = _lend(substitution, state, share_C, applied)
        rows_P = lent.rows_sum(torch.ones_like(share_C))
        borrowed += [lent.borrowed_C] + ([] if rows_P is None else [rows_P])
        applied.update_RP.fill_(float("nan"))
        expect(
            not any(bool(torch.isnan(value).any()) for value in flatten(state)[0].values()),
            f"observe: copy what is kept, the next round writes over the updates for work {turnout.work_C.tolist()}",
        )
        state = checkpointed(state, "observe")
    turnout, share_C = list(example_turnouts())[1]
    state = checkpointed(substitution.forget(state, torch.tensor([2])), "forget")
    applied = _reply(substitution, turnout, share_C, 4)
    lent = _lend(substitution, substitution.observe(state, applied), share_C, applied)
    if lent.row_weight_S is not None and lent.row_position_S is not None:
        old = bool((lent.row_position_S[lent.row_weight_S > 0] == 2).any())
        expect(not old, "forget: updates that client 2 had sent before it left still stand in for it")
    return borrowed


def _reply(substitution: Substitution, turnout: Turnout, share_C: Tensor, t: int) -> Applied:
    """Replies of the clients that are present."""
    client_R = turnout.client_C[turnout.present_C]
    update_RP = torch.arange(4.0 * len(client_R)).view(-1, 4) - 3
    applied = example_applied(update_RP, client_R, turnout, share_C, torch.ones(4), t)
    return replace(applied, hints=substitution.hints(update_RP, t, 0))


def _lend(substitution: Substitution, state: State, share_C: Tensor, applied: Applied) -> Substitutes:
    """The loans of a round, checked."""
    counts_C, where = applied.turnout.present_C, f"for work {applied.turnout.work_C.tolist()}"
    lent = substitution.lend(state, share_C, counts_C, applied) or Substitutes(torch.zeros_like(share_C))
    check_factor("borrowed_C", lent.borrowed_C, share_C, where)
    expect(bool((lent.borrowed_C[~counts_C] == 0).all()), f"borrowed_C: 0 for clients that do not count {where}")
    missing = float(share_C[~counts_C].sum())
    given = float(lent.borrowed_C.sum()) + (0.0 if lent.row_weight_S is None else float(lent.row_weight_S.sum()))
    expect(given <= missing + 1e-9, f"borrowed_C: at most the missing {missing:g} is lent, not {given:g} {where}")
    return lent


def check_mixing(mixing: Mixing, width: int = 4) -> None:
    """Promises of a mixing: rows are in the order of the clients asked for and finite; a client that has left is
    treated like one never seen; a second run does not depend on the first; updates are copied where they are kept; a
    checkpoint can hold the state."""
    expect_part(mixing, Mixing)
    _check_memory(mixing.memory(6, width))
    shared_P, all_C = torch.zeros(width), torch.arange(4)

    def mixed(state: State, client_C: Tensor) -> list[Tensor]:
        starts_CP = mixing.starts(state, client_C, shared_P)
        given = shared_P.expand(len(client_C), -1) if starts_CP is None else starts_CP
        return [given.clone(), mixing.own(state, client_C, shared_P).clone()]

    first = mixing.begin(clients=6, width=width)
    unseen = mixed(first, all_C)
    work_C, share_C = torch.tensor([1.0, 0.0, 0.5, 1.0], dtype=torch.float64), torch.tensor([0.1, 0.2, 0.3, 0.4])
    turnout = Turnout(all_C, work_C, 1.0, work_C, torch.ones_like(work_C))
    update_RP = torch.arange(3.0 * width).view(3, width) - 5
    applied = example_applied(update_RP, torch.tensor([3, 0, 2]), turnout, share_C.double(), shared_P)
    state = mixing.observe(first, applied)
    update_RP.fill_(float("nan"))
    state = checkpointed(state, "observe")
    found = mixed(state, all_C)
    expect(all_finite(*found), "observe: copy what is kept, rows must stay finite")
    for one, every in zip(mixed(state, torch.tensor([3])), found, strict=True):
        expect(torch.allclose(one[0], every[3]), "starts, own: a client's row depends on other clients")
    for old, new in zip(unseen, mixed(first, all_C), strict=True):
        expect(torch.equal(old, new), "begin: a second run must not know of the first")
    after = checkpointed(mixing.forget(state, torch.tensor([3])), "forget")
    for rows in mixed(after, torch.tensor([3, 5])):
        expect(torch.allclose(rows[0], rows[1]), "forget: a client that left is treated like one that was never seen")


def check_closing(closing: Closing) -> None:
    """Promises of a closing: a round ends at a finite time within its limit; a reply of this round counts in full and
    an older one never more than a newer one."""
    expect_part(closing, Closing)
    for arrivals in ([3.0, 9.0, 5.0], [torch.inf, 4.0], [torch.inf], []):
        limit, arrival_C = closing.limit, torch.tensor(arrivals, dtype=torch.float64)
        enough, asked = closing.enough(len(arrivals)), len(arrivals)
        expect(min(1, asked) <= enough <= asked, f"enough: {enough} replies of {asked} clients that are asked")
        closes, in_time_C = close(arrival_C, limit, enough)
        expect(0 <= closes < float("inf") and closes <= limit, f"limit: {closes} s for arrivals {arrivals}, by {limit}")
        expect(int(in_time_C.sum()) <= enough, f"enough: {int(in_time_C.sum())} replies in time, {enough} are enough")
    factor_R = closing.discount(torch.arange(5))
    expect(float(factor_R[0]) == 1, f"discount: a reply of this round counts 1, not {float(factor_R[0])}")
    falling = bool((factor_R[1:] <= factor_R[:-1]).all()) and bool((factor_R > 0).all())
    expect(falling, f"discount: above 0 and not rising with age: {factor_R.tolist()}")


def _check_row(name: str, value_P: Tensor, width: int) -> None:
    right = value_P.shape == (width,) and all_finite(value_P)
    expect(right, f"{name}: one finite number per parameter, not {value_P}; leave out rows of weight 0")


def _check_memory(memory: int) -> None:
    expect(isinstance(memory, int) and memory >= 0, f"memory: a whole number of bytes, not {memory!r}")
