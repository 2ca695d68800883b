"""The server's arithmetic: the labels of the public samples, which only the server has, and tables of scores on these
samples, one column for each label.

Shape letters: R public samples, T those of them that are tested on, L labels, l labels of one client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.rng import rng

TINY = 1e-12  # a β of 0 counts this much in an average, so that zeros alone are a plain mean


@dataclass(frozen=True, eq=False)
class PublicLabels:
    """The labels of the public samples, and what each may be used for.

    true_R    the labels, for the accuracies alone
    shown_R   the labels that the algorithm sees (β, rows = "labelled"): the true ones, except in the control
    open_R    samples that β and distillation may use
    tested_R  samples of the accuracies: those that are not open, or all if all are
    names     names of all labels
    """

    true_R: Tensor
    shown_R: Tensor
    open_R: Tensor
    tested_R: Tensor
    names: tuple[str, ...]

    @staticmethod
    def of(y_R: Tensor, names: tuple[str, ...], held_out: float, permuted: bool, seed: int) -> PublicLabels:
        """Hold out a share of every label's samples; in the control, shuffle the labels that the algorithm sees."""
        y_R = y_R.cpu()
        open_R = torch.ones(len(y_R), dtype=torch.bool)
        for label in y_R.unique().tolist():
            rows = (y_R == label).nonzero().squeeze(1)
            order = torch.randperm(len(rows), generator=rng(seed, "held out", label))
            open_R[rows[order[: round(held_out * len(rows))]]] = False
        shown_R = y_R[torch.randperm(len(y_R), generator=rng(seed, "permuted"))] if permuted else y_R
        return PublicLabels(y_R, shown_R, open_R, ~open_R if held_out else open_R, names)

    def scored(self, set_l: Tensor, rows: str) -> Tensor:
        """Which samples a client with these labels may score: all, or those whose label it has ("labelled")."""
        return torch.isin(self.shown_R, set_l) if rows == "labelled" else torch.ones_like(self.open_R)

    def accuracy(self, score_Rl: Tensor, set_l: Tensor) -> float:
        """The accuracy of scores of all public samples, on those tested on."""
        return accuracy(score_Rl, set_l, self.true_R, self.tested_R)

    def accuracy_of(self, output_Tl: Tensor, set_l: Tensor) -> float:
        """The same of scores of only the samples tested on."""
        every_T = torch.ones(len(output_Tl), dtype=torch.bool)
        return accuracy(output_Tl, set_l, self.true_R[self.tested_R], every_T)


def hits(score_Rl: Tensor, set_l: Tensor, y_R: Tensor) -> Tensor:
    """Whether the largest score of a row is its label's [R]; false if no score is known."""
    best_R = score_Rl.max(1)
    return (set_l[best_R.indices] == y_R) & torch.isfinite(best_R.values)


def accuracy(score_Rl: Tensor, set_l: Tensor, y_R: Tensor, among_R: Tensor) -> float:
    """The share of right guesses among a client's own labels, on the rows that have one of them; NaN without such.

    >>> score = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> accuracy(score, torch.tensor([0, 2]), torch.tensor([0, 2, 1]), torch.ones(3, dtype=torch.bool))
    0.5
    """
    rows_R = among_R & torch.isin(y_R, set_l)
    right_R = hits(score_Rl, set_l, y_R)[rows_R]
    known = bool(torch.isfinite(score_Rl).any())
    return float(right_R.double().mean()) if len(right_R) and known else float("nan")


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """f_G, the global scores. A score without evidence is unknown, not 0: it is read as -inf, and never wins.

    score_RL     the scores
    evidence_RL  the evidence for each: the α of all clients that added to it, combined as the scores are
    """

    score_RL: Tensor
    evidence_RL: Tensor

    @classmethod
    def blank(cls, rows: int, labels: int) -> ScoreTable:
        zero_RL = torch.zeros(rows, labels, dtype=torch.float64)
        return cls(zero_RL, zero_RL.clone())

    def of(self, set_l: Tensor) -> ScoreTable:
        """Some columns."""
        return ScoreTable(self.score_RL[:, set_l], self.evidence_RL[:, set_l])

    def read(self, growth: str) -> Tensor:
        """The scores to compare: as they are, or per unit of evidence (growth = "mean")."""
        score_RL = self.means() if growth == "mean" else self.score_RL
        return torch.where(self.evidence_RL > 0, score_RL, -torch.inf)

    def means(self) -> Tensor:
        """Scores per unit of evidence; NaN if there is none."""
        return torch.where(self.evidence_RL > 0, self.score_RL / self.evidence_RL.clamp(min=1e-300), torch.nan)


