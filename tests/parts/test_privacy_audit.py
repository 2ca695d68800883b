"""The attack of benchmarks/privacy_audit.py: below the stated ε for every allowed pair of parts, above it without a
rule."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "privacy_audit.py"
SPEC = importlib.util.spec_from_file_location("privacy_audit", PATH)
assert SPEC is not None
assert SPEC.loader is not None
audit = importlib.util.module_from_spec(SPEC)
sys.modules["privacy_audit"] = audit
SPEC.loader.exec_module(audit)
LEVEL = 0.05 / len(audit.cases())


@pytest.mark.parametrize(
    "name", ["none", "scheme C, SCAFFOLD", "SCAFFOLD, banded", "scores", "scores, blt", "scores, noise at clients"]
)
def test_an_allowed_case_stays_below_the_stated_epsilon(name):
    assert audit.shown_epsilon(audit.cases()[name], 2000, LEVEL, {}) < audit.EPSILON


@pytest.mark.slow
def test_all_allowed_pairs_stay_below_the_stated_epsilon():
    found = {name: audit.shown_epsilon(parts, 3000, LEVEL, {}) for name, parts in audit.cases().items()}
    assert len(found) > 100
    assert max(found.values()) < audit.EPSILON


@pytest.mark.parametrize(
    "name",
    [
        name if "E/s" in name or "not clipped" in name else pytest.param(name, marks=pytest.mark.slow)
        for name in audit.broken()
    ],
)
def test_without_its_rule_a_case_exceeds_the_stated_epsilon(name):
    parts, off, absent = audit.broken()[name]
    with off:
        assert audit.shown_epsilon(parts, 10_000, LEVEL, absent) > audit.EPSILON
