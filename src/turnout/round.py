"""One round of federated learning: read this first.

    events ─▶ members ─▶ cohort ─▶ client_work: download, train, scale by work, encode
                                        │
                                   server_work: decode, lend shares, weigh, sum, step, broadcast ─▶ record

`client_work` and `server_work` are pure halves; a runtime only maps the first over the clients that turned up. A
simulated runtime returns the turnout it drew, a real one the turnout it saw. The weighting decides whose work counts;
only they reply, and who does not reply keeps its state, because only replies have rows that are written back.

Shape letters: C clients of the cohort (sorted by id), R replies, P shared parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from turnout.clients.state import Kept, central_model, sent_down
from turnout.engine.job import Job
from turnout.engine.train import Trainer
from turnout.errors import Mistake
from turnout.exchange import ClientWork, Download, Hindsight, Runtime, Served, Server
from turnout.experiment import Algorithm
from turnout.parts.aggregation import weighted_mean
from turnout.parts.compression.base import Dense, Sending
from turnout.parts.mixing import Ended
from turnout.parts.selection import chosen
from turnout.parts.substitution.base import Arrived
from turnout.parts.terms.base import Merging, merged
from turnout.round_log import RoundRecord, attendance, sent, terms_bytes, weighed
from turnout.types import Replies, Tensors, Turnout, row_bytes, wire_bytes


def run_round(
    server: Server, t: int, seed: int, algorithm: Algorithm, runtime: Runtime, hindsight: Hindsight | None = None
) -> tuple[Server, RoundRecord]:
    """One round: the next server and the record of what happened. A round without anybody changes nothing."""
    server, opening = algorithm.membership.begin_round(server, t, seed, algorithm, runtime)
    members, objective, clock = server.members, server.objective, t - server.origin
    lr = algorithm.local.schedule.rate(algorithm.local.optimizer.lr, clock)
    about: dict[str, Any] = {"members": len(members), "events": opening.events, "extra": opening.extra}
    record = RoundRecord(round=t, clock=clock, lr=lr, bytes_up=opening.bytes_up, **about)
    cohort_C = chosen(algorithm.selection, objective, t, seed) if len(members) else torch.empty(0, dtype=torch.int64)
    asked_C = members.which(cohort_C)  # the others have left but stay in the objective: drawn, and absent
    if not bool(asked_C.any()):
        return server, replace(record, skipped="nobody was asked")

    down = {term.name: term.broadcast(server.down[term.name]) for term in algorithm.terms}
    start_CP = algorithm.mixing.starts(server.parts["mixing"], cohort_C[asked_C], server.shared_P)
    states = sent_down(server.states, algorithm)
    download = Download(t, lr, server.shared_P, states, down, cohort_C[asked_C], start_CP)
    turnout, replies = runtime.ask(cohort_C[asked_C], download)

    examples_C = runtime.examples(cohort_C)
    mean_examples = runtime.mean_examples(objective) if algorithm.shares.over == "unbiased" else None
    share_C = algorithm.shares.of(examples_C, len(objective), mean_examples)
    record = replace(record, **attendance(turnout, examples_C[asked_C], share_C[asked_C]))
    if replies is None:
        why = "nobody who answered counts" if record.answered else "nobody answered"
        return server, replace(record, skipped=why)

    sending = Sending(t, seed, replies.client_C, runtime.layout.shared_slots)
    way_down = algorithm.compression if start_CP is None else Dense()  # nobody else has such a row
    fetched_R = way_down.catch_up(server.parts["compression"], replies.message, sending)
    fetched_R = fetched_R + wire_bytes(download.states) + replies.report["bytes_down"]
    position_R = torch.searchsorted(turnout.client_C, replies.client_C)
    record = replace(record, **sent(record, replies, fetched_R, position_R))
    replies = without_bad_numbers(replies, algorithm.nonfinite, t)
    if len(replies.client_C) == 0:
        return server, replace(record, skipped="no update of those who count is a number")

    gone_L = server.parts["membership"]["gone_L"]
    replies = replace(replies, left=runtime.left_behind(gone_L)) if len(gone_L) else replies
    sending, turnout = replace(sending, client_C=replies.client_C), turnout.among(cohort_C)
    parts = partial(algorithm.shares.parts, examples_C, len(objective), partial(runtime.mean_examples, objective))
    served = server_work(server, algorithm, turnout, share_C, parts, replies, sending, download)
    if hindsight is not None:
        said = hindsight.compare(served, replies, turnout, share_C, download)
        served = replace(served, extra=served.extra | said)
    if served.told:
        runtime.tell(replies.client_C, served.told)
    return served.server, replace(record, **weighed(record, served, asked_C))


def client_work(
    trainer: Trainer, algorithm: Algorithm, download: Download, work: ClientWork, kept: Kept, seed: int
) -> tuple[Replies, Kept]:
    """Local training of those whose work counts: what they send, and what they keep."""
    layout, local, watch = trainer.network.layout, algorithm.local, work.watch
    statistics = {name: download.states[name] for name in layout.shared_states}
    slots, count_R = kept.moments(download.states, layout)
    job = Job(
        client_C=work.client_R,
        steps_C=work.steps_R,
        samples=work.samples,
        start_P=kept.start(download.start(work.client_R)),
        states=statistics | kept.states,
        own_states=frozenset(kept.states),
        lr=download.lr,
        batch_size=local.batch_at(download.t, int(work.samples.count_C.max())),
        drop_single=work.drop_single,
        seed=seed,
        t=download.t,
        optimizer=local.optimizer,
        slots=slots,
        count_C=count_R,
        scale_C=work.scale_R,
        terms=algorithm.terms,
        down=download.down,
        mine=kept.mine,
        magnitudes=watch is not None and watch.settings.gradients,
    )
    central = central_model(layout, download.shared_P, download.states) if watch else None
    noticed = watch.before(trainer, job, kept.seen, central) if watch else {}
    trained = trainer.train(job)
    noticed_after, seen = watch.after(trainer, job, trained) if watch else ({}, {})
    after = kept.after(trained, layout, local.optimizer)
    sending = Sending(download.t, seed, work.client_R, layout.shared_slots)
    update_RP = trained.flat_CP[:, : layout.shared]
    hints = algorithm.substitution.hints(update_RP, download.t, seed)  # before the encoding, which may write into it
    message, residuals = algorithm.compression.encode(update_RP, kept.residuals, sending)
    states = {name: trained.states[name] for name in layout.shared_states}
    states |= after.federated_moments(trained, layout, local.optimizer)
    states |= after.shared_personal() if algorithm.share_personal else {}
    beside = row_bytes(states) + row_bytes(hints) + sum(row_bytes(up) for up in trained.up.values())
    after = replace(after, residuals=residuals, seen=seen)
    finite_R = trained.finite_C & after.finite() & all_finite(states, trained.up, like=trained.finite_C)
    report = {"loss": trained.loss_C.cpu(), "finite": finite_R.cpu(), "bytes_up": message.bytes_C + beside}
    report["bytes_down"] = terms_bytes(algorithm.terms, download.down, kept.mine, len(work.client_R))
    report |= {name: value.cpu() for name, value in (noticed | noticed_after).items()}
    return Replies(work.client_R, message, states, trained.up, report, hints), after


def server_work(
    server: Server,
    algorithm: Algorithm,
    turnout: Turnout,
    share_C: Tensor,
    objective_parts: Callable[[], Tensor],
    replies: Replies,
    sending: Sending,
    download: Download,
) -> Served:
    """Decode, lend shares, weigh, sum once, step, broadcast; states by their mean, terms as they say.

    `objective_parts` are the cohort's p_k in the whole objective, which are counted only if a term asks.
    """
    parts, position_R = dict(server.parts), torch.searchsorted(turnout.client_C, replies.client_C)
    update_RP = algorithm.compression.decode(replies.message, sending, server.shared_P)
    counts_C = torch.zeros_like(turnout.present_C).index_fill(0, position_R, True)

    membership, substitution = algorithm.membership, algorithm.substitution
    by_work_C = algorithm.weighting.client_scale(turnout)
    scale_C = by_work_C if algorithm.scale_at == "server" else None
    scale_R = None if scale_C is None else scale_C[position_R]
    arrived = Arrived(
        t=sending.t,
        seed=sending.seed,
        client_R=replies.client_C,
        update_RP=update_RP,
        start_P=server.shared_P,
        turnout=turnout,
        scale_R=scale_R,
        hints=replies.hints,
        loss_R=replies.report["loss"],
        lr=download.lr,
    )
    parts["substitution"] = substitution.observe(parts["substitution"], arrived)
    lendable_C = membership.lendable(parts["membership"], turnout.client_C, share_C)
    lent = substitution.lend(parts["substitution"], lendable_C, counts_C, arrived)
    own_C = torch.where(counts_C, share_C, 0.0)
    boost_C = membership.boost_of(parts["membership"], turnout.client_C, sending.t)
    factor_C = algorithm.weighting.server_scale(share_C, counts_C, turnout, substitution.lends)
    old_P = lent.rows_sum(factor_C)  # old updates were scaled by the work of their own round
    if scale_C is not None:
        factor_C = factor_C * scale_C
    weight_C = ((boost_C * own_C + lent.borrowed_C) * factor_C).clamp(max=algorithm.max_weight or float("inf"))

    sum_P = total_P = algorithm.aggregation.combine(arrived, weight_C[position_R])
    if old_P is not None:
        total_P = sum_P + old_P.to(sum_P)
    change_P, parts["server"] = algorithm.server.step(total_P, parts["server"])
    applied_P, parts["compression"] = algorithm.compression.broadcast(change_P, parts["compression"], sending)
    new_P = server.shared_P + applied_P

    # States are a mean by plain shares: a boost or E/s would push a variance out of its range.
    states = {name: weighted_mean(value, own_C[position_R]) for name, value in replies.states.items()}
    sent_R = by_work_C[position_R] if scale_C is None else torch.ones(len(position_R), dtype=torch.float64)
    ended = Ended(replies.client_C, download.start(replies.client_C), update_RP, sent_R)
    parts["mixing"] = algorithm.mixing.observe(parts["mixing"], ended)
    merging = Merging(
        turnout=turnout.take(position_R),
        share_C=share_C[position_R],
        parts=lambda: objective_parts()[position_R],
        weight_C=weight_C[position_R],
        update_CP=update_RP,
        scale_C=sent_R,
        members=len(server.objective),
        start_P=server.shared_P,
        sum_P=sum_P,
        new_P=new_P,
        lr=download.lr,
        t=sending.t,
    )
    down, told, noted = merged(algorithm.terms, server.down, replies, merging)
    loss_C = torch.full_like(share_C, torch.inf).index_copy(0, position_R, replies.report["loss"].to(share_C))
    clock = sending.t - server.origin
    parts["membership"] = membership.observe(parts["membership"], clock, turnout, loss_C, share_C)
    after = replace(server, shared_P=new_P, states=server.states | states, down=down, parts=parts)
    return Served(after, weight_C, counts_C, lent, total_P, told, lent.extra | noted)


def without_bad_numbers(replies: Replies, nonfinite: str, t: int) -> Replies:
    """Replies that are numbers throughout; one that is not stops the run, or its client counts as absent."""
    finite_R = replies.report["finite"]
    if bool(finite_R.all()):
        return replies
    if nonfinite == "absent":
        return replies.take(finite_R.nonzero().squeeze(1))
    bad, loss = replies.client_C[~finite_R].tolist(), float(replies.report["loss"][~finite_R][0])
    raise Mistake(
        f"the update of client {bad[0]} in round {t} is not finite (its training loss was {loss:g}"
        f"{f'; {len(bad)} clients in all' if len(bad) > 1 else ''}): lower algorithm.local.optimizer.lr, look at "
        "that client's data, or set algorithm.nonfinite = 'absent' to go on without such replies"
    )


def all_finite(states: Tensors, sums: dict[str, Tensors], like: Tensor) -> Tensor:
    """Which rows of what is sent beside the update are numbers throughout."""
    finite_R = torch.ones_like(like)
    for rows in (states, *sums.values()):
        for value in rows.values():
            if value.is_floating_point():
                finite_R = finite_R & torch.isfinite(value.reshape(len(value), -1).sum(1))
    return finite_R
