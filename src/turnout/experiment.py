"""An experiment has three sections: the world, the algorithm, the runtime. Plus model, task, and when to stop.

These are values only: what they mean is in the parts, how they run in round.py and running/, how they are written as
TOML in config/.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Protocol, get_type_hints

from turnout.data import Synthetic
from turnout.data.federation import DataSpec as DataSpec
from turnout.errors import UserError, check_part, check_settings, unknown_setting
from turnout.layout import Predicate
from turnout.models import Logistic, Model
from turnout.parts.aggregation import Aggregation, WeightedSum
from turnout.parts.closing import Closing, WaitForAll
from turnout.parts.compatibility import check_algorithm
from turnout.parts.compression.base import Compression, Dense
from turnout.parts.local import Local
from turnout.parts.membership.policy import Membership
from turnout.parts.mixing import Mixing, SharedStart
from turnout.parts.privacy.private import Private
from turnout.parts.secure import SecureSum
from turnout.parts.selection import Everyone, Selection
from turnout.parts.server import ServerSGD, ServerStep
from turnout.parts.substitution.base import NoSubstitution, Substitution
from turnout.parts.terms.base import PersonalModel, Term
from turnout.parts.weighting import FedAvg, Shares, Weighting
from turnout.settings import Evaluate, InProcess, RuntimeSpec
from turnout.tasks import Classification, TaskSpec
from turnout.world.attacks import Attack, Share, check_attackers
from turnout.world.devices import Devices
from turnout.world.events import Events
from turnout.world.participation import Always, Participation

PERSONAL_PARTS = ("worst", "spread", "noisy", "clean")  # of clients' own models: evaluation.summary and .spread


@lru_cache
def roles_of(section: Any) -> dict[str, tuple[type, str]]:
    """The role of each part of a section of an experiment, and its default as an example."""
    hints = get_type_hints(section)
    made: dict[str, Any] = {f.name: f.default_factory for f in fields(section) if f.default_factory is not MISSING}
    return {n: (hints[n], f"{make.__name__}()") for n, make in made.items() if isinstance(hints[n], type)}


def check_parts(section: Any, where: str = "") -> None:
    """Every part plays the role that its field has."""
    kind: Any = type(section)
    for name, (role, example) in roles_of(kind).items():
        own = "" if example == f"{role.__name__}()" else f"; derive your own from roles.{role.__name__}"
        check_part(where + name, getattr(section, name), role, example + own)


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
        check_parts(self, "world.")
        if self.devices is not None:
            check_part("world.devices", self.devices, Devices, "devices.Tiers()")
        listed = (self.events,) if hasattr(self.events, "drawn") else tuple(self.events)
        object.__setattr__(self, "events", listed)
        if not all(hasattr(entry, "events") for entry in listed):
            raise UserError("world.events is a list of Join, Leave, EventLog and RandomEvents")
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
    privacy         clip and noise contributions: differential privacy of clients; None: none
    scale_at        where unfinished work is scaled: by the "client" before its residual, or at the "server" (the
                    paper's literal form)
    max_weight      cap of the whole coefficient of one update: share, boost, borrowed shares, N/K, E/s wherever it is
                    applied, and the discount of a late reply (off by default: a large N/K or E/s is part of a scheme)
    secure          the server learns only sums of updates: SecureSum(), or true; None: it sees each update
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
    privacy: Private | None = None
    scale_at: str = "client"
    max_weight: float | None = None
    secure: SecureSum | bool | None = None
    nonfinite: str = "stop"

    @property
    def makes_own(self) -> bool:
        """Whether clients have models of their own."""
        by_terms = any(isinstance(term, PersonalModel) for term in self.terms)
        return by_terms or self.personal is not None or self.mixing.personal

    def __post_init__(self) -> None:
        check_parts(self, "algorithm.")
        terms = tuple(self.terms) if isinstance(self.terms, list | tuple) else (self.terms,)
        object.__setattr__(self, "terms", terms)
        for term in terms:
            check_part("algorithm.terms", term, Term, "Proximal(mu=0.1); derive your own from terms.LocalTerm")
        if self.personal is not None and not callable(self.personal):
            raise UserError(
                f"algorithm.personal = {self.personal!r} is no rule for what stays home: give personal.batch_norm, "
                "personal.Named('head.*'), or a function of a name and the model"
            )
        if isinstance(self.secure, bool):
            object.__setattr__(self, "secure", SecureSum() if self.secure else None)
        check_settings(self, scale_at=("client", "server"), nonfinite=("stop", "absent"), max_weight="(0, inf]")
        if self.privacy is not None:
            check_part("algorithm.privacy", self.privacy, Private, "Private(clip=1.0, n0=50, epsilon=4, delta=1e-6)")
        check_settings(self, newcomers=("initial", "average", "calibrated"))
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
        limits = ("patience", "seconds", "bytes", "simulated_hours")
        check_settings(self, **dict.fromkeys(limits, "(0, inf]"))

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
        if not isinstance(listed, tuple | list) or not all(isinstance(name, str) for name in listed):
            raise UserError(f'track is a text such as "tensorboard", or a list of them, not {self.track!r}')
        object.__setattr__(self, "track", tuple(listed))
        check_parts(self)
        for name in ("rounds", "seed"):
            if not isinstance(getattr(self, name), int):
                raise UserError(f"{name} must be a whole number, not {getattr(self, name)!r}")
        check_settings(self, rounds="[1, inf)", seed="[0, inf)")

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
        raise UserError(unknown_setting(type(thing).__name__, path[0], known))
    inner = value if len(path) == 1 else _with(getattr(thing, path[0]), path[1:], value)
    return replace(thing, **{path[0]: inner})


KINDS = {"weights": Algorithm}
