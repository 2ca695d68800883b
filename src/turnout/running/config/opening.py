"""The experiment of a run that is opened to be looked at: what its file cannot give back here is `Absent`.

A run is resumed from what its file says exactly, or not at all (read.py). To read records, or to use trained weights,
objects that only the program had are not needed; each says so when it is used all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnout.errors import Absent, UserError
from turnout.experiment import Experiment
from turnout.running.config.hints import Shape, parsed, settable
from turnout.running.config.read import build, from_table


def open_table(table: Mapping[str, Any]) -> Experiment:
    """An experiment from nested tables, with an `Absent` for each part that cannot be built here.

    >>> open_table({"rounds": 3, "model": "<source 0123456789abcdef>"}).rounds
    3
    """
    try:
        return from_table(table)
    except UserError:
        if table.keys() - settable(Experiment).keys():
            raise
    found: Experiment = _settings(Experiment, table, "")
    return found


def _settings(kind: Any, table: Mapping[str, Any], path: str) -> Any:
    hints = settable(kind)
    if unknown := table.keys() - hints.keys():
        raise UserError(f"unknown settings {', '.join(f'{path}{name}' for name in sorted(unknown))}")
    return kind(**{name: _part(hints[name], value, f"{path}{name}") for name, value in table.items()})


def _part(hint: Any, value: Any, path: str) -> Any:
    try:
        return build(hint, value, path)
    except UserError as mistake:
        why = str(mistake)
    if parsed(hint).shape is Shape.SETTINGS and isinstance(value, Mapping):
        try:
            return _settings(hint, value, f"{path}.")
        except UserError as mistake:
            why = str(mistake)
    return Absent(why)
