"""One round of the score track: read this first.

    events ─▶ members ─▶ cohort ─▶ build: train on private samples, score the public ones
                                      │
                  server: local updates h_m = G + α f_m ─▶ β ─▶ global update G ─▶ clients learn ─▶ record

The local update is arithmetic on the global scores, which the server has, so clients send f_m and |D_m| and receive the
new global scores of their labels: one table up and one down a round. Absent clients add nothing: a label may then
have one other holder (β = 1), or none (its scores stay). The scores of a client that leaves stay.

A private round replaces both updates: scores are clipped, summed and noised, and that release updates G (privacy.py).

Shape letters: C clients of the cohort, R public samples (in the log: participants), L labels, l labels of one client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from turnout.clients.metrics import summary
from turnout.machine.profiling import stage
from turnout.parts.selection import MinSeparation, chosen
from turnout.round_record import RoundRecord, mean_of, over_cohort
from turnout.scores.exchange import BuildAnswer, BuildRequest, LearnRequest, OwnOutput, ScoreReply, ScoreRuntime
from turnout.scores.privacy import release_of, released_update
from turnout.scores.score_table import PublicLabels, ScoreTable, ScoreUpdate, beta_of, global_update, local_update
from turnout.scores.settings import Scores
from turnout.server.late import not_finite
from turnout.server.membership import MembershipChanges
from turnout.types import Extra, Happened, State
from turnout.world.events import Join
from turnout.world.members import Members


@dataclass(frozen=True, eq=False)
class ScoreServer:
    """The state that the server carries from round to round.

    table               the global scores
    members             the members
    selection, privacy  state of those parts
    release             of the round at hand, if it was stored before clients received it and the run then ended
    """

    table: ScoreTable
    members: Members
    selection: State = field(default_factory=dict)
    privacy: State = field(default_factory=dict)
    release: State = field(default_factory=dict)

    def to_state(self) -> State:
        """As a tree for a checkpoint."""
        table = {"score": self.table.score_RL, "evidence": self.table.evidence_RL}
        return vars(self) | {"table": table, "members": self.members.to_state()}

    @classmethod
    def from_state(cls, state: State) -> ScoreServer:
        table = ScoreTable(state["table"]["score"], state["table"]["evidence"])
        return cls(**state | {"table": table, "members": Members.from_state(state["members"])})


@dataclass(frozen=True, eq=False)
class ScoreContext:
    """What a round needs beside the server's state.

    algorithm  the algorithm
    public     the labels of the public samples
    runtime    maps work over clients
    seed       of the experiment
    noise_key  addresses the noise of a private run; None: the seed does
    store      stores the server before clients receive what a round releases; None: nothing needs to be stored
    """

    algorithm: Scores
    public: PublicLabels
    runtime: ScoreRuntime
    seed: int
    noise_key: int | None = None
    store: Callable[[ScoreServer], None] | None = None


def run_round(before: ScoreServer, t: int, ctx: ScoreContext) -> tuple[ScoreServer, RoundRecord]:
    """One round: the next server and the record of what happened. A round without participants changes nothing."""
    algorithm, public, runtime = ctx.algorithm, ctx.public, ctx.runtime
    key = ctx.seed if ctx.noise_key is None else ctx.noise_key
    with stage("membership"):
        server, changes = update_membership(before, t, public, runtime)
    lr = algorithm.local.schedule.rate(algorithm.local.optimizer.lr, t)
    record = RoundRecord(t, None, t, lr, len(server.members), extra=changes.extra, events=changes.events)
    with stage("selection"):
        client_C = torch.empty(0, dtype=torch.int64)
        if len(server.members):
            client_C = chosen(algorithm.selection, server.members, t, ctx.seed, server.selection)
    if not len(client_C):
        return released(server, server.release, t, algorithm), replace(record, skipped="no client was asked")

    with stage("client work"):
        answer = runtime.build(BuildRequest(t, lr, client_C, None if algorithm.client_noise is None else key))
    # the samples of this round of clients that replied, the usual number of the others
    position_R = torch.searchsorted(answer.turnout.client_C, torch.tensor([r.client for r in answer.replies]).long())
    examples_C = runtime.examples(client_C) if algorithm.client_noise is None else torch.ones_like(client_C)
    examples_C = examples_C.index_copy(0, position_R, torch.tensor([r.examples for r in answer.replies]).to(examples_C))
    share_C = examples_C / examples_C.sum().clamp(min=1)
    turnout, finished_C = answer.turnout, answer.turnout.work_C / answer.turnout.full_work
    record = replace(
        record,
        asked=len(client_C),
        answered=int(turnout.present_C.sum()),
        work=float(finished_C.mean()),
        clients={"client": turnout.client_C, "work": finished_C, "share": share_C, "examples": examples_C},
    )
    replies, updates = finite_replies(answer.replies, algorithm.nonfinite, t), list[ScoreUpdate]()
    if algorithm.privacy is None:
        updates = [update_of(server.table, reply, algorithm, public) for reply in replies]
        after = replace(server, table=global_update(server.table, updates, algorithm.combine)) if updates else server
    else:
        release = server.release or release_of(replies, algorithm, public, server.privacy, t, key)
        if release and ctx.store is not None:  # a run that ends here sends it again, never other scores with this noise
            ctx.store(replace(before, release=release))
        used, record = release.get("client", ()), replace(record, extra={**record.extra, **release.get("extra", {})})
        replies, after = [reply for reply in replies if reply.client in used], released(server, release, t, algorithm)
    if not replies:
        why = "no scores are finite" if answer.replies else "no client answered"
        return after, replace(record, skipped=why)

    mean = {reply.client: after.table.of(reply.set_l).means() for reply in replies}
    with stage("client work"):
        learnt = runtime.learn(LearnRequest(t, mean, public.open_R, public.tested_R))
    return after, with_replies(record, answer, replies, updates, learnt, after.table, algorithm, public)


def released(server: ScoreServer, release: State, t: int, algorithm: Scores) -> ScoreServer:
    """The server after a private round released this; the same without a release."""
    if not release:
        return server
    assert isinstance(algorithm.selection, MinSeparation)
    return replace(
        server,
        table=released_update(server.table, release, algorithm),
        selection=algorithm.selection.took_part(server.selection, release["client"], t),
        privacy=release["privacy"],
        release={},
    )


def update_membership(
    server: ScoreServer, t: int, public: PublicLabels, runtime: ScoreRuntime
) -> tuple[ScoreServer, MembershipChanges]:
    """Who joins and leaves now. A newcomer's labels may be new; a client that left is forgotten, but for its scores."""
    members, log = server.members, list[Happened]()
    for event in runtime.events(t):
        client, alone = int(event.client), torch.tensor([int(event.client)])
        if isinstance(event, Join):
            members = members.join(client)
            names = [public.names[i] for i in runtime.label_sets(alone, t)[0].tolist()]
            log.append(Happened(client, "join", f"labels {', '.join(names)}"))
        else:
            members = members.leave(client)
            runtime.forget(alone)
            log.append(Happened(client, "leave", "its part in the scores stays"))
    return replace(server, members=members), MembershipChanges(log)


