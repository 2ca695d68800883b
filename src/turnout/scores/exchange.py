"""What crosses between the server and the clients of the score track, as trees for bytes; the promise of its runtimes.

A round asks twice. `build`: train, and score the public samples. `learn`, after the global update: learn the global
scores of your labels, and keep your model. Models stay with the clients in between.

Shape letters: C clients asked, I any clients, R public samples, T those of them that are tested on, l labels of one
client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from turnout.data import Federation
from turnout.data.labels import Public
from turnout.engine.trainers import Place
from turnout.exchange import ClientKeeper
from turnout.experiment import Experiment
from turnout.scores.settings import ModelPlan, Scores
from turnout.types import State, Turnout
from turnout.world.events import Calendar


@dataclass(frozen=True, eq=False)
class BuildRequest:
    """The first question: train your model, and score the public samples.

    t         the round
    lr        the learning rate
    client_C  who is asked
    key       of the noise that clients add to their scores, if they do: in a simulation the run's, on a device its own
    """

    t: int
    lr: float
    client_C: Tensor
    key: int | None = None


@dataclass(frozen=True, eq=False)
class ScoreReply:
    """What a participant sends.

    client        its number
    set_l         its labels, sorted
    f_Rl          its scores of the public samples for these labels
    examples      samples it trained on
    loss          mean training loss
    epochs        epochs of training
    finite        whether all its numbers are finite
    weight_bytes  size of its model, for comparison
    training      seconds of training; where clients train together, its part by epochs
    scoring       seconds of scoring the public samples, likewise
    """

    client: int
    set_l: Tensor
    f_Rl: Tensor
    examples: int
    loss: float
    epochs: float
    finite: bool
    weight_bytes: int
    training: float = 0.0
    scoring: float = 0.0


@dataclass(frozen=True, eq=False)
class BuildAnswer:
    """The answer to the first question, in the order of client ids.

    turnout  who answered with how much work
    replies  of the clients that did some
    """

    turnout: Turnout
    replies: Sequence[ScoreReply] = ()

    @staticmethod
    def join(answers: Iterable[BuildAnswer], client_C: Tensor, full_work: float) -> BuildAnswer:
        """The answer of several groups of clients; of these asked, the others are absent."""
        zero_C = torch.zeros(0, dtype=torch.float64)
        turnout = Turnout(torch.zeros(0, dtype=torch.int64), zero_C, full_work, zero_C, zero_C)
        replies = list[ScoreReply]()
        for answer in answers:
            turnout = turnout.join(answer.turnout)
            replies += answer.replies
        return BuildAnswer(turnout.among(client_C), sorted(replies, key=lambda reply: reply.client))

    def to_tree(self) -> State:
        return {"turnout": dict(vars(self.turnout)), "replies": tree_of(self.replies)}

    @staticmethod
    def of(tree: State) -> BuildAnswer:
        return BuildAnswer(Turnout(**tree["turnout"]), records_of(ScoreReply, tree["replies"]))


@dataclass(frozen=True, eq=False)
class LearnRequest:
    """The second question, to clients whose scores were used: learn from the global scores, and keep your model.

    t         the round
    mean      by client: the global scores of its labels per unit of evidence [R, l]; NaN where there is none
    open_R    which public samples may be learnt from
    tested_R  which of them the trained model is asked about
    """

    t: int
    mean: Mapping[int, Tensor]
    open_R: Tensor
    tested_R: Tensor

    @property
    def client_C(self) -> Tensor:
        return torch.tensor(list(self.mean), dtype=torch.int64)

    def among(self, clients: Iterable[int]) -> LearnRequest:
        """The same for some of those asked."""
        return replace(self, mean={client: self.mean[client] for client in clients if client in self.mean})

    def to_tree(self) -> State:
        return vars(self) | {"mean": {str(client): mean_Rl for client, mean_Rl in self.mean.items()}}

    @staticmethod
    def of(tree: State) -> LearnRequest:
        return LearnRequest(**tree | {"mean": {int(client): mean_Rl for client, mean_Rl in tree["mean"].items()}})


@dataclass(frozen=True, eq=False)
class OwnOutput:
    """The output of a client's latest model on the public samples that are tested on.

    client     its number
    set_l      the labels the model was trained for
    output_Tl  its output; None in the answer to the second question if there was nothing to learn
    """

    client: int
    set_l: Tensor
    output_Tl: Tensor | None = None


Record = TypeVar("Record", ScoreReply, OwnOutput)


def tree_of(records: Sequence[Record]) -> State:
    """Records of clients as a tree."""
    return {str(own.client): {name: value for name, value in vars(own).items() if value is not None} for own in records}


def records_of(kind: type[Record], tree: State) -> list[Record]:
    """The records of such a tree, in the order of client ids."""
    return sorted((kind(**own) for own in tree.values()), key=lambda record: record.client)


@dataclass(frozen=True, eq=False)
class ScoreSetup:
    """What a runtime is made from.

    experiment  as prepared
    algorithm   its algorithm
    federation  the clients' data
    public      the public samples
    plan        which client uses which model when
    calendar    who joins and leaves when
    place       the device that computes
    """

    experiment: Experiment
    algorithm: Scores
    federation: Federation
    public: Public
    plan: ModelPlan
    calendar: Calendar
    place: Place


class ScoreRuntime(ClientKeeper, Protocol):
    """Maps the work of the score track over clients, and reports who turned up."""

    def label_sets(self, client_C: Tensor, t: int) -> Sequence[Tensor]:
        """The labels each client has in a round, sorted, as it reported when it enrolled or when they changed."""
        ...

    def build(self, request: BuildRequest) -> BuildAnswer:
        """Who answered with how much work, one row for each client asked, and the replies."""
        ...

    def learn(self, request: LearnRequest) -> Sequence[OwnOutput]:
        """Make the models of these clients' last replies their own, after learning; other models are dropped."""
        ...

    def measure(self, client_C: Tensor, tested_R: Tensor) -> Sequence[OwnOutput]:
        """The output of clients' latest models on some public samples; none for a client without a model."""
        ...

    def own_module(self, client: int) -> nn.Module | None:
        """A client's latest model; None if it has none yet. Real devices keep theirs."""
        ...
