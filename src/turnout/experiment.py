"""An experiment has three sections: the world, the algorithm, the runtime. Plus model, task, and when to stop.

These are values only: what they mean is in the parts, how they run in round.py and running/, how they are written as
TOML in config/.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from turnout.data import Synthetic
from turnout.data.federation import DataSpec as DataSpec
from turnout.errors import UserError, check_part, nearest
from turnout.layout import Predicate
from turnout.models import Logistic, Model
from turnout.parts.aggregation import Aggregation, WeightedSum
from turnout.parts.closing import Closing, WaitForAll
from turnout.parts.compatibility import check_algorithm
from turnout.parts.compression.base import Compression, Dense
from turnout.parts.local import Local
from turnout.parts.membership.policy import Membership
from turnout.parts.mixing import Mixing, SharedStart
from turnout.parts.selection import Everyone, Selection
from turnout.parts.server import ServerSGD, ServerStep
from turnout.parts.substitution.base import NoSubstitution, Substitution
from turnout.parts.terms.base import PersonalModel, Term
from turnout.parts.weighting import FedAvg, Shares, Weighting
from turnout.settings import Evaluate, InProcess, RuntimeSpec
from turnout.summary import chosen, settings_html
from turnout.tasks import Classification, TaskSpec
from turnout.world.attacks import Attack, Share, check_attackers
from turnout.world.devices import Devices
from turnout.world.events import Events
from turnout.world.participation import Always, Participation

PERSONAL_PARTS = ("worst", "spread", "noisy", "clean")  # of clients' own models: evaluation.summary and .spread


@dataclass(frozen=True)
class World:
    """What a deployment will not let you choose.

    data           the samples, and which client holds which
    participation  which clients show up in a round, and how much of the work they finish
    events         which clients join and leave, and when
    devices        how fast devices and their links are; None: time is not simulated
    attack         what hostile clients do to their updates, one attack after another (attacks.SignFlip(), ...)
    attackers      the hostile clients: a share of the clients, drawn by the seed, or a list of clients
    """

    data: DataSpec = field(default_factory=Synthetic)
    participation: Participation = field(default_factory=Always)
    events: tuple[Events, ...] = ()
    devices: Devices | None = None
    attack: tuple[Attack, ...] = ()
    attackers: Share = 0.0

    def __post_init__(self) -> None:
        check_part("world.data", self.data, DataSpec, "data.Digits(clients=20)")
        check_part("world.participation", self.participation, Participation, "participation.Dropout(0.3)")
        if self.devices is not None:
            check_part("world.devices", self.devices, Devices, "devices.Tiers()")
        listed = (self.events,) if hasattr(self.events, "drawn") else tuple(self.events)
        object.__setattr__(self, "events", listed)
        if not all(hasattr(entry, "events") for entry in listed):
            raise UserError("world.events is a list of Join, Leave, EventLog and RandomEvents")
        self._check_attack()

    def _check_attack(self) -> None:
        attacks = (self.attack,) if hasattr(self.attack, "update") else tuple(self.attack)
        object.__setattr__(self, "attack", attacks)
        for attack in attacks:
            check_part("world.attack", attack, Attack, "attacks.SignFlip()")
        check_attackers("world.attackers", self.attackers)
        if bool(attacks) != bool(self.attackers):
            lacks, has = ("attackers", "attack") if attacks else ("attack", "attackers")
            raise UserError(f"world.{has} has no effect without world.{lacks}: set both, or neither")


class AlgorithmSpec(Protocol):
    """What you do about it: federate weights (`Algorithm`), or something else on a track of its own.

    Another algorithm than `Algorithm` has an attribute `track_module`: the dotted path of the module that prepares its
    track (running/tracks/track.py, `TrackModule`), imported when it is used.
    """

    @property
    def local(self) -> Local: ...

    @property
    def selection(self) -> Selection: ...

    def metric_names(self, task: TaskSpec, asked: Evaluate) -> list[str]:
        """What is evaluated, by name; the main one first."""
        ...


@dataclass(frozen=True)
class Algorithm:
    """What you do about it: clients train weights, the server averages them. The default is FedAvg.

    local           local training: optimizer, epochs or steps, batch size
    terms           local methods that change the gradient, such as FedProx or SCAFFOLD
    personal        predicate of the parameters that stay with the client, which keeps them and their moments
    share_personal  upload personal parameters as well (counted in bytes); their average completes a central model
    newcomers       what clients without personal values start with: the "initial" values, that "average", or the
                    initial ones with BatchNorm statistics "calibrated" by one pass over the client's own samples
    mixing          what clients start from: the shared parameters, or a mix of clients' models for each (mixing.py)
    compression     how updates are encoded, in both directions
    substitution    what happens to the shares of missing clients
    weighting       whose work counts, and how unfinished work is scaled
    shares          the share of each client in the cohort: by samples or uniform
    aggregation     how updates become one: a weighted sum, or a robust aggregation
    server          the server's step with the aggregated update
    selection       which members are asked in a round
    membership      what to do about clients that join, leave or are hardly ever there
    closing         when a round is closed, and what happens to late replies (needs `world.devices`)
    scale_at        where unfinished work is scaled: by the "client" before its residual, or at the "server" (the
                    paper's literal form)
    max_weight      cap of the whole coefficient of one update: share, boost, borrowed shares, N/K, E/s wherever it is
                    applied, and the discount of a late reply (off by default: a large N/K or E/s is part of a scheme)
    nonfinite       a client whose update is not finite: "stop" the simulation with an error, or count the client as
                    "absent", as a deployment always does
    """

    local: Local = field(default_factory=Local)
    terms: tuple[Term, ...] = ()
    personal: Predicate | None = None
    share_personal: bool = False
    newcomers: str = "initial"
    mixing: Mixing = field(default_factory=SharedStart)
    compression: Compression = field(default_factory=Dense)
    substitution: Substitution = field(default_factory=NoSubstitution)
    weighting: Weighting = field(default_factory=FedAvg)
    shares: Shares = field(default_factory=Shares)
    aggregation: Aggregation = field(default_factory=WeightedSum)
    server: ServerStep = field(default_factory=ServerSGD)
    selection: Selection = field(default_factory=Everyone)
    membership: Membership = field(default_factory=Membership)
    closing: Closing = field(default_factory=WaitForAll)
    scale_at: str = "client"
    max_weight: float | None = None
    nonfinite: str = "stop"

    @property
    def makes_own(self) -> bool:
        """Whether clients have models of their own."""
        by_terms = any(isinstance(term, PersonalModel) for term in self.terms)
        return by_terms or self.personal is not None or self.mixing.personal

    def __post_init__(self) -> None:
        check_parts(self)
        if self.scale_at not in ("client", "server"):
            raise UserError(f"algorithm.scale_at is 'client' or 'server', not {self.scale_at!r}")
        if self.nonfinite not in ("stop", "absent"):
            raise UserError(f"algorithm.nonfinite is 'stop' or 'absent', not {self.nonfinite!r}")
        if self.newcomers not in ("initial", "average", "calibrated"):
            raise UserError(f"algorithm.newcomers is 'initial', 'average' or 'calibrated', not {self.newcomers!r}")
        if self.max_weight is not None and not self.max_weight > 0:
            raise UserError(f"algorithm.max_weight must be above 0, not {self.max_weight}; leave it out for no cap")
        check_algorithm(self)

    def metric_names(self, task: TaskSpec, asked: Evaluate) -> list[str]:
        """Those of the global model where the server has all of it, then those of clients' own models."""
        whole, own = self.personal is None or self.share_personal, self.measures_personal(asked)
        kinds = (["global"] if whole else []) + (["personal"] if own else [])
        if not kinds:
            raise UserError("the server has no whole model (algorithm.personal), so clients' own must be measured: "
                          "leave evaluate.personal out, or set algorithm.share_personal")  # fmt: skip
        known = [f"{kind}_{name}" for kind in kinds for name in {task.main: 0, **task.metrics, "loss": 0}]
        return known + ([f"personal_{task.main}_{part}" for part in PERSONAL_PARTS] if own else [])

    def measures_personal(self, asked: Evaluate) -> bool:
        """Whether clients' own models are measured: as asked, else where something is their own."""
        return self.makes_own if asked.personal is None else asked.personal


ALGORITHM_PARTS: dict[str, tuple[type, str]] = {
    "local": (Local, "Local(SGD(lr=0.1), epochs=5)"),
    "mixing": (Mixing, "FedAMP()"),
    "compression": (Compression, "SparseTernary(keep=0.01)"),
    "substitution": (Substitution, "Friends()"),
    "weighting": (Weighting, "ByWork(); derive your own from roles.Weighting"),
    "shares": (Shares, "Shares(by='uniform')"),
    "aggregation": (Aggregation, "WeightedSum()"),
    "server": (ServerStep, "ServerAdam()"),
    "selection": (Selection, "selection.Fraction(0.5)"),
    "membership": (Membership, "Membership(leave='decide')"),
    "closing": (Closing, "Deadline(60)"),
}


def check_parts(algorithm: Algorithm) -> None:
    """Every part of an algorithm plays the role it is given."""
    for name, (role, example) in ALGORITHM_PARTS.items():
        check_part(f"algorithm.{name}", getattr(algorithm, name), role, example)
    terms = tuple(algorithm.terms) if isinstance(algorithm.terms, list | tuple) else (algorithm.terms,)
    for term in terms:
        check_part("algorithm.terms", term, Term, "Proximal(mu=0.1); derive your own from terms.LocalTerm")
    object.__setattr__(algorithm, "terms", terms)
    if algorithm.personal is not None and not callable(algorithm.personal):
        raise UserError(
            f"algorithm.personal = {algorithm.personal!r} is no rule for what stays home: give personal.batch_norm, "
            "personal.Named('head.*'), or a function of a name and the model"
        )


@dataclass(frozen=True)
class Stop:
    """When to stop before the last round: a target reached, no gain for some rounds, or a budget spent.

    target           value of `metric` that ends the run
    metric           the metric that target and patience refer to; the task's main global metric by default
    patience         evaluations without a new best
    seconds          budget of this computer's time, counted after each round
    bytes            budget of bytes sent in both directions, counted after each round
    simulated_hours  budget of the time of `world.devices`: a round that would end later is cut, and does not count
    """

    target: float | None = None
    metric: str | None = None
    patience: int | None = None
    seconds: float | None = None
    bytes: int | None = None
    simulated_hours: float | None = None

    def __post_init__(self) -> None:
        for name in ("patience", "seconds", "bytes", "simulated_hours"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"stop.{name} must be above 0, not {value}; leave it out for no limit")

    @property
    def simulated_seconds(self) -> float:
        """`simulated_hours` in seconds; inf without."""
        return math.inf if self.simulated_hours is None else self.simulated_hours * 3600


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs.

    world      data, participation, events, devices
    model      a model of `turnout.models`, a torch module, or a function that builds one
    algorithm  what clients and the server do
    task       loss and metrics
    rounds     number of rounds
    seed       seed of all random draws
    evaluate   what is measured, and how often
    stop       when to stop before the last round
    runtime    where client work runs
    start      a safetensors file of weights to start from instead of fresh ones
    track      trackers that receive the numbers: "tensorboard", "mlflow:http://host:5000", "wandb:project", or a list
    title      its name in tables, reports and run folders
    """

    world: World = field(default_factory=World)
    model: Model = field(default_factory=Logistic)
    algorithm: AlgorithmSpec = field(default_factory=Algorithm)
    task: TaskSpec = field(default_factory=Classification)
    rounds: int = 100
    seed: int = 0
    evaluate: Evaluate = field(default_factory=Evaluate)
    stop: Stop = field(default_factory=Stop)
    runtime: RuntimeSpec = field(default_factory=InProcess)
    start: str | None = None
    track: str | tuple[str, ...] = ()
    title: str = ""

    def __post_init__(self) -> None:
        listed = (self.track,) if isinstance(self.track, str) else self.track
        if not isinstance(listed, tuple | list) or not all(isinstance(said, str) for said in listed):
            raise UserError(f'track is a text such as "tensorboard", or a list of them, not {self.track!r}')
        object.__setattr__(self, "track", tuple(listed))
        check_part("world", self.world, World, "World(data.Digits(clients=20))")
        check_part("algorithm", self.algorithm, AlgorithmSpec, "Algorithm(Local(epochs=5))")
        check_part("task", self.task, TaskSpec, "Classification()")
        check_part("evaluate", self.evaluate, Evaluate, "Evaluate(every=5)")
        check_part("stop", self.stop, Stop, "Stop(target=0.9)")
        check_part("runtime", self.runtime, RuntimeSpec, "InProcess(device='cpu')")
        for name in ("rounds", "seed"):
            if not isinstance(getattr(self, name), int):
                raise UserError(f"{name} must be a whole number, not {getattr(self, name)!r}")
        if self.rounds < 1:
            raise UserError(f"an experiment needs at least 1 round, not {self.rounds}: set rounds")
        if self.seed < 0:
            raise UserError(f"a seed must not be negative, but is {self.seed}")

    def _repr_html_(self) -> str:
        """What a notebook shows: what was chosen, part by part."""
        rows: dict[str, Any] = {"data": self.world.data, "model": self.model}
        rows |= {name: part for name, part in chosen(self.world) if name != "data"}
        rows |= dict(chosen(self.algorithm)) if isinstance(self.algorithm, Algorithm) else {"algorithm": self.algorithm}
        shown = ("world", "model", "algorithm", "title")
        rows |= {name: part for name, part in chosen(self) if name not in shown}
        return settings_html(self.title or "Experiment", rows | {"rounds": self.rounds, "seed": self.seed})

    def but(self, **changes: Any) -> Experiment:
        """The same experiment with some settings replaced, by path: `but(**{"algorithm.weighting": ByShare()})`.

        >>> Experiment().but(rounds=3, **{"world.data.alpha": 0.5}).world.data.alpha
        0.5
        """
        result = self
        for path, value in changes.items():
            result = _with(result, path.split("."), value)
        return result


def _with(thing: Any, path: list[str], value: Any) -> Any:
    if not hasattr(thing, path[0]):
        known = getattr(thing, "__dataclass_fields__", ())
        raise UserError(f"{type(thing).__name__} has no setting {path[0]!r}: {nearest(path[0], known)}")
    inner = value if len(path) == 1 else _with(getattr(thing, path[0]), path[1:], value)
    return replace(thing, **{path[0]: inner})


KINDS = {"weights": Algorithm}
