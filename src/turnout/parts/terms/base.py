"""Local methods as terms of the gradient: a few small functions each, and any number of them in a list.

A term's rows are like the parameters: what is written for one client's row [P] works for a chunk [c, P]. `down` is what
the server holds for the term ([P] each) and broadcasts, `mine` what a client keeps between rounds ([c, ...] each, at
least one column), `up` what it sends ([c, ...] each), `outbox` what those who replied hear when the round has ended:
one message for all of them.

The terms that correct by what they remember are in control_variates.py (SCAFFOLD, FedGATE, VRL-SGD) and mime.py; a
second model of the client's own is in apfl.py.

Shape letters: c clients of a chunk, C replies, I clients who leave, P shared parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from turnout.parts.arrived import Arrived
from turnout.types import Extra, Tensors


@dataclass(frozen=True)
class At:
    """Where a chunk of clients stands in its local training (shared columns only).

    `gradient(x)` is the plain gradient at other weights on the same mini-batch (in `after`: on the first one);
    `squared_gradients(m)` the mean over up to m of each client's own samples of the square of one sample's gradient, at
    `x_cP` and in evaluation mode: the diagonal of the empirical Fisher information; `full_gradient(x)` the mean of the
    gradients of all of them, in evaluation mode (both in engine/own_samples.py).
    """

    x_cP: Tensor
    start_cP: Tensor  # [1, P] where everybody starts from the same weights
    lr: float
    step: int  # 0 at the first local step
    steps_c: Tensor  # local steps of this round, in gradients: FedNova's a_k (for plain SGD the steps themselves)
    examples_c: Tensor
    gradient: Callable[[Tensor], Tensor]
    squared_gradients: Callable[[int], Tensor]
    full_gradient: Callable[[Tensor], Tensor]
    t: int = 0


@dataclass(frozen=True)
class Reform:
    """The objective after some have left it or joined: what a term's server side may have to make good."""

    part_I: Tensor  # p_l of those who left, in the objective as it was
    ratio: float  # what the parts of the others are multiplied by


class Term(Protocol):
    """A local method. `down` and `mine` are declared so that stores and checkpoints know them."""

    @property
    def name(self) -> str: ...

    @property
    def remembers(self) -> bool:
        """Whether merging needs what those keep who have left but stay in the objective."""
        ...

    @property
    def personal(self) -> bool:
        """Whether clients predict with a model of their own (`own`)."""
        ...

    @property
    def requires_plain_sgd(self) -> bool:
        """Whether it takes (w_start - w_end) / (s η) for the mean of a client's gradients."""
        ...

    @property
    def sends(self) -> float:
        """Numbers that `after` sends for each shared parameter: for the estimate of memory."""
        ...

    def down(self, start_P: Tensor) -> Tensors:
        """What the server holds before the first round, given the first weights."""
        ...

    def broadcast(self, down: Tensors) -> Tensors:
        """What of it clients download."""
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

    def spring(self, start_cP: Tensor, down: Tensors) -> tuple[Tensor, Tensor] | None:
        """(k, f) [P] where `correct` adds k w - f, the same for everybody, and `settle` does nothing: such steps can be
        taken in C. None for any other term. `start_cP` has one row where all start from the same weights."""
        ...

    def drift(self, down: Tensors, mine: Tensors) -> tuple[Tensor, Tensor | None] | None:
        """(d [c, P], e [P] or None) where `correct` adds e - d at every step, and `settle` does nothing: a GPU can take
        such a step at once. None for any other term."""
        ...

    def settle(self, at: At, down: Tensors, mine: Tensors) -> None:
        """After the optimizer's step: change the weights `at.x_cP` in place (a proximal step, say)."""
        ...

    def after(self, at: At, down: Tensors, mine: Tensors) -> tuple[Tensors, Tensors]:
        """When training ends: what to send, and what to keep."""
        ...

    def merge(self, down: Tensors, up: Tensors, arrived: Arrived) -> tuple[Tensors, Extra]:
        """On the server: what it holds next, and what the round's record should say."""
        ...

    def move(self, down: Tensors, arrived: Arrived) -> Tensor | None:
        """On the server, before the change is encoded and applied: what the term adds to it [P]; None: nothing."""
        ...

    def tell(self, down: Tensors, arrived: Arrived) -> Tensors:
        """On the server, before `merge`: what those who replied are told now that the round has ended, [P] or any other
        shape, the same for all of them: a client hears it when it is asked again, in whatever company. {} tells
        nothing."""
        ...

    def hear(self, outbox: Tensors, mine: Tensors) -> Tensors:
        """On those clients, where something was told: what they keep after that."""
        ...

    def own(self, x_cP: Tensor, mine: Tensors) -> Tensor:
        """The weights a client predicts with, given those it would download; asked only where `personal` is True."""
        ...

    def farewell(self, mine: Tensors) -> Tensors:
        """What a client sends when it is taken out of the objective."""
        ...

    def reform(self, down: Tensors, said: Tensors, reform: Reform) -> Tensors:
        """On the server, when the objective has changed: what it holds then, given the farewells ([I, ...] each)."""
        ...