def finite_replies(replies: Sequence[ScoreReply], nonfinite: str, t: int) -> Sequence[ScoreReply]:
    """Replies that are finite; another one stops the run, or its client counts as absent."""
    bad = [reply for reply in replies if not reply.finite]
    if bad and nonfinite == "stop":
        raise not_finite("the scores", [reply.client for reply in bad], t, bad[0].loss)
    return [reply for reply in replies if reply.finite]


def update_of(table: ScoreTable, reply: ScoreReply, algorithm: Scores, public: PublicLabels) -> ScoreUpdate:
    """α = |D_m| / |D_0|, the local update, and β from it; only rows of its own labels if rows = "labelled"."""
    alpha = reply.examples / len(public.true_R)
    h = local_update(table, reply.set_l, reply.f_Rl, alpha, algorithm.growth, algorithm.decay)
    beta_l = beta_of(h.read(algorithm.growth), reply.set_l, public, algorithm.beta)
    return ScoreUpdate(reply.set_l, h, beta_l, public.scored(reply.set_l, algorithm.rows))


# -- the log of a round


def with_replies(
    record: RoundRecord, answer: BuildAnswer, replies: Sequence[ScoreReply], updates: Sequence[ScoreUpdate],
    learnt: Sequence[OwnOutput], table: ScoreTable, algorithm: Scores, public: PublicLabels,
) -> RoundRecord:  # fmt: skip
    """The record with totals, means over participants, and a column for each of their numbers."""
    outputs = {reply.client: reply.output_Tl for reply in learnt}
    rows = [
        numbers_of(reply, updates[i] if updates else None, outputs.get(reply.client), table, algorithm, public)
        for i, reply in enumerate(replies)
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: torch.tensor([row.get(name, float("nan")) for row in rows], dtype=torch.float64) for name in names}
    client_C, share_C = record.clients["client"], record.clients["share"]
    spent = {name: sum(getattr(reply, name) for reply in answer.replies) for name in ("training", "scoring", "epochs")}
    position_R = torch.searchsorted(client_C, torch.tensor([reply.client for reply in replies]))
    extra: Extra = {
        "epoch_seconds": spent["training"] / max(spent["epochs"], 1e-9),  # of one client
        "inference_seconds": spent["scoring"] / (len(answer.replies) * len(public.true_R)),  # of one sample
    }
    for name, value_R in columns.items():
        if name.endswith("_accuracy") and name != "consensus_accuracy":  # that one is evaluated
            extra |= summary(name, value_R.float())
    extra["weight_bytes"] = float(columns["weight_bytes"].sum())
    if lost := sorted({reply.client for reply in answer.replies} - {reply.client for reply in replies}):
        extra["nonfinite_clients"] = " ".join(map(str, lost))
    return replace(
        record,
        counted=len(replies),
        bytes_up=int(columns["bytes_up"].sum()),
        bytes_down=int(columns["bytes_down"].sum()),
        train_loss=mean_of(columns["loss"], share_C[position_R], torch.isfinite(columns["loss"])),
        extra={**record.extra, **extra},
        clients={**record.clients, **over_cohort(columns, position_R, len(client_C))},
    )


