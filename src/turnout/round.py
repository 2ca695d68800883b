"""One round of federated learning: read this first.

    events ─▶ members ─▶ cohort ─▶ clients: download, train, scale by work, encode  (clients/work.py)
                                        │
                                   server: decode, lend shares, weigh, sum (clip, noise), step, broadcast ─▶ `Round`

`run_round` returns everything that happened as a value; the record of a round (round_record.py) is a function of that
value. A runtime maps client work over the cohort and returns which clients turned up, with how much work: drawn in a
simulation, observed on real devices. The weighting decides whose work counts; only those clients reply. A client keeps
its new state only if its reply was used or is still on its way (`runtime.commit`); otherwise it keeps the old one.

The cohort is drawn from the objective, which are the members and clients that left but stay in it; the latter are not
asked. E/s is full work / work done, and it is applied to an update exactly once: by the client, in `make_updates`, or
with the weights (`scale_at`). N/K is the number of clients in the cohort / of those whose work counts.

Shape letters: C clients of the cohort (sorted by id), R replies, P shared parameters, L late replies.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import partial

import torch
from torch import Tensor

from turnout.exchange import Download
from turnout.machine.profiling import stage
from turnout.parts.aggregation import Combined, weighted_mean
from turnout.parts.compression.base import Sending
from turnout.parts.privacy.private import UPDATE, Prepared
from turnout.parts.server import stepped
from turnout.parts.substitution.base import Substitutes
from turnout.parts.terms.base import TermTraits, shift_model, update_terms
from turnout.parts.updates import Applied, Updates
from turnout.server.asking import Cohort, make_download, select_cohort
from turnout.server.collecting import Received, collect
from turnout.server.late import AGE
from turnout.server.membership import NO_CHANGES, MembershipChanges, update_membership
from turnout.server.state import DECODED, Context, Server
from turnout.types import SQUARED, Extra, Replies, State, Tensors

# Of `combine` and `release`: updates that were used, their coefficients [R], their sum [P], numbers for the round's
# record, and the server.
Summed = tuple[Updates, Tensor, Tensor, Extra, Server]


@dataclass(frozen=True)
class Round:
    """Everything that happened in a round.

    t         its number, from 0
    before    the server as the round before left it
    start     the server after this round's joins and leaves
    after     the server at the end of the round
    changes   joins and leaves
    cohort    clients that were drawn from the objective, and which of them are asked
    download  what those were sent; None: there was no client to ask, and no late reply to wait for
    received  what the server had when the round was closed; None as for `download`
    total     the replies as one update; None: no reply could be used
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
    total: Applied | None = None
    extra: Extra = field(default_factory=dict)


def run_round(server: Server, t: int, ctx: Context) -> Round:
    """Run one round. Without a usable reply, only time passes and the membership policy remembers who was absent."""
    start, changes, events = server, NO_CHANGES, ctx.runtime.events(t)
    if events or ctx.algorithm.membership.drop is not None:
        start, changes = update_membership(server, events, t, ctx)
    cohort = select_cohort(start, t, ctx)
    if not len(cohort.asked) and not len(start.time.in_flight.client_L):  # no client to ask, no late reply to wait for
        return Round(t, server, start, start, changes, cohort)

    download = make_download(start, cohort, t, ctx)
    with stage("client work"):
        answer = ctx.runtime.ask(cohort.asked, download)
        prepared = None if ctx.algorithm.privacy is None else prepare_release(start, answer[1], t, ctx)
        received = collect(start, cohort, download, answer, ctx)
    if received.is_cut:  # the run's simulated hours end before this round: it ends as the round before left it
        no_clients = received.waiting[:0]
        ctx.runtime.commit(t, no_clients)
        return Round(t, server, start, server, changes, cohort, download, received)
    with stage("aggregate"):
        total, stepped = aggregate(received, download, prepared, ctx)
    with stage("server state"):
        after, extra = remember(stepped, received, total, t, ctx)
    used_or_late = received.waiting if total is None else torch.cat([total.client_R, received.waiting])
    ctx.runtime.commit(t, used_or_late)
    return Round(t, server, start, after, changes, cohort, download, received, total, extra)


def prepare_release(server: Server, replies: Replies | None, t: int, ctx: Context) -> Prepared | None:
    """What of a private round can be computed while clients train on a GPU: the noise, and who takes part."""
    private = ctx.algorithm.privacy
    if private is None or replies is None or ctx.algorithm.secure is not None:
        return None
    uploads = {f"{term}.{name}": v[0] for term, own in replies.uploads.items() for name, v in own.items()}
    like = {UPDATE: server.shared_P} | {name: one for name, one in uploads.items() if one.is_floating_point()}
    return private.prepare(like, replies.client_R, t, server.privacy, ctx.key)


