"""Sizes, imports and names that must not grow, so that the core stays readable (docs/measure_core.py)."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import tomllib
from pathlib import Path

import pytest

from turnout.clients.work import client_work
from turnout.round import aggregate, make_updates, remember, run_round, weigh
from turnout.server.collecting import collect

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("measure_core", ROOT / "docs" / "measure_core.py")
assert SPEC is not None
assert SPEC.loader is not None
measure = importlib.util.module_from_spec(SPEC)
sys.modules["measure_core"] = measure
SPEC.loader.exec_module(measure)


@pytest.mark.parametrize("function", [run_round, aggregate, make_updates, weigh, remember, client_work, collect])
def test_a_step_of_the_round_is_at_most_30_lines_and_5_parameters(function):
    assert len(inspect.getsource(function).splitlines()) <= 30
    assert len(inspect.signature(function).parameters) <= 5


def test_a_round_runs_through_few_files_functions_and_kinds_of_records():
    plain, full = measure.traced(), measure.traced(measure.all_parts())
    assert len(plain.files) <= 35
    assert len(plain.functions) <= 110
    assert plain.switches <= 100
    assert len(plain.records) <= 19
    assert len(full.files) <= 55
    assert len(full.functions) <= 230
    assert len(full.records) <= 30


def test_the_import_contract_has_no_exceptions():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    assert settings["contracts"]
    assert not any("ignore_imports" in contract for contract in settings["contracts"])


def test_no_modules_import_each_other():
    """Typing included."""
    assert measure.largest_cycle(measure.imports(measure.sources(measure.PACKAGE, measure.PAPERS))) == []


def test_a_cycle_is_found():
    assert measure.largest_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]


def test_a_file_under_60_lines_is_a_part():
    assert measure.short_files(measure.sources(measure.PACKAGE, measure.PAPERS)) == []


def test_the_core_does_not_import_satellites():
    for module, targets in measure.imports(measure.sources(measure.PACKAGE)).items():
        room = module.split(".")[1] if "." in module else ""
        if room not in (*measure.ABOVE, "public", "__main__", ""):
            assert not [t for t in targets if t.split(".")[1:2] and t.split(".")[1] in measure.ABOVE], module


def test_public_class_names_are_unique():
    assert measure.twice(measure.sources(measure.PACKAGE)) == []


def test_an_author_of_a_term_meets_six_members():
    assert measure.term_members() == [
        "name", "server_state", "client_state", "transform_grad", "finish", "server_update",
    ]  # fmt: skip
