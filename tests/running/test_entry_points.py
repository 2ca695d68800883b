"""Other packages add commands and recipes through entry points: imported when named or listed, and never a crash."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from commands import turnout
from turnout.recipes import cook, recipes

Capture = pytest.CaptureFixture[str]
COMMANDS = """
import typer
print("other is imported")
def greet(name: str) -> None:
    typer.echo(f"hello {name}")
"""
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
[turnout.commands]
greet = other_commands:greet
broken = no_such_module:app
run = other_commands:greet
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
    (tmp_path / "other_commands.py").write_text(COMMANDS)
    (tmp_path / "other_recipes.py").write_text(RECIPES)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "other_commands", raising=False)


def test_a_command_of_another_package_is_listed_and_imported_when_it_is_called(capsys: Capture):
    assert turnout("--help") == 0
    out = capsys.readouterr().out
    assert "greet" in out
    assert "study" in out
    assert "other is imported" not in out
    assert turnout("greet", "ann") == 0
    assert "hello ann" in capsys.readouterr().out


def test_a_broken_command_is_a_sentence_when_it_is_called(capsys: Capture):
    assert turnout("broken") == 2
    err = capsys.readouterr().err
    assert "cannot load the command 'broken' of other" in err
    assert "no_such_module" in err
    assert turnout("--version") == 0


def test_a_command_of_ours_is_not_replaced(capsys: Capture):
    assert turnout("run", "--help") == 0
    assert "other is imported" not in capsys.readouterr().out


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
