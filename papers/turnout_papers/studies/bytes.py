"""EFL, §3.2: accuracy against bytes with sparse ternary messages both ways.

The paper claims that messages of a sign and a place cost little accuracy. Dense, 8-bit, top-k and sparse ternary
messages in one world, both ways, catch-up after absences counted; sparse ternary also with the elastic term, whose u
and v the paper sends dense and does not count. Beside them Algorithm 1 as printed, and how far a constant update gets
with it. A run's accuracy is its mean over the last fifth of the rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from turnout.experiment import Experiment
from turnout.layout import Slot
from turnout.parts.compression.base import Compression, Dense, Sending, dense_bytes
from turnout.parts.compression.codec.sparse import Ternary
from turnout.parts.compression.lossy import SparseTernary
from turnout.parts.terms.elastic import Elastic
from turnout.types import Message, State, Tensors
from turnout_papers.recipes.elastic import cifar_compression, compression, mnist_compression
from turnout_papers.studies.claims import Claim, above
from turnout_papers.studies.drawing import WAYS, megabytes, times_fewer
from turnout_papers.studies.study import Chart, Curves, Part, ResultRow, Study, StudyPlan, in_tf32, last_fifth, row

MARGIN = 2.0  # points of accuracy
FEWER = 20.0  # times fewer bytes
PRINTED = "Algorithm 1 as printed"


@dataclass(frozen=True)
class LiteralTernary(Dense):
    """Algorithm 1 of paper 001 as printed, which overshoots; only for demonstration.

    Clients send A_k = R_k + D_k and keep R_k = A_k - ST(A_k); the server applies A_G and keeps R_G = A_G - ST(A_G). So
    the residual is added again in every later round. Messages are dense. `keep` and `scope` as for `TopK`.
    """

    keep: float = 0.01
    scope: str = "tensor"

    def residuals(self, slots: tuple[Slot, ...]) -> Tensors:
        return {"left": torch.zeros(dense_bytes(slots) // 4)}

    def begin(self, slots: tuple[Slot, ...]) -> State:
        return {"left_P": torch.zeros(dense_bytes(slots) // 4)}

    def encode(self, update_CP: Tensor, kept: Tensors, sending: Sending) -> tuple[Message, Tensors]:
        left_CP = kept["left"].add_(update_CP)
        message, _ = super().encode(left_CP.clone(), {}, sending)
        Ternary(self.keep, self.scope).write(left_CP, sending.slots)
        return message, {"left": left_CP}

    def broadcast(self, change_P: Tensor, state: State, sending: Sending) -> tuple[Tensor, State]:
        applied_P = state["left_P"] + change_P
        left_P = applied_P.clone()
        Ternary(self.keep, self.scope).write(left_P[None], sending.slots)
        return applied_P, {"left_P": left_P}


@dataclass(frozen=True)
class MessageCase:
    """One data set: the share of entries that is sent (`keep`), and another `beside` it."""

    data: str
    keep: float
    beside: float
    rounds: int
    seeds: int
    clients: int

    def variant(self, way: str) -> str:
        return f"{self.data}: {way}"

    @property
    def ternary(self) -> str:
        return f"ternary {self.keep:.0%}"


SIZES = {
    "smoke": [MessageCase("Digits", 0.05, 0.01, 4, 2, 8)],
    "small": [MessageCase("Digits", 0.05, 0.01, 100, 5, 20)],
    "paper": [MessageCase("MNIST", 0.01, 0.001, 200, 5, 100), MessageCase("CIFAR-10", 0.01, 0.001, 100, 3, 100)],
}
RECIPES = {"Digits": compression, "MNIST": mnist_compression, "CIFAR-10": cifar_compression}


def recipe(case: MessageCase) -> dict[str, Experiment]:
    """The recipe's experiments; on CIFAR-10 products are rounded to TF32, where a GPU does that."""
    made = RECIPES[case.data](keep=case.keep, clients=case.clients, rounds=case.rounds)
    return in_tf32(made) if case.data == "CIFAR-10" else made


def experiments(case: MessageCase) -> dict[str, Experiment]:
    made = recipe(case)
    dense, ternary = made["dense"], made["ternary"]
    found = {"dense": dense, "8 bits": made["8 bits"], f"top-k {case.keep:.0%}": made["top-k"], case.ternary: ternary}
    found[f"ternary {case.beside:.1%}"] = dense.but(**{"algorithm.compression": SparseTernary(case.beside)})
    return found


def elastic(case: MessageCase) -> dict[str, Experiment]:
    """Ternary messages with the elastic term: its u and v as the paper sends them, or the largest now and then."""
    ternary = recipe(case)["ternary"]
    whole = Elastic(0.1, samples=16, reduce="mean")
    few = replace(whole, fisher_every=5, fisher_keep=case.keep)
    return {
        f"{case.ternary} and u, v": ternary.but(**{"algorithm.terms": (whole,)}),
        f"{case.ternary} and {case.keep:.0%} of u, v, every 5 rounds": ternary.but(**{"algorithm.terms": (few,)}),
    }


