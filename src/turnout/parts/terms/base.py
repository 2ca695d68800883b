"""Local methods as terms of the gradient: a few small functions each, and any number of them in a list.

An author derives from `LocalTerm` and overrides what the method needs of its six members; the classes after it are
optional and only called for terms that derive from them.

A term's rows are like the parameters: code written for one client's row [P] works for a chunk [c, P]. `server_state` is
held by the server and broadcast ([P] each), `client_state` kept by a client between rounds ([c, ...] each, at least one
column), `upload` sent by it ([c, ...] each).

Shape letters: c clients of a chunk, C replies, I clients that leave, P shared parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.machine.profiling import staged
from turnout.parts.updates import Applied, Updates
from turnout.types import Extra, Tensors, wire_bytes


@dataclass(frozen=True)
class At:
    """The state of a chunk of clients during local training (shared columns only).

    x_cP               current weights
    start_cP           weights at the start of the round; [1, P] where all clients start from the same
    lr                 learning rate of the round; a tensor while a GPU records the step
    step               local step, 0 at the first
    steps_c            local steps of this round, in gradients: FedNova's a_k (for plain SGD the steps themselves)
    examples_c         samples each client holds
    gradient           gradient(x): the plain gradient at other weights on the same mini-batch (in `finish`: the first)
    squared_gradients  squared_gradients(m): mean of the squared gradients of up to m samples of each client, one sample
                       at a time, at `x_cP` in evaluation mode: the diagonal of the empirical Fisher information
    full_gradient      full_gradient(x): mean gradient over all samples of each client, in evaluation mode
    t                  round
    """

    x_cP: Tensor
    start_cP: Tensor
    lr: float
    step: int
    steps_c: Tensor
    examples_c: Tensor
    gradient: Callable[[Tensor], Tensor]
    squared_gradients: Callable[[int], Tensor]
    full_gradient: Callable[[Tensor], Tensor]
    t: int = 0


class Term(Protocol):
    """A local method; all of it but the name has a default: a term that keeps no state and sends nothing."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Unique in an algorithm, without '/': the key of the term's state in stores and checkpoints."""

    def server_state(self, initial_P: Tensor) -> Tensors:
        """State on the server before the first round, given the initial weights of the run."""
        return {}

    def client_state(self, initial_P: Tensor) -> Tensors:
        """State of one client before its first round, given the initial weights of the run: they are the same for all
        clients, and not those that a client starts its first round with (`at.start_cP`)."""
        return {}

    def transform_grad(self, grad_cP: Tensor, at: At, server_state: Tensors, client_state: Tensors) -> Tensor:
        """The gradient to use instead; may change `grad_cP` and `client_state` in place."""
        return grad_cP

    def finish(self, at: At, server_state: Tensors, client_state: Tensors) -> tuple[Tensors, Tensors]:
        """When local training ends: the upload, and the next client state."""
        return {}, client_state

    def server_update(self, server_state: Tensors, upload: Tensors, applied: Applied) -> tuple[Tensors, Extra]:
        """On the server: its next state, and columns for the round's record."""
        return server_state, {}


class FusedStep:
    """Optional: steps that fast engines can take as one operation, or record once and repeat."""

    # `transform_grad` and `post_step` depend on tensors alone, so that a GPU may record a step once and repeat it: of
    # `at.step` they read only whether it is 0, of `at.t` nothing, and `at.lr` is a tensor then. The first step and
    # `finish` may also run once beforehand, so they must have no side effects.
    cuda_graph_safe: ClassVar[bool] = False

    def as_quadratic(self, start_cP: Tensor, server_state: Tensors) -> tuple[Tensor, Tensor] | None:
        """(k, f) [P] if `transform_grad` adds k w - f, the same for all clients, and there is no `post_step`: such
        steps can be taken in C. `start_cP` has one row where all clients start from the same weights."""
        return None

    def as_constant_shift(self, server_state: Tensors, client_state: Tensors) -> tuple[Tensor, Tensor | None] | None:
        """(d [c, P], e [P] or None) if `transform_grad` adds e - d at every step and there is no `post_step`: a GPU can
        take such a step in one kernel."""
        return None


class PostStep(ABC):
    """Optional: a change of the weights after each step of the optimizer."""

    @abstractmethod
    def post_step(self, at: At, server_state: Tensors, client_state: Tensors) -> None:
        """Change the weights `at.x_cP` in place (a proximal step, say)."""


class ServerShift(ABC):
    """Optional: a shift of the model besides the aggregated update, as in FedDyn."""

    @abstractmethod
    def server_shift(self, server_state: Tensors, updates: Updates) -> Tensor | None:
        """The shift to add to the server's change before it is encoded and applied [P]; None: none."""


class Notifies(ABC):
    """Optional: a message to the clients whose replies were used, after the round."""

    @abstractmethod
    def notify(self, server_state: Tensors, applied: Applied) -> Tensors:
        """On the server, before `server_update`: one message of any shape for all these clients. Each receives it when
        it is next asked, together with any others. {}: no message."""

    @abstractmethod
    def on_notify(self, message: Tensors, client_state: Tensors) -> Tensors:
        """On a client that has a message: its next state."""


class PersonalModel(ABC):
    """Optional: clients predict with weights of their own."""

    @abstractmethod
    def own(self, x_cP: Tensor, client_state: Tensors) -> Tensor:
        """The weights a client predicts with, given those it would download."""


