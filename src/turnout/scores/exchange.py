"""What crosses between the server and the clients of the score track, and what its runtimes promise.

A round asks twice. `build`: train, and score the public samples. `learn`, after the global update: take in the global
scores of your labels, and keep your model. Models stay with the clients in between. All records are tensors and plain
values, so that they can travel as bytes (wire.py).

Shape letters: C clients asked, I any clients, R public samples, T those of them that are tested on, l labels of one
client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from turnout.types import Extra, Tensors, Turnout
from turnout.world.events import Event

Averages = dict[str, Tensors]  # which part of which model (averaging.py) -> parameter or buffer -> value


@dataclass(frozen=True, eq=False)
class BuildRequest:
    """The first question: train your model, and score the public samples."""

    t: int
    lr: float
    client_C: Tensor
    averages: Averages = field(default_factory=dict)  # what models begin from with start = "averaged"

    def among(self, client_I: Tensor) -> BuildRequest:
        """The same for some of those asked."""
        return replace(self, client_C=client_I)


@dataclass(frozen=True, eq=False)
class ScoreReply:
    """What a participant sends: scores on the public samples for its own labels, and how many samples it trained on."""

    client: int
    set_l: Tensor  # its labels, sorted
    f_Rl: Tensor
    examples: int
    loss: float
    epochs: float
    finite: bool
    weight_bytes: int  # of its model, for comparison


@dataclass(frozen=True)
class Spent:
    """What the clients' work took: seconds of training and of scoring, and how much was done in them."""

    training: float = 0.0
    epochs: float = 0.0
    scoring: float = 0.0
    scored: float = 0.0  # public samples, each counted once a client

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.training + other.training,
            self.epochs + other.epochs,
            self.scoring + other.scoring,
            self.scored + other.scored,
        )


@dataclass(frozen=True, eq=False)
class BuildAnswer:
    """Who answered with how much work, and the replies of those who did some; both in the order of client ids."""

    turnout: Turnout
    replies: Sequence[ScoreReply] = ()
    spent: Spent = Spent()

    @staticmethod
    def nobody(full_work: float) -> BuildAnswer:
        zero_C = torch.zeros(0, dtype=torch.float64)
        return BuildAnswer(Turnout(torch.zeros(0, dtype=torch.int64), zero_C, full_work, zero_C, zero_C))

    def plus(self, other: BuildAnswer) -> BuildAnswer:
        """With the answer of other clients."""
        mine, theirs = self.turnout, other.turnout
        order_C = torch.cat([mine.client_C, theirs.client_C]).argsort()
        both = Turnout(
            torch.cat([mine.client_C, theirs.client_C]),
            torch.cat([mine.work_C, theirs.work_C]),
            mine.full_work,
            torch.cat([mine.progress_C, theirs.progress_C.double()]),
            torch.cat([mine.full_progress_C, theirs.full_progress_C.double()]),
        ).take(order_C)
        replies = sorted([*self.replies, *other.replies], key=lambda reply: reply.client)
        return BuildAnswer(both, replies, self.spent + other.spent)

    def among(self, client_C: Tensor) -> BuildAnswer:
        """The same, with those who were not there as absent."""
        return replace(self, turnout=self.turnout.among(client_C))


@dataclass(frozen=True, eq=False)
class LearnRequest:
    """The second question, to those whose scores were used: learn from the global scores, and keep your model.

    mean      by client: the global scores of its labels per unit of evidence [R, l]; NaN where nobody has scored
    open_R    which public samples may be learnt from
    tested_R  which of them a model that has learnt is asked about
    """

    t: int
    mean: Mapping[int, Tensor]
    open_R: Tensor
    tested_R: Tensor

    @property
    def client_C(self) -> Tensor:
        return torch.tensor(list(self.mean), dtype=torch.int64)

    def among(self, client_I: Tensor) -> LearnRequest:
        """The same for some of those asked."""
        own = set(client_I.tolist())
        return replace(self, mean={client: mean_Rl for client, mean_Rl in self.mean.items() if client in own})


@dataclass(frozen=True, eq=False)
class LearnReply:
    """What a participant sends after it has learnt.

    output_Tl  what its model says of the samples tested on, where there was something to learn
    weights    its weights, by what they are averaged with, where start = "averaged"
    """

    client: int
    output_Tl: Tensor | None = None
    weights: Averages = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class OwnOutput:
    """What a client's latest model says of some public samples; `set_l`: the labels it was trained for."""

    client: int
    set_l: Tensor
    output_Tl: Tensor


class ScoreSimulation(Protocol):
    """What only simulated clients can be asked."""

    def own_module(self, client: int) -> nn.Module | None:
        """A client's latest model; None where it has none yet."""
        ...


class ScoreRuntime(Protocol):
    """Maps the work of the score track over clients, and says who turned up."""

    @property
    def simulation(self) -> ScoreSimulation | None:
        """None where clients are real."""
        ...

    def names(self) -> tuple[str, ...] | None:
        """What the clients are called, by number, where that is known."""
        ...

    def noted(self) -> Extra:
        """What else the last round's record should say."""
        ...

    def examples(self, client_C: Tensor) -> Tensor:
        """How many training samples each client usually has, known from its enrolment."""
        ...

    def label_sets(self, client_C: Tensor, t: int) -> Sequence[Tensor]:
        """The labels each client has in a round, sorted: it says so when it enrols, and when they change."""
        ...

    def events(self, t: int) -> Sequence[Event]:
        """Who leaves and joins at the beginning of a round: as the world has it, or as nodes have said."""
        ...

    def build(self, request: BuildRequest) -> BuildAnswer:
        """Who answered with how much work, one row for everybody asked, and the replies."""
        ...

    def learn(self, request: LearnRequest) -> Sequence[LearnReply]:
        """The models of these clients' last replies are theirs now, after learning; what others built is dropped."""
        ...

    def forget(self, client_I: Tensor) -> None:
        """Nothing is kept of these clients any more: one that comes back is new."""
        ...

    def measure(self, client_C: Tensor, tested_R: Tensor) -> Sequence[OwnOutput]:
        """What the latest models of clients say of some public samples; a client without a model says nothing."""
        ...

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        """Write what changed since `files` were written; the files that hold everything now."""
        ...

    def load(self, run: str, folder: Path, files: list[str]) -> None:
        """A run begins (no files) or goes on: go back to what these files say. `run` tells this run from others."""
        ...

    def durable(self, t: int) -> None:
        """The checkpoint of round t is on the disk: the run will never go back behind it."""
        ...

    def close(self) -> None:
        """The run has ended, however it ended: let go of processes and connections."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a result may depend on beyond the experiment: device, engine, chunk, threads."""
        ...

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        """Bytes it will need by what for, with so many clients in a round and in all rounds together."""
        ...
