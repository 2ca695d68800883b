"""One round of federated learning: read this first.

    events ─▶ members ─▶ cohort ─▶ client_work: download, train, scale by work, encode
                                        │
                                   server_work: decode, lend shares, weigh, sum, step, broadcast ─▶ record

`client_work` and `server_work` are pure halves; a runtime maps the first over the clients that turned up. A simulated
runtime returns the turnout it drew, a real one the turnout it saw. The weighting decides whose work counts; only they
reply. Who does not reply keeps its state: rows are written back only for replies that were used (`runtime.commit`).

Shape letters: C clients of the cohort (sorted by id), R replies, P shared parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from turnout.clients.probes import Watch
from turnout.clients.state import ClientState, central_model, sent_down
from turnout.engine.train import Trainer
from turnout.exchange import Assignment, Download, Runtime
from turnout.experiment import Algorithm
from turnout.layout import Slot
from turnout.machine import activity
from turnout.machine.clock import stage
from turnout.parts.aggregation import combined_of, weighted_mean
from turnout.parts.arrived import Arrived
from turnout.parts.compression.base import Sending
from turnout.parts.substitution.base import Lent
from turnout.parts.terms.base import merged, moved
from turnout.round_log import RoundLog, RoundRecord, terms_bytes
from turnout.server.arriving import AGE, landed, round_timing
from turnout.server.cohort import Cohort
from turnout.server.downloads import fetched
from turnout.server.finite import without_bad_numbers
from turnout.server.in_flight import updates_of
from turnout.server.opening import open_round
from turnout.server.state import Served, Server
from turnout.types import Extra, Replies, Samples, Tensors, Turnout, row_bytes
from turnout.world.attacks import Attackers


class Hindsight(Protocol):
    """Measures, in a simulation, what the missing would have sent."""

    def compare(self, served: Served, replies: Replies, turnout: Turnout, share_C: Tensor, download: Download) -> Extra:
        """Numbers for the round's record."""
        ...


def run_round(
    server: Server, t: int, seed: int, algorithm: Algorithm, runtime: Runtime, hindsight: Hindsight | None = None,
    until: float = float("inf"),
) -> tuple[Server, RoundRecord]:  # fmt: skip
    """One round: the next server and the record of what happened.

    A round without anybody changes nothing, except that rules about absences remember who was asked in vain. Nor does
    one that would end after `until` simulated seconds: the run ends there.
    """
    before = server
    with stage("membership"):
        server, opening = open_round(server, t, seed, algorithm, runtime)
    clock = t - server.origin
    lr = algorithm.local.schedule.rate(algorithm.local.optimizer.lr, clock)
    log = RoundLog(t, clock, lr, len(server.members), opening)
    with stage("selection"):
        cohort = Cohort.of(server, t, seed, algorithm, runtime)
    if not len(cohort.asked) and not len(server.clock.in_flight.client_L):
        return server, log.record(skipped="nobody was asked")

    sending = Sending(t, seed, cohort.client_C, runtime.layout.shared_slots)
    download = download_for(cohort.asked, server, t, lr, algorithm, runtime.layout.shared_slots)
    download = replace(download, timing=round_timing(server, algorithm, cohort, download, sending))
    activity.asked(t, cohort.asked.tolist)
    with stage("client work"):
        turnout, replies = runtime.ask(cohort.asked, download)
    turnout = turnout.among(cohort.client_C)
    arrival = landed(server, algorithm, runtime, cohort, turnout, replies, sending)
    if turnout.times is not None and arrival.server.clock.now > until:
        runtime.commit(t, turnout.client_C[:0])
        return before, log.cut(turnout.times, before.clock.now, until)
    server, cohort, turnout, replies = arrival.server, arrival.cohort, arrival.turnout, arrival.replies
    log.attended(turnout, cohort)
    log.took(arrival)
    if turnout.times is None:
        log.fetched(fetched(server, algorithm, runtime, download, turnout, replies, sending))
    if replies is None:
        runtime.commit(t, arrival.kept)
        why = "nobody who answered counts" if log.answered else "nobody answered"
        return without_update(server, algorithm, cohort, turnout, t), log.record(skipped=why)

    position_R = torch.searchsorted(turnout.client_C, replies.client_C)
    log.travelled(replies, position_R)
    good = without_bad_numbers(replies, algorithm.nonfinite, t)
    position_R = position_R if good is replies else position_R[replies.report["finite"]]
    replies = good
    if len(replies.client_C) == 0:
        runtime.commit(t, arrival.kept)
        why = "no update of those who count is a number"
        return without_update(server, algorithm, cohort, turnout, t), log.record(skipped=why)

    sending = replace(sending, client_C=replies.client_C)
    served = server_work(server, algorithm, cohort, turnout, replies, position_R, download, sending)
    runtime.commit(t, torch.cat([served.client_R, arrival.kept]) if len(arrival.kept) else served.client_R)
    if hindsight is not None:
        said = hindsight.compare(served, replies, turnout, cohort.share_C, download)
        served = replace(served, extra=served.extra | said)
    log.weighed(served, algorithm.weighting.of_updates)
    return served.server, log.record()


