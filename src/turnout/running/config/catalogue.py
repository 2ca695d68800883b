"""What there is to choose from, read from the code: lists of kinds with their settings, and commented files."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any

from turnout.experiment import Experiment
from turnout.running.config.hints import role_in, settable
from turnout.running.config.kinds import KINDS, ROLE_NAMES, Maker, all_kinds, listed_kinds
from turnout.running.config.write import scalar, to_table, to_toml

REQUIRED = "..."


@dataclass(frozen=True)
class PartKind:
    """One choice for a role.

    names     its names in files
    about     the first sentence of its docstring
    settings  its settings with their defaults as in a file
    """

    names: tuple[str, ...]
    about: str
    settings: dict[str, str]

    @property
    def written(self) -> str:
        """The settings as one text: `lr=0.1, momentum=0.0`; `name=...` if there is no default."""
        return ", ".join(f"{name}={value}" if value else name for name, value in self.settings.items())


def kinds(installed: bool = False) -> dict[str, list[PartKind]]:
    """All choices, by role; `installed`: also those of other packages.

    >>> [kind.names for kind in kinds()["weighting"]][0]
    ('fedavg',)
    """
    by_kind = {}
    for role, title in ROLE_NAMES.items():
        makers: dict[Maker, list[str]] = {}
        for name, maker in (listed_kinds if installed else all_kinds)(role).items():
            makers.setdefault(maker, []).append(name)
        by_kind[title] = [PartKind(tuple(n), first_sentence(m), settings_of(m)) for m, n in makers.items()]
    return by_kind


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


def commented(experiment: Experiment, heading: str) -> str:
    """An experiment file with comments that list the alternatives of each part."""
    lines, path = [*(f"# {line}".rstrip() for line in heading.splitlines()), ""], list[str]()
    for line in to_toml(experiment).splitlines():
        if line.startswith("["):
            path = line.strip("[]").split(".")
        elif line.startswith("kind = "):
            others = [kind for kind in _alternatives(experiment, path) if f'"{kind}"' not in line]
            line += f"  # or {', '.join(others)}" if others else ""
        lines.append(line)
    return "\n".join(lines) + "\n"


def _alternatives(part: Any, path: list[str]) -> list[str]:
    """The kinds of the role that a table of an experiment's file has."""
    role = None
    for step in path:
        role, part = role_in(settable(type(part))[step]), getattr(part, step)
        part = part[0] if isinstance(part, tuple) else part
    return [] if role is None else [kind.names[0] for kind in kinds()[ROLE_NAMES[role]]]
