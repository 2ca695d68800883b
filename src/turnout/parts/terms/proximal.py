"""FedProx as a term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.parts.terms.base import At, FusedStep, LocalTerm
from turnout.types import Tensors


@dataclass(frozen=True)
class Proximal(LocalTerm, FusedStep):
    """FedProx: the local loss gains μ/2 ‖w - w_start‖², so the gradient gains μ (w - w_start); `mu` is μ.

    >>> at = At(torch.tensor([[3.0]]), torch.tensor([[1.0]]), 0.1, 0, torch.ones(1), torch.ones(1), *[None] * 3)
    >>> Proximal(mu=0.5).transform_grad(torch.zeros(1, 1), at, {}, {})
    tensor([[1.]])
    """

    cuda_graph_safe: ClassVar[bool] = True

    mu: float = 0.2
    name: str = "proximal"

    def __post_init__(self) -> None:
        check_settings(self, mu="[0, inf)")

    def transform_grad(self, grad_cP: Tensor, at: At, server_state: Tensors, client_state: Tensors) -> Tensor:
        return grad_cP.add_(at.x_cP - at.start_cP, alpha=self.mu)

    def as_quadratic(self, start_cP: Tensor, server_state: Tensors) -> tuple[Tensor, Tensor] | None:
        return (torch.full_like(start_cP[0], self.mu), self.mu * start_cP[0]) if len(start_cP) == 1 else None


KINDS = {"proximal": Proximal, "fedprox": Proximal}
