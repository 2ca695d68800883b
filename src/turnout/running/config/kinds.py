"""The roles of an experiment, and the short names of the parts that play them.

A role is the type a setting is annotated with. The modules that hold its parts say what they are called in files, each
in a dictionary `KINDS` at its end; here is only where to look. An installed package may add kinds by entry points: of
the group `turnout.weighting`, the name of an entry point is a kind of weighting. Any other part is named by its dotted
path, `package.module:Name` (dotted.py).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from turnout import kinds_in
from turnout.data.federation import DataSpec
from turnout.data.partition import Partition
from turnout.data.sizes import Sizes
from turnout.errors import UserError, lacking, nearest
from turnout.experiment import AlgorithmSpec
from turnout.layout import Predicate
from turnout.models.layers import ModelSpec
from turnout.parts.aggregation import Aggregation
from turnout.parts.closing import Closing
from turnout.parts.compression.base import Compression
from turnout.parts.mixing import Mixing
from turnout.parts.optimizers import Optimizer
from turnout.parts.schedules import Schedule
from turnout.parts.selection import Selection
from turnout.parts.server import ServerStep
from turnout.parts.substitution.base import Substitution
from turnout.parts.terms.base import Term
from turnout.parts.weighting import Weighting
from turnout.running.config.dotted import Permission
from turnout.runtimes.settings import RuntimeSpec
from turnout.task import TaskSpec
from turnout.world.attacks.base import Attack
from turnout.world.devices.base import Devices
from turnout.world.events import Events
from turnout.world.participation import Participation

Maker = Callable[..., Any]


@dataclass(frozen=True)
class Role:
    """Where the kinds of a role are found, and where people find them.

    name      what files, sentences and lists call the role
    protocol  the type its settings are annotated with
    places    the modules that announce its kinds; of a package, all its modules that are no other role's place
    public    the namespace its kinds are public in, such as `turnout.participation`; "" for `turnout` itself
    first     the kind that is listed first and given as an example, where it would not be the first anyway
    satellites  kinds of satellites, and the module that announces each; it is imported when the kind is used
    """

    name: str
    protocol: Any
    places: tuple[str, ...]
    public: str = ""
    first: str | None = None
    satellites: Mapping[str, str] = field(default_factory=dict)


SCORES = dict.fromkeys(("scores", "paper-literal"), "turnout.scores.settings")
ROLES = (
    Role("data", DataSpec, ("turnout.data",), public="data", first="synthetic"),
    Role("partition", Partition, ("turnout.data.partition",), public="partition"),
    Role("sizes", Sizes, ("turnout.data.sizes",), public="data"),
    Role("participation", Participation, ("turnout.world.participation",), public="participation"),
    Role("devices", Devices, ("turnout.world.devices",), public="devices", first="tiers"),
    Role("selection", Selection, ("turnout.parts.selection",), public="selection"),
    Role("model", ModelSpec, ("turnout.models",), public="models", first="logistic"),
    Role("task", TaskSpec, ("turnout.task",)),
    Role("algorithm", AlgorithmSpec, ("turnout.experiment",), satellites=SCORES),
    Role("optimizer", Optimizer, ("turnout.parts.optimizers",)),
    Role("schedule", Schedule, ("turnout.parts.schedules",)),
    Role("term", Term, ("turnout.parts.terms",), first="proximal"),
    Role("mixing", Mixing, ("turnout.parts.mixing",)),
    Role("personal", Predicate, ("turnout.parts.personal",), public="personal"),
    Role("compression", Compression, ("turnout.parts.compression",)),
    Role("substitution", Substitution, ("turnout.parts.substitution",)),
    Role("weighting", Weighting, ("turnout.parts.weighting",)),
    Role("aggregation", Aggregation, ("turnout.parts.aggregation", "turnout.parts.robust")),
    Role("server", ServerStep, ("turnout.parts.server",)),
    Role("closing", Closing, ("turnout.parts.closing",)),
    Role("event", Events, ("turnout.world.events",)),
    Role("attack", Attack, ("turnout.world.attacks",), public="attacks"),
    Role("runtime", RuntimeSpec, ("turnout.runtimes.settings",), satellites={"flower": "turnout.deploy.settings"}),
)


class KindTable(Mapping[str, Maker]):
    """The kinds of a role by name; those of satellites, if they are installed, are imported when they are used."""

    def __init__(self, kinds: dict[str, Maker], satellites: Mapping[str, str]):
        here = {module: importlib.util.find_spec(module.rpartition(".")[0]) for module in satellites.values()}
        self._kinds = kinds
        self._satellites = {kind: module for kind, module in satellites.items() if here[module] is not None}

    def __getitem__(self, kind: str) -> Maker:
        if kind not in self._kinds and kind in self._satellites:
            self._kinds |= importlib.import_module(self._satellites[kind]).KINDS
        return self._kinds[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._kinds, *self._satellites)))

    def __contains__(self, kind: object) -> bool:
        return kind in self._kinds or kind in self._satellites

    def __len__(self) -> int:
        return len({*self._kinds, *self._satellites})


def _kinds_of(role: Role) -> KindTable:
    others = {place for other in ROLES for place in other.places if other is not role}
    found: dict[str, Maker] = {}
    for place in role.places:
        found |= kinds_in(place, leave_out=others)
    return KindTable(found if role.first is None else {role.first: found[role.first], **found}, role.satellites)


KINDS: dict[Any, KindTable] = {role.protocol: _kinds_of(role) for role in ROLES}
ROLE_NAMES: dict[Any, str] = {role.protocol: role.name for role in ROLES}
UNSAID = {AlgorithmSpec: "weights"}  # the kind of a table that names none


def public_kinds(namespace: str = "") -> dict[str, Maker]:
    """The kinds that are public in a namespace of `turnout`, by the name they have in Python.

    >>> public_kinds("sizes"), public_kinds("partition")["IID"].__name__, "SGD" in public_kinds()
    ({}, 'IID', True)
    """
    found: dict[str, Maker] = {}
    for role in (role for role in ROLES if role.public == namespace):
        for maker in KINDS[role.protocol].values():
            if found.setdefault(maker.__name__, maker) is not maker:
                both = " and ".join(f"{m.__module__}.{m.__name__}" for m in (found[maker.__name__], maker))
                raise ValueError(
                    f"two kinds have one public name in turnout{namespace and '.' + namespace}: {both}: rename one"
                )
    return found


def find(role: Any, kind: str, path: str, code: Permission) -> Any:
    """The class or function that a kind, an entry point or a permitted dotted path stands for."""
    table = KINDS[role]
    if kind in table:
        return table[kind]
    installed = _installed(ROLE_NAMES[role])
    dotted = installed.get(kind, kind)
    if ":" not in dotted:
        from turnout.running.config.misplaced import elsewhere

        known = "; ".join([*elsewhere(kind), nearest(kind, {**table, **installed})])
        raise UserError(f"{path}: there is no {ROLE_NAMES[role]} of kind {kind!r}: {known}")
    if dotted in installed.values():
        code = code.but_allow(dotted.partition(":")[0].partition(".")[0])
    return code.named(dotted, path)


@functools.cache
def _installed(role: str) -> dict[str, str]:
    """The dotted paths of a role's entry points, by name; nothing of their packages is imported."""
    return {entry.name: entry.value for entry in entry_points(group=f"turnout.{role}")}


