"""How much each reply counts: FedAvg, schemes A, B and C of paper 000, FedNova, and the shares they start from.

A weighting has three methods with defaults: which replies count, the factor a client applies to its update before
sending it, and the factor the server applies to a share. A new weighting overrides one of them.

Shape letters: C clients of the cohort, I any clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.types import Turnout


def scale(work_C: Tensor, full_work: Tensor | float) -> Tensor:
    """Scheme C: p_t^k = (E / s_t^k) p^k; the factor E / s, and 0 where s = 0.

    >>> scale(torch.tensor([4, 1, 0]), full_work=4)
    tensor([1., 4., 0.])
    """
    return torch.where(work_C > 0, full_work / work_C.clamp(min=torch.finfo(torch.float32).tiny), 0.0)


class Weighting:
    """The defaults: every client that did any work counts, unscaled, with its own share (scheme B).

    of_updates   whether weights are of whole updates, so that the weights of a mean sum to 1
    after_noise  whether `server_scale` is one public factor for all, which a private run applies after its noise; where
                 it is not, the fixed divisor of a private run stands for it
    """

    of_updates: ClassVar[bool] = True
    after_noise: ClassVar[bool] = False

    def counts(self, turnout: Turnout) -> Tensor:
        """Mask of the clients of the cohort whose reply is used."""
        return turnout.present_C

    def client_scale(self, turnout: Turnout) -> Tensor:
        """Factor that each client applies to its update before the residual and the encoding; 0 for the absent."""
        return turnout.present_C.to(torch.float64)

    def server_scale(self, share_C: Tensor, counts_C: Tensor, turnout: Turnout, lent: bool) -> Tensor:
        """Factor that the server applies to each share, given which replies are used (at least one).

        `lent`: a substitution gives the shares of missing clients to others.
        """
        return torch.ones_like(share_C)


@dataclass(frozen=True)
class FedAvg(Weighting):
    """The mean over the clients that replied: a_k = p_k / Σ_j p_j, j those with s_j > 0; unfinished work is not scaled.

    That is scheme B with the missing shares spread over the clients that replied. With a substitution, which uses them
    otherwise, the shares stay as they are.
    """

    def server_scale(self, share_C: Tensor, counts_C: Tensor, turnout: Turnout, lent: bool) -> Tensor:
        if lent or bool(counts_C.all()):
            return torch.ones_like(share_C)
        replied = torch.where(counts_C, share_C, 0.0).sum().clamp(min=1e-300)
        return torch.full_like(share_C, float(share_C.sum() / replied))


@dataclass(frozen=True)
class CompleteOnly(Weighting):
    """Scheme A: a_k = (N p_k / K) [s_k = E], K the number of complete clients.

    N/K compensates for missing clients; so does a substitution, and with one the factor is dropped.
    """

    after_noise: ClassVar[bool] = True

    def counts(self, turnout: Turnout) -> Tensor:
        return turnout.complete_C

    def server_scale(self, share_C: Tensor, counts_C: Tensor, turnout: Turnout, lent: bool) -> Tensor:
        factor = 1.0 if lent else len(share_C) / int(counts_C.sum())
        return torch.full_like(share_C, factor)


@dataclass(frozen=True)
class ByShare(Weighting):
    """Scheme B: a_k = p_k; unfinished work is not scaled, and the shares of absent clients keep the old model."""


@dataclass(frozen=True)
class ByWork(Weighting):
    """Scheme C: a_k = (E / s_k) p_k; each client stands for its full share however little work it did.

    With momentum E and s are the sums of the gradients' coefficients (FedNova's normaliser), for plain SGD the steps.
    """

    def client_scale(self, turnout: Turnout) -> Tensor:
        return scale(turnout.progress_C, turnout.full_progress_C)


@dataclass(frozen=True)
class FedNova(Weighting):
    """w <- w + τ_eff Σ p_k D_k / a_k, a_k the local steps, τ_eff = Σ p_k a_k, shares normalised over present clients.

    Present clients compensate for the others, as in the paper, which samples clients; so does a substitution, and with
    one the shares are not normalised. Without absences, scheme C is the same with τ_eff fixed to E. The weights are of
    single steps, so they sum to τ_eff.
    """

    of_updates: ClassVar[bool] = False
    after_noise: ClassVar[bool] = True

    def client_scale(self, turnout: Turnout) -> Tensor:
        return scale(turnout.progress_C, 1.0)

    def server_scale(self, share_C: Tensor, counts_C: Tensor, turnout: Turnout, lent: bool) -> Tensor:
        own_C = torch.where(counts_C, share_C, 0.0)
        mean_progress = (own_C * turnout.progress_C).sum() / own_C.sum()
        return (mean_progress if lent else mean_progress * share_C.sum() / own_C.sum()).expand_as(share_C)


@dataclass(frozen=True)
class Shares:
    """The share of each client of the cohort.

    by    "samples" (n_c) or "uniform"
    over  "normalised": over the cohort that was asked, so the shares sum to 1; "unbiased": n_c / n · N / |cohort| over
          all members. The two are the same if all members are asked.
    """

    by: str = "samples"
    over: str = "normalised"

    def __post_init__(self) -> None:
        check_settings(self, by=("samples", "uniform"), over=("normalised", "unbiased"))

    def of(self, examples_C: Tensor, members: int, mean_examples: float | None) -> Tensor:
        """Shares of a cohort; `mean_examples` is the members' mean sample count, needed only for unbiased shares.

        >>> Shares().of(torch.tensor([1, 3]), members=10, mean_examples=2.0)
        tensor([0.2500, 0.7500], dtype=torch.float64)
        >>> Shares(over="unbiased").of(torch.tensor([1, 3]), members=10, mean_examples=4.0)
        tensor([0.1250, 0.3750], dtype=torch.float64)
        """
        size_C = (torch.ones_like(examples_C) if self.by == "uniform" else examples_C).to(torch.float64)
        if self.over == "normalised":
            return size_C / size_C.sum().clamp(min=1e-300)
        mean = 1.0 if self.by == "uniform" or mean_examples is None else mean_examples
        return size_C / (mean * len(size_C))  # = n_c / (N · mean) · N / |cohort|

    def parts(self, examples_I: Tensor, members: int, mean_examples: Callable[[], float]) -> Tensor:
        """p_k: the shares of some clients in the whole objective, whichever clients were asked.

        >>> Shares().parts(torch.tensor([1, 3]), members=10, mean_examples=lambda: 2.0)
        tensor([0.0500, 0.1500], dtype=torch.float64)
        """
        size_I = torch.ones_like(examples_I) if self.by == "uniform" else examples_I
        return size_I.to(torch.float64) / self.mass(members, mean_examples)

    def mass(self, members: int, mean_examples: Callable[[], float]) -> float:
        """Total mass of an objective: clients, or samples (counted only if needed)."""
        return members * (1.0 if self.by == "uniform" else mean_examples())


KINDS = {
    "fedavg": FedAvg, "complete-only": CompleteOnly, "by-share": ByShare, "by-work": ByWork, "fednova": FedNova,
    "A": CompleteOnly, "B": ByShare, "C": ByWork,
}  # fmt: skip
