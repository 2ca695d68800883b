"""One round of the score track: read this first.

    events ─▶ members ─▶ cohort ─▶ build: train on private samples, score the public ones
                                      │
                  server: local updates h_m = G + α f_m ─▶ β ─▶ global update G ─▶ clients learn ─▶ record

The local update is arithmetic on the global scores, which the server has, so clients send f_m and |D_m| and are sent
the new global scores of their labels: one table up and one down a round. Absent clients bring nothing: a label may then
be one other client's alone (β = 1), or nobody's (its scores stay). Who leaves has left its part in the scores.

Shape letters: C clients of the cohort, R public samples, L labels, l labels of one client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from turnout.machine import activity
from turnout.machine.profiling import stage
from turnout.parts.selection import chosen
from turnout.round_record import RoundRecord
from turnout.scores.averaging import averaged
from turnout.scores.exchange import BuildAnswer, BuildRequest, LearnRequest, ScoreReply, ScoreRuntime
from turnout.scores.public_labels import PublicLabels
from turnout.scores.score_log import with_replies
from turnout.scores.score_table import ScoreTable, Update, beta_of, global_update, local_update
from turnout.scores.settings import Scores
from turnout.scores.state import ScoreServer
from turnout.server.collecting import not_finite
from turnout.server.membership import MembershipChanges
from turnout.types import Happened
from turnout.world.events import Join
from turnout.world.members import Members


def run_round(
    server: ScoreServer, t: int, seed: int, algorithm: Scores, public: PublicLabels, runtime: ScoreRuntime
) -> tuple[ScoreServer, RoundRecord]:
    """One round: the next server and the record of what happened. A round without anybody changes nothing."""
    with stage("membership"):
        server, opening = open_round(server, t, public, runtime)
    lr = algorithm.local.schedule.rate(algorithm.local.optimizer.lr, t)
    record = RoundRecord(t, None, t, lr, len(server.members), extra=opening.extra, events=opening.events)
    with stage("selection"):
        client_C = cohort(server.members, t, seed, algorithm)
    if not len(client_C):
        return server, replace(record, skipped="no client was asked")

    activity.asked(t, client_C.tolist)
    with stage("client work"):
        answer = runtime.build(BuildRequest(t, lr, client_C, server.averages))
    examples_C = examples_of(answer, runtime.examples(client_C))
    share_C = examples_C / examples_C.sum().clamp(min=1)
    turnout, finished_C = answer.turnout, answer.turnout.work_C / answer.turnout.full_work
    record = replace(
        record,
        asked=len(client_C),
        answered=int(turnout.present_C.sum()),
        work=float(finished_C.mean()),
        clients={"client": turnout.client_C, "work": finished_C, "share": share_C, "examples": examples_C},
    )
    replies = without_bad_numbers(answer.replies, algorithm.nonfinite, t)
    if not replies:
        why = "no scores are finite" if answer.replies else "no client answered"
        return server, replace(record, skipped=why)

    updates = [update_of(server.table, reply, algorithm, public) for reply in replies]
    table = global_update(server.table, updates, algorithm.combine)
    mean = {reply.client: table.of(reply.set_l).means() for reply in replies}
    with stage("client work"):
        learnt = runtime.learn(LearnRequest(t, mean, public.open_R, public.tested_R))
    examples = {reply.client: float(reply.examples) for reply in replies}
    averages = averaged(server.averages, [(examples[reply.client], reply.weights) for reply in learnt])
    record = with_replies(record, answer, replies, updates, learnt, table, algorithm, public)
    return replace(server, table=table, averages=averages), record


def open_round(
    server: ScoreServer, t: int, public: PublicLabels, runtime: ScoreRuntime
) -> tuple[ScoreServer, MembershipChanges]:
    """Who joins and leaves now. A newcomer's labels may be new; who has left is forgotten, but for its scores."""
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


def cohort(members: Members, t: int, seed: int, algorithm: Scores) -> Tensor:
    """Whom the server asks; nobody where there are no members."""
    nobody = torch.empty(0, dtype=torch.int64)
    return chosen(algorithm.selection, members, t, seed, algorithm.selection.begin()) if len(members) else nobody


def examples_of(answer: BuildAnswer, usual_C: Tensor) -> Tensor:
    """The samples of this round of those who replied, the usual number of those who did not."""
    position_R = torch.searchsorted(answer.turnout.client_C, torch.tensor([r.client for r in answer.replies]).long())
    return usual_C.index_copy(0, position_R, torch.tensor([r.examples for r in answer.replies]).to(usual_C))


def without_bad_numbers(replies: Sequence[ScoreReply], nonfinite: str, t: int) -> Sequence[ScoreReply]:
    """Replies that are numbers throughout; one that is not stops the run, or its client counts as absent."""
    bad = [reply for reply in replies if not reply.finite]
    if bad and nonfinite == "stop":
        raise not_finite("the scores", [reply.client for reply in bad], t, bad[0].loss)
    return [reply for reply in replies if reply.finite]


def update_of(table: ScoreTable, reply: ScoreReply, algorithm: Scores, public: PublicLabels) -> Update:
    """α = |D_m| / |D_0|, the local update, and β from it; only rows of its own labels where rows = "labelled"."""
    alpha = reply.examples / len(public.true_R)
    h = local_update(table, reply.set_l, reply.f_Rl, alpha, algorithm.growth, algorithm.decay)
    row_R = torch.isin(public.shown_R, reply.set_l) if algorithm.rows == "labelled" else None
    return Update(reply.set_l, h, beta_of(h.read(algorithm.growth), reply.set_l, public, algorithm.beta), row_R)
