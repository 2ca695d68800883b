"""One round of federated learning: read this first.

    members ─▶ cohort ─▶ client_work: download, train, scale by work, encode
                              │
                         server_work: lend shares, weigh, sum, step, encode, apply ─▶ record

`client_work` and `server_work` are pure halves; a runtime only maps the first over the clients that turned up. A
simulated runtime returns the turnout it drew, a real one the turnout it saw. Who is absent keeps its state, because
only participants have rows that are written back.

Shape letters: C clients of the cohort, R replies (rows), P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from turnout.aggregation import weighted_mean, weighted_sum
from turnout.engine.train import Job, Trainer
from turnout.errors import Mistake
from turnout.kept import Kept
from turnout.members import Members
from turnout.record import RoundRecord
from turnout.settings import Algorithm
from turnout.substitution import Lent
from turnout.terms import Merging
from turnout.types import Replies, Samples, State, Tensors, Turnout


@dataclass(frozen=True)
class Server:
    """Everything the server carries from round to round."""

    shared_P: Tensor
    states: Tensors  # shared BatchNorm statistics and the like
    down: dict[str, Tensors]  # what each term broadcasts
    parts: dict[str, State]  # the state of substitution, compression and server step
    origin: int = 0  # the round in which the objective last shifted: where the clock starts

    def to_state(self) -> State:
        return {f: getattr(self, f) for f in ("shared_P", "states", "down", "parts", "origin")}


@dataclass(frozen=True)
class Download:
    """What the server sends to everyone it asks."""

    t: int
    lr: float
    shared_P: Tensor
    states: Tensors
    down: dict[str, Tensors]


@dataclass(frozen=True)
class ClientWork:
    """What those who turned up will do, most steps first."""

    client_R: Tensor
    steps_R: Tensor
    scale_R: Tensor | None
    samples: Samples
    drop_single: bool  # a last batch of one sample is left out, for batch statistics


class Runtime(Protocol):
    """Maps client work over a cohort. Nothing else knows whether clients are simulated or real."""

    def examples(self, client_C: Tensor) -> Tensor:
        """Training samples of each client, known from its enrolment."""
        ...

    def mean_examples(self, members: Members) -> float:
        """The members' mean sample count, for unbiased shares."""
        ...

    def ask(self, client_C: Tensor, download: Download) -> tuple[Turnout, Replies | None]:
        """Who answered with how much work, and what they sent (None: nobody sent anything that counts)."""
        ...


@dataclass(frozen=True)
class Served:
    """The outcome of the server's half."""

    server: Server
    weight_C: Tensor
    counts_C: Tensor
    lent: Lent
    position_R: Tensor  # where each reply's client stands in the cohort
    bytes_down_R: Tensor
    extra: dict[str, float | str] = field(default_factory=dict)


def run_round(
    server: Server, members: Members, t: int, seed: int, algorithm: Algorithm, runtime: Runtime
) -> tuple[Server, RoundRecord]:
    """One round: the next server and the record of what happened. A round without anybody changes nothing."""
    clock = t - server.origin
    lr = algorithm.local.schedule.rate(algorithm.local.optimizer.lr, clock)
    record = RoundRecord(round=t, clock=clock, lr=lr, members=len(members))
    cohort_C = algorithm.selection.choose(members, t, seed) if len(members) else torch.empty(0, dtype=torch.int64)
    if len(cohort_C) == 0:
        return server, replace(record, skipped="nobody was asked")

    download = Download(t, lr, server.shared_P, server.states, server.down)
    turnout, replies = runtime.ask(cohort_C, download)

    examples_C = runtime.examples(cohort_C)
    mean_examples = runtime.mean_examples(members) if algorithm.shares.over == "unbiased" else None
    share_C = algorithm.shares.of(examples_C, len(members), mean_examples)
    record = replace(record, **attendance(turnout, examples_C, share_C))
    if replies is None:
        why = "nobody who answered counts" if record.answered else "nobody answered"
        return server, replace(record, skipped=why)

    served = server_work(server, algorithm, turnout, share_C, replies, len(members), t)
    if served is None:
        return server, replace(record, skipped="no update of those who count is a number")
    return served.server, replace(record, **account(record, served, replies))


def client_work(
    trainer: Trainer, algorithm: Algorithm, download: Download, work: ClientWork, kept: Kept, seed: int
) -> tuple[Replies, Kept]:
    """Local training of those who turned up: what they send, and what they keep."""
    layout, local = trainer.network.layout, algorithm.local
    job = Job(
        client_C=work.client_R,
        steps_C=work.steps_R,
        samples=work.samples,
        start_P=kept.start(download.shared_P),
        states=download.states | kept.states,
        own_states=frozenset(kept.states),
        lr=download.lr,
        batch_size=local.batch_size,
        drop_single=work.drop_single,
        seed=seed,
        t=download.t,
        optimizer=local.optimizer,
        scale_C=work.scale_R,
        terms=algorithm.terms,
        down=download.down,
        mine=kept.mine,
    )
    trained = trainer.train(job)
    sent = algorithm.compression.up(trained.flat_CP[:, : layout.shared], kept.residuals)
    states = {name: trained.states[name] for name in layout.shared_states}
    beside = row_bytes(states) + sum(row_bytes(up) for up in trained.up.values())
    report = {"loss": trained.loss_C.cpu(), "finite": trained.finite_C.cpu(), "bytes_up": sent.bytes + beside}
    replies = Replies(work.client_R, sent.arrived, states, trained.up, report)
    return replies, Kept(
        personal_CQ=trained.flat_CP[:, layout.shared :],
        states={name: trained.states[name] for name in layout.personal_states},
        residuals=sent.kept,
        mine=trained.mine,
    )