def aggregate(
    received: Received, download: Download, prepared: Prepared | None, ctx: Context
) -> tuple[Applied | None, Server]:
    """Decode the replies, lend shares of missing clients, weigh, sum once, step, and encode the step for all clients.

    Returns the update, and the server with its new parameters; None and the same server without usable replies.
    """
    server, algorithm = received.server, ctx.algorithm
    if received.replies is None:
        return None, server
    updates = make_updates(received, received.replies, download, ctx)
    substitution = algorithm.substitution.observe(server.substitution, updates)
    weight_R, public_C, substitutes, old_P = weigh(updates, substitution, received, ctx)
    into_one = combine if algorithm.privacy is None else partial(release, prepared, public_C)
    updates, weight_R, sum_P, extra, server = into_one(updates, weight_R, received, ctx)  # if private, a noised sum
    update_P = sum_P if old_P is None else sum_P + old_P.to(sum_P)
    change_P, step = stepped(algorithm.server, update_P, server.step, updates)
    if algorithm.terms:
        change_P = shift_model(algorithm.terms, server.term_states, updates, change_P)
    sending = Sending(download.t, ctx.seed, updates.client_R, ctx.runtime.layout.shared_slots)
    applied_P, compression = algorithm.compression.broadcast(change_P, server.compression, sending)
    new_P, friend_C = server.shared_P + applied_P, None
    if substitutes is not None:
        friend_C, extra = substitutes.friend_C, substitutes.extra | extra
    same = {f.name: getattr(updates, f.name) for f in fields(updates)}
    total = Applied(
        **same, weight_R=weight_R, sum_P=sum_P, update_P=update_P, new_P=new_P, friend_C=friend_C, extra=extra
    )
    return total, replace(server, shared_P=new_P, substitution=substitution, step=step, compression=compression)


def make_updates(received: Received, replies: Replies, download: Download, ctx: Context) -> Updates:
    """The replies as the server's parts see them: decoded, and scaled by work (E/s) unless their weights will be."""
    server, cohort, position_R, algorithm = received.server, received.cohort, received.position_R, ctx.algorithm
    by_work_R = algorithm.weighting.client_scale(received.turnout)[position_R]
    update_RP = decode(replies, download.t, server.shared_P, ctx)
    with_weights = algorithm.scale_at == "server" and algorithm.aggregation.linear
    if algorithm.scale_at == "server" and not with_weights:  # only a sum can be scaled by its weights
        update_RP = update_RP * by_work_R[:, None].to(update_RP)
    return Updates(
        t=download.t,
        seed=ctx.seed,
        client_R=replies.client_R,
        update_RP=update_RP,
        start_P=server.shared_P,
        turnout=received.turnout,
        position_R=position_R,
        squared_R=replies.report.get(SQUARED),
        scale_R=by_work_R if with_weights else None,
        sent_scale_R=None if with_weights else by_work_R,
        loss_R=replies.report["loss"],
        lr=download.lr,
        start_RP=None if download.start_CP is None else download.start(replies.client_R),
        objective_size=cohort.objective,
        objective_share=lambda: cohort.objective_share()[position_R],
        left=server.left.rows,
        states=replies.states,
        uploads=replies.uploads,
        hints=replies.hints,
        slots=ctx.runtime.layout.shared_slots,
    )


def decode(replies: Replies, t: int, like_P: Tensor, ctx: Context) -> Tensor:
    """The updates of replies, in the precision of `like_P`; late ones were decoded in the round they were sent in."""
    update_RP = replies.message.tensors.get(DECODED)
    if update_RP is None:
        sending = Sending(t, ctx.seed, replies.client_R, ctx.runtime.layout.shared_slots)
        update_RP = ctx.algorithm.compression.decode(replies.message, sending, like_P)
    return update_RP


