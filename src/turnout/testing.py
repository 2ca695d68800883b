"""Public conformance checks: what a part promises, for parts of your own.

    from turnout.testing import check_weighting
    check_weighting(MyWeighting())

A check raises AssertionError with a sentence that says which promise is broken, and on which numbers. `CHECKS`, at the
end, has the check of each role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.parts.aggregation import Aggregation, combined_of
from turnout.parts.arrived import Arrived
from turnout.parts.compression.base import Compression, Sending
from turnout.parts.mixing import Mixing
from turnout.parts.optimizers import Optimizer
from turnout.parts.selection import Selection
from turnout.parts.server import ServerStep
from turnout.parts.substitution.base import Substitution
from turnout.parts.terms.base import At, Reform, Term
from turnout.parts.weighting import Weighting
from turnout.types import State, Tensors, Turnout, flatten
from turnout.world.events import Events, Setting, calendar_of
from turnout.world.members import Members
from turnout.world.participation import Participation


def example_turnouts() -> Iterator[tuple[Turnout, Tensor]]:
    """Cohorts in which everything happens: all complete, one absent and one partial, one client, nobody; and shares."""
    for work, share in [
        ([4.0, 4.0, 4.0], [0.5, 0.25, 0.25]),
        ([4.0, 1.0, 0.0], [0.5, 0.3, 0.2]),
        ([2.0], [1.0]),
        ([0.0, 0.0], [0.4, 0.6]),
    ]:
        work_C = torch.tensor(work, dtype=torch.float64)
        progress_C = work_C * torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)[: len(work)]
        full_C = 4.0 * torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)[: len(work)]
        turnout = Turnout(torch.arange(len(work)), work_C, 4.0, progress_C, full_C)
        yield turnout, torch.tensor(share, dtype=torch.float64)


def check_weighting(weighting: Weighting) -> None:
    """Promises of a weighting: only those present count; factors are finite, not negative, and 0 for the absent."""
    for turnout, share_C in example_turnouts():
        where = f"for work {turnout.work_C.tolist()} of {turnout.full_work}"
        counts_C = weighting.counts(turnout)
        _expect(
            counts_C.shape == share_C.shape and counts_C.dtype == torch.bool, f"counts: one boolean a client {where}"
        )
        _expect(not bool((counts_C & ~turnout.present_C).any()), f"counts: an absent client must not count {where}")
        scale_C = weighting.client_scale(turnout)
        _check_factor("client_scale", scale_C, share_C, where)
        _expect(bool((scale_C[~turnout.present_C] == 0).all()), f"client_scale: 0 for the absent {where}")
        if bool(counts_C.any()):
            for lent in (False, True):
                _check_factor("server_scale", weighting.server_scale(share_C, counts_C, turnout, lent), share_C, where)


def _check_factor(name: str, factor_C: Tensor, share_C: Tensor, where: str) -> None:
    _expect(factor_C.shape == share_C.shape, f"{name}: one factor a client, not {tuple(factor_C.shape)}, {where}")
    _expect(bool(torch.isfinite(factor_C).all()), f"{name}: finite, not {factor_C.tolist()}, {where}")
    _expect(bool((factor_C >= 0).all()), f"{name}: not negative, but {factor_C.tolist()} {where}")


def check_substitution(substitution: Substitution) -> None:
    """Promises of a substitution: only those who count borrow, nothing is invented, an absent client is invisible;
    the first state can be used again, and what a round's updates are written over with afterwards does not matter."""
    first, again = _stand_ins(substitution), _stand_ins(substitution)
    for a, b in zip(first, again, strict=True):
        _expect(torch.equal(a, b), f"begin: a second run must not know of the first: {a.tolist()} and {b.tolist()}")


