"""Variants in an experiment file: each `[variants.NAME]` is a set of settings that belong together.

    [variants.fedavg]              # the file as it is

    [variants.scaffold]
    algorithm.terms = ["scaffold"]
    algorithm.local.optimizer.lr = 0.05

A path may be written as TOML's dotted keys, in quotes, or as tables in tables: all mean the same. A table with a `kind`
replaces a whole part, a table without changes some settings of it. All settings of an object change at once, so that
settings that are valid only together (`epochs = "none"`, `steps = 7`) can change together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from turnout.errors import UserError, nearest
from turnout.experiment import Experiment
from turnout.running.config.read import build, from_table, replaced, settings_of

SECTION = "variants"


def variants_in(table: Mapping[str, Any]) -> dict[str, Experiment]:
    """The variants of a file by name; empty if it has no such section.

    >>> found = variants_in({"rounds": 3, "variants": {"short": {"rounds": 1}, "as it is": {}}})
    >>> {name: experiment.rounds for name, experiment in found.items()}
    {'short': 1, 'as it is': 3}
    """
    base = from_table({name: value for name, value in table.items() if name != SECTION})
    if SECTION not in table:
        return {}
    listed = table[SECTION]
    if not isinstance(listed, dict) or not listed:
        raise UserError("variants is empty: write a table for each variant, such as [variants.scaffold]")
    found: dict[str, Experiment] = {}
    for name, settings in listed.items():
        where = f"{SECTION}.{name}"
        if not isinstance(settings, dict):
            raise UserError(f"{where} is a table of settings, [{where}], not {settings!r}")
        try:
            changes = nested(settings)
            if "seed" in changes:
                raise UserError("seeds are common to all variants: --seeds N repeats them")
            found[name] = with_table(base, changes)
        except UserError as mistake:
            raise UserError(f"{where}: {mistake}") from mistake
    return found


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with dots in them as tables in tables.

    >>> nested({"a.b": 1, "a": {"c": 2}})
    {'a': {'b': 1, 'c': 2}}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        _put(found, key, value, "")
    return found


def _put(table: dict[str, Any], key: str, value: Any, above: str) -> None:
    name, _, rest = key.partition(".")
    here = f"{above}.{name}" if above else name
    inner = {rest: value} if rest else value
    if isinstance(inner, dict) and isinstance(table.setdefault(name, {}), dict):
        for inside, item in inner.items():
            _put(table[name], inside, item, here)
    elif name in table:
        raise UserError(f"{here} is given twice: keep one of them")
    else:
        table[name] = inner


def with_table(thing: Any, changes: Mapping[str, Any], above: str = "") -> Any:
    """The object with some settings replaced, all at once; tables in tables go down to its parts."""
    hints, now = settings_of(thing, above, above)
    changed = {}
    for name, value in changes.items():
        here = f"{above}.{name}" if above else name
        if name not in hints:
            raise UserError(f"unknown setting {here}: {nearest(name, hints)}")
        part = now.get(name)
        is_part = isinstance(part, partial) or (dataclasses.is_dataclass(part) and not isinstance(part, type))
        if not isinstance(value, dict) or "kind" in value or not (isinstance(part, tuple) or is_part):
            changed[name] = build(hints[name], value, here)
        elif isinstance(part, tuple):  # settings of single entries, by number: `algorithm.terms.0.mu = 0.5`
            for number, item in value.items():
                if not number.isdigit() or int(number) >= len(part) or not isinstance(item, dict):
                    raise UserError(
                        f"{here}.{number}: {here} has {len(part)} entries here; give the number of one and a setting, "
                        "such as terms.0.mu, or the whole list"
                    )
            changed[name] = tuple(with_table(item, value[str(i)], f"{here}.{i}") if str(i) in value else item
                                  for i, item in enumerate(part))  # fmt: skip
        else:
            changed[name] = with_table(part, value, here)
    return replaced(thing, changed)