@dataclass(frozen=True)
class ObjectiveChange:
    """A change of the objective because clients left it or joined.

    part_I  p_l of the clients that left, in the objective before the change
    ratio   factor by which the parts of all other clients grow
    """

    part_I: Tensor
    ratio: float


class Departures:
    """Optional: keep the server's state right when clients leave or join the objective."""

    @property
    def remembers(self) -> bool:
        """Whether `server_update` needs the last states of clients that left but stay in the objective
        (`applied.left`)."""
        return False

    def on_leave(self, client_state: Tensors) -> Tensors:
        """The message of a client that is taken out of the objective."""
        return {}

    def on_objective_change(self, server_state: Tensors, left: Tensors, change: ObjectiveChange) -> Tensors:
        """The server's state for the new objective; `left` has the messages of `on_leave` ([I, ...] each)."""
        return server_state


class SelectiveDownload:
    """Optional: clients download only part of the server's state."""

    def broadcast(self, server_state: Tensors) -> Tensors:
        """The part of it that clients download."""
        return server_state

    def fetched(self, server_state: Tensors, client_state: Tensors) -> Tensor | None:
        """Bytes each client has to download [c]; None: all that is broadcast."""
        return None


class TermTraits:
    """Optional: facts about a term that checks and estimates use before the first round."""

    # Uploads that need no check of their own: upload -> the upload that is not finite whenever this one is not.
    finite_witness: ClassVar[Mapping[str, str]] = {}
    not_negative: ClassVar[tuple[str, ...]] = ()  # uploads without entries below 0; a reply with one is refused

    @property
    def sends(self) -> float:
        """Numbers uploaded per shared parameter, for estimates of memory and time."""
        return 1

    @property
    def comparable(self) -> bool:
        """Whether an entry of an upload means the same for every client, so that it has a median."""
        return True

    @property
    def requires_plain_sgd(self) -> bool:
        """Whether the term takes (w_start - w_end) / (s η) for the mean of a client's gradients."""
        return False


OPTIONAL = (
    FusedStep, PostStep, ServerShift, Notifies, PersonalModel, Departures, SelectiveDownload, TermTraits
)  # fmt: skip


def public_names(kind: type) -> list[str]:
    """The public attributes and methods that a class itself defines."""
    return [name for name in vars(kind) if not name.startswith("_")]


class LocalTerm(Term):
    """The base of one's own terms: give it a `name`, and override what the method needs of `Term`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in OPTIONAL:
            if not issubclass(cls, base) and (found := sorted(set(public_names(base)) & set(vars(cls)))):
                raise UserError(
                    f"{cls.__name__} defines {', '.join(found)}, which is only used of terms that derive from "
                    f"{base.__name__}: class {cls.__name__}(to.terms.LocalTerm, to.terms.{base.__name__})"
                )


# -- what engine, server and runtimes ask of terms, whether they have the optional hook or not


def as_quadratic(term: Term, start_cP: Tensor, server_state: Tensors) -> tuple[Tensor, Tensor] | None:
    """(k, f) if the term only adds k w - f to the gradient (see `FusedStep`)."""
    return term.as_quadratic(start_cP, server_state) if isinstance(term, FusedStep) else None


def sends(term: Term) -> float:
    """Numbers a term uploads per shared parameter: as declared in `TermTraits`, else 1 if it overrides `finish`."""
    return term.sends if isinstance(term, TermTraits) else float(type(term).finish is not Term.finish)


def remembers(term: Term) -> bool:
    """Whether the term needs the last states of clients that left but stay in the objective."""
    return isinstance(term, Departures) and term.remembers


def unwitnessed(terms: Sequence[Term], uploads: dict[str, Tensors]) -> Iterator[Tensors]:
    """The uploads of each term that have to be checked to know that all of them are finite."""
    witnesses = {term.name: term.finite_witness if isinstance(term, TermTraits) else {} for term in terms}
    for term, rows in uploads.items():
        yield {name: value for name, value in rows.items() if witnesses[term].get(name) not in rows}


def shift_model(terms: Sequence[Term], held: dict[str, Tensors], updates: Updates, change_P: Tensor) -> Tensor:
    """The change to the model, with what the terms add to it."""
    for term in terms:
        if isinstance(term, ServerShift) and (shift_P := term.server_shift(held[term.name], updates)) is not None:
            change_P = change_P + shift_P
    return change_P


@staged("terms")
def update_terms(
    terms: Sequence[Term], held: dict[str, Tensors], applied: Applied
) -> tuple[dict[str, Tensors], dict[str, Tensors], Extra]:
    """The server's next state of all terms, their messages to the clients that replied, and columns to record."""
    states, messages, extra = {}, {}, Extra()
    for term in terms:
        if isinstance(term, Notifies) and (message := term.notify(held[term.name], applied)):
            messages[term.name] = message
        states[term.name], noted = term.server_update(held[term.name], applied.uploads.get(term.name, {}), applied)
        extra |= noted
    return states, messages, extra


def terms_bytes(terms: Sequence[Term], held: dict[str, Tensors], own: dict[str, Tensors], clients: int) -> Tensor:
    """Bytes that each client downloads for its terms."""
    total_C = torch.zeros(clients, dtype=torch.int64)
    for term in terms:
        own_C = None
        if isinstance(term, SelectiveDownload):
            own_C = term.fetched(held[term.name], own.get(term.name, {}))
        total_C += wire_bytes(held[term.name]) if own_C is None else own_C.cpu()
    return total_C