def _stand_ins(substitution: Substitution) -> list[Tensor]:
    """What was borrowed in each of the example rounds."""
    state = substitution.begin(clients=3, width=4)
    borrowed = []
    for t, (turnout, share_C) in enumerate(example_turnouts()):
        counts_C = turnout.present_C
        if not bool(counts_C.any()):
            continue
        where = f"for work {turnout.work_C.tolist()}"
        update_RP = torch.arange(4.0 * int(counts_C.sum())).view(-1, 4) - 3
        arrived = Arrived(t, 0, turnout.client_C[counts_C], update_RP, torch.ones(4), turnout)
        arrived = replace(arrived, hints=substitution.hints(update_RP, t, 0))
        state = substitution.observe(state, arrived)
        lent = substitution.lend(state, share_C, counts_C, arrived)
        _check_factor("borrowed_C", lent.borrowed_C, share_C, where)
        _expect(bool((lent.borrowed_C[~counts_C] == 0).all()), f"borrowed_C: 0 for those who do not count {where}")
        missing = float(share_C[~counts_C].sum())
        given = float(lent.borrowed_C.sum()) + (0.0 if lent.row_weight_S is None else float(lent.row_weight_S.sum()))
        _expect(given <= missing + 1e-9, f"borrowed_C: at most the missing {missing:g} is lent, not {given:g} {where}")
        borrowed += [lent.borrowed_C] + (
            [] if (rows_P := lent.rows_sum(torch.ones_like(share_C))) is None else [rows_P]
        )
        update_RP.fill_(float("nan"))
        kept = not any(bool(torch.isnan(v).any()) for v in flatten(state)[0].values())
        _expect(kept, f"observe: copy what is kept, the next round writes over the updates {where}")
    return borrowed


def check_participation(participation: Participation, full_work: int = 5, clients: int = 40) -> None:
    """Promises of a participation: fractions in [0, 1], addressed: any order of rounds gives the same numbers."""
    client_C = torch.arange(clients)
    first = [participation.fraction(client_C, t, full_work, 0) for t in range(4)]
    for t in (3, 1, 0, 2):
        again = participation.fraction(client_C, t, full_work, 0)
        _expect(torch.equal(again, first[t]), f"fraction: round {t} must not depend on which rounds were asked before")
        _expect(bool(((again >= 0) & (again <= 1)).all()), f"fraction: in [0, 1], round {t} has {again.tolist()}")
        _expect(again.shape == client_C.shape, f"fraction: one number a client, not {tuple(again.shape)}")


def check_selection(selection: Selection, clients: int = 40) -> None:
    """Promises of a selection: sorted members, each once, the same for the same round and seed."""
    members = Members(clients).leave(3)
    for t in range(4):
        chosen_C = selection.choose(members, t, 0)
        _expect(torch.equal(chosen_C, chosen_C.unique()), f"choose: sorted ids, each once, not {chosen_C.tolist()}")
        _expect(bool(members.which(chosen_C).all()), f"choose: members only, not {chosen_C.tolist()}")
        _expect(torch.equal(chosen_C, selection.choose(members, t, 0)), "choose: the same for the same round and seed")


def check_events(events: Events, clients: int = 40) -> None:
    """Promises of an entry of `World.events`: possible, the same every time, whatever number of rounds follows."""
    setting = Setting(clients, None, rounds=30, seed=0)
    first, longer = (calendar_of([events], replace(setting, rounds=rounds)) for rounds in (30, 60))
    again = calendar_of([events], setting)
    _expect(torch.equal(first.outside_L, longer.outside_L), "events: who is outside at first depends on the rounds")
    for t in range(30):
        _expect(first.at(t) == again.at(t), f"events: round {t} is not the same the second time")
        _expect(first.at(t) == longer.at(t), f"events: round {t} depends on how many rounds follow")


def check_mixing(mixing: Mixing, width: int = 4) -> None:
    """Promises of a mixing: rows are in the order of the clients asked for, finite, the same again; who has left is a
    stranger; a second run knows nothing of the first; what the updates are written over with does not matter."""
    shared_P, everybody = torch.zeros(width), torch.arange(4)
    first = mixing.begin(clients=6, width=width)

    def rows(state: State, client_C: Tensor) -> list[Tensor]:
        starts_CP = mixing.starts(state, client_C, shared_P)
        given = shared_P.expand(len(client_C), -1) if starts_CP is None else starts_CP
        return [given.clone(), mixing.own(state, client_C, shared_P).clone()]

    strangers = rows(first, everybody)
    update_RP = torch.arange(3.0 * width).view(3, width) - 5
    client_R, ones_C = torch.tensor([3, 0, 2]), torch.ones(4, dtype=torch.float64)
    turnout = Turnout(everybody, ones_C, 1.0, ones_C, ones_C)
    scale_R = torch.tensor([1.0, 2.0, 1.0])
    replies = Arrived(0, 0, client_R, update_RP, shared_P, turnout, sent_scale_R=scale_R)
    state = mixing.observe(first, replies)
    update_RP.fill_(float("nan"))
    mixed = rows(state, everybody)
    _expect(all(bool(torch.isfinite(r).all()) for r in mixed), "observe: copy what is kept, rows must stay finite")
    for one, all_of_them in zip(rows(state, torch.tensor([3])), mixed, strict=True):
        _expect(torch.allclose(one[0], all_of_them[3]), "starts, own: a client's row depends on who else is asked")
    for old, new in zip(strangers, rows(first, everybody), strict=True):
        _expect(torch.equal(old, new), "begin: a second run must not know of the first")
    left = rows(mixing.forget(state, torch.tensor([3])), everybody)
    _expect(
        all(torch.equal(a[3], b[3]) for a, b in zip(left, strangers, strict=True)), "forget: who left is a stranger"
    )


