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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from turnout.errors import Mistake
from turnout.evaluation.metrics import summary
from turnout.parts.selection import chosen
from turnout.round_log import RoundRecord
from turnout.tracks.scores.averaging import Averages
from turnout.tracks.scores.runtime import Asked, Reply, ScoreRuntime
from turnout.tracks.scores.settings import Scores
from turnout.tracks.scores.tables import Sheet, Table, Update, accuracy, beta_of, global_update, local_update
from turnout.types import Happened, State
from turnout.world.events import Join
from turnout.world.members import Members


@dataclass(frozen=True, eq=False)
class ScoreServer:
    """Everything the server carries from round to round."""

    table: Table
    members: Members
    averages: Averages

    def to_state(self) -> State:
        """As a tree for a checkpoint."""
        return {"table": self.table.to_state(), "members": self.members.to_state(), "averages": self.averages}

    @classmethod
    def from_state(cls, state: State) -> ScoreServer:
        return cls(Table.from_state(state["table"]), Members.from_state(state["members"]), state["averages"])


def run_round(
    server: ScoreServer, t: int, seed: int, algorithm: Scores, runtime: ScoreRuntime
) -> tuple[ScoreServer, RoundRecord]:
    """One round: the next server and the record of what happened. A round without anybody changes nothing."""
    server, events = let_in_and_out(server, t, runtime)
    lr = algorithm.local.schedule.rate(algorithm.local.optimizer.lr, t)
    record = RoundRecord(round=t, clock=t, lr=lr, members=len(server.members), events=events)
    if not len(server.members):
        return server, replace(record, skipped="nobody was asked")
    cohort_C = chosen(algorithm.selection, server.members, t, seed)
    if not len(cohort_C):
        return server, replace(record, skipped="nobody was asked")

    asked = runtime.build(cohort_C, t, server.averages)
    share_C = asked.sample_C / asked.sample_C.sum().clamp(min=1)
    record = attended(record, asked, share_C)
    replies = without_bad_numbers(asked.replies, algorithm.nonfinite, t)
    if not replies:
        why = "no scores of those who answered are numbers" if asked.replies else "nobody answered"
        return server, replace(record, skipped=why)

    updates = [update_of(server.table, reply, algorithm, runtime.sheet) for reply in replies]
    table = global_update(server.table, updates, algorithm.combine)
    good = {reply.client for reply in replies}
    averages, taught = runtime.learn(asked, good, table, server.averages)
    said = told(replies, updates, table, taught, algorithm, runtime.sheet)
    return replace(server, table=table, averages=averages), replace(record, **filed(record, asked, replies, said))


def let_in_and_out(server: ScoreServer, t: int, runtime: ScoreRuntime) -> tuple[ScoreServer, Sequence[Happened]]:
    """Who joins and leaves now. A newcomer's labels may be new; who has left is forgotten, but for its scores."""
    members, log = server.members, []
    for event in runtime.events(t):
        client = int(event.client)
        if isinstance(event, Join):
            members = members.join(client)
            labels = [runtime.sheet.labels[i] for i in runtime.label_set(client, t).tolist()]
            log.append(Happened(client, "join", f"labels {', '.join(labels)}"))
        else:
            members = members.leave(client)
            runtime.zoo.forget(client)
            log.append(Happened(client, "leave", "its part in the scores stays"))
    return replace(server, members=members), log


def attended(record: RoundRecord, asked: Asked, share_C: Tensor) -> RoundRecord:
    """Who turned up."""
    turnout = asked.turnout
    finished_C = turnout.work_C / turnout.full_work
    columns = {"client": turnout.client_C, "work": finished_C, "share": share_C, "examples": asked.sample_C}
    return replace(
        record,
        asked=len(turnout.client_C),
        answered=int(turnout.present_C.sum()),
        work=float(finished_C.mean()),
        clients=columns,
    )


def update_of(table: Table, reply: Reply, algorithm: Scores, sheet: Sheet) -> Update:
    """α = |D_m| / |D_0|, the local update, and β from it; only rows of its own labels where rows = "labelled"."""
    alpha = reply.examples / len(sheet.true_R)
    h = local_update(table, reply.set_l, reply.f_Rl, alpha, algorithm.growth, algorithm.decay)
    row_R = torch.isin(sheet.shown_R, reply.set_l) if algorithm.rows == "labelled" else None
    return Update(reply.set_l, h, beta_of(h.read(algorithm.growth), reply.set_l, sheet, algorithm.beta), row_R)


