"""One round of federated learning: read this first.

    events ─▶ members ─▶ cohort ─▶ clients: download, train, scale by work, encode  (clients/work.py)
                                        │
                                   server: decode, lend shares, weigh, sum, step, broadcast ─▶ `Round`

`run_round` returns everything that happened as a value; the record of a round (round_record.py) is a function of that
value. A runtime maps client work over the cohort and returns who turned up: a simulated runtime what it drew, a real
one what it saw. The weighting decides whose work counts; only those clients reply. A client whose reply is not used
keeps its state: `runtime.commit` names the others.

Shape letters: C clients of the cohort (sorted by id), R replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from turnout.exchange import Download
from turnout.machine.profiling import stage
from turnout.parts.aggregation import Combined, weighted_mean
from turnout.parts.compression.base import Sending
from turnout.parts.membership.roster import Roster
from turnout.parts.substitution.base import Substitutes
from turnout.parts.terms.base import shift_model, update_terms
from turnout.parts.updates import Applied, Updates
from turnout.server.asking import Cohort, make_download, select_cohort
from turnout.server.collecting import Received, collect
from turnout.server.late import AGE
from turnout.server.membership import NO_CHANGES, MembershipChanges, update_membership
from turnout.server.state import DECODED, Context, Server
from turnout.types import Extra, Replies, State, Tensors


@dataclass(frozen=True)
class Total:
    """The replies of a round as one update.

    updates       those that were used
    weight_R      coefficient of each
    sum_P         their weighted sum
    update_P      what the server step is given: the sum, and old updates that stand in
    weight_C      coefficient of each client of the cohort, 0 where its update was not used
    substitutes   shares that the substitution gave to other clients; None: none
    substitution  state of the substitution after the round
    extra         numbers for the round's record
    """

    updates: Updates
    weight_R: Tensor
    sum_P: Tensor
    update_P: Tensor
    weight_C: Tensor
    substitutes: Substitutes | None
    substitution: State
    extra: Extra = field(default_factory=dict)

    @property
    def counts_C(self) -> Tensor:
        """Which clients of the cohort had their updates used."""
        return torch.zeros(len(self.weight_C), dtype=torch.bool).index_fill(0, self.updates.position_R, True)


@dataclass(frozen=True)
class Round:
    """Everything that happened in a round.

    t         its number, from 0
    before    the server as the round before left it
    start     the server after this round's joins and leaves
    after     the server at the end of the round
    changes   joins and leaves
    cohort    clients that were drawn
    download  what they were sent; None: no client was asked
    received  what the server had when the round was closed; None: no client was asked
    total     the update; None: no reply could be used
    extra     numbers of the terms for the round's record
    """

    t: int
    before: Server
    start: Server
    after: Server
    changes: MembershipChanges
    cohort: Cohort
    download: Download | None = None
    received: Received | None = None
    total: Total | None = None
    extra: Extra = field(default_factory=dict)


def run_round(server: Server, t: int, ctx: Context) -> Round:
    """Run one round. A round without usable replies changes nothing but what rules about absences remember."""
    start, changes, events = server, NO_CHANGES, ctx.runtime.events(t)
    if events or ctx.algorithm.membership.drop is not None:
        start, changes = update_membership(server, events, t, ctx)
    cohort = select_cohort(start, t, ctx)
    if not len(cohort.asked) and not len(start.time.in_flight.client_L):
        return Round(t, server, start, start, changes, cohort)

    download = make_download(start, cohort, t, ctx)
    with stage("client work"):
        answer = ctx.runtime.ask(cohort.asked, download)
    received = collect(start, cohort, download, answer, ctx)
    if received.is_cut:
        ctx.runtime.commit(t, received.waiting[:0])
        return Round(t, server, start, server, changes, cohort, download, received)
    with stage("aggregate"):
        total = aggregate(received, download, ctx)
    with stage("server step"):
        after, extra = apply_update(received, total, t, ctx)
    used = received.waiting if total is None else torch.cat([total.updates.client_R, received.waiting])
    ctx.runtime.commit(t, used)
    return Round(t, server, start, after, changes, cohort, download, received, total, extra)


def aggregate(received: Received, download: Download, ctx: Context) -> Total | None:
    """Decode the replies, lend shares of missing clients, weigh, and sum once; None without usable replies."""
    if received.replies is None:
        return None
    algorithm, updates = ctx.algorithm, decode(received, received.replies, download, ctx)
    substitution = algorithm.substitution.observe(received.server.substitution, updates)
    weight_C, substitutes, old_P = weigh(updates, substitution, received, ctx)
    weight_R = weight_C[updates.position_R]
    if AGE in received.replies.report:
        weight_R = weight_R * algorithm.closing.discount(received.replies.report[AGE])
    if algorithm.max_weight is not None:  # of the whole coefficient, with the client's own factor
        weight_R = weight_R.minimum(algorithm.max_weight / updates.scaled_R)
    found, extra = algorithm.aggregation.combine(updates, weight_R), Extra()
    sum_P = found.update_P if isinstance(found, Combined) else found
    if isinstance(found, Combined):
        extra, updates = found.extra, found.guarded or updates
        if found.used_R is not None:
            weight_C = weight_C.index_fill(0, updates.position_R, 0.0)
            rows = found.used_R.nonzero().squeeze(1)
            updates, weight_R = updates.take(rows), weight_R[rows]
    update_P = sum_P if old_P is None else sum_P + old_P.to(sum_P)
    weight_C = weight_C.index_copy(0, updates.position_R, weight_R)
    extra = extra if substitutes is None else substitutes.extra | extra
    return Total(updates, weight_R, sum_P, update_P, weight_C, substitutes, substitution, extra)


def decode(received: Received, replies: Replies, download: Download, ctx: Context) -> Updates:
    """The replies as the server's parts see them."""
    server, cohort, position_R, algorithm = received.server, received.cohort, received.position_R, ctx.algorithm
    by_work_R = algorithm.weighting.client_scale(received.turnout)[position_R]
    update_RP = replies.message.tensors.get(DECODED)  # late replies were decoded in the round they were sent in
    if update_RP is None:
        sending = Sending(download.t, ctx.seed, replies.client_R, ctx.runtime.layout.shared_slots)
        update_RP = algorithm.compression.decode(replies.message, sending, server.shared_P)
    later = algorithm.scale_at == "server" and algorithm.aggregation.linear
    if algorithm.scale_at == "server" and not later:  # only a sum can be scaled by its weights
        update_RP = update_RP * by_work_R[:, None].to(update_RP)
    return Updates(
        t=download.t,
        seed=ctx.seed,
        client_R=replies.client_R,
        update_RP=update_RP,
        start_P=server.shared_P,
        turnout=received.turnout,
        position_R=position_R,
        scale_R=by_work_R if later else None,
        sent_scale_R=None if later else by_work_R,
        loss_R=replies.report["loss"],
        lr=download.lr,
        start_RP=None if download.start_CP is None else download.start(replies.client_R),
        members=cohort.objective,
        objective_share=lambda: cohort.objective_share()[position_R],
        left=server.left.rows,
        states=replies.states,
        uploads=replies.uploads,
        hints=replies.hints,
        slots=ctx.runtime.layout.shared_slots,
    )


