"""What crosses between the server, the runtime and the clients in a round, and what a runtime promises.

round.py has the round itself. A runtime only maps client work over a cohort: simulated clients in this process
(runtimes/inprocess.py), or real ones.

Shape letters: C clients of the cohort (sorted by id), R replies, L clients that have left, P shared parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from turnout.evaluation.probes import Watch
from turnout.layout import Layout
from turnout.parts.substitution.base import Lent
from turnout.parts.terms.base import Extra
from turnout.types import Replies, Samples, State, Tensors, Turnout, flatten
from turnout.world.events import Event
from turnout.world.members import Members


@dataclass(frozen=True)
class Server:
    """Everything the server carries from round to round."""

    shared_P: Tensor
    states: Tensors  # averaged beside the parameters: BatchNorm statistics, "moment/...", "personal/..." where shared
    down: dict[str, Tensors]  # what is held for each term, and broadcast as it says
    parts: dict[str, State]  # the state of mixing, substitution, compression, server step, membership
    members: Members
    origin: int = 0  # the round in which the objective last shifted: where the clock starts

    @property
    def objective(self) -> Members:
        """Whom the objective is over: the members, and those who have left but stay in it."""
        gone_L = self.parts["membership"]["gone_L"]
        return self.members.plus(gone_L) if len(gone_L) else self.members

    def to_state(self) -> State:
        """As a tree for a checkpoint."""
        plain = {name: getattr(self, name) for name in ("shared_P", "states", "down", "parts", "origin")}
        return plain | {"members": self.members.to_state()}

    @classmethod
    def from_state(cls, state: State) -> Server:
        states = flatten(state["states"])[0]  # "moment/first" is one name here, not a branch of the tree
        return cls(**state | {"states": states, "members": Members.from_state(state["members"])})


@dataclass(frozen=True)
class Download:
    """What the server sends to everyone it asks."""

    t: int
    lr: float
    shared_P: Tensor
    states: Tensors
    down: dict[str, Tensors]
    client_C: Tensor
    start_CP: Tensor | None = None  # what each of them starts from, where that is not the shared parameters

    def start(self, client_R: Tensor) -> Tensor:
        """What some of those asked start from, in whatever order: [P], or a row each."""
        if self.start_CP is None:
            return self.shared_P
        return self.start_CP[torch.searchsorted(self.client_C, client_R).to(self.start_CP.device)]


@dataclass(frozen=True)
class ClientWork:
    """What those whose work counts will do, most steps first."""

    client_R: Tensor
    steps_R: Tensor
    scale_R: Tensor | None
    samples: Samples
    drop_single: bool  # a last batch of one sample is left out, for batch statistics
    watch: Watch | None = None  # what they look at in themselves


class Runtime(Protocol):
    """Maps client work over a cohort. Nothing else knows whether clients are simulated or real."""

    @property
    def layout(self) -> Layout: ...

    def examples(self, client_C: Tensor) -> Tensor:
        """Training samples of each client, known from its enrolment."""
        ...

    def mean_examples(self, members: Members) -> float:
        """The members' mean sample count, for unbiased shares."""
        ...

    def events(self, t: int) -> Sequence[Event]:
        """Who leaves and joins at the beginning of a round: as the world has it, or as nodes have said."""
        ...

    def forget(self, client_I: Tensor) -> tuple[Tensor, dict[str, Tensors]]:
        """Some clients have been taken out of the objective, and nothing is kept for them: who of them had something,
        and what they say to the terms, row by row."""
        ...

    def tell(self, client_R: Tensor, told: dict[str, Tensors]) -> None:
        """Those whose replies were used hear what the terms make of the round."""
        ...

    def left_behind(self, client_L: Tensor) -> dict[str, Tensors]:
        """What clients that have left keep for the terms that remember them: term -> name -> [L, ...]."""
        ...

    def gradient(self, server: Server, client_C: Tensor, share_C: Tensor, t: int) -> Tensor | None:
        """The mean of ∇F_c, by shares, at the server's weights [P], over those who answer in this round; None: nobody.

        F_c is over all training samples of a client.
        """
        ...

    def ask(self, client_C: Tensor, download: Download) -> tuple[Turnout, Replies | None]:
        """Who answered with how much work, and the replies of those who count (None: there are none)."""
        ...


@dataclass(frozen=True)
class Served:
    """The outcome of the server's half."""

    server: Server
    weight_C: Tensor
    counts_C: Tensor
    lent: Lent
    total_P: Tensor  # the weighted sum, before the server's step
    told: dict[str, Tensors]  # what the terms say to those whose replies were used
    extra: Extra = field(default_factory=dict)


class Hindsight(Protocol):
    """Measures, in a simulation, what the missing would have sent."""

    def compare(self, served: Served, replies: Replies, turnout: Turnout, share_C: Tensor, download: Download) -> Extra:
        """Numbers for the round's record."""
        ...
