"""Other packages add parts, recipes and commands by entry points: loaded when named, and a broken one is a warning."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnout as to
from commands import turnout
from turnout.cli import added_commands
from turnout.recipes import cook, recipes
from turnout.running.config.kinds import installed_parts
from turnout.testing import check_weighting

Capture = pytest.CaptureFixture[str]
EXAMPLE = Path(__file__).parents[2] / "examples" / "package"
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
several = other_recipes
single = other_single:single
unused = other_unused:no_such_recipe
broken = no_such_recipes

[turnout.parts]
weighting.half = other_parts:Half
weighting.gone = no_such_parts:Gone
wieghting.half = other_parts:Half

[turnout.commands]
greet = other_command:greet
gone = no_such_command:gone
unused = other_unused:command
run = other_unused:run
"""
MODULES = {
    "other_recipes": RECIPES,
    "other_single": "import turnout as to\ndef single():\n    return to.Experiment(rounds=1, title='alone')\n",
    "other_parts": (
        "import turnout as to\n"
        "class Half(to.weighting.ByWork):\n"
        '    """Counts for half."""\n'
        "    def client_scale(self, turnout): return super().client_scale(turnout) / 2\n"
    ),
    "other_command": "def greet(name: str = 'world') -> None:\n    print(f'hello {name}')\n",
    "other_unused": "def command() -> None: ...\n",
}


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    for cached in (added_commands, installed_parts):
        cached.cache_clear()
    yield
    for cached in (added_commands, installed_parts):
        cached.cache_clear()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with entry points, some of them broken, and one module that must not be loaded."""
    about = tmp_path / "other-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\nSummary: Other things\n")
    (about / "entry_points.txt").write_text(POINTS)
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example package, installed by pip."""
    copy = tmp_path / "source"  # the build writes beside its source
    copy.mkdir()
    for name in ("pyproject.toml", "turnout_example.py"):
        (copy / name).write_bytes((EXAMPLE / name).read_bytes())
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(tmp_path / "site"), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delitem(sys.modules, "turnout_example", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])


@pytest.mark.usefixtures("example")
def test_the_example_package_has_a_part_a_recipe_and_a_command(capsys: Capture):
    assert turnout("run", EXAMPLE / "tempered.toml", "--set", "rounds=3", "--out", "run", "--no-code", "-q") == 0
    kept = Path("run/experiment.toml").read_text()
    assert 'kind = "tempered"\npower = 0.5\n' in kept
    weighting = to.open_run("run").experiment.algorithm.weighting
    assert type(weighting).__module__ == "turnout_example"
    check_weighting(weighting)
    capsys.readouterr()
    assert turnout("replies", "run") == 0
    asked, answered = (sum(to.open_run("run").records().column(name).tolist()) for name in ("asked", "answered"))
    assert capsys.readouterr().out == f"{answered / asked:.1%} of the clients that were asked replied\n"
    assert [e.algorithm.weighting.power for e in cook("tempered").values()] == [0.0, 0.5, 1.0]
    assert turnout("list", "weighting") == 0
    listed = capsys.readouterr().out
    assert "tempered" in listed
    assert "power=0.5" in listed
    assert turnout("--help") == 0
    assert "replies" in capsys.readouterr().out


def test_a_command_of_a_package_that_is_not_installed_is_unknown_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    monkeypatch.setattr("turnout.cli.announced", lambda group: [])
    assert turnout("study", "list") == 2
    error = capsys.readouterr().err
    assert "No such command 'study'" in error
    assert "pip install turnout-papers" in error
    assert turnout("--help") == 0
    assert "study" not in capsys.readouterr().out


@pytest.mark.usefixtures("installed")
def test_commands_of_another_package_are_loaded_when_named_and_a_broken_one_is_a_warning(capsys: Capture):
    assert turnout("--help") == 0
    helped = capsys.readouterr().out
    assert "Other things (other)" in helped
    assert "other_command" not in sys.modules
    assert turnout("greet", "--name", "you") == 0
    assert capsys.readouterr().out == "hello you\n"
    assert turnout("gone") == 2
    error = capsys.readouterr().err
    assert "warning: cannot load the command 'gone' of no_such_command:gone" in error
    assert "No such command 'gone'" in error
    assert turnout("run", "--help") == 0  # the core's, although another package has one of that name
    assert "--resume" in capsys.readouterr().out


@pytest.mark.usefixtures("installed")
def test_parts_of_another_package_are_loaded_when_named_and_a_broken_one_is_a_warning(capsys: Capture):
    from turnout.running.config.read import from_table

    with pytest.warns(UserWarning, match="'wieghting.half' of turnout.parts: there is no role 'wieghting'"):
        found = from_table({"algorithm": {"weighting": "half"}})
    assert type(found.algorithm.weighting).__module__ == "other_parts"
    assert "no_such_parts" not in sys.modules
    with pytest.raises(to.UserError, match="no_such_parts"):
        from_table({"algorithm": {"weighting": "gone"}})
    with pytest.warns(UserWarning, match="no_such_parts:Gone cannot be loaded"):
        assert turnout("list", "weighting") == 0
    assert "Counts for half." in capsys.readouterr().out


@pytest.mark.usefixtures("installed")
def test_recipes_of_another_package_are_added_and_a_broken_one_is_a_warning():
    assert list(cook("digits")) == ["digits"]  # the core's, for which no other package is imported
    assert list(cook("single")) == ["alone"]  # for which nothing else is imported
    assert not {"other_recipes", "other_unused"} & sys.modules.keys()
    with pytest.warns(UserWarning, match="cannot be loaded") as warned:
        found = recipes()
    broken = ("other_unused:no_such_recipe cannot be loaded", "no_such_recipes cannot be loaded")
    assert all(any(words in str(warning.message) for warning in warned) for words in broken)
    assert {"from-elsewhere", "digits", "single"} <= found.keys()
    assert not {"unused", "needs", "_private", "-private"} & found.keys()
    assert list(cook("from-elsewhere")) == ["elsewhere"]


def test_the_papers_add_their_command_and_recipes():
    assert importlib.util.find_spec("turnout_papers") is not None
    assert "study" in added_commands()
    assert "participation" in recipes()