def weigh(
    updates: Updates, substitution: State, received: Received, ctx: Context
) -> tuple[Tensor, Substitutes | None, Tensor | None]:
    """The coefficient of each client's update, the shares that were lent, and the sum of old updates that stand in."""
    algorithm, turnout, roster = ctx.algorithm, updates.turnout, received.server.roster
    share_C, old_P = received.cohort.share_C, None
    counts_C = torch.zeros_like(turnout.present_C).index_fill(0, updates.position_R, True)
    lendable_C = algorithm.membership.lendable(roster, turnout.client_C, share_C)
    substitutes = algorithm.substitution.lend(substitution, lendable_C, counts_C, updates)
    factor_C = algorithm.weighting.server_scale(share_C, counts_C, turnout, algorithm.substitution.lends)
    if substitutes is not None:
        old_P = substitutes.rows_sum(factor_C)  # old updates were scaled by the work of their own round
    if updates.scale_R is not None:
        factor_C = factor_C * algorithm.weighting.client_scale(turnout)
    weight_C = torch.where(counts_C, share_C, 0.0)
    if algorithm.aggregation.linear:  # elsewhere weights are votes, and a newcomer has no more than its share
        weight_C = algorithm.membership.boost_of(roster, turnout.client_C, updates.t) * weight_C
    if substitutes is not None:
        borrowed_C = substitutes.borrowed_C
        if not algorithm.aggregation.linear:  # who is a friend of many has one vote more; the others go to all
            borrowed_C = borrowed_C.minimum(weight_C)
            borrowed_C = borrowed_C + weight_C * (
                (substitutes.borrowed_C.sum() - borrowed_C.sum()) / weight_C.sum().clamp(min=1e-300)
            )
        weight_C = weight_C + borrowed_C
    return weight_C * factor_C, substitutes, old_P


def apply_update(received: Received, total: Total | None, t: int, ctx: Context) -> tuple[Server, Extra]:
    """Step and broadcast, and let each part remember: the next server, and numbers for the round's record.

    Without an update only the membership policy remembers the round, if it does.
    """
    server, algorithm, extra = received.server, ctx.algorithm, Extra()
    roster = observe_turnout(received, total, t, ctx)
    if total is None:
        return server if roster is server.roster else replace(server, roster=roster), extra
    updates, term_states, messages = total.updates, server.term_states, dict[str, Tensors]()
    change_P, step = algorithm.server.step(total.update_P, server.step, updates)
    if algorithm.terms:
        change_P = shift_model(algorithm.terms, term_states, updates, change_P)
    sending = Sending(t, ctx.seed, updates.client_R, ctx.runtime.layout.shared_slots)
    applied_P, compression = algorithm.compression.broadcast(change_P, server.compression, sending)
    same = {f.name: getattr(updates, f.name) for f in fields(updates)}
    applied = Applied(**same, weight_R=total.weight_R, sum_P=total.sum_P, new_P=server.shared_P + applied_P)
    if algorithm.terms:
        term_states, messages, extra = update_terms(algorithm.terms, term_states, applied)
    # States are a mean by plain shares: a boost or E/s would push a variance out of its range.
    share_R = received.cohort.share_C[updates.position_R]
    states = {name: weighted_mean(value, share_R) for name, value in updates.states.items()}
    return replace(
        server, shared_P=applied.new_P, states=server.states | states, term_states=term_states, step=step,
        mixing=algorithm.mixing.observe(server.mixing, applied), substitution=total.substitution, roster=roster,
        compression=compression, selection=algorithm.selection.observe(server.selection, applied),
        outbox=server.outbox.after(t, updates.client_R, messages),
    ), extra  # fmt: skip


def observe_turnout(received: Received, total: Total | None, t: int, ctx: Context) -> Roster:
    """What the membership policy remembers of the round: who was there, and the loss of each client that replied."""
    server, share_C = received.server, received.cohort.share_C
    loss_C = torch.full_like(share_C, torch.inf)
    if total is not None and total.updates.loss_R is not None:
        loss_C = loss_C.index_copy(0, total.updates.position_R, total.updates.loss_R.to(loss_C))
    return ctx.algorithm.membership.observe(server.roster, t - server.origin, received.turnout, loss_C, share_C)
