"""Makes docs/api.md, and the table of roles in docs/extending.md, from the code.

    python docs/make_api.py

A test compares both files with what this program would write.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import turnout as to
from turnout import public
from turnout.running.config.catalogue import first_sentence, settings_of
from turnout.running.config.hints import Shape, parsed, role_in, settable
from turnout.running.config.kinds import KINDS, ROLES, Role, all_kinds, base_of
from turnout.testing import CHECKS

HERE = Path(__file__).absolute().parent
SETTINGS = (
    to.Experiment, to.World, to.Algorithm, to.Local, to.weighting.Shares, to.Membership, to.Private, to.Evaluate,
    to.Stop,
)  # fmt: skip
FUNCTIONS = (to.run, to.open_run, to.load_model, to.compare, to.advise)
RESULTS = (to.Run, to.RunGroup)
FIELD = re.compile(r"^( *)([a-z_]\w*(?:, [a-z_]\w*)*)  +(\S.*)$")
COMMON = {"name": "its name in records and in the server's state", "lr": "learning rate", "seconds": "time limit"}
START, END = "<!-- roles: made by docs/make_api.py -->", "<!-- end of roles -->"

HEAD = """\
# Python names

This page is made from the code: `python docs/make_api.py`.

`import turnout as to`. A dozen names are at the top; every part is in the namespace of its role, such as
`to.participation.Dropout` or `to.weighting.ByWork`. A class has the same fields as its table in an experiment file
([experiments and runs](experiments-and-runs.md)). A default of `...` means that the field must be set.
"""


def field_notes(maker: Any) -> dict[str, str]:
    """What the docstrings of a class and its bases say about each field, from lines `name  meaning`."""
    found: dict[str, str] = {}
    for kind in getattr(maker, "__mro__", (maker,)):
        if kind is not object and (kind is maker or "__doc__" in vars(kind)):
            for name, text in _notes(inspect.getdoc(kind) or "").items():
                found.setdefault(name, text)
    return found


def _notes(doc: str) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    indent = 0
    for line in doc.splitlines():
        if match := FIELD.match(line):
            indent, names = len(match[1]), match[2].split(", ")
            found |= dict.fromkeys(names, match[3])
        elif names and line.strip() and len(line) - len(line.lstrip()) > indent:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found


def fields_table(maker: Any) -> list[str]:
    """The settings of a class as a Markdown table; none without settings."""
    defaults, notes = settings_of(maker), field_notes(maker)
    if not defaults:
        return []
    doc = " ".join((inspect.getdoc(maker) or "").split())
    for name in (name for name in defaults if name not in notes):  # a sentence of the text that names it
        notes[name] = next((s for s in re.split(r"(?<=[.;]) ", doc) if f"`{name}`" in s), COMMON.get(name, "")).rstrip(
            ".;"
        )
    rows = [f"| `{name}` | {_code(text)} | {_cell(notes[name])} |" for name, text in defaults.items()]
    return ["| field | default | meaning |", "|---|---|---|", *rows, ""]


def _code(text: str) -> str:
    return f"`{text}`" if text else "none"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def summary(maker: Any) -> str:
    """The first paragraph of a docstring as one line, without a table of fields."""
    paragraph = (inspect.getdoc(maker) or "").split("\n\n")[0]
    return _cell(" ".join(line.strip() for line in paragraph.splitlines() if not FIELD.match(line)))


def namespaces() -> list[str]:
    rows = ["| namespace | what | names |", "|---|---|---|"]
    for role in (role for role in ROLES if role.public):
        makers = dict.fromkeys(all_kinds(role.protocol).values())
        names = ", ".join(f"`{getattr(maker, '__name__', type(maker).__name__)}`" for maker in makers)
        rows.append(f"| `to.{role.public}` | {role.name} | {names} |")
    rows.append("| `to.membership` | rules for joins and leaves | `Membership`, `Constants`, `DropInactive` |")
    rows.append("| `to.roles` | classes to derive your own parts from | see [extending](extending.md) |")
    rows.append("| `to.fleet` | a fleet's log ([fleets and advice](fleets-and-advice.md)) | `read_fleet`, `Reading` |")
    rows.append("| `to.scores` | the score track ([scores](scores.md)) | `Scores`, `Distil`, `EarlyStopping`, `Uses` |")
    return [*rows, ""]


def kinds_of(role: Role) -> list[str]:
    """The section of a role: each kind with its fields."""
    lines = [f"## {role.name}", ""]
    makers: dict[Any, list[str]] = {}
    for name, maker in all_kinds(role.protocol).items():
        makers.setdefault(maker, []).append(name)
    for maker, names in makers.items():
        python = getattr(maker, "__name__", type(maker).__name__)
        place = f"`to.{role.public}.{python}`" if role.public else f"`{python}`"
        heading = ", ".join(f"`{name}`" for name in names)
        table = ["Its fields are in [Settings](#settings).", ""] if maker in SETTINGS else fields_table(maker)
        lines += [f"### {heading}, {place}", "", summary(maker), "", *table]
    return lines


def api() -> str:
    spaces = {role.public for role in ROLES} | {"__version__", "fleet", "membership", "roles", "scores"}
    top = ", ".join(f"`{name}`" for name in public.__all__ if name not in spaces)
    lines = [HEAD, "## Namespaces", "", f"At the top: {top}.", "", *namespaces(), "## Settings", ""]
    for maker in SETTINGS:
        lines += [f"### `{maker.__name__}`", "", summary(maker), "", *fields_table(maker)]
    lines += ["## Running and results", ""]
    lines += ["| function | what |", "|---|---|"]
    for function in FUNCTIONS:
        arguments = ", ".join(inspect.signature(function).parameters)
        lines.append(f"| `to.{function.__name__}({arguments})` | {_cell(first_sentence(function))} |")
    for maker in RESULTS:
        lines += ["", f"### `{maker.__name__}`", "", summary(maker), "", "| member | what |", "|---|---|"]
        members = {
            k: v for kind in reversed(maker.__mro__[:-1]) for k, v in vars(kind).items() if not k.startswith("_")
        }
        for name, member in sorted(members.items()):
            if isinstance(member, property):
                lines.append(f"| `.{name}` | {_cell(first_sentence(member))} |")
            elif inspect.isfunction(member):
                lines.append(f"| `.{name}({_arguments(member)})` "
                             f"| {_cell(first_sentence(member))} |")  # fmt: skip
    lines.append("")
    for role in ROLES:
        lines += kinds_of(role)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _places() -> dict[Any, str]:
    """The setting of an experiment that takes each role; the shortest path if several do."""
    found: dict[Any, str] = {}
    makers: list[tuple[str, Any]] = [("", to.Experiment)]
    for path, maker in makers:  # it grows
        for name, hint in settable(maker).items():
            here, role = f"{path}.{name}".lstrip("."), role_in(hint)
            if role is not None and role not in found:
                found[role] = here
                makers += [(here, kind) for kind in KINDS[role].values()]
            elif parsed(hint).shape is Shape.SETTINGS:
                makers.append((here, hint))
    return found


def _arguments(method: Any) -> str:
    return ", ".join([*inspect.signature(method).parameters][1:])


def _is_method(name: str, value: Any) -> bool:
    return inspect.isfunction(value) and not name.startswith("_")


def roles_table() -> str:
    """One row per role: its setting, the class to derive from, its methods, where its kinds are, and its check."""
    head = "| role | setting in a file | class | methods | its kinds are in | check |"
    lines = [START, "", head, "|---|---|---|---|---|---|"]
    for role in ROLES:
        is_class = isinstance(role.protocol, type)
        base = f"`to.{base_of(role.protocol)}`" if is_class else "a function of a name and the model"
        methods = [f"`{n}({_arguments(f)})`" for n, f in vars(role.protocol).items() if _is_method(n, f)]
        check = CHECKS.get(role.protocol)
        places = ", ".join(f"`{place.removeprefix('turnout.').replace('.', '/')}`" for place in role.places)
        where = f"`{_places()[role.protocol]}`" if role.protocol in _places() else ""
        tried = f"`{check.__name__}`" if check else "`tests/system/test_parity.py`" if role.name == "runtime" else ""
        lines.append(f"| {role.name} | {where} | {base} | {', '.join(methods)} | {places} | {tried} |")
    return "\n".join([*lines, "", END])


def with_roles(page: str) -> str:
    """The page with its table of roles made again."""
    before, rest = page.split(START)
    return before + roles_table() + rest.split(END)[1]


def undocumented() -> list[str]:
    """Settings whose field no docstring names: `Class.field`."""
    makers = [*SETTINGS, *(maker for role in ROLES for maker in all_kinds(role.protocol).values())]
    found = []
    for maker in dict.fromkeys(maker for maker in makers if dataclasses.is_dataclass(maker)):
        docs = " ".join(vars(kind).get("__doc__") or "" for kind in maker.__mro__)
        missing = [name for name in settable(maker) if not re.search(rf"\b{name}\b", docs)]
        found += [f"{maker.__module__}.{maker.__name__}.{name}" for name in missing]
    return found


if __name__ == "__main__":
    (HERE / "api.md").write_text(api(), encoding="utf-8")
    page = HERE / "extending.md"
    page.write_text(with_roles(page.read_text(encoding="utf-8")), encoding="utf-8")
    print("wrote docs/api.md and the table of roles in docs/extending.md")
