"""The roles of an experiment, and the short names of the parts that play them.

A role is the type a setting is annotated with. The modules that hold its parts list them in a dictionary `KINDS` at
their end; here is only where to look. Kinds of satellites (scores, Flower) are named here and imported when they are
used. An installed package may add kinds by entry points: in the group `turnout.parts`, an entry point called
`weighting.tempered` is the kind `tempered` of weighting. Any other part is named by its dotted path,
`package.module:Name` (dotted.py).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from turnout.data.federation import DataSpec
from turnout.data.partition import Partition
from turnout.data.sizes import Sizes
from turnout.errors import UserError, lacking, nearest, plain
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
from turnout.running.config.dotted import Code
from turnout.settings import RuntimeSpec
from turnout.suggestions import announced, kinds_in
from turnout.tasks import TaskSpec
from turnout.world.attacks import Attack
from turnout.world.devices import Devices
from turnout.world.events import Events
from turnout.world.participation import Participation

Maker = Callable[..., Any]


@dataclass(frozen=True)
class Role:
    """Where the kinds of a role are defined, and how they are called.

    name        the role's name in files, messages and lists
    protocol    the type its settings are annotated with
    places      the modules with its kinds; of a package, all its modules that are not another role's place
    public      the namespace of its kinds in Python, such as `participation` for `turnout.participation`
    first       the kind that is listed first and given as an example, if not the first found
    satellites  kinds of satellites by name, as "module:Name"
    """

    name: str
    protocol: Any
    places: tuple[str, ...]
    public: str = ""
    first: str | None = None
    satellites: Mapping[str, str] = field(default_factory=dict)


SCORES = {"scores": "turnout.scores.settings:Scores", "paper-literal": "turnout.scores.settings:paper_literal"}
FLEET = {"fleet-log": "turnout.fleet.fleet_participation:FleetLog"}
AS_FLEET = {"as-fleet-log": "turnout.fleet.fleet_participation:AsFleetLog"}
FLOWER = {"flower": "turnout.deploy.settings:Flower"}
REPLAYED = {"in-order": "turnout.deploy.renumbered:InOrder"}
AGGREGATIONS = ("turnout.parts.aggregation", "turnout.parts.robust", "turnout.parts.products")
ROLES = (
    Role("data", DataSpec, ("turnout.data",), public="data", first="synthetic", satellites=REPLAYED),
    Role("partition", Partition, ("turnout.data.partition",), public="partition"),
    Role("sizes", Sizes, ("turnout.data.sizes",), public="data"),
    Role("participation", Participation, ("turnout.world.participation",), public="participation", satellites=FLEET),
    Role("devices", Devices, ("turnout.world.devices",), public="devices", first="tiers"),
    Role("selection", Selection, ("turnout.parts.selection",), public="selection", satellites=AS_FLEET),
    Role("model", ModelSpec, ("turnout.models",), public="models", first="logistic"),
    Role("task", TaskSpec, ("turnout.tasks",), public="tasks"),
    Role("algorithm", AlgorithmSpec, ("turnout.experiment",), satellites=SCORES),
    Role("optimizer", Optimizer, ("turnout.parts.optimizers",), public="optimizers"),
    Role("schedule", Schedule, ("turnout.parts.schedules",), public="schedules"),
    Role("term", Term, ("turnout.parts.terms",), public="terms", first="proximal"),
    Role("mixing", Mixing, ("turnout.parts.mixing",), public="mixing"),
    Role("personal", Predicate, ("turnout.parts.personal",), public="personal"),
    Role("compression", Compression, ("turnout.parts.compression",), public="compression"),
    Role("substitution", Substitution, ("turnout.parts.substitution",), public="substitution"),
    Role("weighting", Weighting, ("turnout.parts.weighting",), public="weighting"),
    Role("aggregation", Aggregation, AGGREGATIONS, public="aggregation"),
    Role("server", ServerStep, ("turnout.parts.server",), public="server"),
    Role("closing", Closing, ("turnout.parts.closing",), public="closing"),
    Role("event", Events, ("turnout.world.events",), public="events"),
    Role("attack", Attack, ("turnout.world.attacks",), public="attacks"),
    Role("runtime", RuntimeSpec, ("turnout.settings",), public="runtime", satellites=FLOWER),
)


KINDS: dict[Any, dict[str, Maker]] = {}
for _role in ROLES:
    _others = {place for other in ROLES for place in other.places if other is not _role}
    _found = {name: maker for place in _role.places for name, maker in kinds_in(place, leave_out=_others).items()}
    KINDS[_role.protocol] = _found if _role.first is None else {_role.first: _found[_role.first], **_found}
ROLE_NAMES: dict[Any, str] = {role.protocol: role.name for role in ROLES}
SATELLITES: dict[Any, Mapping[str, str]] = {role.protocol: role.satellites for role in ROLES if role.satellites}
DEFAULT_KINDS = {AlgorithmSpec: "weights"}  # the kind of a table that names none


def load_place(place: str) -> Any:
    """The object at "module:Name"."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def satellite_kinds(role: Any) -> dict[str, str]:
    """The kinds of installed satellites, by name; imports nothing of them."""
    places = SATELLITES.get(role, {}).items()
    return {kind: place for kind, place in places if importlib.util.find_spec(".".join(place.split(".")[:2]))}