def check_plays(role: Any, thing: Any, dotted: str, path: str) -> None:
    """Refuse a class, or an object, that is not declared to play a role.

    It is declared by its class: one that is derived from the role, or from a kind of ours.
    """
    if not isinstance(role, type):  # the role is a function
        if not callable(thing):
            raise UserError(f"{path}: {dotted} is not a {ROLE_NAMES[role]}: give a function")
        return
    kind = thing if inspect.isclass(thing) else type(thing)
    if not plays(role, kind):
        raise UserError(
            f"{path}: {dotted} gives a {kind.__name__}, which is not declared to be a {ROLE_NAMES[role]}: derive its "
            f"class from turnout.roles.{role.__name__}"
        )
    if thing is not kind and (missing := lacking(thing, role)):
        raise UserError(f"{path}: {dotted} is not a complete {ROLE_NAMES[role]}: it lacks {', '.join(missing)}")


def plays(role: type, kind: type) -> bool:
    """Whether a class is derived from a role, or from one of our kinds of it.

    >>> plays(Partition, str), plays(Weighting, type("Mine", (Weighting,), {}))
    (False, True)
    """
    return any(base is role or base in KINDS[role].values() for base in kind.__mro__)


def name_of(role: Any, thing: Any) -> str:
    """How a part is written in a file: its first name of more than one letter, its entry point or its dotted path."""
    maker = thing if callable(thing) and not _is_instance_of_kind(role, thing) else type(thing)
    for kind, known in KINDS.get(role, {}).items():
        if known is maker and len(kind) > 1:
            return kind
    for kind, dotted in (_installed(ROLE_NAMES[role]) if role in KINDS else {}).items():
        module, _, name = dotted.partition(":")
        if getattr(sys.modules.get(module), name, None) is maker:
            return kind
    return f"{maker.__module__}:{maker.__qualname__}"


def _is_instance_of_kind(role: Any, thing: Any) -> bool:
    return any(isinstance(known, type) and isinstance(thing, known) for known in KINDS.get(role, {}).values())