def numbers_of(
    reply: ScoreReply, update: ScoreUpdate | None, output_Tl: Tensor | None, table: ScoreTable, algorithm: Scores,
    public: PublicLabels,
) -> dict[str, float]:  # fmt: skip
    """Numbers of one participant; `update`: what it adds, if the round is not private.

    local_accuracy      of its model alone, among its labels (Local_Update in the paper)
    updated_accuracy    of h_m, its scores with the global ones
    consensus_accuracy  of the new global scores (Global_Update)
    distilled_accuracy  of its model after distillation
    """
    set_l, growth, noised = reply.set_l, algorithm.growth, algorithm.client_noise is not None
    size = 4 * int(public.scored(set_l, algorithm.rows).sum()) * len(set_l)
    found = {
        "loss": float("nan") if noised else reply.loss,
        "bytes_up": float(size),
        "bytes_down": float(size),
        "weight_bytes": 2.0 * reply.weight_bytes,
        "epochs": float("nan") if noised else reply.epochs,
        "local_accuracy": public.accuracy(reply.f_Rl, set_l),
        "consensus_accuracy": public.accuracy(table.of(set_l).read(growth), set_l),
    }
    if update is not None:
        found["beta"] = float(update.beta_l.mean())
        found["updated_accuracy"] = public.accuracy(update.h.read(growth), set_l)
    return found if output_Tl is None else found | {"distilled_accuracy": public.accuracy_of(output_Tl, set_l)}
