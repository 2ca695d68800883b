"""The replies of a round as the server's parts see them: decoded, then summed and applied.

Shape letters: C clients of the cohort, R replies, P shared parameters, L clients that have left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.types import Extra, Tensors, Turnout

PER_REPLY = (
    "client_R", "position_R", "update_RP", "squared_R", "scale_R", "loss_R", "sent_scale_R", "start_RP", "weight_R",
)  # fmt: skip


@dataclass(frozen=True)
class Updates:
    """The decoded updates of a round, one row per reply. Substitution and aggregation see this.

    On a GPU the next round reuses the memory of `update_RP`: copy what is to be kept.

    t             round
    seed          of the experiment
    client_R      the client of each reply
    update_RP     its decoded update of the shared parameters
    start_P       the shared parameters at the beginning of the round
    turnout       of the whole cohort
    position_R    each reply's place in the cohort
    squared_R     squared length of each update, where it was measured in local training; None: not known
    scale_R       factor that the server still applies to each update (`scale_at = "server"`); None: none
    sent_scale_R  factor that each client had applied to its update before sending it; None: none
    loss_R        mean training loss of each client over its local steps
    lr            learning rate of the clients
    start_RP      what each client started from, where that was not the shared parameters
    objective_size  number of clients in the objective
    objective_share  computes each reply's share p_k of the whole objective
    left          kept rows [L, ...] of clients that left but still count: term -> name -> rows
    states        state means to be taken beside the update (BatchNorm statistics, ...): name -> [R, ...]
    uploads       uploads of the terms: term -> name -> [R, ...]
    hints         uploads for the substitution: name -> [R, ...]
    slots         the parameters of the columns
    """

    t: int
    seed: int
    client_R: Tensor
    update_RP: Tensor
    start_P: Tensor
    turnout: Turnout
    position_R: Tensor
    squared_R: Tensor | None = None
    scale_R: Tensor | None = None
    sent_scale_R: Tensor | None = None
    loss_R: Tensor | None = None
    lr: float = 1.0
    start_RP: Tensor | None = None
    objective_size: int = 0
    objective_share: Callable[[], Tensor] | None = None
    left: dict[str, Tensors] = field(default_factory=dict)
    states: Tensors = field(default_factory=dict)
    uploads: dict[str, Tensors] = field(default_factory=dict)
    hints: Tensors = field(default_factory=dict)
    slots: tuple[Slot, ...] = ()

    @cached_property
    def turnout_R(self) -> Turnout:
        """The turnout of the clients that replied, row by row."""
        return self.turnout.take(self.position_R)

    @cached_property
    def objective_share_R(self) -> Tensor:
        """p_k: each reply's share of the whole objective, whichever clients were asked."""
        assert self.objective_share is not None
        return self.objective_share()

    @property
    def scaled_R(self) -> Tensor:
        """Factor that each client had applied to its update before sending it."""
        return torch.ones(len(self.client_R), dtype=torch.float64) if self.sent_scale_R is None else self.sent_scale_R

    def take(self, rows: Tensor) -> Self:
        """The same record for some of the replies."""

        def chosen(tensors: Tensors) -> Tensors:
            return {name: value[rows.to(value.device)] for name, value in tensors.items()}

        share = self.objective_share
        changes: dict[str, Any] = chosen({n: v for n in PER_REPLY if (v := getattr(self, n, None)) is not None})
        changes |= {"states": chosen(self.states), "hints": chosen(self.hints)}
        changes["uploads"] = {term: chosen(tensors) for term, tensors in self.uploads.items()}
        return replace(self, objective_share=None if share is None else lambda: share()[rows], **changes)

    def beside(self, of: Callable[[Tensor], Tensor]) -> Self:
        """The same record with a function of each tensor that goes beside the updates: states and uploads."""
        states = {name: of(value) for name, value in self.states.items()}
        uploads = {term: {name: of(value) for name, value in sent.items()} for term, sent in self.uploads.items()}
        return replace(self, states=states, uploads=uploads)

    def models(self) -> Tensor:
        """The weights each client ended with: start + update, unscaled."""
        start = self.start_P if self.start_RP is None else self.start_RP
        return start + self.update_RP / self.scaled_R[:, None].to(self.update_RP)


@dataclass(frozen=True, kw_only=True)
class Applied(Updates):
    """The updates that were used, summed and applied. Mixing, selection and the server side of terms see this.

    weight_R  coefficient of each update in the sum
    sum_P     weighted sum of the updates
    update_P  what the server step was given: the sum, and old updates that stand in for missing clients
    new_P     the shared parameters after the step and the encoding of the broadcast
    friend_C  client that stood in for each missing client of the cohort, -1: none in particular; None: none did
    extra     numbers for the round's record
    """

    weight_R: Tensor
    sum_P: Tensor
    update_P: Tensor
    new_P: Tensor
    friend_C: Tensor | None = None
    extra: Extra = field(default_factory=dict)


def squared_lengths(value_R: Tensor) -> Tensor:
    """The squared Euclidean length of each row [R], float64.

    >>> squared_lengths(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
    tensor([25.,  4.], dtype=torch.float64)
    """
    return torch.linalg.vector_norm(value_R.flatten(1), dim=1).double().square()
