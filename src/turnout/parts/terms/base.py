"""Local methods as terms of the gradient: a few small functions each, and any number of them in a list.

A term's rows are like the parameters: what is written for one client's row [P] works for a chunk [c, P].
`server_state` is what the server holds for the term ([P] each) and broadcasts, `client_state` what a client keeps
between rounds ([c, ...] each, at least one column), `upload` what it sends ([c, ...] each), `outbox` one message to all
clients whose replies were used, delivered with their next download.

The terms that correct by what they remember are in control_variates.py (SCAFFOLD, FedGATE, VRL-SGD) and mime.py; a
second model of the client's own is in apfl.py.

Shape letters: c clients of a chunk, C replies, I clients who leave, P shared parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from turnout.machine.clock import staged
from turnout.parts.updates import Aggregate, Applied
from turnout.types import Extra, Tensors, wire_bytes


@dataclass(frozen=True)
class At:
    """Where a chunk of clients stands in its local training (shared columns only).

    `gradient(x)` is the plain gradient at other weights on the same mini-batch (in `finish`: on the first one);
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
class ObjectiveChange:
    """The objective after some have left it or joined: what a term's server side may have to make good."""

    part_I: Tensor  # p_l of those who left, in the objective as it was
    ratio: float  # what the parts of the others are multiplied by


class Term(Protocol):
    """A local method. `server_state` and `client_state` are declared so that stores and checkpoints know them."""

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
        """Numbers that `finish` sends for each shared parameter: for the estimate of memory."""
        ...

    def server_state(self, start_P: Tensor) -> Tensors:
        """What the server holds before the first round, given the first weights."""
        ...

    def broadcast(self, server_state: Tensors) -> Tensors:
        """What of it clients download."""
        ...

    def client_state(self, start_P: Tensor) -> Tensors:
        """One client's state before its first round."""
        ...

    def fetched(self, server_state: Tensors, client_state: Tensors) -> Tensor | None:
        """Bytes each client has to download for the term [c]; None: all of `server_state`."""
        ...

    def transform_grad(self, grad_cP: Tensor, at: At, server_state: Tensors, client_state: Tensors) -> Tensor:
        """The gradient to use instead; may change `grad_cP` and `client_state` in place."""
        ...

    def as_quadratic(self, start_cP: Tensor, server_state: Tensors) -> tuple[Tensor, Tensor] | None:
        """(k, f) [P] where `transform_grad` adds k w - f, the same for all clients, and `post_step` does nothing: such
        steps can be taken in C. None for any other term. `start_cP` has one row where all start from the same
        weights."""
        ...

    def as_constant_shift(self, server_state: Tensors, client_state: Tensors) -> tuple[Tensor, Tensor | None] | None:
        """(d [c, P], e [P] or None) where `transform_grad` adds e - d at every step, and `post_step` does nothing: a
        GPU can take such a step at once. None for any other term."""
        ...

    def post_step(self, at: At, server_state: Tensors, client_state: Tensors) -> None:
        """After the optimizer's step: change the weights `at.x_cP` in place (a proximal step, say)."""
        ...

    def finish(self, at: At, server_state: Tensors, client_state: Tensors) -> tuple[Tensors, Tensors]:
        """When training ends: what to send, and what to keep."""
        ...

    def server_update(self, server_state: Tensors, upload: Tensors, arrived: Applied) -> tuple[Tensors, Extra]:
        """On the server: what it holds next, and what the round's record should say."""
        ...

    def server_shift(self, server_state: Tensors, arrived: Aggregate) -> Tensor | None:
        """On the server, before the change is encoded and applied: what the term adds to it [P]; None: nothing."""
        ...

    def notify(self, server_state: Tensors, arrived: Applied) -> Tensors:
        """On the server, before `server_update`: one message ([P] or any other shape) to all clients whose replies were
        used; each receives it when it is next asked. {}: no message."""
        ...

    def on_notify(self, outbox: Tensors, client_state: Tensors) -> Tensors:
        """On those clients, where something was told: what they keep after that."""
        ...

    def own(self, x_cP: Tensor, client_state: Tensors) -> Tensor:
        """The weights a client predicts with, given those it would download; asked only where `personal` is True."""
        ...

    def on_leave(self, client_state: Tensors) -> Tensors:
        """What a client sends when it is taken out of the objective."""
        ...

    def on_objective_change(self, server_state: Tensors, left: Tensors, change: ObjectiveChange) -> Tensors:
        """On the server, when the objective has changed: what it holds then, given the farewells ([I, ...] each)."""
        ...


