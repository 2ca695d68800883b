"""The server's arithmetic: tables of scores on the public samples, one column a label.

Shape letters: R public samples, L labels, l labels of one client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.scores.public_labels import PublicLabels, hits
from turnout.types import State

TINY = 1e-12  # a β of 0 counts this much in an average, so that zeros alone are a plain mean


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """f_G, the global scores, and the evidence behind each: the α of all who added to it, combined as the scores are.

    A score without evidence is unknown, not 0: it is read as -inf, and never wins.
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
        """Scores per unit of evidence; NaN where there is none."""
        return torch.where(self.evidence_RL > 0, self.score_RL / self.evidence_RL.clamp(min=1e-300), torch.nan)

    def to_state(self) -> State:
        return {"score": self.score_RL, "evidence": self.evidence_RL}

    @classmethod
    def from_state(cls, state: State) -> ScoreTable:
        return cls(state["score"], state["evidence"])


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
    """β_m: the accuracy of h_m on open samples, label by label, once for all, or 1; 1 where there is no such sample.

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
class Update:
    """What one client brings: h_m and its evidence on its labels, β, and the rows it may score (None: all)."""

    set_l: Tensor
    h: ScoreTable
    beta_l: Tensor
    row_R: Tensor | None = None


def global_update(table: ScoreTable, updates: Sequence[Update], combine: str) -> ScoreTable:
    """f_G(c) = Σ_m β_{m,c} h_m(c) over those who have label c (divided by Σ β for an average); β = 1 for a label that
    one of them alone has; a score that nobody brings stays.

    >>> old = ScoreTable.blank(1, 2)
    >>> half = ScoreTable(torch.tensor([[0.5, 0.5]]), torch.ones(1, 2))
    >>> sure = ScoreTable(torch.tensor([[0.1]]), torch.ones(1, 1))
    >>> both = [Update(torch.tensor([0, 1]), half, torch.tensor([0.2, 0.2])),
    ...         Update(torch.tensor([1]), sure, torch.tensor([0.6]))]
    >>> global_update(old, both, "average").score_RL
    tensor([[0.5000, 0.2000]], dtype=torch.float64)
    """
    holders_L, total_L = _over_labels(updates, table.score_RL.shape[1])
    score_RL, evidence_RL, beta_RL = (torch.zeros_like(table.score_RL) for _ in range(3))
    brought_RL = torch.zeros_like(score_RL, dtype=torch.bool)
    for update in updates:
        beta_l = torch.where((holders_L[update.set_l] > 1) & (total_L[update.set_l] > 0), update.beta_l.double(), 1.0)
        if combine == "average":
            beta_l = beta_l.clamp(min=TINY)
        row_R = torch.ones(len(score_RL), dtype=torch.bool) if update.row_R is None else update.row_R
        beta_Rl = torch.where(row_R[:, None], beta_l, 0.0)
        score_RL[:, update.set_l] += beta_Rl * update.h.score_RL
        evidence_RL[:, update.set_l] += beta_Rl * update.h.evidence_RL
        beta_RL[:, update.set_l] += beta_Rl
        brought_RL[:, update.set_l] |= row_R[:, None]
    whole_RL = beta_RL.clamp(min=1e-300) if combine == "average" else torch.ones_like(beta_RL)
    return ScoreTable(
        torch.where(brought_RL, score_RL / whole_RL, table.score_RL),
        torch.where(brought_RL, evidence_RL / whole_RL, table.evidence_RL),
    )


def _over_labels(updates: Sequence[Update], labels: int) -> tuple[Tensor, Tensor]:
    """How many bring each label, and the sum of their β."""
    holders_L, total_L = torch.zeros(labels, dtype=torch.int64), torch.zeros(labels, dtype=torch.float64)
    for update in updates:
        holders_L[update.set_l] += 1
        total_L[update.set_l] += update.beta_l.double()
    return holders_L, total_L


def targets(mean_Rl: Tensor, scores: str) -> Tensor:
    """What a client's model is taught: the mean global scores of its labels, as probabilities over them [R, l]."""
    if scores == "logits":
        return mean_Rl.softmax(1)
    return mean_Rl / mean_Rl.sum(1, keepdim=True).clamp(min=1e-300)
