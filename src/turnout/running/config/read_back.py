"""Whether the file of a run gives its experiment back: what resumes a run, and what others read to repeat it.

An object of one's own may be a hash in the file, or a class that only this program has: such a run is resumed from
Python, and says so when its file is read. But a file that would silently give another experiment is refused.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.running.config.dotted import PartsOf
from turnout.running.config.read import from_table
from turnout.running.config.write import OWN_OBJECT, to_toml


def check_reads_back(experiment: Experiment) -> None:
    """Before the first round: a mistake where the file would give other settings, a warning where it cannot be read."""
    table = tomllib.loads(to_toml(experiment))
    try:
        again = from_table(table, PartsOf(experiment))
    except UserError as mistake:
        nowhere = isinstance(mistake.__cause__, ImportError | AttributeError)  # a class that only this program has
        if not nowhere and not any(map(_is_own, _texts(table))):
            warnings.warn(
                f"the run's own file, experiment.toml, cannot be read back ({mistake}): the run can be resumed only "
                "from Python, with this experiment",
                stacklevel=2,
            )
        return
    for path, given, found in _differing(experiment, again, ""):
        if not (isinstance(found, str) and _is_own(found)):
            raise UserError(
                f"{path} is {given!r}, but the run's own file would give it back as {found!r}, and the run could not "
                "be resumed: annotate the setting with what it is (number, text, list, table, Literal, Enum, dataclass)"
            )


def _is_own(text: str) -> bool:
    """Whether a text stands for an object that only this program has."""
    return re.fullmatch(OWN_OBJECT, text) is not None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _differing(a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Where two settings differ; a list is as good as a tuple of the same."""
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
    elif not _alike(a, b):
        yield path, a, b
    for name, one, other in inside:
        yield from _differing(one, other, f"{path}.{name}" if path else name)


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, Path) or isinstance(b, Path):
        return str(a) == str(b)
    return a is b or bool(a == b)