class LocalTerm(Term):
    """The defaults: a term that neither sends nor keeps anything."""

    personal: ClassVar[bool] = False
    # Whether `transform_grad` and `post_step` depend on tensors alone, so that a GPU may record a step once and
    # repeat it: they ask for no number, nor for `at.step` or `at.t`, and `at.lr` is a tensor then. The
    # first step, and `finish`, may be tried beforehand too: nothing but their results may come of them.
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

    def server_state(self, start_P: Tensor) -> Tensors:
        return {}

    def client_state(self, start_P: Tensor) -> Tensors:
        return {}

    def fetched(self, server_state: Tensors, client_state: Tensors) -> Tensor | None:
        return None

    def broadcast(self, server_state: Tensors) -> Tensors:
        return server_state

    def transform_grad(self, grad_cP: Tensor, at: At, server_state: Tensors, client_state: Tensors) -> Tensor:
        return grad_cP

    def as_quadratic(self, start_cP: Tensor, server_state: Tensors) -> tuple[Tensor, Tensor] | None:
        return None

    def as_constant_shift(self, server_state: Tensors, client_state: Tensors) -> tuple[Tensor, Tensor | None] | None:
        return None

    def post_step(self, at: At, server_state: Tensors, client_state: Tensors) -> None:
        return None

    def finish(self, at: At, server_state: Tensors, client_state: Tensors) -> tuple[Tensors, Tensors]:
        return {}, client_state

    def server_update(self, server_state: Tensors, upload: Tensors, arrived: Applied) -> tuple[Tensors, Extra]:
        return server_state, {}

    def server_shift(self, server_state: Tensors, arrived: Aggregate) -> Tensor | None:
        return None

    def notify(self, server_state: Tensors, arrived: Applied) -> Tensors:
        return {}

    def on_notify(self, outbox: Tensors, client_state: Tensors) -> Tensors:
        return client_state

    def own(self, x_cP: Tensor, client_state: Tensors) -> Tensor:
        return x_cP

    def on_leave(self, client_state: Tensors) -> Tensors:
        return {}

    def on_objective_change(self, server_state: Tensors, left: Tensors, change: ObjectiveChange) -> Tensors:
        return server_state


def shift_model(terms: Sequence[Term], held: dict[str, Tensors], aggregate: Aggregate, change_P: Tensor) -> Tensor:
    """The change to the model, with what the terms add to it."""
    for term in terms:
        extra_P = term.server_shift(held[term.name], aggregate)
        change_P = change_P if extra_P is None else change_P + extra_P
    return change_P


@staged("terms")
def update_terms(
    terms: Sequence[Term], held: dict[str, Tensors], applied: Applied
) -> tuple[dict[str, Tensors], dict[str, Tensors], Extra]:
    """The server side of all terms: next server state, messages to the clients whose replies were used, numbers."""
    server_state, messages, extra = {}, {}, Extra()
    for term in terms:
        if message := term.notify(held[term.name], applied):
            messages[term.name] = message
        server_state[term.name], noted = term.server_update(
            held[term.name], applied.uploads.get(term.name, {}), applied
        )
        extra |= noted
    return server_state, messages, extra


def terms_bytes(terms: Sequence[Term], held: dict[str, Tensors], own: dict[str, Tensors], clients: int) -> Tensor:
    """Bytes that each client downloads for its terms."""
    total_C = torch.zeros(clients, dtype=torch.int64)
    for term in terms:
        own_C = term.fetched(held[term.name], own.get(term.name, {}))
        total_C += wire_bytes(held[term.name]) if own_C is None else own_C.cpu()
    return total_C
