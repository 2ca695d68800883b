"""One encoding for the data of all devices: the experiment's, and how a device's own data differs from it in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from turnout.data.columns import CategoryColumn, Column, Encoding, NumberColumn, gaps_of, some
from turnout.data.description import Description
from turnout.data.federation import DataSpec

FIXED = ("labels", "columns", "target", "regression", "words")  # settings that say how rows become samples
EXACT = 1e-9  # relative difference of two means that are the same: another processor rounds otherwise


@runtime_checkable
class Agreeable(Protocol):
    """A data set whose settings can say how its files become samples, so that all devices do it alike."""

    def fixed(self, seed: int = 0, data_dir: Path | None = None) -> DataSpec:
        """The same data set with those settings as learnt from its files."""
        ...

    def declared(self) -> Description | None:
        """What samples are like, where the settings say it without the files; None where they do not."""
        ...


def as_agreed(own: DataSpec | None, agreed: DataSpec) -> DataSpec:
    """A device's own data (None: the experiment's), with what the experiment fixes for all devices."""
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
    found = _columns(own.encoding, agreed.encoding)
    if found is not None:
        return f"its {found}: let the experiment file list the columns (world.data.columns; turnout deploy init does)"
    if own.words != agreed.words:
        fix = "let the experiment file list them (world.data.words; turnout deploy init does)"
        return f"its words are numbered by another list than the server's: {fix}"
    unit, wanted = own.standardised, agreed.standardised
    if (unit is None) != (wanted is None) or (
        unit and wanted and not _same(unit.mean, wanted.mean, unit.std, wanted.std)
    ):
        fix = "let the experiment file give mean and std (world.data.target)"
        return f"its target is standardised by {unit}, and the server's by {wanted}: {fix}"
    for name in ("input_shape", "input_type", "target_shape", "target_type", "classes"):
        if (has := getattr(own, name)) != (wants := getattr(agreed, name)):
            return (
                f"its data has {name.replace('_', ' ')} {has}, and the server's {wants}: give it data of the same kind"
            )
    return None


def _columns(own: Encoding | None, agreed: Encoding | None) -> str | None:
    if own is None or agreed is None:
        has, wants = ("no table" if found is None else "a table" for found in (own, agreed))
        return None if has == wants else f"data is {has}, and the server's is {wants}"
    names, wanted = ([column.name for column in found.columns] for found in (own, agreed))
    if names != wanted:
        return f"columns are {_listed(names)}, and the server's {_listed(wanted)}"
    gaps, wanted = (sorted(gaps_of(found.rules.missing)) for found in (own, agreed))
    if gaps != wanted:
        return f"data counts {_listed(gaps)} as gaps (`missing`), and the server's {_listed(wanted)}"
    pairs = zip(own.columns, agreed.columns, strict=True)
    return next((found for a, b in pairs if (found := _column(a, b)) is not None), None)


def _column(own: Column, agreed: Column) -> str | None:
    if isinstance(own, CategoryColumn) and isinstance(agreed, CategoryColumn):
        if own.known == agreed.known:
            return None
        return (
            f"column {own.name!r} has the categories {_listed(own.known)}, and the server's has {_listed(agreed.known)}"
        )
    if isinstance(own, NumberColumn) and isinstance(agreed, NumberColumn):
        same = _same(own.fill, agreed.fill, own.shift, agreed.shift, own.scale, agreed.scale)
        if same and own.marked == agreed.marked:
            return None
        return f"column {own.name!r} is encoded {_numbers(own)}, and the server's {_numbers(agreed)}"
    has, wants = ("texts" if isinstance(found, CategoryColumn) else "numbers" for found in (own, agreed))
    return f"column {own.name!r} has {has}, and the server's has {wants}"


def _numbers(column: NumberColumn) -> str:
    gaps = "marked" if column.marked else "not marked"
    return f"with mean {column.fill:.6g}, shift {column.shift:.6g}, scale {column.scale:.6g} and gaps {gaps}"


def _same(*values: float) -> bool:
    """Whether the numbers are equal two by two."""
    return all(math.isclose(a, b, rel_tol=EXACT) for a, b in zip(values[::2], values[1::2], strict=True))


def _listed(names: Sequence[str], requests: int = 30) -> str:
    """The first few texts of a list, cut to some letters each.

    >>> _listed(("a", "b" * 40), requests=3)
    "'a', 'bbb'"
    """
    return some([repr(name[:requests]) for name in names]) or "none"
