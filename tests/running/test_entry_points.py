"""Other packages add commands and recipes through entry points: imported when named or listed, and never a crash."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from commands import turnout
from turnout.recipes import cook, recipes

Capture = pytest.CaptureFixture[str]
RECIPES = """
from turnout.experiment import Experiment
def from_elsewhere() -> Experiment:
    return Experiment(rounds=2, title="elsewhere")
def digits() -> Experiment:
    return Experiment(rounds=1, title="not the core's")
def _private() -> Experiment: ...
def needs(argument: int) -> Experiment: ...
"""
POINTS = """
[turnout.recipes]
other = other_recipes
broken = no_such_recipes
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with entry points, two of them broken."""
    (tmp_path / "other-1.dist-info").mkdir()
    (tmp_path / "other-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (tmp_path / "other-1.dist-info" / "entry_points.txt").write_text(POINTS)
    (tmp_path / "other_recipes.py").write_text(RECIPES)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


def test_studies_without_their_package_say_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "turnout_papers" else found(name))
    assert turnout("study", "list") == 2
    assert "pip install turnout-papers" in capsys.readouterr().err


def test_recipes_of_another_package_are_added_and_a_broken_one_is_a_warning():
    with pytest.warns(UserWarning, match="no_such_recipes cannot be loaded"):
        found = recipes()
    assert {"from-elsewhere", "digits", "participation"} <= found.keys()
    assert not {"needs", "_private", "-private"} & found.keys()
    with pytest.warns(UserWarning, match="no_such_recipes"):
        assert list(cook("from-elsewhere")) == ["elsewhere"]
    assert list(cook("digits")) == ["digits"]  # the core's, for which no other package is imported
