"""Checks of the server's arithmetic: weighting, aggregation, the server's step.

Shape letters: C clients of the cohort, R replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from turnout.parts.aggregation import Aggregation, combined_of, weighted_sum
from turnout.parts.server import ServerStep
from turnout.parts.weighting import Weighting
from turnout.testing.examples import (
    check_factor,
    checkpointed,
    copied,
    example_arrived,
    example_turnouts,
    expect,
    unchanged,
)
from turnout.types import flatten


def check_weighting(weighting: Weighting) -> None:
    """Promises of a weighting: only those present count; factors are finite, not negative, and 0 for the absent; what
    a client multiplies its update by is its own business, whoever else was asked."""
    for turnout, share_C in example_turnouts():
        where = f"for work {turnout.work_C.tolist()} of {turnout.full_work}"
        counts_C = weighting.counts(turnout)
        expect(
            counts_C.shape == share_C.shape and counts_C.dtype == torch.bool, f"counts: one boolean a client {where}"
        )
        expect(not bool((counts_C & ~turnout.present_C).any()), f"counts: an absent client must not count {where}")
        scale_C = weighting.client_scale(turnout)
        check_factor("client_scale", scale_C, share_C, where)
        expect(bool((scale_C[~turnout.present_C] == 0).all()), f"client_scale: 0 for the absent {where}")
        for i in range(len(share_C)):
            alone = weighting.client_scale(turnout.take(torch.tensor([i])))
            expect(torch.allclose(alone[0], scale_C[i]), f"client_scale: client {i} depends on its company {where}")
        if bool(counts_C.any()):
            for lent in (False, True):
                check_factor("server_scale", weighting.server_scale(share_C, counts_C, turnout, lent), share_C, where)


def check_aggregation(aggregation: Aggregation, width: int = 6) -> None:
    """Promises of an aggregation: one finite number a parameter, in any order of the replies; a row without weight does
    not matter, whatever is in it; updates are not written on; what is `linear` is the sum by the weights."""
    turnout, share_C = next(example_turnouts())
    update_RP = torch.randn(3, width, generator=torch.Generator().manual_seed(0))

    def combined(update_RP: Tensor, weight_R: Tensor, order: list[int]) -> Tensor:
        given_RP = update_RP[order]
        arrived = example_arrived(given_RP, turnout.client_C[order], turnout, share_C, torch.ones(width))
        found = combined_of(aggregation.combine(arrived, weight_R[order]))
        used = found.used_R is None or (found.used_R.dtype == torch.bool and found.used_R.shape == (3,))
        expect(used, f"combine: used_R is one boolean a reply, not {found.used_R}")
        kept = torch.equal(given_RP.nan_to_num(7.0), update_RP[order].nan_to_num(7.0))
        expect(kept, "combine: update_RP is read by others after it, so it must not be written on")
        return found.update_P.clone()

    found_P = combined(update_RP, share_C, [0, 1, 2])
    expect(found_P.shape == (width,), f"combine: one number a parameter, not {tuple(found_P.shape)}")
    expect(bool(torch.isfinite(found_P).all()), f"combine: finite, not {found_P.tolist()}")
    expect(torch.allclose(found_P, combined(update_RP, share_C, [2, 0, 1]), atol=1e-6), "combine: the order matters")
    weight_C = share_C.clone()
    weight_C[1] = 0.0
    without = [combined(_with_row(update_RP, value), weight_C, [0, 1, 2]) for value in (torch.nan, 0.0, 1e6)]
    expect(all(bool(torch.isfinite(one_P).all()) for one_P in without), "combine: leave out rows of weight 0")
    same = all(torch.allclose(one_P, without[0], atol=1e-6) for one_P in without)
    expect(same, "combine: what is in a row of weight 0 must not matter")
    if aggregation.linear:
        for scale in (1.0, 1.7):
            sum_P = weighted_sum(update_RP, scale * share_C)
            linear = torch.allclose(combined(update_RP, scale * share_C, [0, 1, 2]), sum_P, atol=1e-5)
            expect(linear, "combine: `linear` says that it is the sum by the weights, and it is not")


def _with_row(update_RP: Tensor, value: float) -> Tensor:
    return update_RP.clone().index_fill(0, torch.tensor([1]), value)


def check_server_step(step: ServerStep, width: int = 6) -> None:
    """Promises of a server step: finite, one number a parameter, the same for the same state, which it leaves alone and
    which a checkpoint can hold."""
    generator = torch.Generator().manual_seed(0)
    state, (turnout, share_C) = checkpointed(step.begin(width), "begin"), next(example_turnouts())
    for t in range(3):
        update_P = torch.randn(width, generator=generator)
        rows_RP = update_P.expand(len(share_C), -1)
        arrived = example_arrived(rows_RP, turnout.client_C, turnout, share_C, torch.ones(width), t)
        arrived = replace(arrived, weight_R=share_C, sum_P=update_P)
        before = copied(state)
        change_P, after = step.step(update_P.clone(), state, arrived)
        again_P, _ = step.step(update_P.clone(), state, arrived)
        expect(change_P.shape == update_P.shape, f"step: one number a parameter, not {tuple(change_P.shape)}")
        expect(bool(torch.isfinite(change_P).all()), f"step: finite, not {change_P.tolist()}")
        kept = unchanged(state, before) and torch.equal(change_P, again_P)
        expect(kept, "step: must not write into the state it was given")
        state = checkpointed(after, "step")
        expect(flatten(state)[0].keys() == before.keys(), "step: the state keeps its names, so that it can be resumed")