def told(
    replies: Sequence[Reply],
    updates: Sequence[Update],
    table: Table,
    taught: dict[int, float],
    algorithm: Scores,
    sheet: Sheet,
) -> dict[str, list[float]]:
    """Numbers of each participant for the record.

    local_accuracy      of its model alone, among its labels (Local_Update in the paper)
    updated_accuracy    of h_m, its scores with the global ones
    consensus_accuracy  of the new global scores (Global_Update)
    distilled_accuracy  of its model after it was taught them
    """
    rows_R, y_R, growth = sheet.tested_R, sheet.true_R, algorithm.growth
    scored_rows = [len(y_R) if u.row_R is None else int(u.row_R.sum()) for u in updates]
    weights = [r.weight_bytes if algorithm.start == "averaged" else 0 for r in replies]
    sizes = [4 * n * len(r.set_l) + w for n, r, w in zip(scored_rows, replies, weights, strict=True)]
    found: dict[str, list[float]] = {
        "loss": [r.loss for r in replies],
        "bytes_up": [float(size) for size in sizes],
        "bytes_down": [float(size) for size in sizes],
        "weight_bytes": [2 * r.weight_bytes for r in replies],
        "epochs": [r.epochs for r in replies],
        "beta": [float(u.beta_l.mean()) for u in updates],
        "local_accuracy": [accuracy(r.f_Rl, r.set_l, y_R, rows_R) for r in replies],
        "updated_accuracy": [accuracy(u.h.read(growth), u.set_l, y_R, rows_R) for u in updates],
        "consensus_accuracy": [accuracy(table.of(u.set_l).read(growth), u.set_l, y_R, rows_R) for u in updates],
    }
    return found | ({"distilled_accuracy": [taught[r.client] for r in replies]} if taught else {})


def filed(record: RoundRecord, asked: Asked, replies: Sequence[Reply], said: dict[str, list[float]]) -> dict[str, Any]:
    """The record's other fields: totals, means over participants, one column a number for the whole cohort."""
    client_R = torch.tensor([reply.client for reply in replies])
    place_R = torch.searchsorted(record.clients["client"], client_R)

    def over_cohort(values: list[float]) -> Tensor:
        blank_C = torch.full((record.asked,), float("nan"), dtype=torch.float64)
        return blank_C.index_copy(0, place_R, torch.tensor(values, dtype=torch.float64))

    weight_R = record.clients["share"][place_R]
    loss = float((torch.tensor(said["loss"], dtype=torch.float64) * weight_R).sum() / weight_R.sum())
    extra: dict[str, float | str] = dict(asked.extra)
    for name in said:
        if name.endswith("_accuracy") and name != "consensus_accuracy":  # that one is evaluated
            extra |= summary(name, torch.tensor(said[name]))
    lost = sorted({r.client for r in asked.replies} - {r.client for r in replies})
    return {
        "counted": len(replies),
        "train_loss": loss,
        "bytes_up": int(sum(said["bytes_up"])),
        "bytes_down": int(sum(said["bytes_down"])),
        "extra": extra
        | {"weight_bytes": float(sum(said["weight_bytes"]))}
        | ({"nonfinite_clients": " ".join(map(str, lost))} if lost else {}),
        "clients": dict(record.clients) | {name: over_cohort(values) for name, values in said.items()},
    }


def without_bad_numbers(replies: Sequence[Reply], nonfinite: str, t: int) -> Sequence[Reply]:
    """Replies that are numbers throughout; one that is not stops the run, or its client counts as absent."""
    bad = [reply for reply in replies if not reply.finite]
    if bad and nonfinite == "stop":
        raise Mistake(
            f"the scores of client {bad[0].client} in round {t} are not finite (its training loss was {bad[0].loss:g}):"
            " lower algorithm.local.optimizer.lr, look at that client's data, or set algorithm.nonfinite = 'absent' to"
            " go on without such replies"
        )
    return [reply for reply in replies if reply.finite]