def check_term(term: Term, width: int = 6) -> None:
    """Promises of a term: what it does to a chunk of clients is what it does to each alone, and stays finite; before
    anybody has replied, and after the server has merged what these clients sent."""
    generator = torch.Generator().manual_seed(0)
    start_P, work_C = torch.randn(width, generator=generator), torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
    turnout = Turnout(torch.arange(3), work_C, 3.0, work_C, torch.full_like(work_C, 3.0))
    down, third_C = term.down(start_P), torch.full_like(work_C, 1 / 3)
    for t in range(2):
        x_cP, grad_cP = torch.randn(2, 3, width, generator=generator)
        heard = term.broadcast(down)
        whole, up, kept = _locally(term, heard, t, x_cP, grad_cP, start_P, slice(0, 3))
        _expect(all(bool(torch.isfinite(value).all()) for value in whole), "correct, settle, after: must stay finite")
        for i in range(3):
            each, _, _ = _locally(term, heard, t, x_cP, grad_cP, start_P, slice(i, i + 1))
            for together, alone in zip(whole, each, strict=True):
                _expect(torch.allclose(together[i], alone[0], atol=1e-6), f"client {i} depends on its company")
        update_CP = x_cP - start_P
        sum_P, one_C = update_CP.mean(0), torch.ones_like(work_C)
        arrived = Arrived(
            t, 0, turnout.client_C, update_CP, start_P, turnout, lr=0.1, sent_scale_R=one_C, members=3,
            parts=lambda: third_C, weight_R=third_C, sum_P=sum_P, new_P=start_P + sum_P,
        )  # fmt: skip
        down = _on_the_server(term, down, up, kept, arrived)


def _on_the_server(term: Term, down: Tensors, up: Tensors, kept: Tensors, arrived: Arrived) -> Tensors:
    """The names of what either side holds are for good, or a checkpoint could not be read; nothing becomes a NaN."""
    told = term.tell(down, arrived)
    merged, _ = term.merge(down, up, arrived)
    heard = term.hear(told, kept)
    _expect(heard.keys() == kept.keys(), f"hear: keeps {sorted(heard)}, but `mine` declares {sorted(kept)}")
    said = {name: value[:1] for name, value in term.farewell(heard).items()}
    after = term.reform(merged, said, Reform(arrived.part_R[:1], 1.5))
    for what, held in (("merge", merged), ("reform", after)):
        _expect(held.keys() == down.keys(), f"{what}: holds {sorted(held)}, but `down` declares {sorted(down)}")
    values = [*told.values(), *heard.values(), *after.values()]
    _expect(all(bool(torch.isfinite(v).all()) for v in values), "tell, hear, merge, reform: must stay finite")
    return after


def _locally(
    term: Term, down: Tensors, t: int, x_cP: Tensor, grad_cP: Tensor, start_P: Tensor, rows: slice
) -> tuple[list[Tensor], Tensors, Tensors]:
    """What a term does to some clients, what they send, and what they keep."""
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
    blank = term.mine(start_P)
    mine = {n: v.expand(len(at.x_cP), *v.shape).clone() for n, v in blank.items()}
    grad = term.correct(grad_cP[rows].clone(), at, down, mine)
    shape = tuple(at.x_cP.shape)
    _expect(grad.shape == at.x_cP.shape, f"correct: gives a gradient of {tuple(grad.shape)}, it was given {shape}")
    spring = term.spring(start_P[None], down)
    if spring is not None:
        expected = grad_cP[rows] + spring[0] * at.x_cP - spring[1]
        _expect(torch.allclose(grad, expected, atol=1e-6), "spring: correct must add k w - f and nothing else")
    term.settle(at, down, mine)
    up, kept = term.after(at, down, mine)
    for name, value in {**up, **kept}.items():
        _expect(value.shape[0] == len(at.x_cP), f"after: {name} needs one row a client, not {tuple(value.shape)}")
    numbers = sum(value[0].numel() for value in up.values())
    most = term.sends * x_cP.shape[1] + 2
    _expect(numbers <= most, f"after: sends {numbers} numbers, `sends` says {term.sends} each")
    _expect(kept.keys() == blank.keys(), f"after: keeps {sorted(kept)}, but `mine` declares {sorted(blank)}")
    return [grad, at.x_cP, *up.values(), *kept.values(), term.own(at.x_cP, kept)], up, kept


