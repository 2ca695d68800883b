"""What the server knows of a round's replies: the one record that the parts of the server are given.

Shape letters: C clients of the cohort, R replies, P shared parameters, L clients that have left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from turnout.types import Tensors, Turnout


@dataclass(frozen=True)
class Arrived:
    """The replies of a round, one row each, and what became of them so far.

    `weight_R` and `sum_P` are known once the updates are weighed and summed, `new_P` once the change is applied:
    substitution and aggregation come before, the server's step sees the former, mixing and terms all of them. On a GPU
    `update_RP` is memory that the next round uses again: copy what is to be kept.
    """

    t: int
    seed: int
    client_R: Tensor
    update_RP: Tensor  # as decoded
    start_P: Tensor  # the shared parameters at the beginning of the round
    turnout: Turnout  # of the whole cohort
    scale_R: Tensor | None = None  # what the server still multiplies each update by (`scale_at = "server"`)
    hints: Tensors = field(default_factory=dict)  # what clients sent for the substitution
    loss_R: Tensor | None = None  # each one's training loss, the mean over its local steps
    lr: float = 1.0  # their learning rate
    sent_scale_R: Tensor | None = None  # what each client had multiplied its update by; None: nobody did
    start_RP: Tensor | None = None  # what each started from, where that was not the shared parameters
    members: int = 0  # how many clients the objective is over
    parts: Callable[[], Tensor] | None = None  # p_k of the replies in the whole objective, counted only if asked for
    left: dict[str, Tensors] = field(default_factory=dict)  # term -> rows [L, ...] of those who left but still count
    weight_R: Tensor | None = None
    sum_P: Tensor | None = None  # Σ of the updates by their weights
    new_P: Tensor | None = None  # after the server's step and the encoding
    position_R: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # places in the cohort

    def __post_init__(self) -> None:
        if len(self.position_R) != len(self.client_R) and self.turnout is not None:  # made by hand, for a test
            object.__setattr__(self, "position_R", torch.searchsorted(self.turnout.client_C, self.client_R))

    @cached_property
    def turnout_R(self) -> Turnout:
        """The turnout of those who replied, row by row."""
        return self.turnout.take(self.position_R)

    @cached_property
    def part_R(self) -> Tensor:
        """p_k: each reply's part of the whole objective, whoever was asked."""
        assert self.parts is not None
        return self.parts()

    @property
    def scaled_R(self) -> Tensor:
        """What each update had been multiplied by before it was sent."""
        return torch.ones(len(self.client_R), dtype=torch.float64) if self.sent_scale_R is None else self.sent_scale_R

    def take(self, rows: Tensor) -> Arrived:
        """The same for some of the replies."""
        position_r, parts = self.position_R[rows], self.parts
        chosen: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value[rows.to(value.device)]
            for name in ("client_R", "update_RP", "scale_R", "loss_R", "sent_scale_R", "start_RP", "weight_R")
        }
        hints = {name: value[rows.to(value.device)] for name, value in self.hints.items()}
        own = None if parts is None else lambda: parts()[rows]
        return replace(self, hints=hints, position_R=position_r, parts=own, **chosen)

    def models(self) -> Tensor:
        """The weights each client ended with: start + update, unscaled."""
        start = self.start_P if self.start_RP is None else self.start_RP
        return start + self.update_RP / self.scaled_R[:, None].to(self.update_RP)