def printed(case: MessageCase) -> dict[str, Experiment]:
    """Algorithm 1 as printed. It diverges, so clients whose updates are not finite count as absent."""
    dense = recipe(case)["dense"]
    literal = {"algorithm.compression": LiteralTernary(case.keep), "algorithm.nonfinite": "absent"}
    return {PRINTED: dense.but(**literal)}


def plan(scale: str) -> StudyPlan:
    parts = []
    for case in SIZES[scale]:
        for name, made, seeds in (
            (case.data, experiments(case), case.seeds),
            (f"{case.data} with u and v", elastic(case), min(3, case.seeds)),
            (f"{case.data} as printed", printed(case), 2),
        ):
            parts.append(Part(name, {case.variant(way): e for way, e in made.items()}, seeds))
    case = SIZES[scale][0]
    notes = [
        f"{case.clients} clients, half of them away every round, scheme C; the paper gives no share, rate or rounds",
        "bytes: everything that travels, the first download of the whole model and catch-up after absences included",
        "u, v: the elastic term with λ = 0.1, mean over reporters; its bytes are counted, which the paper does not do",
        "constant update: one client that wants to move the same way for ever; 1 is as far as it should get",
    ]
    cifar = "CIFAR-10: the simplified VGG11, five classes a client, TF32"
    return StudyPlan.at(scale, parts, notes, "8x8 digits and a small CNN", [cifar])


def overshoot(compression: Compression, rounds: int) -> float:
    """How far a constant update of one client gets, against the sum of what it wanted to move.

    >>> overshoot(SparseTernary(1.0), 2) < 1.1
    True
    """
    slots, generator = (Slot("w", (1000,), 0, 1000),), torch.Generator().manual_seed(0)
    update_1P = torch.randn(1, 1000, generator=generator)
    kept = {name: value[None] for name, value in compression.residuals(slots).items()}
    state, moved_P = compression.begin(slots), torch.zeros(1000)
    for t in range(rounds):
        sending = Sending(t, 0, torch.zeros(1, dtype=torch.int64), slots)
        message, kept = compression.encode(update_1P.clone(), kept, sending)
        applied_P, state = compression.broadcast(compression.decode(message, sending, moved_P)[0], state, sending)
        moved_P = moved_P + applied_P
    return float(moved_P @ update_1P[0] / (rounds * update_1P[0] @ update_1P[0]))


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for case in SIZES[scale]:
        for name in (case.variant(way) for way in (*experiments(case), *elastic(case), PRINTED)):
            yield curves.row(name, "accuracy", name, last_fifth)
            for way in WAYS:
                yield row(name, f"MB {way.removeprefix('bytes_')}", megabytes(curves, name, (way,)))
            yield row(name, "times fewer bytes than dense", times_fewer(curves, case.variant("dense"), name))
    rounds = 20 if scale == "smoke" else 400
    for keep in (0.1, 0.01):
        kinds: dict[str, Compression] = {"as printed": LiteralTernary(keep), "ternary": SparseTernary(keep)}
        for way, kind in kinds.items():
            words = f"constant update, {rounds} rounds, {keep:.0%} sent, {way}"
            yield row(words, "times as far", {0: overshoot(kind, rounds)})


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    for case in SIZES[scale]:
        plain, ternary, literal = (case.variant(way) for way in ("dense", case.ternary, PRINTED))
        claim = f"{case.data}: sparse ternary both ways is no worse than dense by more than {MARGIN:g} points"
        yield curves.better(claim, ternary, plain, last_fifth, margin=MARGIN)
        claim = f"{case.data}: sparse ternary both ways takes at least {FEWER:g} times fewer bytes"
        yield above(claim, times_fewer(curves, plain, ternary, FEWER), unit=f"times beyond {FEWER:g}")
        claim = f"{case.data}: Algorithm 1 as printed is worse than with what is sent applied"
        # 0 where the model has diverged to NaN
        yield curves.better(claim, ternary, literal, lambda curve: float(np.nan_to_num(last_fifth(curve))))


def figures(scale: str) -> dict[str, list[Chart]]:
    """Accuracy over the bytes that have travelled."""
    charts = []
    for case in SIZES[scale]:
        lines = {way: case.variant(way) for way in (*experiments(case), *elastic(case))}
        charts.append(Chart(f"{case.data}: accuracy by bytes, up and down", lines, bytes=True))
    return {"bytes.svg": charts}


STUDY = Study("bytes", __doc__, "global_accuracy", plan, rows, claims, figures, WAYS)