def download_for(
    client_C: Tensor, server: Server, t: int, lr: float, algorithm: Algorithm, slots: tuple[Slot, ...]
) -> Download:
    """What the server sends to those it asks."""
    down = {term.name: term.broadcast(server.down[term.name]) for term in algorithm.terms}
    with stage("mixing"):
        start_CP = algorithm.mixing.starts(server.mixing, client_C, server.shared_P)
    states = sent_down(server.states, algorithm)
    missed = partial(algorithm.compression.missed, server.compression, slots=slots)
    return Download(t, lr, server.shared_P, states, down, client_C, start_CP, server.outbox.among(client_C), missed)


def without_update(server: Server, algorithm: Algorithm, cohort: Cohort, turnout: Turnout, t: int) -> Server:
    """The server after a round in which no update arrived: where a rule asks for it, who was there is remembered."""
    no_loss_C = torch.full_like(cohort.share_C, torch.inf)
    roster = algorithm.membership.observe(server.roster, t - server.origin, turnout, no_loss_C, cohort.share_C)
    return server if roster is server.roster else replace(server, roster=roster)


def client_work(
    trainer: Trainer, algorithm: Algorithm, download: Download, asked: Assignment, samples: Samples,
    state: ClientState, seed: int, watch: Watch | None = None, attackers: Attackers | None = None,
) -> tuple[Replies, ClientState]:  # fmt: skip
    """Local training of those whose work counts: what they send, and what they keep."""
    layout = trainer.network.layout
    job = state.job(trainer.network, algorithm, download, asked, samples, seed, watch is not None and watch.magnitudes)
    central = central_model(layout, download.shared_P, download.states) if watch else None
    before = watch.before(trainer, job, state.seen, central) if watch else {}
    trained = trainer.train(job)
    after, seen = watch.after(trainer, job, trained) if watch else ({}, {})

    update_RP = trained.flat_CP[:, : layout.shared]
    if attackers is not None:  # in a simulation
        update_RP = attackers.sent(update_RP, asked.client_R, download.t)
        trained = replace(trained, finite_C=trained.finite_C & torch.isfinite(update_RP.sum(1)))
    with stage("similarity"):  # before the encoding, which may write into the update
        hints = algorithm.substitution.hints(update_RP, download.t, seed)
    sending = Sending(download.t, seed, asked.client_R, layout.shared_slots)
    with stage("encode"):
        message, residuals = algorithm.compression.encode(update_RP, state.residuals, sending)
    kept = replace(state.after(trained, layout, algorithm.local.optimizer), residuals=residuals, seen=seen)
    states = kept.sent(trained, layout, algorithm)

    beside = row_bytes(states) + row_bytes(hints) + sum(row_bytes(up) for up in trained.up.values())
    finite_R = still_finite(trained.finite_C, kept.to_rows(), states, *telling(algorithm, trained.up))
    message = message.counted()
    report = {"loss": trained.loss_C.cpu(), "finite": finite_R.cpu(), "bytes_up": message.bytes_C + beside}
    report["bytes_down"] = terms_bytes(algorithm.terms, download.down, state.mine, len(asked.client_R))
    report |= {name: value.cpu() for name, value in (before | after).items()}
    report |= {} if asked.limit is None else {"steps": trained.steps_C}
    return Replies(asked.client_R, message, states, trained.up, report, hints), kept


