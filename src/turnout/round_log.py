"""What a record says of a round: who turned up, what they weighed, what it cost.

Shape letters: C clients of the cohort, R replies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from turnout.evaluation.metrics import summary
from turnout.parts.terms.base import Term
from turnout.types import Replies, Tensors, Turnout, wire_bytes

if TYPE_CHECKING:
    from turnout.exchange import Served


_COUNTED = ("loss", "finite", "bytes_up", "bytes_down")  # of a report: what has columns of its own


def attendance(turnout: Turnout, examples_C: Tensor, share_C: Tensor) -> dict[str, Any]:
    """Who turned up."""
    finished_C = turnout.work_C / turnout.full_work
    return {
        "asked": len(turnout.client_C),
        "answered": int(turnout.present_C.sum()),
        "work": float(finished_C.mean()),
        "clients": {"client": turnout.client_C, "work": finished_C, "share": share_C, "examples": examples_C},
    }


def sent(record: RoundRecord, replies: Replies, bytes_down_R: Tensor, position_R: Tensor) -> dict[str, Any]:
    """What travelled, whether it could be used or not."""
    up_R, loss_R = replies.report["bytes_up"], replies.report["loss"].to(torch.float64)

    def over_cohort(value_R: Tensor) -> Tensor:
        blank_C = torch.full((record.asked,), float("nan"), dtype=torch.float64)
        return blank_C.index_copy(0, position_R, value_R.to(torch.float64))

    finite_R = replies.report["finite"]
    own_R = torch.where(finite_R, record.clients["share"][position_R], 0.0)
    mean_loss: float | None = (
        float((own_R * torch.where(finite_R, loss_R, 0.0)).sum() / own_R.sum()) if bool(finite_R.any()) else None
    )
    lost = replies.client_C[~finite_R].tolist()
    more = {name: value for name, value in replies.report.items() if name not in _COUNTED}
    return {
        "train_loss": mean_loss,
        "bytes_up": record.bytes_up + int(up_R.sum()),
        "bytes_down": int(bytes_down_R.sum()),
        "extra": dict(record.extra)
        | noticed(more, finite_R)
        | ({"nonfinite_clients": " ".join(map(str, lost))} if lost else {}),
        "clients": dict(record.clients)
        | {"loss": over_cohort(loss_R), "bytes_up": over_cohort(up_R), "bytes_down": over_cohort(bytes_down_R)}
        | {name: over_cohort(value) for name, value in more.items()},
    }


def noticed(more: Tensors, finite_R: Tensor) -> dict[str, float]:
    """Means over participants of what they noticed of themselves (watching.py), by noisy and clean where known."""
    noisy_R = more["noisy"][finite_R] if "noisy" in more else None
    found: dict[str, float] = {}
    for name, value_R in more.items():
        if name != "noisy":
            found |= summary(name, value_R[finite_R], noisy_R)
    return found


def weighed(record: RoundRecord, served: Served, asked_C: Tensor) -> dict[str, Any]:
    """What each client's reply weighed; `asked_C`: which of the cohort were asked."""
    told = sum(wire_bytes(tensors) for tensors in served.told.values())
    down_C = record.clients["bytes_down"] + told * served.counts_C[asked_C]
    columns = dict(record.clients) | {"weight": served.weight_C[asked_C], "bytes_down": down_C}
    if served.lent.friend_C is not None:
        columns["friend"] = served.lent.friend_C[asked_C]
    return {
        "counted": int(served.counts_C.sum()),
        "bytes_down": record.bytes_down + told * int(served.counts_C.sum()),
        "weight_sum": float(served.weight_C.sum()),
        "weight_max": float(served.weight_C.max()),
        "extra": dict(record.extra) | served.extra,
        "clients": columns,
    }


def terms_bytes(terms: Sequence[Term], down: dict[str, Tensors], mine: dict[str, Tensors], clients: int) -> Tensor:
    """What each client downloads for its terms."""
    total_C = torch.zeros(clients, dtype=torch.int64)
    for term in terms:
        own_C = term.fetched(down[term.name], mine.get(term.name, {}))
        total_C += wire_bytes(down[term.name]) if own_C is None else own_C.cpu()
    return total_C


Event = tuple[int, str, str]  # client, kind ("join", "leave", ...), detail


@dataclass(frozen=True)
class RoundRecord:
    """One round, as the server saw it.

    skipped   why the round changed nothing (nobody answered, ...), None for an ordinary round
    clock     rounds since the objective last shifted: what the schedule saw
    work      mean fraction finished among the asked; `clients["work"]` is each one's fraction in [0, 1]
    extra     numbers or words that parts add ("elastic_loss", "pairs_compared")
    clients   one row per client asked: "client" and any of work, share, weight, loss, examples, bytes_up,
              bytes_down, seconds, friend, or others
    """

    round: int
    skipped: str | None = None
    clock: int = 0
    lr: float | None = None
    members: int = 0
    asked: int = 0
    answered: int = 0
    counted: int = 0
    work: float | None = None
    weight_sum: float | None = None
    weight_max: float | None = None
    train_loss: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    extra: Mapping[str, float | str] = field(default_factory=dict)
    clients: Mapping[str, Tensor] = field(default_factory=dict)
    events: Sequence[Event] = ()


@dataclass(frozen=True)
class Evaluation:
    """Metrics of the model after a round (round -1: before training).

    per_client maps a metric to the clients it was measured on and their values.
    """

    round: int
    values: Mapping[str, float] = field(default_factory=dict)
    per_client: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