def local_update(table: ScoreTable, set_l: Tensor, f_Rl: Tensor, alpha: float, growth: str, decay: float) -> ScoreTable:
    """h_m = f_G(l_m) + α f_m, α = |D_m| / |D_0|; the old scores times `decay`; divided by decay + α if "shrunk".

    >>> old = ScoreTable(torch.tensor([[2.0, 4.0]]), torch.tensor([[1.0, 1.0]]))
    >>> local_update(old, torch.tensor([1]), torch.tensor([[0.5]]), alpha=0.5, growth="plain", decay=1.0).score_RL
    tensor([[4.2500]])
    """
    own = table.of(set_l)
    whole = decay + alpha if growth == "shrunk" else 1.0
    return ScoreTable((decay * own.score_RL + alpha * f_Rl) / whole, (decay * own.evidence_RL + alpha) / whole)


def beta_of(h_Rl: Tensor, set_l: Tensor, public: PublicLabels, by: str) -> Tensor:
    """β_m: the accuracy of h_m on open samples, label by label, once for all, or 1; 1 if there is no such sample.

    >>> y = torch.tensor([0, 0, 1])
    >>> public = PublicLabels(y, y, torch.ones(3, dtype=torch.bool), y, ("a", "b"))
    >>> beta_of(torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]]), torch.tensor([0, 1]), public, "label")
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    if by == "equal":
        return torch.ones(len(set_l), dtype=torch.float64)
    right_R = hits(h_Rl, set_l, public.shown_R).double()
    rows_Rl = public.open_R[:, None] & (public.shown_R[:, None] == set_l)
    if by == "user":
        rows_Rl = rows_Rl.any(1, keepdim=True).expand(-1, len(set_l))
    count_l = rows_Rl.sum(0)
    return torch.where(count_l > 0, (right_R[:, None] * rows_Rl).sum(0) / count_l.clamp(min=1), 1.0)


@dataclass(frozen=True, eq=False)
class ScoreUpdate:
    """What one client adds.

    set_l   its labels
    h       h_m and its evidence on these labels
    beta_l  β
    row_R   the rows it may score; None: all
    """

    set_l: Tensor
    h: ScoreTable
    beta_l: Tensor
    row_R: Tensor | None = None


def global_update(table: ScoreTable, updates: Sequence[ScoreUpdate], combine: str) -> ScoreTable:
    """f_G(c) = Σ_m β_{m,c} h_m(c) over clients with label c (divided by Σ β for an average); β = 1 for a label that
    only one of them has; a score to which no client adds stays.

    >>> old = ScoreTable.blank(1, 2)
    >>> half = ScoreTable(torch.tensor([[0.5, 0.5]]), torch.ones(1, 2))
    >>> sure = ScoreTable(torch.tensor([[0.1]]), torch.ones(1, 1))
    >>> both = [ScoreUpdate(torch.tensor([0, 1]), half, torch.tensor([0.2, 0.2])),
    ...         ScoreUpdate(torch.tensor([1]), sure, torch.tensor([0.6]))]
    >>> global_update(old, both, "average").score_RL
    tensor([[0.5000, 0.2000]], dtype=torch.float64)
    """
    holders_L = torch.zeros(table.score_RL.shape[1], dtype=torch.int64)
    total_L = torch.zeros(table.score_RL.shape[1], dtype=torch.float64)
    for update in updates:
        holders_L[update.set_l] += 1
        total_L[update.set_l] += update.beta_l.double()
    score_RL, evidence_RL, beta_RL = (torch.zeros_like(table.score_RL) for _ in range(3))
    added_RL = torch.zeros_like(score_RL, dtype=torch.bool)
    for update in updates:
        beta_l = torch.where((holders_L[update.set_l] > 1) & (total_L[update.set_l] > 0), update.beta_l.double(), 1.0)
        if combine == "average":
            beta_l = beta_l.clamp(min=TINY)
        row_R = torch.ones(len(score_RL), dtype=torch.bool) if update.row_R is None else update.row_R
        beta_Rl = torch.where(row_R[:, None], beta_l, 0.0)
        score_RL[:, update.set_l] += beta_Rl * update.h.score_RL
        evidence_RL[:, update.set_l] += beta_Rl * update.h.evidence_RL
        beta_RL[:, update.set_l] += beta_Rl
        added_RL[:, update.set_l] |= row_R[:, None]
    whole_RL = beta_RL.clamp(min=1e-300) if combine == "average" else torch.ones_like(beta_RL)
    return ScoreTable(
        torch.where(added_RL, score_RL / whole_RL, table.score_RL),
        torch.where(added_RL, evidence_RL / whole_RL, table.evidence_RL),
    )


def targets(mean_Rl: Tensor, scores: str) -> Tensor:
    """Targets of distillation: the mean global scores of a client's labels, as probabilities over them [R, l].

    Noised ones may be below 0, which counts as 0.

    >>> targets(torch.tensor([[0.2, -0.1, 0.2], [-0.1, -0.2, -0.1]]), "softmax")
    tensor([[0.5000, 0.0000, 0.5000],
            [0.3333, 0.3333, 0.3333]])
    """
    if scores == "logits":
        return mean_Rl.softmax(1)
    positive_Rl = mean_Rl.clamp(min=0)
    sum_R1 = positive_Rl.sum(1, keepdim=True)
    return torch.where(sum_R1 > 0, positive_Rl / sum_R1.clamp(min=1e-300), 1 / mean_Rl.shape[1])