def server_work(
    server: Server, algorithm: Algorithm, cohort: Cohort, turnout: Turnout, replies: Replies, position_R: Tensor,
    download: Download, sending: Sending,
) -> Served:  # fmt: skip
    """Decode, lend shares, weigh, sum once, step, broadcast; states by their mean, terms as they say."""
    counts_C = torch.zeros_like(turnout.present_C).index_fill(0, position_R, True)
    arrived = decoded(server, algorithm, cohort, turnout, replies, position_R, download, sending)
    with stage("similarity"):
        substitution = algorithm.substitution.observe(server.substitution, arrived)
    lendable_C = algorithm.membership.lendable(server.roster, turnout.client_C, cohort.share_C)
    with stage("substitution"):
        lent = algorithm.substitution.lend(substitution, lendable_C, counts_C, arrived)
    weight_C, old_P = weighed(server, algorithm, cohort, arrived, counts_C, lent)
    weight_R = weight_C[position_R]
    if AGE in replies.report:
        weight_R = weight_R * algorithm.closing.discount(replies.report[AGE])
    if algorithm.max_weight is not None:  # with what the client has multiplied its update by
        weight_R = weight_R.minimum(algorithm.max_weight / arrived.scaled_R)
    weight_C = weight_C.index_copy(0, position_R, weight_R)
    with stage("aggregate"):
        combined = combined_of(algorithm.aggregation.combine(arrived, weight_R))
        total_P = combined.update_P if old_P is None else combined.update_P + old_P.to(combined.update_P)
    if combined.used_R is not None:
        arrived, replies, counts_C, weight_C = only_used(combined.used_R, arrived, replies, counts_C, weight_C)

    arrived = replace(arrived, weight_R=weight_C[arrived.position_R], sum_P=combined.update_P)
    with stage("server step"):
        change_P, step = algorithm.server.step(total_P, server.step, arrived)
        change_P = moved(algorithm.terms, server.down, arrived, change_P)
    with stage("broadcast"):
        applied_P, compression = algorithm.compression.broadcast(change_P, server.compression, sending)
    new_P = server.shared_P + applied_P
    arrived = replace(arrived, new_P=new_P)
    with stage("mixing"):
        mixing = algorithm.mixing.observe(server.mixing, arrived)
    with stage("terms"):
        down, outbox, noted = merged(algorithm.terms, server.down, replies.sums, arrived)
    after = replace(
        remembered(server, algorithm, cohort, replies, arrived), shared_P=new_P, down=down, mixing=mixing,
        substitution=substitution, compression=compression, step=step,
        outbox=server.outbox.after(sending.t, arrived.client_R, outbox),
    )  # fmt: skip
    extra = lent.extra | combined.extra | noted
    return Served(after, weight_C, counts_C, lent, total_P, outbox, arrived.client_R, extra)


def only_used(
    used_R: Tensor, arrived: Arrived, replies: Replies, counts_C: Tensor, weight_C: Tensor
) -> tuple[Arrived, Replies, Tensor, Tensor]:
    """Without the replies that the aggregation did not use."""
    rows, unused_R = used_R.nonzero().squeeze(1), arrived.position_R[~used_R]
    counts_C, weight_C = counts_C.index_fill(0, unused_R, False), weight_C.index_fill(0, unused_R, 0.0)
    return arrived.take(rows), replies.take(rows), counts_C, weight_C


