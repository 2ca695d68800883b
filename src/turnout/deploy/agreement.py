"""One encoding for the data of all devices: the experiment's, and in words how a device's own data differs from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from turnout.data.columns import CategoryColumn, Column, gaps_of, some
from turnout.data.description import Description
from turnout.data.federation import DataSpec

FIXED = ("labels", "columns", "target", "regression", "words")  # settings that decide how rows become samples
EXACT = 1e-9  # relative difference of two means that are the same: another processor rounds differently


@runtime_checkable
class Agreeable(Protocol):
    """A data set whose settings can fix how its files become samples, so that all devices do it alike."""

    def fixed(self, seed: int = 0, data_dir: Path | None = None) -> DataSpec:
        """The same data set with those settings as learnt from its files."""
        ...

    def declared(self) -> Description | None:
        """The samples' description if the settings determine it without the files, else None."""
        ...


def as_agreed(own: DataSpec | None, agreed: DataSpec) -> DataSpec:
    """A device's own data (None: the experiment's), with the settings that the experiment fixes for all devices."""
    if own is None or type(own) is not type(agreed):
        return own or agreed
    unset: dict[str, Any] = {name: getattr(agreed, name) for name in FIXED if getattr(own, name, 0) is None}
    changed: DataSpec = replace(own, **unset)  # type: ignore[type-var]  # data sets are dataclasses
    return changed


def difference(own: Description, agreed: Description) -> str | None:
    """How a device's data differs from the data that the server expects; None where it does not."""
    if own.labels != agreed.labels:
        fix = "list all devices' labels in the experiment file (world.data.labels, of a table, texts or image folder)"
        return f"its labels are {_listed(own.labels)}, and the server's {_listed(agreed.labels)}: {fix}"
    fix = "let the experiment file list the columns (world.data.columns; turnout deploy init does)"
    columns, wanted = (() if found.encoding is None else found.encoding.columns for found in (own, agreed))
    names, wanted_names = ([column.name for column in found] for found in (columns, wanted))
    if names != wanted_names:
        return f"its columns are {_listed(names)}, and the server's {_listed(wanted_names)}: {fix}"
    for a, b in zip(columns, wanted, strict=True):
        if not _alike(a, b):
            return f"its column {a.name!r} has {_in_words(a)}, and the server's has {_in_words(b)}: {fix}"
    if own.words != agreed.words:
        fix = "let the experiment file list them (world.data.words; turnout deploy init does)"
        return f"its words are numbered by another list than the server's: {fix}"
    if not _alike(own.standardised, agreed.standardised):
        fix = "let the experiment file give mean and std (world.data.target)"
        return f"its target is standardised by {own.standardised}, and the server's by {agreed.standardised}: {fix}"
    gaps, wanted_gaps = (found.encoding and sorted(gaps_of(found.encoding.rules.missing)) for found in (own, agreed))
    if gaps != wanted_gaps:
        return f"its data counts {gaps} as gaps (`missing`), and the server's {wanted_gaps}"
    for name in ("inputs", "input_shape", "input_type", "target_shape", "target_type", "classes"):
        if (has := getattr(own, name)) != (wants := getattr(agreed, name)):
            what = name.replace("_", " ")
            return f"its data has {what} {has}, and the server's {wants}: give it data of the same kind"
    return None


def _alike(one: Any, other: Any) -> bool:
    """Whether two records are the same but for rounding."""
    if one == other or None in (one, other) or type(one) is not type(other):
        return bool(one == other)
    pairs = zip(astuple(one), astuple(other), strict=True)
    return all(math.isclose(a, b, rel_tol=EXACT) if isinstance(a, float) else a == b for a, b in pairs)


def _in_words(column: Column) -> str:
    if isinstance(column, CategoryColumn):
        return f"texts {_listed(column.known)}"
    gaps = "marked" if column.marked else "not marked"
    return f"numbers with mean {column.fill:.6g}, shift {column.shift:.6g}, scale {column.scale:.6g}, gaps {gaps}"


def _listed(names: Sequence[str]) -> str:
    """The first few texts of a list, each cut to some letters."""
    return some([repr(name[:30]) for name in names]) or "none"
