"""One round's local work as the engine is given it, and what comes of it.

Shape letters: C clients of the cohort, P parameters (all columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from turnout.parts.optimizers import SGD, Optimizer
from turnout.parts.terms.base import Term
from turnout.types import Samples, Tensors


def plain_sgd(optimizer: Optimizer) -> bool:
    return isinstance(optimizer, SGD) and not optimizer.momentum


@dataclass(frozen=True)
class Job:
    """One round's local work for the clients that turned up, in descending order of steps."""

    client_C: Tensor
    steps_C: Tensor  # mini-batches each will finish
    samples: Samples  # of these clients, in this order
    start_P: Tensor  # [P], or [C, P] where clients start from different weights
    states: Tensors  # name -> [...] broadcast to everyone, or [C, ...] if listed in `own_states`
    lr: float
    batch_size: int
    drop_single: bool
    seed: int
    t: int
    optimizer: Optimizer
    scale_C: Tensor | None = None  # what each multiplies its update by before sending it
    own_states: frozenset[str] = frozenset()
    slots: Tensors = field(default_factory=dict)  # optimizer state carried in: name -> [C, P], the job's to write on
    count_C: Tensor | None = None  # optimizer steps carried in
    terms: Sequence[Term] = ()
    down: dict[str, Tensors] = field(default_factory=dict)
    mine: dict[str, Tensors] = field(default_factory=dict)  # term -> name -> [C, ...]
    magnitudes: bool = False  # whether the mean size of each parameter's gradient is wanted

    @property
    def fused(self) -> bool:
        """Plain SGD without terms: gradient and update are one operation."""
        return plain_sgd(self.optimizer) and not self.terms and not self.magnitudes

    @property
    def followed(self) -> int:
        """How many samples' gradients make up a client's update at most; 0 where it is more than their sum, or where
        clients start from different weights (a chunk of one of them looks like a common start)."""
        plain = self.fused and isinstance(self.optimizer, SGD) and not self.optimizer.weight_decay
        common = plain and self.start_P.dim() == 1
        return int(self.steps_C.max()) * self.batch_size if common and len(self.steps_C) else 0


@dataclass
class Trained:
    """The cohort after local training, in the job's order of clients.

    `flat_CP` holds the scaled update (trained - start) in the shared columns, the trained values in the personal ones.
    """

    flat_CP: Tensor
    states: Tensors
    slots: Tensors
    count_C: Tensor
    loss_C: Tensor  # mean over the local steps
    finite_C: Tensor  # whether the update is a number throughout
    up: dict[str, Tensors]
    mine: dict[str, Tensors]
    magnitude: Tensors  # parameter -> mean |gradient| over entries and local steps [C], where wanted
