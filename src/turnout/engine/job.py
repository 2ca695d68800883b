"""One round's local work: what the engine is given (`Job`) and what it returns (`Trained`).

Shape letters: C clients of the cohort, P parameters (all columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from turnout.exchange import Limit
from turnout.parts.optimizers import SGD, Optimizer
from turnout.parts.terms.base import Term
from turnout.types import Samples, Tensors


def plain_sgd(optimizer: Optimizer) -> bool:
    """Whether this is SGD without momentum (weight decay is allowed)."""
    return type(optimizer) is SGD and not optimizer.momentum


def cuda_graph_safe(job: Job) -> bool:
    """Whether a GPU may capture the steps of a job: every part declares that its step depends on tensors alone."""
    parts = (job.optimizer, *job.terms)
    return not job.magnitudes and all(getattr(part, "cuda_graph_safe", False) for part in parts)


@dataclass(frozen=True)
class Job:
    """One round's local work for the clients that turned up, sorted by steps, most first."""

    client_C: Tensor
    steps_C: Tensor  # mini-batches each will finish
    samples: Samples  # of these clients, in this order
    start_P: Tensor  # [P], or [C, P] if clients start from different weights
    states: Tensors  # name -> [...] broadcast to everyone, or [C, ...] if listed in `own_states`
    lr: float
    batch_size: int
    drop_single: bool
    seed: int
    t: int
    optimizer: Optimizer
    scale_C: Tensor | None = None  # factor each client applies to its update before sending it
    own_states: frozenset[str] = frozenset()
    slots: Tensors = field(default_factory=dict)  # optimizer state from before: name -> [C, P], overwritten
    count_C: Tensor | None = None  # optimizer steps from before
    terms: Sequence[Term] = ()
    down: dict[str, Tensors] = field(default_factory=dict)
    mine: dict[str, Tensors] = field(default_factory=dict)  # term -> name -> [C, ...]
    magnitudes: bool = False  # whether to record the mean |gradient| of each parameter
    limit: Limit | None = None  # where training may have to stop early

    @property
    def fused(self) -> bool:
        """Plain SGD without terms: gradient and update are one operation."""
        return plain_sgd(self.optimizer) and not self.terms and not self.magnitudes

    @property
    def factored_samples(self) -> int:
        """The most samples whose gradients add up to a client's update, for engine/factored.py.

        0 if the update is more than that sum (weight decay, momentum, terms), or if clients start from different
        weights (a chunk of a single client would look like a common start).
        """
        plain = self.fused and type(self.optimizer) is SGD and not self.optimizer.weight_decay
        common = plain and self.start_P.dim() == 1
        return int(self.steps_C.max()) * self.batch_size if common and len(self.steps_C) else 0

    def first_step(self, rows: slice) -> Job:
        """The first step of some clients, as a job of their own that nobody wants the result of."""
        own = {name: value[rows] if name in self.own_states else value for name, value in self.states.items()}
        return replace(
            self,
            client_C=self.client_C[rows],
            steps_C=self.steps_C[rows].clamp(max=1),
            samples=self.samples.take(torch.arange(len(self.client_C))[rows]),
            start_P=self.start_P[rows] if self.start_P.dim() == 2 else self.start_P,
            states=own,
            scale_C=None if self.scale_C is None else self.scale_C[rows],
            slots={},
            count_C=None,
            mine={term: {n: value[rows] for n, value in kept.items()} for term, kept in self.mine.items()},
            limit=None,
        )


@dataclass
class Trained:
    """The cohort after local training, in the job's order of clients.

    `flat_CP` has the scaled update (trained - start) in the shared columns and the trained values in the personal ones.
    """

    flat_CP: Tensor
    states: Tensors
    slots: Tensors
    count_C: Tensor
    loss_C: Tensor  # mean over the local steps
    finite_C: Tensor  # whether the whole update is finite
    up: dict[str, Tensors]
    mine: dict[str, Tensors]
    magnitude: Tensors  # parameter -> mean |gradient| over entries and local steps [C], if `Job.magnitudes`
    steps_C: Tensor  # steps that were taken: all of the job's, unless it has a limit