def server_work(
    server: Server, algorithm: Algorithm, turnout: Turnout, share_C: Tensor, replies: Replies, members: int, t: int
) -> Served | None:
    """Lend shares, weigh, sum once, step, encode, apply; states by their mean. None where no reply can be used."""
    weighting, substitution, parts = algorithm.weighting, algorithm.substitution, dict(server.parts)
    position_R = torch.searchsorted(turnout.client_C, replies.client_C)
    usable_R, extra = usable(replies, algorithm.nonfinite, t)
    replied_C = torch.zeros_like(turnout.present_C).index_fill(0, position_R[usable_R], True)
    counts_C = weighting.counts(turnout) & replied_C
    if not bool(counts_C.any()):
        return None

    parts["substitution"] = substitution.observe(parts["substitution"], replies, t)
    lent = substitution.lend(parts["substitution"], share_C, counts_C, turnout)
    own_C = torch.where(counts_C, share_C, 0.0)
    weight_C = (own_C + lent.borrowed_C) * weighting.server_scale(share_C, counts_C, turnout, substitution.lends)
    if algorithm.scale_at == "server":
        weight_C = weight_C * weighting.client_scale(turnout)
    if algorithm.max_weight is not None:
        weight_C = weight_C.clamp(max=algorithm.max_weight)

    total_P = weighted_sum(replies.update_CP, weight_C[position_R])
    if lent.rows is not None and lent.row_weight is not None:
        total_P = total_P + weighted_sum(lent.rows.update_CP, lent.row_weight)
    change_P, parts["server"] = algorithm.server.step(total_P, parts["server"])
    fetched_R = algorithm.compression.download(replies.client_C, len(change_P), parts["compression"])
    sent, parts["compression"] = algorithm.compression.down(change_P, parts["compression"])
    new_P = server.shared_P + sent.arrived

    # States are a mean by plain shares: a boost or E/s would push a variance out of its range.
    states = {name: weighted_mean(value, own_C[position_R]) for name, value in replies.states.items()}
    merging = Merging(turnout.take(position_R), share_C[position_R], members, server.shared_P, new_P)
    sums = replies.sums
    down = {term.name: term.merge(server.down[term.name], sums.get(term.name, {}), merging) for term in algorithm.terms}
    beside = tensor_bytes(server.states) + sum(tensor_bytes(tensors) for tensors in server.down.values())
    after = replace(server, shared_P=new_P, states=server.states | states, down=down, parts=parts)
    return Served(after, weight_C, counts_C, lent, position_R, fetched_R + beside, extra | lent.extra)


def usable(replies: Replies, nonfinite: str, t: int) -> tuple[Tensor, dict[str, float | str]]:
    """Which replies are numbers throughout; one that is not stops the run, or its client counts as absent."""
    finite_R = replies.report["finite"]
    if bool(finite_R.all()):
        return finite_R, {}
    bad = replies.client_C[~finite_R].tolist()
    if nonfinite == "stop":
        loss = float(replies.report["loss"][~finite_R][0])
        raise Mistake(
            f"the update of client {bad[0]} in round {t} is not finite (its training loss was {loss:g}"
            f"{f'; {len(bad)} clients in all' if len(bad) > 1 else ''}): lower algorithm.local.optimizer.lr, look at "
            "that client's data, or set algorithm.nonfinite = 'absent' to go on without such replies"
        )
    return finite_R, {"nonfinite_clients": " ".join(map(str, bad))}


def attendance(turnout: Turnout, examples_C: Tensor, share_C: Tensor) -> dict[str, Any]:
    """What a record says of who turned up."""
    finished_C = turnout.work_C / turnout.full_work
    return {
        "asked": len(turnout.client_C),
        "answered": int(turnout.present_C.sum()),
        "work": float(finished_C.mean()),
        "clients": {"client": turnout.client_C, "work": finished_C, "share": share_C, "examples": examples_C},
    }


def account(record: RoundRecord, served: Served, replies: Replies) -> dict[str, Any]:
    """What a record says of a round that moved the model."""

    def over_cohort(value_R: Tensor) -> Tensor:
        blank_C = torch.full((record.asked,), float("nan"), dtype=torch.float64)
        return blank_C.index_copy(0, served.position_R, value_R.to(torch.float64))

    up_R, down_R = replies.report["bytes_up"], served.bytes_down_R
    columns = {"weight": served.weight_C, "loss": over_cohort(replies.report["loss"])}
    columns |= {"bytes_up": over_cohort(up_R), "bytes_down": over_cohort(down_R)}
    if served.lent.friend_C is not None:
        columns["friend"] = served.lent.friend_C
    own_R = record.clients["share"][served.position_R]
    return {
        "counted": int(served.counts_C.sum()),
        "weight_sum": float(served.weight_C.sum()),
        "weight_max": float(served.weight_C.max()),
        "train_loss": float((own_R * replies.report["loss"]).sum() / own_R.sum()),
        "bytes_up": int(up_R.sum()),
        "bytes_down": int(down_R.sum()),
        "extra": served.extra,
        "clients": dict(record.clients) | columns,
    }


def tensor_bytes(tensors: Tensors) -> int:
    """What named tensors take when sent as they are."""
    return sum(value.numel() * value.element_size() for value in tensors.values())


def row_bytes(rows: Tensors) -> int:
    """The same for one client's row of each."""
    return sum(value[0].numel() * value.element_size() for value in rows.values())
