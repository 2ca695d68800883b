"""One round's local work: the engine's input (`Job`) and output (`Trained`).

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
    return not job.magnitudes and job.held_CP is None and all(getattr(part, "cuda_graph_safe", False) for part in parts)


@dataclass(frozen=True)
class Job:
    """One round's local work for the clients that turned up, sorted by steps, most first.

    client_C     the clients
    steps_C      mini-batches each will finish
    samples      of these clients, in this order
    start_P      first weights [P], or [C, P] if clients start from different weights
    states       name -> [...] for all clients, or [C, ...] if the name is in `own_states`
    lr           learning rate of this round
    batch_size   samples in a mini-batch
    drop_single  whether a last batch of one sample is dropped
    seed, t      the run's seed and the round, which address random draws
    optimizer    takes the local steps
    scale_C      factor each client applies to its update before sending it
    own_states   names of states that differ between clients
    slots        optimizer state from earlier rounds: name -> [C, P], overwritten
    count_C      optimizer steps of earlier rounds
    terms        change the gradient, and keep and send tensors
    server_term_states  term -> name -> tensor from the server
    term_states  term -> name -> [C, ...] that clients keep
    magnitudes   whether to record the mean |gradient| of each parameter
    lengths      whether to measure the lengths of updates
    limit        may stop training early
    held_CP      which columns each client has: the others are 0 and stay 0; None: all
    clip         the most that a gradient may be long
    at_once      the most samples of a client whose gradient is computed together; None: a whole mini-batch
    """

    client_C: Tensor
    steps_C: Tensor
    samples: Samples
    start_P: Tensor
    states: Tensors
    lr: float
    batch_size: int
    drop_single: bool
    seed: int
    t: int
    optimizer: Optimizer
    scale_C: Tensor | None = None
    own_states: frozenset[str] = frozenset()
    slots: Tensors = field(default_factory=dict)
    count_C: Tensor | None = None
    terms: Sequence[Term] = ()
    server_term_states: dict[str, Tensors] = field(default_factory=dict)
    term_states: dict[str, Tensors] = field(default_factory=dict)
    magnitudes: bool = False
    lengths: bool = False
    limit: Limit | None = None
    held_CP: Tensor | None = None
    clip: float | None = None
    at_once: int | None = None

    @property
    def fused(self) -> bool:
        """Plain SGD without terms: gradient and update are one operation."""
        return plain_sgd(self.optimizer) and not self.terms and not self.magnitudes and not self.needs_gradient

    @property
    def needs_gradient(self) -> bool:
        """Whether something is done to the gradient of a whole mini-batch before the step."""
        return self.clip is not None or self.at_once is not None

    @property
    def factored_samples(self) -> int:
        """The most samples whose gradients add up to a client's update, for engine/by_hand.py.

        0 if the update is more than that sum (weight decay, momentum, terms), or if clients start from different
        weights (a chunk of a single client would look like a common start).
        """
        plain = self.fused and type(self.optimizer) is SGD and not self.optimizer.weight_decay
        common = plain and self.start_P.dim() == 1
        return int(self.steps_C.max()) * self.batch_size if common and len(self.steps_C) else 0

    def first_step(self, rows: slice) -> Job:
        """The first step of some clients, as a job of their own whose result is not used."""
        return replace(
            self,
            client_C=self.client_C[rows],
            steps_C=self.steps_C[rows].clamp(max=1),
            samples=self.samples.take(torch.arange(len(self.client_C))[rows]),
            start_P=self.start_P[rows] if self.start_P.dim() == 2 else self.start_P,
            states={name: value[rows] if name in self.own_states else value for name, value in self.states.items()},
            scale_C=None if self.scale_C is None else self.scale_C[rows],
            slots={},
            count_C=None,
            term_states={
                term: {n: value[rows] for n, value in kept.items()} for term, kept in self.term_states.items()
            },
            limit=None,
            held_CP=None if self.held_CP is None else self.held_CP[rows],
        )


@dataclass
class Trained:
    """The cohort after local training, in the job's order of clients.

    flat_CP     the scaled update (trained - start) in the shared columns, the trained values in the personal ones
    states      name -> [C, ...]
    slots       optimizer state: name -> [C, P]
    count_C     optimizer steps so far
    loss_C      mean over the local steps
    finite_C    whether the whole update is finite
    squared_C   squared length of the update, float64; empty without `Job.lengths`
    uploads     term -> name -> [C, ...] that clients send
    term_states term -> name -> [C, ...] that clients keep
    magnitude   parameter -> mean |gradient| over entries and local steps [C], if `Job.magnitudes`
    steps_C     steps that were taken: all of the job's, unless its limit was reached
    """

    flat_CP: Tensor
    states: Tensors
    slots: Tensors
    count_C: Tensor
    loss_C: Tensor
    finite_C: Tensor
    uploads: dict[str, Tensors]
    term_states: dict[str, Tensors]
    magnitude: Tensors
    steps_C: Tensor
    squared_C: Tensor