def all_kinds(role: Any) -> dict[str, Maker]:
    """The kinds of a role, those of installed satellites included, which this imports."""
    return KINDS[role] | {kind: load_place(place) for kind, place in satellite_kinds(role).items()}


def kind_names(role: Any) -> list[str]:
    """The names of a role's kinds, for messages; imports nothing."""
    return [*KINDS[role], *satellite_kinds(role)]


@functools.cache
def installed_parts() -> dict[str, dict[str, str]]:
    """The dotted paths of installed packages' kinds, by role and kind; nothing of the packages is imported."""
    by_role: dict[str, dict[str, str]] = {name: {} for name in ROLE_NAMES.values()}
    for entry in announced("turnout.parts"):
        role, _, kind = entry.name.partition(".")
        if role in by_role and kind:
            by_role[role][kind] = entry.value
        else:
            what = f"there is no role {role!r}: {nearest(role, by_role)}" if kind else "call it role.kind"
            warnings.warn(f"{entry.value} is called {entry.name!r} of turnout.parts: {what}", stacklevel=2)
    return by_role


def listed_kinds(role: Any) -> dict[str, Maker]:
    """All kinds of a role, those of installed packages included, which this imports; a broken one is a warning."""
    kinds = all_kinds(role)
    for kind, dotted in installed_parts()[ROLE_NAMES[role]].items():
        try:
            kinds.setdefault(kind, load_place(dotted))
        except Exception as error:  # any failure of an installed package's import
            warnings.warn(f"{dotted} cannot be loaded ({type(error).__name__}: {error})", stacklevel=2)
    return kinds


def find(role: Any, kind: str, path: str, code: Code) -> Any:
    """The class or function that a kind, an entry point or a permitted dotted path stands for."""
    if kind in KINDS[role]:
        return KINDS[role][kind]
    if (place := satellite_kinds(role).get(kind)) is not None:
        return load_place(place)
    installed = installed_parts()[ROLE_NAMES[role]]
    dotted = installed.get(kind, kind)
    if ":" not in dotted:
        others = [ROLE_NAMES[other] for other in KINDS if plain(kind) in map(plain, kind_names(other))]
        known = [f"it is a kind of {other}" for other in others] + [nearest(kind, [*kind_names(role), *installed])]
        if all(word.isidentifier() for word in kind.split(".")) and "." in kind:
            known.append(f"for code of your own write {':'.join(kind.rsplit('.', 1))!r}")
        raise UserError(f"{path}: there is no {ROLE_NAMES[role]} of kind {kind!r}: {'; '.join(known)}")
    if dotted in installed.values():
        code = replace(code, allow=code.allow | {dotted.partition(":")[0].partition(".")[0]})
    return code.named(dotted, path)


def check_plays(role: Any, thing: Any, dotted: str, path: str) -> None:
    """Refuse a class, or an object, whose class is not derived from the role or from one of its kinds."""
    if not isinstance(role, type):  # the role is a function
        if not callable(thing):
            raise UserError(f"{path}: {dotted} is not a {ROLE_NAMES[role]}: give a function")
        return
    kind = thing if inspect.isclass(thing) else type(thing)
    if not any(base is role or is_kind(role, base) for base in kind.__mro__):
        raise UserError(
            f"{path}: {dotted} gives a {kind.__name__}, which is not declared to be a {ROLE_NAMES[role]}: derive its "
            f"class from turnout.{base_of(role)}"
        )
    if thing is not kind and (missing := lacking(thing, role)):
        raise UserError(f"{path}: {dotted} is not a complete {ROLE_NAMES[role]}: it lacks {', '.join(missing)}")


def base_of(role: Any) -> str:
    """The class to derive one's own parts of a role from, as a public name."""
    return "terms.LocalTerm" if role is Term else f"roles.{role.__name__}"


def is_kind(role: Any, maker: Any) -> bool:
    """Whether a class or function is one of our kinds of a role."""
    return maker in KINDS[role].values() or _dotted(maker) in SATELLITES.get(role, {}).values()


def name_of(role: Any, thing: Any) -> str:
    """How a part is written in a file: its first name of more than one letter, its entry point or its dotted path."""
    ours = KINDS.get(role, {})
    is_part = any(isinstance(known, type) and isinstance(thing, known) for known in ours.values())
    maker = thing if callable(thing) and not is_part else type(thing)
    dotted = _dotted(maker)
    names = [kind for kind, known in ours.items() if known is maker and len(kind) > 1]
    names += [kind for kind, place in SATELLITES.get(role, {}).items() if place == dotted]
    if names:
        return names[0]
    for kind, place in (installed_parts()[ROLE_NAMES[role]] if role in KINDS else {}).items():
        module, _, name = place.partition(":")
        if getattr(sys.modules.get(module), name, None) is maker:
            return kind
    return dotted


def _dotted(maker: Any) -> str:
    return f"{getattr(maker, '__module__', '')}:{getattr(maker, '__qualname__', '')}"
