"""How much each reply counts: FedAvg, schemes A, B and C of paper 000, FedNova, and the shares they start from.

A weighting answers three questions, each with a default: whose work counts, what a client multiplies its update by
before sending it, and what the server multiplies a share by. A new weighting overrides one of them.

Shape letters: C clients of the cohort, I any clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.types import Turnout


def scale(work_C: Tensor, full_work: Tensor | float) -> Tensor:
    """Scheme C: p_t^k = (E / s_t^k) p^k; the factor E / s, and 0 where s = 0.

    >>> scale(torch.tensor([4, 1, 0]), full_work=4)
    tensor([1., 4., 0.])
    """
    return torch.where(work_C > 0, full_work / work_C.clamp(min=torch.finfo(torch.float32).tiny), 0.0)


class Weighting:
    """The defaults: everybody who did anything counts, unscaled, with its own share (that is scheme B).

    `of_updates` says that weights are of whole updates, so that a mean of them has weights that sum to 1.
    """

    of_updates: ClassVar[bool] = True

    def counts(self, turnout: Turnout) -> Tensor:
        """Whose reply is used, as booleans over the cohort."""
        return turnout.present_C

    def client_scale(self, turnout: Turnout) -> Tensor:
        """What each client multiplies its update by before the residual and the encoding; 0 for the absent."""
        return turnout.present_C.to(torch.float64)

    def server_scale(self, share_C: Tensor, counts_C: Tensor, turnout: Turnout, lent: bool) -> Tensor:
        """What the server multiplies each share by, given whose reply is used (at least one).

        `lent`: a substitution gives the shares of the missing away.
        """
        return torch.ones_like(share_C)


@dataclass(frozen=True)
class FedAvg(Weighting):
    """The mean over those who replied: a_k = p_k / Σ_j p_j, j those with s_j > 0; unfinished work counts as it is.

    That is scheme B with the missing shares spread over those who replied. Another substitution than none does
    something else with them, so with one the shares stay as they are.
    """

    def server_scale(self, share_C: Tensor, counts_C: Tensor, turnout: Turnout, lent: bool) -> Tensor:
        if lent or bool(counts_C.all()):
            return torch.ones_like(share_C)
        replied = torch.where(counts_C, share_C, 0.0).sum().clamp(min=1e-300)
        return torch.full_like(share_C, float(share_C.sum() / replied))


@dataclass(frozen=True)
class CompleteOnly(Weighting):
    """Scheme A: a_k = (N p_k / K) [s_k = E], K the number of complete clients.

    N/K pays for those who are missing; a substitution does that too, so with one the factor is dropped.
    """

    def counts(self, turnout: Turnout) -> Tensor:
        return turnout.complete_C

    def server_scale(self, share_C: Tensor, counts_C: Tensor, turnout: Turnout, lent: bool) -> Tensor:
        factor = 1.0 if lent else len(share_C) / int(counts_C.sum())
        return torch.full_like(share_C, factor)


@dataclass(frozen=True)
class ByShare(Weighting):
    """Scheme B: a_k = p_k; unfinished work counts as it is, and the shares of the absent keep the old model."""


@dataclass(frozen=True)
class ByWork(Weighting):
    """Scheme C: a_k = (E / s_k) p_k; each client stands for its full share however little it finished.

    With momentum E and s are the sums of the gradients' coefficients (FedNova's normaliser), for plain SGD the steps.
    """

    def client_scale(self, turnout: Turnout) -> Tensor:
        return scale(turnout.progress_C, turnout.full_progress_C)


@dataclass(frozen=True)
class FedNova(Weighting):
    """w <- w + τ_eff Σ p_k D_k / a_k, a_k the local steps, τ_eff = Σ p_k a_k, shares normalised over those present.

    Those present make up for the rest, as in the paper, which samples clients; a substitution does that too, so with
    one the shares stay as it gives them. Where nobody is absent, scheme C is the same with τ_eff fixed to E. What is
    weighed are single steps, so the weights sum to τ_eff.
    """

    of_updates: ClassVar[bool] = False

    def client_scale(self, turnout: Turnout) -> Tensor:
        return scale(turnout.progress_C, 1.0)

    def server_scale(self, share_C: Tensor, counts_C: Tensor, turnout: Turnout, lent: bool) -> Tensor:
        own_C = torch.where(counts_C, share_C, 0.0)
        mean_progress = (own_C * turnout.progress_C).sum() / own_C.sum()
        return (mean_progress if lent else mean_progress * share_C.sum() / own_C.sum()).expand_as(share_C)


@dataclass(frozen=True)
class Shares:
    """What each client of the cohort stands for.

    by    "samples" (n_c) or "uniform"
    over  "normalised": over the cohort that was asked, so the shares sum to 1; "unbiased": n_c / n · N / |cohort| over
          all members. With everybody asked the two are the same.
    """

    by: str = "samples"
    over: str = "normalised"

    def __post_init__(self) -> None:
        if self.by not in ("samples", "uniform"):
            raise UserError(f"shares are by 'samples' or 'uniform', not {self.by!r}: set algorithm.shares.by")
        if self.over not in ("normalised", "unbiased"):
            raise UserError(f"shares are 'normalised' or 'unbiased', not {self.over!r}: set algorithm.shares.over")

    def of(self, examples_C: Tensor, members: int, mean_examples: float | None) -> Tensor:
        """Shares of a cohort; `mean_examples` is the members' mean sample count, needed only for unbiased shares.

        >>> Shares().of(torch.tensor([1, 3]), members=10, mean_examples=2.0)
        tensor([0.2500, 0.7500], dtype=torch.float64)
        >>> Shares(over="unbiased").of(torch.tensor([1, 3]), members=10, mean_examples=4.0)
        tensor([0.1250, 0.3750], dtype=torch.float64)
        """
        size_C = self._sizes(examples_C)
        if self.over == "normalised":
            return size_C / size_C.sum().clamp(min=1e-300)
        mean = 1.0 if self.by == "uniform" or mean_examples is None else mean_examples
        return size_C / (mean * len(size_C))  # = n_c / (N · mean) · N / |cohort|

    def parts(self, examples_I: Tensor, members: int, mean_examples: Callable[[], float]) -> Tensor:
        """p_k: what some clients stand for in the whole objective, whoever was asked.

        >>> Shares().parts(torch.tensor([1, 3]), members=10, mean_examples=lambda: 2.0)
        tensor([0.0500, 0.1500], dtype=torch.float64)
        """
        return self._sizes(examples_I) / self.mass(members, mean_examples)

    def mass(self, members: int, mean_examples: Callable[[], float]) -> float:
        """Total mass of an objective: clients, or samples (counted only when asked for)."""
        return members * (1.0 if self.by == "uniform" else mean_examples())

    def _sizes(self, examples_C: Tensor) -> Tensor:
        size_C = examples_C.to(torch.float64)
        return torch.ones_like(size_C) if self.by == "uniform" else size_C


KINDS = {
    "fedavg": FedAvg,
    "complete-only": CompleteOnly,
    "by-share": ByShare,
    "by-work": ByWork,
    "fednova": FedNova,
    "A": CompleteOnly,
    "B": ByShare,
    "C": ByWork,
}