def check_optimizer(optimizer: Optimizer, width: int = 6) -> None:
    """Promises of a local optimizer: a chunk of clients is each alone, it stays finite, no work makes no progress."""
    generator = torch.Generator().manual_seed(0)
    x_cP, grad_scP = torch.randn(3, width, generator=generator), torch.randn(4, 3, width, generator=generator)

    def after(rows: slice) -> list[Tensor]:
        x = x_cP[rows].clone()
        slots = {name: torch.zeros_like(x) for name in optimizer.slots}
        for step, grad_cP in enumerate(grad_scP):
            optimizer.step(x, grad_cP[rows].clone(), slots, torch.full((len(x),), step + 1), 0.1)
        return [x, *(slots[name] for name in optimizer.slots)]

    whole = after(slice(0, 3))
    _expect(all(bool(torch.isfinite(value).all()) for value in whole), "step: must stay finite")
    for i in range(3):
        for together, alone in zip(whole, after(slice(i, i + 1)), strict=True):
            _expect(torch.allclose(together[i], alone[0], atol=1e-6), f"step: client {i} depends on its company")
    progress_C = optimizer.progress(torch.tensor([0, 1, 2, 5]))
    _expect(float(progress_C[0]) == 0, f"progress: 0 for no steps, not {float(progress_C[0]):g}")
    _expect(bool((progress_C.diff() > 0).all()), f"progress: grows with the steps, but is {progress_C.tolist()}")


def check_aggregation(aggregation: Aggregation, width: int = 6) -> None:
    """Promises of an aggregation: one finite number a parameter, in any order of the replies; a row without weight is
    not looked at."""
    generator, losses = torch.Generator().manual_seed(0), torch.tensor([0.5, 2.0, 1.0])
    turnout, share_C = next(example_turnouts())
    update_RP = torch.randn(3, width, generator=generator)

    def combined(update_RP: Tensor, weight_R: Tensor, order: list[int]) -> Tensor:
        arrived = Arrived(0, 0, turnout.client_C[order], update_RP[order], torch.ones(width), turnout)
        made = replace(arrived, loss_R=losses[order], lr=0.1)
        return combined_of(aggregation.combine(made, weight_R[order])).update_P

    found_P = combined(update_RP, share_C, [0, 1, 2])
    _expect(found_P.shape == (width,), f"combine: one number a parameter, not {tuple(found_P.shape)}")
    _expect(bool(torch.isfinite(found_P).all()), f"combine: finite, not {found_P.tolist()}")
    _expect(torch.allclose(found_P, combined(update_RP, share_C, [2, 0, 1]), atol=1e-6), "combine: the order matters")
    hidden_RP, weight_C = update_RP.clone().index_fill(0, torch.tensor([1]), torch.nan), share_C.clone()
    weight_C[1] = 0.0
    _expect(bool(torch.isfinite(combined(hidden_RP, weight_C, [0, 1, 2])).all()), "combine: leave out rows of weight 0")


def check_server_step(step: ServerStep, width: int = 6) -> None:
    """Promises of a server step: finite, one number a parameter, the same for the same state, which it leaves alone."""
    generator = torch.Generator().manual_seed(0)
    state, (turnout, share_C) = step.begin(width), next(example_turnouts())
    for t in range(3):
        update_P = torch.randn(width, generator=generator)
        arrived = Arrived(
            t, 0, turnout.client_C, update_P.expand(len(share_C), -1), torch.ones(width), turnout,
            parts=lambda: share_C, weight_R=share_C, sum_P=update_P,
        )  # fmt: skip
        before = flatten(state)[0]
        kept = {name: value.clone() for name, value in before.items()}
        change_P, after = step.step(update_P.clone(), state, arrived)
        again_P, _ = step.step(update_P.clone(), state, arrived)
        _expect(change_P.shape == update_P.shape, f"step: one number a parameter, not {tuple(change_P.shape)}")
        _expect(bool(torch.isfinite(change_P).all()), f"step: finite, not {change_P.tolist()}")
        unchanged = all(torch.equal(before[name], kept[name]) for name in kept)
        _expect(unchanged and torch.equal(change_P, again_P), "step: must not write into the state it was given")
        _expect(flatten(after)[0].keys() == kept.keys(), "step: the state keeps its names, so that it can be resumed")
        state = after