class LocalTerm(Term):
    """The defaults: a term that neither sends nor keeps anything."""

    personal: ClassVar[bool] = False
    # Whether `correct` and `settle` depend on tensors alone, so that a GPU may record a step once and repeat it: they
    # ask for no number, nor for `at.step` or `at.t`, and `at.lr` is a tensor then. The first step, and `after`, may be
    # tried beforehand too: nothing but their results may come of them.
    cuda_graph_safe: ClassVar[bool] = False
    finite_witness: ClassVar[str | None] = None  # of what is sent: what is no number whenever anything of it is not

    @property
    def sends(self) -> float:
        return 0

    @property
    def remembers(self) -> bool:
        return False

    @property
    def requires_plain_sgd(self) -> bool:
        return False

    def down(self, start_P: Tensor) -> Tensors:
        return {}

    def mine(self, start_P: Tensor) -> Tensors:
        return {}

    def fetched(self, down: Tensors, mine: Tensors) -> Tensor | None:
        return None

    def broadcast(self, down: Tensors) -> Tensors:
        return down

    def correct(self, grad_cP: Tensor, at: At, down: Tensors, mine: Tensors) -> Tensor:
        return grad_cP

    def spring(self, start_cP: Tensor, down: Tensors) -> tuple[Tensor, Tensor] | None:
        return None

    def drift(self, down: Tensors, mine: Tensors) -> tuple[Tensor, Tensor | None] | None:
        return None

    def settle(self, at: At, down: Tensors, mine: Tensors) -> None:
        return None

    def after(self, at: At, down: Tensors, mine: Tensors) -> tuple[Tensors, Tensors]:
        return {}, mine

    def merge(self, down: Tensors, up: Tensors, arrived: Arrived) -> tuple[Tensors, Extra]:
        return down, {}

    def move(self, down: Tensors, arrived: Arrived) -> Tensor | None:
        return None

    def tell(self, down: Tensors, arrived: Arrived) -> Tensors:
        return {}

    def hear(self, outbox: Tensors, mine: Tensors) -> Tensors:
        return mine

    def own(self, x_cP: Tensor, mine: Tensors) -> Tensor:
        return x_cP

    def farewell(self, mine: Tensors) -> Tensors:
        return {}

    def reform(self, down: Tensors, said: Tensors, reform: Reform) -> Tensors:
        return down


def moved(terms: Sequence[Term], held: dict[str, Tensors], arrived: Arrived, change_P: Tensor) -> Tensor:
    """The change to the model, with what the terms add to it."""
    for term in terms:
        extra_P = term.move(held[term.name], arrived)
        change_P = change_P if extra_P is None else change_P + extra_P
    return change_P


def merged(
    terms: Sequence[Term], held: dict[str, Tensors], sums: dict[str, Tensors], arrived: Arrived
) -> tuple[dict[str, Tensors], dict[str, Tensors], Extra]:
    """The server's side of all terms: what it holds next, what those who replied are told, and what to record."""
    down, outbox, extra = {}, {}, Extra()
    for term in terms:
        if said := term.tell(held[term.name], arrived):
            outbox[term.name] = said
        down[term.name], noted = term.merge(held[term.name], sums.get(term.name, {}), arrived)
        extra |= noted
    return down, outbox, extra
