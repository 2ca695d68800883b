"""What a person may choose on the score track. papers/docs/labels.md says why the defaults are as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from turnout.errors import UserError, nearest
from turnout.models import Model
from turnout.parts.local import Local
from turnout.parts.optimizers import Adam
from turnout.parts.selection import Everyone, Selection
from turnout.settings import Evaluate
from turnout.tasks import TaskSpec

CHOICES = {
    "rows": ("all", "labelled"),
    "combine": ("average", "sum"),
    "beta": ("label", "user", "equal"),
    "scores": ("softmax", "logits"),
    "growth": ("plain", "shrunk", "mean"),
    "start": ("fresh", "carried", "averaged"),
    "nonfinite": ("stop", "absent"),
}


@dataclass(frozen=True)
class Uses:
    """From a round on, a client (by number or name) uses a model of its own choice."""

    client: int | str
    model: Model
    since: int = 0

    def __post_init__(self) -> None:
        if self.since < 0:
            raise UserError(f"client {self.client!r} cannot change its model in round {self.since}: rounds start at 0")


@dataclass(frozen=True)
class EarlyStopping:
    """A client stops training when its loss has not fallen for `patience` epochs, and keeps its best weights.

    The loss is measured on a `share` of its samples that it does not train on; on the training samples themselves
    where that would be none.
    """

    patience: int = 2
    share: float = 0.1

    def __post_init__(self) -> None:
        if self.patience < 1 or not 0 <= self.share < 1:
            raise UserError(f"early stopping needs patience of at least 1 and a share in [0, 1), not {self}")


@dataclass(frozen=True)
class Distil:
    """After the global update each participant trains on the open public samples, with the global scores of its own
    labels as targets (FedMD's digest). What is held out of the public set stays unseen.

    lr  None: that of local training
    """

    epochs: int = 5
    batch_size: int = 32
    lr: float | None = None

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_size) < 1 or (self.lr is not None and not self.lr > 0):
            raise UserError(f"distillation needs epochs and batch_size of at least 1 and lr above 0, not {self}")


def _local() -> Local:
    return Local(Adam(lr=1e-3, beta1=0.9, beta2=0.999), epochs=5, batch_size=32)


@dataclass(frozen=True)
class Scores:
    """Clients train models of their own on labels of their own and exchange only their scores on public samples.

    models     who uses which model from which round on: a list of `Uses`, or {client: model} and
               {client: {round: model}}; others use the experiment's
    early      early stopping of local training; None: all epochs
    rows       "all": a client scores every public sample; "labelled": only those whose label it has, which tells it
               the label (see `paper_literal`)
    combine    overlapping labels: "average" by β, or the literal "sum"
    beta       β, by accuracy on the public samples "label" by label or once per "user"; or "equal"
    scores     "softmax" or "logits"
    growth     the local update adds α f to the global scores: "plain"; "shrunk", divided by 1 + α; "mean", scores are
               read per unit of α, so that a label whose holders were away is not behind
    decay      what the old global scores are multiplied by before that
    start      a model begins "fresh" every round, "carried" over (while its architecture stays), or "averaged" over
               clients of the same architecture, which sends weights too
    held_out   the share of the public samples whose labels only the accuracies see: β and distillation use the others
    distil     teach the global scores to the clients' models
    permuted   a control: the algorithm is shown the public labels in another order, the accuracies see the true ones
    nonfinite  scores that are not finite: "stop" the simulation with a sentence, or count the client "absent", as a
               deployment always does
    """

    local: Local = field(default_factory=_local)
    models: tuple[Uses, ...] = ()
    early: EarlyStopping | None = field(default_factory=EarlyStopping)
    rows: str = "all"
    combine: str = "average"
    beta: str = "label"
    scores: str = "softmax"
    growth: str = "plain"
    decay: float = 1.0
    start: str = "fresh"
    held_out: float = 0.5
    distil: Distil | None = None
    permuted: bool = False
    selection: Selection = field(default_factory=Everyone)
    nonfinite: str = "stop"

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", _listed(self.models))
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"algorithm.{name} = {value!r}: {nearest(str(value), known)}")
        if not 0 <= self.held_out < 1:
            raise UserError(f"algorithm.held_out is a share in [0, 1), not {self.held_out}")
        if not 0 <= self.decay <= 1:
            raise UserError(f"algorithm.decay is in [0, 1] (1: nothing is forgotten), not {self.decay}")
        if self.distil is not None and self.held_out == 0:
            raise UserError("distillation needs public samples that stay unseen: set algorithm.held_out above 0")
        if self.local.optimizer.moments == "federated":
            raise UserError(
                "scores are federated, not moments: set algorithm.local.optimizer.moments to 'local' or 'fresh'"
            )

    @property
    def moments(self) -> str:
        """What becomes of the optimizer's state between rounds: with a carried model it is carried too."""
        asked = self.local.optimizer.moments
        return ("local" if self.start == "carried" else "fresh") if asked == "auto" else asked

    def measures_personal(self, asked: Evaluate) -> bool:
        """Whether clients' models are measured: as asked, else where they are taught what others know."""
        return self.distil is not None if asked.personal is None else asked.personal

    def metric_names(self, task: TaskSpec, asked: Evaluate) -> list[str]:
        names = ["global_accuracy", "consensus_accuracy"]
        names += ["personal_accuracy"] if self.measures_personal(asked) else []
        return names + (["shown_accuracy"] if self.permuted else [])


def _listed(models: Any) -> tuple[Uses, ...]:
    """Models as a person may write them, as a list."""
    if not isinstance(models, Mapping):
        return tuple(models)
    found = []
    for client, model in models.items():
        by_round = model if isinstance(model, Mapping) else {0: model}
        found += [Uses(client, own, since) for since, own in by_round.items()]
    return tuple(found)


def paper_literal(local: Local | None = None, models: tuple[Uses, ...] = ()) -> Scores:
    """Paper 002 as printed: a client scores only the public samples whose label it has, scores are summed, and the
    accuracies are on the whole public set.

    The public labels leak. On a sample of a label that two clients share, both add to that label's score, and only one
    of them to each of its other labels: the sum is larger for the true label before anybody has looked at the sample.
    """
    plain = Scores() if local is None else Scores(local=local)
    return replace(plain, models=models, rows="labelled", combine="sum", held_out=0.0)


KINDS = {"scores": Scores, "paper-literal": paper_literal}
