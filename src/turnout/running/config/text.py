"""TOML as text: experiment files and single values as tables, with a sentence for what cannot be read."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.machine.checksums import check_text

RUN_FILE = "experiment.toml"  # what a run's own file is called
CHANGED = (
    "a run goes on with the settings it began with (--set changes rounds, stop and title); if it was you who changed "
    "it, delete its last line"
)
BITS = 63  # of a whole number, beside its sign: what TOML promises, and records can hold


def read_file(path: str | Path) -> dict[str, Any]:
    """An experiment file as tables; variants.py makes experiments of one that has variants."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if Path(path).name == RUN_FILE:
            check_text(Path(path), text, CHANGED)
    except OSError as error:
        hint = f"; turnout init {path} writes one to start from" if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"cannot read the experiment file {path}: {error.strerror}{hint}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    return parse_table(text, str(path))


def parse_table(text: str, where: str) -> dict[str, Any]:
    """A TOML text as tables. `where`: what messages call the text."""
    try:
        table = tomllib.loads(text)
        _check_numbers(table, where)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{where} is not valid TOML: {error}") from error
    except UserError:
        raise
    except ValueError as error:  # Python converts no number of thousands of digits
        raise UserError(f"{where} has a number with thousands of digits: a whole number has at most 19") from error
    return table


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none."""
    try:
        tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError):
        pass  # a sentence, below
    return parse_table(f"value = {text}", f"{text[:40]}{'...' * (len(text) > 40)}")["value"]


def _check_numbers(value: Any, where: str, path: str = "") -> None:
    """Refuse whole numbers that are too large, at any depth."""
    if isinstance(value, int) and value.bit_length() > BITS:
        name = f"{where}: {path}" if path and path != "value" else where
        raise UserError(f"{name} is a whole number of {value.bit_length()} bits: it may be at most {2**BITS - 1}")
    if isinstance(value, Mapping | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            _check_numbers(item, where, f"{path}.{key}" if path else str(key))
