"""What there is to choose from, read from the code: the kinds of every role with their settings and defaults."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any

from turnout.experiment import Experiment
from turnout.running.config.hints import role_in, settable
from turnout.running.config.kinds import KINDS, ROLE_NAMES, Maker
from turnout.running.config.write import scalar, table_to_toml, to_table

REQUIRED = "..."


@dataclass(frozen=True)
class Kind:
    """One choice for a role: how it is written, what it is, and its settings with their defaults as in a file."""

    role: str
    names: tuple[str, ...]
    about: str
    settings: dict[str, str]

    @property
    def written(self) -> str:
        """The settings as one text: `lr=0.1, momentum=0.0`; what has no default is `name=...`."""
        return ", ".join(f"{name}={value}" if value else name for name, value in self.settings.items())


def kinds() -> dict[str, list[Kind]]:
    """All choices, by role.

    >>> [kind.names for kind in kinds()["weighting"]][0]
    ('fedavg',)
    """
    found = {}
    for role, table in KINDS.items():
        makers: dict[Maker, list[str]] = {}
        for name, maker in table.items():
            makers.setdefault(maker, []).append(name)
        title = ROLE_NAMES[role]
        found[title] = [Kind(title, tuple(n), first_sentence(m), settings_of(m)) for m, n in makers.items()]
    return found


def first_sentence(thing: Any) -> str:
    """The first sentence of a docstring.

    >>> first_sentence(first_sentence)
    'The first sentence of a docstring.'
    """
    paragraph = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".:") + "."


def settings_of(maker: Maker) -> dict[str, str]:
    """The settings of a kind and their defaults; "" where nothing is the default, "..." where one must be given."""
    hints = settable(maker)
    if dataclasses.is_dataclass(maker):
        defaults = {f.name: _default(f) for f in dataclasses.fields(maker)}
    else:
        parameters = inspect.signature(maker).parameters
        if inspect.isfunction(maker) and any(p.default is p.empty for p in parameters.values()):
            return {}  # a function that is itself the part
        defaults = {name: p.default for name, p in parameters.items()}
    return {name: _text(defaults.get(name, dataclasses.MISSING)) for name in hints}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


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
    """All choices as a page: one table a role."""
    lines = ["# Parts", "", "Every kind of every role with its settings and their defaults; `...` must be given.", ""]
    lines += ["This page is made from the code: `turnout list --markdown > docs/parts.md`.", ""]
    for role, listed in kinds().items():
        lines += [f"## {role}", "", "| kind | what it is | settings |", "|---|---|---|"]
        for kind in listed:
            names = ", ".join(f"`{name}`" for name in kind.names)
            settings = f"`{kind.written}`" if kind.written else ""
            lines.append(f"| {names} | {kind.about} | {settings} |".replace("\\|", "|"))
        lines.append("")
    return "\n".join(lines)


def commented(experiment: Experiment, heading: str) -> str:
    """An experiment file that says what else each part could be."""

    def remark(path: tuple[str, ...], name: str, value: Any) -> str:
        others = [kind for kind in _kinds_at(experiment, path) if kind != value] if name == "kind" else []
        return f"  # or {', '.join(others)}" if others else ""

    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    return "\n".join(lines) + "\n\n" + table_to_toml(to_table(experiment), remark)


def _kinds_at(experiment: Experiment, path: tuple[str, ...]) -> list[str]:
    """The kinds of the part that this path leads to; none where it leads to no part."""
    part: Any = experiment
    role = None
    for name in path:
        role, part = role_in(settable(type(part))[name]), getattr(part, name)
        part = part[0] if isinstance(part, tuple) else part
    return [] if role is None else [kind.names[0] for kind in kinds()[ROLE_NAMES[role]]]
