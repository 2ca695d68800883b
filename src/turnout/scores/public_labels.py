"""The labels of the public samples: the server has them, the clients have not.

Shape letters: R public samples, T those of them that are tested on, l labels of one client.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.rng import rng


@dataclass(frozen=True, eq=False)
class PublicLabels:
    """The labels of the public samples, and what each may be used for.

    true_R    for the accuracies alone
    shown_R   as the algorithm sees them (β, rows = "labelled"): the true ones, except in the control
    open_R    whose shown label β may use, and which are distilled on
    tested_R  which the accuracies are on: those that are not open, or all of them where all are
    names     of all labels
    """

    true_R: Tensor
    shown_R: Tensor
    open_R: Tensor
    tested_R: Tensor
    names: tuple[str, ...]

    @staticmethod
    def of(y_R: Tensor, names: tuple[str, ...], held_out: float, permuted: bool, seed: int) -> PublicLabels:
        """Hold out a share of every label's samples; in the control, shuffle the labels that are shown."""
        y_R = y_R.cpu()
        open_R = torch.ones(len(y_R), dtype=torch.bool)
        for label in y_R.unique().tolist():
            rows = (y_R == label).nonzero().squeeze(1)
            order = torch.randperm(len(rows), generator=rng(seed, "held out", label))
            open_R[rows[order[: round(held_out * len(rows))]]] = False
        shown_R = y_R[torch.randperm(len(y_R), generator=rng(seed, "permuted"))] if permuted else y_R
        return PublicLabels(y_R, shown_R, open_R, ~open_R if held_out else open_R, names)

    def accuracy(self, score_Rl: Tensor, set_l: Tensor) -> float:
        """Of scores of all public samples, on those tested on."""
        return accuracy(score_Rl, set_l, self.true_R, self.tested_R)

    def accuracy_of(self, output_Tl: Tensor, set_l: Tensor) -> float:
        """The same of scores of the samples tested on alone."""
        every_T = torch.ones(len(output_Tl), dtype=torch.bool)
        return accuracy(output_Tl, set_l, self.true_R[self.tested_R], every_T)


def hits(score_Rl: Tensor, set_l: Tensor, y_R: Tensor) -> Tensor:
    """Whether the largest score of a row is its label's [R]; never where no score is known."""
    best_R = score_Rl.max(1)
    return (set_l[best_R.indices] == y_R) & torch.isfinite(best_R.values)


def accuracy(score_Rl: Tensor, set_l: Tensor, y_R: Tensor, among_R: Tensor) -> float:
    """The share of right guesses among a client's own labels, on the rows that have one of them; NaN without any.

    >>> score = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> accuracy(score, torch.tensor([0, 2]), torch.tensor([0, 2, 1]), torch.ones(3, dtype=torch.bool))
    0.5
    """
    rows_R = among_R & torch.isin(y_R, set_l)
    right_R = hits(score_Rl, set_l, y_R)[rows_R]
    known = bool(torch.isfinite(score_Rl).any())
    return float(right_R.double().mean()) if len(right_R) and known else float("nan")
