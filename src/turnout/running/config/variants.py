"""Changed experiments: single settings of a command line, and the variants of a file.

Each `[variants.NAME]` of a file is a set of settings that belong together:

    [variants.fedavg]              # the file as it is

    [variants.scaffold]
    algorithm.terms = ["scaffold"]
    algorithm.local.optimizer.lr = 0.05

A table with a `kind` replaces a whole part, a table without changes some settings of it. All settings of an object
change at once, so that settings that are valid only together (`epochs = "none"`, `steps = 7`) can change together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.running.config.hints import settable
from turnout.running.config.read import build, from_table, located, meant, parse_value

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
    variants: dict[str, Experiment] = {}
    for name, settings in listed.items():
        where = f"{SECTION}.{name}"
        if not isinstance(settings, dict):
            raise UserError(f"{where} is a table of settings, [{where}], not {settings!r}")
        try:
            if "seed" in settings:
                raise UserError("seeds are common to all variants: --seeds N repeats them")
            variants[name] = with_table(base, settings)
        except UserError as mistake:
            raise UserError(f"{where}: {mistake}") from mistake
    return variants


def with_setting(experiment: Experiment, setting: str) -> Experiment:
    """One `a.b.c=value` from the command line, applied.

    >>> with_setting(Experiment(), "algorithm.local.optimizer.lr=0.5").algorithm.local.optimizer.lr
    0.5
    """
    path, equals, text = setting.partition("=")
    if not equals or not path.strip() or not text.strip():
        raise UserError(f"--set {setting}: write it as path=value, such as --set algorithm.local.epochs=5")
    return with_value(experiment, path.strip(), parse_value(text.strip()))


def with_value(experiment: Experiment, path: str, value: Any) -> Experiment:
    """The experiment with one setting replaced, by dotted path; a role's `kind` replaces the whole part."""
    if value == {}:
        raise UserError(f"{path} needs a kind, or settings to change")
    for name in reversed(path.split(".")):
        value = {name: value}
    changed: Experiment = with_table(experiment, value)
    return changed


def with_table(thing: Any, changes: Mapping[str, Any], above: str = "") -> Any:
    """The object with some settings replaced, all at once; tables in tables go down to its parts."""
    if isinstance(thing, tuple):  # settings of single entries, by number: `algorithm.terms.0.mu = 0.5`
        numbers = [str(i) for i in range(len(thing))]
        for number, item in changes.items():
            if number not in numbers or not isinstance(item, dict):
                raise UserError(
                    f"{above}.{number}: give the number of one of the {len(thing)} entries and a setting, such as "
                    "terms.0.mu, or the whole list"
                )
        return tuple(with_table(item, changes.get(str(i), {}), f"{above}.{i}") for i, item in enumerate(thing))
    function = isinstance(thing, partial)  # which makes a model
    hints, changed = settable(thing.func if function else type(thing)), {}
    for name, value in changes.items():
        here = f"{above}.{name}" if above else name
        if name not in hints:
            raise UserError(f"unknown setting {here}: {meant(name, thing, above)}")
        part = thing.keywords.get(name) if function else getattr(thing, name)
        is_part = isinstance(part, partial | tuple) or (dataclasses.is_dataclass(part) and not isinstance(part, type))
        some = isinstance(value, dict) and "kind" not in value and is_part
        changed[name] = with_table(part, value, here) if some else build(hints[name], value, here)
    with located(above, thing.func if function else type(thing)):
        return partial(thing, **changed) if function else dataclasses.replace(thing, **changed)