def check_compression(compression: Compression) -> None:
    """Promises of a compression: a message is one client's alone, what is decoded is numbers in the server's precision,
    bytes are counted, and a state that was given is not written on."""
    slots = (Slot("weight", (3, 4), 0, 12), Slot("bias", (3,), 12, 3))
    generator = torch.Generator().manual_seed(0)
    start_P, state = torch.randn(15, generator=generator), compression.begin(slots)
    kept = {n: torch.stack([v, v, v]) for n, v in compression.residuals(slots).items()}
    for t in range(4):
        update_CP = torch.randn(3, 15, generator=generator)
        sending = Sending(t, 0, torch.tensor([2, 5, 9]), slots)
        message, after = compression.encode(update_CP.clone(), {n: v.clone() for n, v in kept.items()}, sending)
        decoded_CP = compression.decode(message, sending, start_P)
        _expect(after.keys() == kept.keys(), f"encode: keeps {sorted(after)}, but `residuals` has {sorted(kept)}")
        _check_numbers("decode", decoded_CP, update_CP)
        for i in range(3):
            one = replace(sending, client_C=sending.client_C[i : i + 1])
            own = {n: v[i : i + 1].clone() for n, v in kept.items()}
            alone, left = compression.encode(update_CP[i : i + 1].clone(), own, one)
            same = torch.equal(compression.decode(alone, one, start_P)[0], decoded_CP[i])
            same &= all(torch.equal(left[n][0], after[n][i]) for n in left) and bool(
                alone.bytes_C[0] == message.bytes_C[i]
            )
            _expect(same, f"encode: the message of client {i} depends on its company in round {t}")
            part = compression.decode(message.take(torch.tensor([i])), one, start_P)
            _expect(torch.equal(part[0], decoded_CP[i]), f"decode: client {i} must be readable by itself")
        held = compression.held(kept)
        fetched_C = compression.catch_up(state, held, sending)
        same = torch.equal(fetched_C, compression.catch_up(state, message.tensors, sending))
        _expect(same, f"catch_up: must follow from `held` ({sorted(held)}), which the message has to say too")
        for name, bytes_C in (("bytes_C", message.bytes_C), ("catch_up", fetched_C)):
            whole = bytes_C.shape == (3,) and not bytes_C.is_floating_point() and bool((bytes_C >= 0).all())
            _expect(whole, f"{name}: a number of bytes for each client, not {bytes_C.tolist()}")
        before = {name: value.clone() for name, value in flatten(state)[0].items()}
        change_P = decoded_CP.mean(0)
        applied_P, state_after = compression.broadcast(change_P.clone(), state, sending)
        again_P, _ = compression.broadcast(change_P.clone(), state, sending)
        _check_numbers("broadcast", applied_P, change_P)
        unchanged = all(torch.equal(value, before[name]) for name, value in flatten(state)[0].items())
        _expect(unchanged and torch.equal(applied_P, again_P), "broadcast: must not write into the state it was given")
        kept, state = after, state_after


def _check_numbers(name: str, value: Tensor, like: Tensor) -> None:
    fits = value.shape == like.shape and value.dtype == like.dtype and bool(torch.isfinite(value).all())
    _expect(fits, f"{name}: finite numbers of shape {tuple(like.shape)}, {like.dtype}, not {value}")


def _expect(holds: bool, promise: str) -> None:
    if not holds:
        raise AssertionError(promise)


# Which check a part of a role must pass.
CHECKS: dict[type, Callable[[Any], None]] = {
    Participation: check_participation,
    Events: check_events,
    Selection: check_selection,
    Optimizer: check_optimizer,
    Term: check_term,
    Mixing: check_mixing,
    Compression: check_compression,
    Substitution: check_substitution,
    Weighting: check_weighting,
    Aggregation: check_aggregation,
    ServerStep: check_server_step,
}
