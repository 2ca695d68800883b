"""Settings of the score track. papers/docs/labels.md explains the defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from turnout.errors import UserError, check_part, nearest
from turnout.models import Model
from turnout.parts.local import Local
from turnout.parts.optimizers import Adam
from turnout.parts.privacy.private import Private
from turnout.parts.privacy.rules import check_selection, refuse
from turnout.parts.selection import Everyone, Selection
from turnout.settings import Evaluate
from turnout.tasks import TaskSpec
from turnout.world.enrolment import ClientNames

CHOICES = {
    "rows": ("all", "labelled"),
    "combine": ("average", "sum"),
    "beta": ("label", "user", "equal"),
    "scores": ("softmax", "logits"),
    "growth": ("plain", "shrunk", "mean"),
    "start": ("fresh", "carried"),
    "nonfinite": ("stop", "absent"),
}


@dataclass(frozen=True)
class Uses:
    """A client uses a model of its own choice.

    client  its number or name
    model   the model
    since   from which round on
    """

    client: int | str
    model: Model
    since: int = 0

    def __post_init__(self) -> None:
        if self.since < 0:
            raise UserError(f"client {self.client!r} cannot change its model in round {self.since}: rounds start at 0")


@dataclass(frozen=True)
class EarlyStopping:
    """A client stops training when its loss has not fallen for some epochs, and keeps its best weights.

    patience  epochs without a lower loss
    share     share of its samples that it does not train on and measures the loss on; if that would be none, the
              training loss decides
    """

    patience: int = 2
    share: float = 0.1

    def __post_init__(self) -> None:
        if self.patience < 1 or not 0 <= self.share < 1:
            raise UserError(f"early stopping needs patience of at least 1 and a share in [0, 1), not {self}")


@dataclass(frozen=True)
class Distil:
    """After the global update each participant trains on the open public samples, with the global scores of its own
    labels as targets (FedMD's digest). Held-out public samples stay unseen.

    epochs      epochs of it
    batch_size  its batch size
    lr          its learning rate; None: that of local training
    """

    epochs: int = 5
    batch_size: int = 32
    lr: float | None = None

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_size) < 1 or (self.lr is not None and not self.lr > 0):
            raise UserError(f"distillation needs epochs and batch_size of at least 1 and lr above 0, not {self}")


@dataclass(frozen=True)
class Scores:
    """Clients train models of their own on labels of their own and exchange only their scores on public samples.

    local      local training
    models     who uses which model from which round on: a list of `Uses`, or {client: model} and
               {client: {round: model}}; others use the experiment's
    early      early stopping of local training; None: all epochs
    rows       "all": a client scores every public sample; "labelled": only those whose label it has, which tells it
               the label (see `paper_literal`)
    combine    overlapping labels: "average" by β, or the literal "sum"
    beta       β, by accuracy on the public samples "label" by label or once per "user"; or "equal"
    scores     "softmax" or "logits"
    growth     the local update adds α f to the global scores: "plain"; "shrunk", divided by 1 + α; "mean", scores are
               read per unit of α, so that a label whose holders were absent is not behind
    decay      factor of the old global scores before that
    start      a model begins "fresh" every round, or is "carried" over while its architecture stays
    held_out   share of the public samples whose labels only the accuracies use: β and distillation use the others
    distil     distil the global scores into the clients' models
    permuted   a control: the algorithm sees the public labels in another order, the accuracies the true ones
    selection  which clients are asked in a round
    nonfinite  scores that are not finite: "stop" the simulation with an error, or count the client "absent", as a
               deployment always does
    privacy    clip and noise scores: differential privacy of clients; None: none
    """

    track_module: ClassVar[str] = "turnout.scores.track"

    local: Local = field(default_factory=lambda: Local(Adam(1e-3, beta1=0.9, beta2=0.999), epochs=5, batch_size=32))
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
    privacy: Private | None = None

    def __post_init__(self) -> None:
        models: Any = self.models
        if isinstance(models, Mapping):
            models = [
                Uses(client, own, since)
                for client, model in models.items()
                for since, own in (model if isinstance(model, Mapping) else {0: model}).items()
            ]
        object.__setattr__(self, "models", tuple(models))
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
        if self.privacy is not None:
            check_part("algorithm.privacy", self.privacy, Private, "Private(clip=1.0, n0=50, epsilon=4, delta=1e-6)")
            self._check_private()

    def _check_private(self) -> None:
        """Refuse what reveals more of a client than its clipped and noised scores."""
        if self.beta != "equal":
            refuse(
                f"beta = {self.beta!r}", "weighs clients by the accuracy of their scores, so that one changes how much "
                "all others count", "use beta = 'equal'",
            )  # fmt: skip
        if self.combine == "sum":
            refuse(
                "combine = 'sum'", "adds the noise of earlier rounds again for every client that has a label",
                "use combine = 'average'",
            )  # fmt: skip
        check_selection(self)

    @property
    def moments(self) -> str:
        """Where the optimizer's state is kept between rounds: with a carried model it is carried too."""
        asked = self.local.optimizer.moments
        return ("local" if self.start == "carried" else "fresh") if asked == "auto" else asked

    @property
    def client_noise(self) -> Private | None:
        """The privacy, where clients add the noise: they then send nothing but noised scores."""
        return self.privacy if self.privacy is not None and self.privacy.noise_at == "client" else None

    def measures_personal(self, asked: Evaluate) -> bool:
        """Whether clients' models are measured: as asked, by default if scores are distilled into them."""
        return self.distil is not None and self.client_noise is None if asked.personal is None else asked.personal

    def metric_names(self, task: TaskSpec, asked: Evaluate) -> list[str]:
        names = ["global_accuracy", "consensus_accuracy"]
        return names + (["personal_accuracy"] if self.measures_personal(asked) else [])


def paper_literal(local: Local | None = None, models: tuple[Uses, ...] = ()) -> Scores:
    """Paper 002 as printed: a client scores only the public samples whose label it has, scores are summed, and the
    accuracies are on the whole public set.

    The public labels leak. On a sample of a label that two clients share, both add to that label's score, and only one
    of them to each of its other labels: the sum is larger for the true label whatever the sample is.
    """
    plain = Scores() if local is None else Scores(local=local)
    return replace(plain, models=models, rows="labelled", combine="sum", held_out=0.0)


@dataclass(frozen=True, eq=False)
class ModelPlan:
    """Which client uses which of an experiment's models from which round on.

    models   by number; 0 is the experiment's own
    changes  by client: rounds and the number of the model it uses from then on, in the order of rounds
    """

    models: Sequence[Model]
    changes: dict[int, list[tuple[int, int]]]

    @staticmethod
    def of(default: Model, uses: Sequence[Uses], known: ClientNames) -> ModelPlan:
        models, changes = [default], dict[int, list[tuple[int, int]]]()
        for entry in uses:
            number = models.index(entry.model) if entry.model in models else len(models)
            models += [entry.model] if number == len(models) else []
            client, names = entry.client, known.names or ()
            found = known.number(client)
            if found is None:  # digits that are not a name are a number too
                found = ClientNames(None, known.clients).number(client)
            if found is None:
                hint = nearest(str(client), names) if names else f"they are 0 to {(known.clients or 0) - 1}"
                raise UserError(f"algorithm.models names client {client!r}, and there is none: {hint}")
            changes.setdefault(found, []).append((entry.since, number))
        for place, own in changes.items():
            own.sort(key=lambda change: change[0])
            if len({since for since, _ in own}) < len(own):
                raise UserError(f"algorithm.models: client {place} has two models from the same round on: keep one")
        return ModelPlan(models, changes)

    def number(self, client: int, t: int) -> int:
        """The number of the model that a client uses in a round."""
        return next((later for since, later in reversed(self.changes.get(client, ())) if since <= t), 0)


KINDS = {"scores": Scores, "paper-literal": paper_literal}
