"""The experiment file of a run: whether it gives the experiment back, and whether a resumed run has the same settings.

A file's settings are checked as they are read (read.py). Objects made in Python can hold anything, and further down
their numbers go to C; so `check_settings` checks every field once, before the first round. A user's own object may be a
hash in the file, or a class that only this program has: such a run is resumed from Python. A file that would silently
give another experiment is refused.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from turnout.errors import Absent, UserError, check_part
from turnout.experiment import Experiment
from turnout.running.config.dotted import parts_of
from turnout.running.config.hints import MANY, Shape, example, fits, in_words, parsed, settable
from turnout.running.config.read import from_table, leaves, read_file
from turnout.running.config.write import OWN_OBJECT, to_table, to_toml

FREE_TO_CHANGE = ("rounds", "stop", "title", "track", "runtime")  # what may differ when a run is resumed


def check_settings(part: Any, path: str = "") -> None:
    """Refuse the first field, at any depth, whose value is not of its declared type."""
    try:
        hints = settable(type(part))
    except TypeError:  # a user's class, with hints that are not types
        return
    for name, hint in hints.items():
        here = f"{path}.{name}" if path else name
        value = getattr(part, name, None)
        if isinstance(value, Absent):
            raise UserError(value.why)
        if isinstance(value, float) and math.isnan(value):
            raise UserError(f"{here} is not a number (nan): give one")
        if parsed(hint).shape is Shape.ROLE and isinstance(hint, type):
            check_part(here, value, hint, example(hint))
        elif not fits(hint, value):
            raise UserError(f"{here} must be {in_words(hint)}, not {value!r}")
        items = [(here, value)]
        if isinstance(value, tuple | list):
            items = [(f"{here}.{i}", item) for i, item in enumerate(value[:MANY])]
        for where, item in items:
            if dataclasses.is_dataclass(item) and not isinstance(item, type):
                check_settings(item, where)


def check_reads_back(experiment: Experiment) -> None:
    """Refuse an experiment whose file would give other settings; warn about one whose file cannot be read."""
    table = tomllib.loads(to_toml(experiment))
    try:
        again = from_table(table, parts_of(experiment))
    except UserError as mistake:
        if not any(re.fullmatch(OWN_OBJECT, str(leaf)) for leaf in leaves(table)):
            warnings.warn(
                f"the run's own file, experiment.toml, cannot be read back ({mistake}): the run can be resumed only "
                "from Python, with this experiment",
                stacklevel=2,
            )
        return
    for path, given, read in _differing(experiment, again, ""):
        if not (isinstance(read, str) and re.fullmatch(OWN_OBJECT, read)):
            raise UserError(
                f"{path} is {given!r}, but the run's own file would give it back as {read!r}, and the run could not "
                "be resumed: annotate the setting with its type (number, text, list, table, Literal, dataclass)"
            )


def _differing(a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Where two settings differ; a list equals a tuple of the same items."""
    inside: list[tuple[str, Any, Any]] = []
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        names = [f.name for f in dataclasses.fields(a) if f.init]
        inside = [(name, getattr(a, name), getattr(b, name)) for name in names]
    elif isinstance(a, partial) and isinstance(b, partial):
        inside = [("kind", a.func, b.func), ("settings", a.keywords, b.keywords)]
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        inside = [(str(i), *pair) for i, pair in enumerate(zip(a, b, strict=True))]
    elif isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        inside = [(str(name), a[name], b[name]) for name in a]
    elif not (str(a) == str(b) if isinstance(a, Path) or isinstance(b, Path) else a is b or bool(a == b)):
        yield path, a, b
    for name, one, other in inside:
        yield from _differing(one, other, f"{path}.{name}" if path else name)


def lasting(experiment: Experiment) -> dict[str, Any]:
    """The settings that identify a run: those that may not change when it is resumed."""
    return {name: value for name, value in to_table(experiment).items() if name not in FREE_TO_CHANGE}


def changed_settings(path: Path, experiment: Experiment, free: Collection[str] = FREE_TO_CHANGE) -> list[str]:
    """The settings of an experiment that differ from a run's file, without those that are free to change."""
    differences = _differences(read_file(path), tomllib.loads(to_toml(experiment)))
    return [name for name in differences if name.split(".")[0] not in free]


def check_same(path: Path, experiment: Experiment) -> str | None:
    """Refuse to resume a run under other settings than it began with.

    Returns the new text of its file if rounds, stop rules or title have changed; the runtime stays.
    """
    before, now = read_file(path), tomllib.loads(to_toml(experiment))
    if changed := changed_settings(path, experiment):
        raise UserError(
            f"{path.parent} holds a run with other settings ({', '.join(changed[:3])}): choose another --out folder, "
            f"or give the settings of {path}"
        )
    after = {name: value for name, value in now.items() if name != "runtime"}
    after |= {"runtime": before["runtime"]} if "runtime" in before else {}
    return tomli_w.dumps(after) if after != before else None


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        names = sorted(a.keys() | b.keys())
        return [d for n in names for d in _differences(a.get(n), b.get(n), f"{path}.{n}" if path else n)]
    return [] if a == b else [path]
