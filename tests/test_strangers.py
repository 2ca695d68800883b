"""A file or a run folder that a stranger sent: a dotted path names what has its role, and nothing is called before."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import turnout as to
from turnout.cli import main
from turnout.config.read import from_table
from turnout.trackers.tracker import make_tracker

CALLED: list[str] = []


class Trap:
    """Says that it was made."""

    def __init__(self, *arguments: object, **settings: object):
        CALLED.append("Trap")


def trap(*arguments: object) -> Trap:
    CALLED.append("trap")
    return Trap()


def annotated(t: int, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(2, 3), torch.tensor([0, 1])


def rate(lr: float, t: int) -> float:
    return lr


def network(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(*input_shape, classes)


def stays(name: str, module: nn.Module) -> bool:
    return False


def made_weighting() -> to.ByWork:
    return to.ByWork()


MARK = "touch called"
HOSTILE = [
    {"model": {"kind": "subprocess:Popen", "args": MARK, "shell": True}},
    {"model": "os:system"},
    {"model": "test_strangers:trap"},
    {"algorithm": {"weighting": {"kind": "subprocess:Popen", "args": MARK, "shell": True}}},
    {"algorithm": {"weighting": "test_strangers:Trap"}},
    {"algorithm": {"aggregation": {"kind": "subprocess:check_output", "args": [MARK]}}},
    {"algorithm": {"terms": [{"kind": "test_strangers:Trap"}]}},
    {"algorithm": {"personal": "os:system"}},
    {"algorithm": {"personal": "test_strangers:trap"}},
    {"algorithm": {"local": {"optimizer": {"kind": "test_strangers:Trap"}}}},
    {"algorithm": {"local": {"schedule": {"kind": "custom", "function": "os:system"}}}},
    {"world": {"data": {"kind": "test_strangers:Trap"}}},
    {"world": {"data": {"kind": "loader", "function": "os:abort", "clients": 2, "input_shape": [3], "classes": 2}}},
    {"world": {"participation": {"kind": "test_strangers:Trap"}}},
    {"world": {"events": {"kind": "subprocess:Popen", "args": MARK, "shell": True}}},
    {"task": {"kind": "test_strangers:Trap"}},
    {"runtime": {"kind": "test_strangers:Trap"}},
]


@pytest.mark.parametrize("table", HOSTILE, ids=lambda table: str(table)[:60])
def test_what_is_not_of_the_role_is_not_called(
    table: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    CALLED.clear()
    with pytest.raises(to.Mistake):
        from_table(table)
    assert CALLED == []
    assert not Path("called").exists()


def test_what_is_of_the_role_is_used() -> None:
    table = {
        "model": "test_strangers:network",
        "algorithm": {
            "weighting": "test_strangers:made_weighting",
            "personal": "test_strangers:stays",
            "local": {"schedule": {"kind": "custom", "function": "test_strangers:rate"}},
        },
    }
    found = from_table(table)
    assert found.model is network
    assert isinstance(found.algorithm, to.Algorithm)
    assert found.algorithm.weighting == to.ByWork()
    assert found.algorithm.personal is stays


@pytest.mark.parametrize("track", ["test_strangers:Trap", "subprocess:Popen", "test_strangers:trap"])
def test_a_tracker_is_one_before_it_is_made(track: str) -> None:
    CALLED.clear()
    with pytest.raises(to.Mistake, match="is no tracker"):
        make_tracker(track)
    assert CALLED == []


def test_a_module_without_the_name_is_not_even_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loud_module.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(to.Mistake, match="has nothing called 'Mine'"):
        from_table({"algorithm": {"weighting": "loud_module:Mine"}})
    with pytest.raises(to.Mistake, match="has nothing called"):
        from_table({"algorithm": {"weighting": "antigravity:webbrowser2"}})
    assert not (tmp_path / "ran").exists()
    assert "antigravity" not in sys.modules


def test_modules_beside_a_strangers_file_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent, here = tmp_path / "sent", tmp_path / "here"
    sent.mkdir()
    here.mkdir()
    (sent / "their_module.py").write_text("class Weighting:\n    pass\n")
    (sent / "theirs.toml").write_text('[algorithm]\nweighting = "their_module:Weighting"\n')
    (here / "torch.py").write_text("raise SystemExit('the wrong torch')\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert main(["run", str(sent / "theirs.toml")]) == 2
    assert "cannot import 'their_module'" in capsys.readouterr().err
    assert sys.path[-1] == str(here)  # after the libraries, so that nothing here stands in for one


@pytest.mark.parametrize("path", ["../elsewhere", "/tmp/elsewhere", "a/../../b"])
def test_a_list_of_runs_stays_in_its_folder(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sent").mkdir()
    Path("sent/runs.json").write_text(json.dumps({"title": "x", "runs": [{"variant": "a", "seed": 0, "path": path}]}))
    for command in (["run", "--out", "sent", "--resume"], ["show", "sent"], ["runs", "sent"]):
        main(command)
        assert "outside" in "".join(capsys.readouterr()), command
    assert [p.name for p in tmp_path.iterdir()] == ["sent"]
