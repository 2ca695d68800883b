"""What there is to choose from, read from the code: lists of kinds, finding one by name, and hints for wrong names."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from turnout.errors import SYNONYMS, UserError, near, nearest, plain
from turnout.experiment import Experiment
from turnout.running.config.dotted import Permission
from turnout.running.config.hints import Shape, parsed, required, role_in, settable
from turnout.running.config.kinds import (
    KINDS,
    ROLE_NAMES,
    SATELLITES,
    Maker,
    all_kinds,
    installed_kinds,
    is_installed,
    kind_names,
    load_place,
)
from turnout.running.config.write import scalar, table_to_toml, to_table

REQUIRED = "..."


@dataclass(frozen=True)
class PartKind:
    """One choice for a role.

    role      the role's name
    names     its names in files
    about     the first sentence of its docstring
    settings  its settings with their defaults as in a file
    """

    role: str
    names: tuple[str, ...]
    about: str
    settings: dict[str, str]

    @property
    def written(self) -> str:
        """The settings as one text: `lr=0.1, momentum=0.0`; `name=...` if there is no default."""
        return ", ".join(f"{name}={value}" if value else name for name, value in self.settings.items())


def kinds() -> dict[str, list[PartKind]]:
    """All choices, by role.

    >>> [kind.names for kind in kinds()["weighting"]][0]
    ('fedavg',)
    """
    found = {}
    for role, title in ROLE_NAMES.items():
        makers: dict[Maker, list[str]] = {}
        for name, maker in all_kinds(role).items():
            makers.setdefault(maker, []).append(name)
        found[title] = [PartKind(title, tuple(n), first_sentence(m), settings_of(m)) for m, n in makers.items()]
    return found


def first_sentence(thing: Any) -> str:
    """The first sentence of a docstring.

    >>> first_sentence(first_sentence)
    'The first sentence of a docstring.'
    """
    paragraph = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".:") + "."


def settings_of(maker: Maker) -> dict[str, str]:
    """The settings of a kind and their defaults; "" if the default is None, "..." if one must be given."""
    if dataclasses.is_dataclass(maker):
        defaults = {
            f.name: f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
            for f in dataclasses.fields(maker)
        }
    else:
        parameters = inspect.signature(maker).parameters
        if inspect.isfunction(maker) and any(p.default is p.empty for p in parameters.values()):
            return {}  # a function that is itself the part
        defaults = {name: p.default for name, p in parameters.items()}
    return {name: _text(defaults.get(name, dataclasses.MISSING)) for name in settable(maker)}


def _text(value: Any) -> str:
    if value is dataclasses.MISSING or value is inspect.Parameter.empty:
        return REQUIRED
    if value is None:
        return ""
    if dataclasses.is_dataclass(value):
        known = {maker: name for table in KINDS.values() for name, maker in reversed(list(table.items()))}
        return known.get(type(value), type(value).__name__)
    return scalar(to_table(value))


def markdown() -> str:
    """All choices as a page: one table per role."""
    lines = ["# Parts", "", "Every kind of every role with its settings and their defaults; `...` must be given.", ""]
    lines += ["This page is made from the code: `turnout list --markdown`.", ""]
    for role, listed in kinds().items():
        lines += [f"## {role}", "", "| kind | what it is | settings |", "|---|---|---|"]
        for kind in listed:
            names = ", ".join(f"`{name}`" for name in kind.names)
            settings = f"`{kind.written}`" if kind.written else ""
            lines.append(f"| {names} | {kind.about} | {settings} |".replace("\\|", "|"))
        lines.append("")
    return "\n".join(lines)


def commented(experiment: Experiment, heading: str) -> str:
    """An experiment file with comments that list the alternatives of each part."""

    def remark(path: tuple[str, ...], name: str, value: Any) -> str:
        if name != "kind":
            return ""
        part, role = experiment, None
        for step in path:
            role, part = role_in(settable(type(part))[step]), getattr(part, step)
            part = part[0] if isinstance(part, tuple) else part
        listed = [] if role is None else [kind.names[0] for kind in kinds()[ROLE_NAMES[role]]]
        others = [kind for kind in listed if kind != value]
        return f"  # or {', '.join(others)}" if others else ""

    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    return "\n".join(lines) + "\n\n" + table_to_toml(to_table(experiment), remark)


# -- one kind, by name


def find(role: Any, kind: str, path: str, code: Permission) -> Any:
    """The class or function that a kind, an entry point or a permitted dotted path stands for."""
    if kind in KINDS[role]:
        return KINDS[role][kind]
    if (place := SATELLITES.get(role, {}).get(kind)) is not None:
        if not is_installed(place):
            package = ".".join(place.split(".")[:2])
            raise UserError(f"{path}: the {ROLE_NAMES[role]} of kind {kind!r} needs {package}, which is not installed")
        return load_place(place)
    installed = installed_kinds(ROLE_NAMES[role])
    dotted = installed.get(kind, kind)
    if ":" not in dotted:
        known = "; ".join([*elsewhere(kind), nearest(kind, [*kind_names(role), *installed])])
        raise UserError(f"{path}: there is no {ROLE_NAMES[role]} of kind {kind!r}: {known}")
    if dotted in installed.values():
        code = code.but_allow(dotted.partition(":")[0].partition(".")[0])
    return code.named(dotted, path)


def elsewhere(kind: str) -> Iterator[str]:
    """The roles that have a kind of this name, each with the setting that takes it.

    >>> list(elsewhere("FedProx"))
    ['it is a kind of term, algorithm.terms = "fedprox"']
    """
    for role, place in _places().items():
        for name, maker in KINDS[role].items():
            if plain(name) == plain(kind):
                settings = "".join(f", {setting} = ..." for setting in required(maker) if isinstance(maker, type))
                written = f'{{ kind = "{name}"{settings} }}' if settings else f'"{name}"'
                yield f"it is a kind of {ROLE_NAMES[role]}, {place} = {written}"
        for name in SATELLITES.get(role, {}):
            if plain(name) == plain(kind):
                yield f'it is a kind of {ROLE_NAMES[role]}, {place} = "{name}"'


@functools.cache
def _places() -> dict[Any, str]:
    """The setting of an experiment that takes each role; the shortest path if several do."""
    found: dict[Any, str] = {}
    makers: list[tuple[str, Any]] = [("", Experiment)]
    for path, maker in makers:  # it grows
        for name, hint in settable(maker).items():
            here, role = f"{path}.{name}".lstrip("."), role_in(hint)
            if role is not None and role not in found:
                found[role] = here
                makers += [(here, kind) for kind in KINDS[role].values()]
            elif parsed(hint).shape is Shape.SETTINGS:
                makers.append((here, hint))
    return found


# -- the settings of a part, by name


def meant(name: str, part: Any, path: str = "") -> str:
    """A hint for a setting that a part (or a kind's default) does not have; `path` leads to the part.

    >>> from turnout.experiment import Algorithm
    >>> meant("lr", Algorithm, "algorithm")
    'did you mean algorithm.local.optimizer.lr or algorithm.server.lr?'
    """
    here = list(settable(part if isinstance(part, type) or callable(part) else type(part)))
    if not here:
        return "it has no settings"
    if isinstance(part, type):
        try:
            part = part()
        except (TypeError, UserError):  # it needs settings
            part = None
    below = dict(_below(part, path))
    wanted = {name, SYNONYMS.get(name, name)}
    places = [place for place, known in below.items() if known in wanted]
    if not places and not near(name, here):
        alike = near(name, set(below.values()))
        places = [place for place, known in below.items() if known in alike[:1]]
    return f"did you mean {' or '.join(places[:2])}?" if places else nearest(name, here)


def _below(part: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path, name) of the settings of the parts inside a part, in the order of its fields."""
    for outer, inside in _fields(part):
        for name, _ in _fields(inside):
            yield f"{path}.{outer}.{name}".lstrip("."), name
        yield from _below(inside, f"{path}.{outer}".lstrip("."))


def _fields(part: Any) -> list[tuple[str, Any]]:
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return []
    return [(name, getattr(part, name)) for name in settable(type(part))]