def remembered(server: Server, algorithm: Algorithm, cohort: Cohort, replies: Replies, arrived: Arrived) -> Server:
    """What the server remembers of its clients after a round: states, membership, selection."""
    # States are a mean by plain shares: a boost or E/s would push a variance out of its range.
    position_R, share_C = arrived.position_R, cohort.share_C
    states = {name: weighted_mean(value, share_C[position_R]) for name, value in replies.states.items()}
    unheard_C = torch.full_like(share_C, torch.inf)
    loss_C = unheard_C.index_copy(0, position_R, replies.report["loss"].to(unheard_C))
    clock = arrived.t - server.origin
    roster = algorithm.membership.observe(server.roster, clock, arrived.turnout, loss_C, share_C)
    selection = algorithm.selection.observe(server.selection, arrived)
    return replace(server, states=server.states | states, roster=roster, selection=selection)


def decoded(
    server: Server, algorithm: Algorithm, cohort: Cohort, turnout: Turnout, replies: Replies, position_R: Tensor,
    download: Download, sending: Sending,
) -> Arrived:  # fmt: skip
    """What arrived, as the parts of the server see it."""
    by_work_R = algorithm.weighting.client_scale(turnout)[position_R]
    with stage("decode"):
        update_RP = updates_of(replies.message, algorithm.compression, sending, server.shared_P)
    later = algorithm.scale_at == "server" and algorithm.aggregation.linear
    if algorithm.scale_at == "server" and not later:  # what is no sum has to see updates as they count
        update_RP = update_RP * by_work_R[:, None].to(update_RP)
    return Arrived(
        t=sending.t,
        seed=sending.seed,
        client_R=replies.client_C,
        update_RP=update_RP,
        start_P=server.shared_P,
        turnout=turnout,
        scale_R=by_work_R if later else None,
        hints=replies.hints,
        loss_R=replies.report["loss"],
        lr=download.lr,
        sent_scale_R=None if later else by_work_R,
        start_RP=None if download.start_CP is None else download.start(replies.client_C),
        members=cohort.objective,
        parts=lambda: cohort.parts()[position_R],
        left=server.left.rows,
        position_R=position_R,
    )


def weighed(
    server: Server, algorithm: Algorithm, cohort: Cohort, arrived: Arrived, counts_C: Tensor, lent: Lent
) -> tuple[Tensor, Tensor | None]:
    """The coefficient of each update, and the sum of old updates that stand in (None without any)."""
    turnout, lends = arrived.turnout, algorithm.substitution.lends
    factor_C = algorithm.weighting.server_scale(cohort.share_C, counts_C, turnout, lends)
    old_P = lent.rows_sum(factor_C)  # old updates were scaled by the work of their own round
    if arrived.scale_R is not None:
        factor_C = factor_C * algorithm.weighting.client_scale(turnout)
    own_C = torch.where(counts_C, cohort.share_C, 0.0)
    boost_C = algorithm.membership.boost_of(server.roster, turnout.client_C, arrived.t)
    return (boost_C * own_C + lent.borrowed_C) * factor_C, old_P


def still_finite(finite_R: Tensor, *groups: Tensors) -> Tensor:
    """Which of those whose updates are numbers have numbers throughout in what they keep and send beside them too."""
    for rows in groups:
        for value in rows.values():
            if value.is_floating_point():
                finite_R = finite_R & torch.isfinite(value.reshape(len(value), -1).sum(1)).to(finite_R.device)
    return finite_R


def telling(algorithm: Algorithm, sums: dict[str, Tensors]) -> Iterator[Tensors]:
    """Of what each term sends, what has to be looked at to know that all of it are numbers.

    A subclass has to say so itself: it may send more.
    """
    finite_witness = {term.name: vars(type(term)).get("finite_witness") for term in algorithm.terms}
    for term, rows in sums.items():
        yield {name: value for name, value in rows.items() if finite_witness[term] in (None, name)}
