"""Local methods as terms of the gradient: a few small functions each, and any number of them in a list.

A term's rows are like the parameters: what is written for one client's row [P] works for a chunk [c, P]. `down` is what
the server broadcasts for the term ([P] each), `mine` what a client keeps between rounds ([c, ...] each, at least one
column), `up` what it sends ([c, ...] each).

Shape letters: c clients of a chunk, C replies, P shared parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from turnout.errors import Mistake
from turnout.types import Tensors, Turnout

Extra = dict[str, float | str]  # numbers and words for the round's record


@dataclass(frozen=True)
class At:
    """Where a chunk of clients stands in its local training (shared columns only).

    `gradient(x)` is the plain gradient at other weights on the same mini-batch (in `after`: on the first one);
    `squared_gradients(m)` the mean over up to m of each client's own samples of the square of one sample's gradient, at
    `x_cP` and in evaluation mode: the diagonal of the empirical Fisher information (engine/own_samples.py).
    """

    x_cP: Tensor
    start_cP: Tensor  # [1, P] where everybody starts from the same weights
    lr: float
    step: int  # 0 at the first local step
    steps_c: Tensor  # local steps of this round
    examples_c: Tensor
    gradient: Callable[[Tensor], Tensor]
    squared_gradients: Callable[[int], Tensor]
    t: int = 0


@dataclass(frozen=True)
class Merging:
    """What the server knows when it merges what a term's clients sent."""

    turnout: Turnout  # of those whose reply counts, row by row as in `up`
    share_C: Tensor
    members: int
    start_P: Tensor
    new_P: Tensor
    lr: float
    t: int
    left: Tensors = field(default_factory=dict)  # `mine` of those who have left but stay in the objective, if asked for


class Term(Protocol):
    """A local method. `down` and `mine` are declared so that stores and checkpoints know them."""

    @property
    def name(self) -> str: ...

    @property
    def remembers(self) -> bool:
        """Whether merging needs what those keep who have left but stay in the objective."""
        ...

    def down(self, start_P: Tensor) -> Tensors:
        """What the server broadcasts before the first round, given the first weights."""
        ...

    def mine(self, start_P: Tensor) -> Tensors:
        """One client's state before its first round."""
        ...

    def fetched(self, down: Tensors, mine: Tensors) -> Tensor | None:
        """Bytes each client has to download for the term [c]; None: all of `down`."""
        ...

    def correct(self, grad_cP: Tensor, at: At, down: Tensors, mine: Tensors) -> Tensor:
        """The gradient to use instead; may change `grad_cP` and `mine` in place."""
        ...

    def settle(self, at: At, down: Tensors, mine: Tensors) -> None:
        """After the optimizer's step: change the weights `at.x_cP` in place (a proximal step, say)."""
        ...

    def after(self, at: At, down: Tensors, mine: Tensors) -> tuple[Tensors, Tensors]:
        """When training ends: what to send, and what to keep."""
        ...

    def merge(self, down: Tensors, up: Tensors, merging: Merging) -> tuple[Tensors, Extra]:
        """On the server: the next broadcast, and what the round's record should say."""
        ...


class Stateless:
    """The defaults: a term that neither sends nor keeps anything."""

    @property
    def remembers(self) -> bool:
        return False

    def down(self, start_P: Tensor) -> Tensors:
        return {}

    def mine(self, start_P: Tensor) -> Tensors:
        return {}

    def fetched(self, down: Tensors, mine: Tensors) -> Tensor | None:
        return None

    def correct(self, grad_cP: Tensor, at: At, down: Tensors, mine: Tensors) -> Tensor:
        return grad_cP

    def settle(self, at: At, down: Tensors, mine: Tensors) -> None:
        return None

    def after(self, at: At, down: Tensors, mine: Tensors) -> tuple[Tensors, Tensors]:
        return {}, mine

    def merge(self, down: Tensors, up: Tensors, merging: Merging) -> tuple[Tensors, Extra]:
        return down, {}


@dataclass(frozen=True)
class Proximal(Stateless):
    """FedProx: the local loss gains μ/2 ‖w - w_start‖², so the gradient gains μ (w - w_start).

    >>> import torch
    >>> at = At(torch.tensor([[3.0]]), torch.tensor([[1.0]]), 0.1, 0, torch.ones(1), torch.ones(1), None, None)
    >>> Proximal(mu=0.5).correct(torch.zeros(1, 1), at, {}, {})
    tensor([[1.]])
    """

    mu: float = 0.2
    name: str = "proximal"

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise Mistake(f"a proximal term with mu = {self.mu} would push clients away from the start: use mu >= 0")

    def correct(self, grad_cP: Tensor, at: At, down: Tensors, mine: Tensors) -> Tensor:
        return grad_cP.add_(at.x_cP - at.start_cP, alpha=self.mu)
