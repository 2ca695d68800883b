"""What is written down of a round of the score track, beside what every track writes down (round_record.py).

Shape letters: R participants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from turnout.clients.metrics import summary
from turnout.round_record import RoundRecord, mean_of, over_cohort
from turnout.scores.exchange import BuildAnswer, LearnReply, ScoreReply, Spent
from turnout.scores.public_labels import PublicLabels
from turnout.scores.score_table import ScoreTable, Update
from turnout.scores.settings import Scores


def with_replies(
    record: RoundRecord, answer: BuildAnswer, replies: Sequence[ScoreReply], updates: Sequence[Update],
    learnt: Sequence[LearnReply], table: ScoreTable, algorithm: Scores, public: PublicLabels,
) -> RoundRecord:  # fmt: skip
    """The record with totals, means over participants, and a column per number for the whole cohort."""
    outputs = {reply.client: reply.output_Tl for reply in learnt}
    rows = [
        numbers_of(reply, update, outputs.get(reply.client), table, algorithm, public)
        for reply, update in zip(replies, updates, strict=True)
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name, float("nan")) for row in rows] for name in names}
    client_C, share_C, extra = record.clients["client"], record.clients["share"], speed(answer.spent)
    position_R = torch.searchsorted(client_C, torch.tensor([reply.client for reply in replies]))
    numbers = {name: _exact(values) for name, values in columns.items()}
    for name, values in columns.items():
        if name.endswith("_accuracy") and name != "consensus_accuracy":  # that one is evaluated
            extra |= summary(name, torch.tensor(values))
    extra["weight_bytes"] = float(sum(columns["weight_bytes"]))
    lost = sorted({reply.client for reply in answer.replies} - {reply.client for reply in replies})
    return replace(
        record,
        counted=len(replies),
        bytes_up=int(sum(columns["bytes_up"])),
        bytes_down=int(sum(columns["bytes_down"])),
        train_loss=mean_of(numbers["loss"], share_C[position_R], torch.ones(len(replies), dtype=torch.bool)),
        extra={**record.extra, **extra, **({"nonfinite_clients": " ".join(map(str, lost))} if lost else {})},
        clients={**record.clients, **over_cohort(numbers, position_R, len(client_C))},
    )


def numbers_of(
    reply: ScoreReply, update: Update, output_Tl: Tensor | None, table: ScoreTable, algorithm: Scores,
    public: PublicLabels,
) -> dict[str, float]:  # fmt: skip
    """Numbers of one participant.

    local_accuracy      of its model alone, among its labels (Local_Update in the paper)
    updated_accuracy    of h_m, its scores with the global ones
    consensus_accuracy  of the new global scores (Global_Update)
    distilled_accuracy  of its model after it was taught them
    """
    set_l, growth = reply.set_l, algorithm.growth
    scored = len(public.true_R) if update.row_R is None else int(update.row_R.sum())
    size = 4 * scored * len(set_l) + (reply.weight_bytes if algorithm.start == "averaged" else 0)
    found = {
        "loss": reply.loss,
        "bytes_up": float(size),
        "bytes_down": float(size),
        "weight_bytes": 2.0 * reply.weight_bytes,
        "epochs": reply.epochs,
        "beta": float(update.beta_l.mean()),
        "local_accuracy": public.accuracy(reply.f_Rl, set_l),
        "updated_accuracy": public.accuracy(update.h.read(growth), set_l),
        "consensus_accuracy": public.accuracy(table.of(set_l).read(growth), set_l),
    }
    return found if output_Tl is None else found | {"distilled_accuracy": public.accuracy_of(output_Tl, set_l)}


def speed(spent: Spent) -> dict[str, float]:
    """Seconds of an epoch of a client, and of scoring a sample."""
    return {
        "epoch_seconds": spent.training / max(spent.epochs, 1e-9),
        "inference_seconds": spent.scoring / max(spent.scored, 1e-9),
    }


def _exact(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