def weigh(
    updates: Updates, substitution: State, received: Received, ctx: Context
) -> tuple[Tensor, Tensor, Substitutes | None, Tensor | None]:
    """The coefficient of each update, and in it the weighting's factor of each share [C]; the shares that were lent,
    and the sum of old updates that stand in."""
    algorithm, turnout, roster = ctx.algorithm, updates.turnout, received.server.roster
    share_C, counts_C = received.cohort.share_C, turnout.mask(updates.position_R)
    lendable_C = algorithm.membership.lendable(roster, turnout.client_C, share_C)
    substitutes = algorithm.substitution.lend(substitution, lendable_C, counts_C, updates)
    public_C = factor_C = algorithm.weighting.server_scale(share_C, counts_C, turnout, algorithm.substitution.lends)
    old_P = None if substitutes is None else substitutes.rows_sum(factor_C)  # they have E/s of their own round
    if updates.scale_R is not None:
        factor_C = factor_C * algorithm.weighting.client_scale(turnout)
    weight_C = torch.where(counts_C, share_C, 0.0)
    if algorithm.aggregation.linear:  # elsewhere weights are votes, and a newcomer has no more than its share
        weight_C = algorithm.membership.boost_of(roster, turnout.client_C, updates.t) * weight_C
    if substitutes is not None:
        votes = not algorithm.aggregation.linear
        weight_C = weight_C + (substitutes.as_votes(weight_C) if votes else substitutes.borrowed_C)
    weight_R = (weight_C * factor_C)[updates.position_R]
    if received.replies is not None and AGE in received.replies.report:
        weight_R = weight_R * algorithm.closing.discount(received.replies.report[AGE])
    if algorithm.max_weight is not None:  # of the whole coefficient, with the client's own factor
        weight_R = weight_R.minimum(algorithm.max_weight / updates.scaled_R)
    return weight_R, public_C, substitutes, old_P


def combine(updates: Updates, weight_R: Tensor, received: Received, ctx: Context) -> Summed:
    """The sum of the updates by the aggregation, which may leave some of them out."""
    result = ctx.algorithm.aggregation.combine(updates, weight_R)
    if not isinstance(result, Combined):
        return updates, weight_R, result, {}, received.server
    updates = result.guarded or updates
    if result.used_R is not None:
        rows = result.used_R.nonzero().squeeze(1)
        updates, weight_R = updates.take(rows), weight_R[rows]
    return updates, weight_R, result.update_P, result.extra, received.server


def release(
    prepared: Prepared | None, public_C: Tensor, updates: Updates, weight_R: Tensor, received: Received, ctx: Context
) -> Summed:
    """The same for a private run: each client's whole contribution (every factor of its own, what its terms upload) is
    clipped as one vector; the sum is noised and divided by a fixed number. A factor that all clients have in common
    (N/K) comes after the noise; with correlated noise, which it would spoil, the fixed number stands for it.
    """
    algorithm, server, private = ctx.algorithm, received.server, ctx.algorithm.privacy
    assert private is not None
    assert private.n0 is not None
    own_R = weight_R / (received.cohort.share_C * public_C)[updates.position_R]
    traits = [term for term in algorithm.terms if isinstance(term, TermTraits)]
    not_negative = {(term.name, name) for term in traits for name in term.not_negative}
    if algorithm.secure is None:
        found = private.release(updates, own_R, server.privacy, ctx.key, not_negative, prepared)
    else:  # clients clipped and noised what was summed, and each row is the mean
        found = private.counted(updates, updates.update_RP[0] * len(updates.update_RP), server.privacy)
    after = algorithm.weighting.after_noise and private.noise == "gaussian"
    factor = (float(public_C[0]) if after else 1.0) / private.n0
    return found.updates, own_R * factor, found.sum_P * factor, found.extra, replace(server, privacy=found.state)


def remember(server: Server, received: Received, total: Applied | None, t: int, ctx: Context) -> tuple[Server, Extra]:
    """Let each part remember the round: the next server, and numbers of the terms for the round's record.

    Without an update only the membership policy remembers the round, if it does.
    """
    algorithm, share_C, extra = ctx.algorithm, received.cohort.share_C, Extra()
    loss_C = torch.full_like(share_C, torch.inf)
    if total is not None and total.loss_R is not None:
        loss_C = loss_C.index_copy(0, total.position_R, total.loss_R.to(loss_C))
    roster = algorithm.membership.observe(server.roster, t - server.origin, received.turnout, loss_C, share_C)
    if total is None:
        return server if roster is server.roster else replace(server, roster=roster), extra
    term_states, messages = server.term_states, dict[str, Tensors]()
    if algorithm.terms:
        term_states, messages, extra = update_terms(algorithm.terms, term_states, total)
    # States are a mean by plain shares: a boost or E/s would push a variance out of its range.
    states = {name: weighted_mean(value, share_C[total.position_R]) for name, value in total.states.items()}
    return replace(
        server, states=server.states | states, term_states=term_states, roster=roster,
        mixing=algorithm.mixing.observe(server.mixing, total),
        selection=algorithm.selection.observe(server.selection, total),
        outbox=server.outbox.after(t, total.client_R, messages),
    ), extra  # fmt: skip
