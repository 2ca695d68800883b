"""The server's processes where Flower's programs take too long: a sentence, and another try."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from turnout.deploy import processes
from turnout.deploy.processes import PATIENCE, NoAnswer, ServerPlace, Serving

ANSWERS = 'echo "{\\"success\\": true, \\"run-id\\": 7}"'


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serving:
    """A server whose `flwr` is a script in tmp_path that never answers."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(processes, "ANSWER_SECONDS", 0.2)
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "kitchen.pub").write_text("a key")
    flwr(tmp_path, "exec sleep 30")
    place = ServerPlace(tmp_path / "app", tmp_path / "work")
    return Serving(place, tmp_path / "experiment.toml", tmp_path / "run", keys, say=[].append)


def flwr(folder: Path, does: str) -> None:
    (folder / "flwr").write_text(f"#!/bin/sh\n{does}\n")
    (folder / "flwr").chmod(0o755)


def test_a_command_that_does_not_answer_is_a_sentence(serving: Serving) -> None:
    with pytest.raises(NoAnswer, match="flwr list here has not answered in"):
        serving.place.flwr("list", "here", "--run-id", "1")


def test_a_key_is_tried_again_until_it_is_let_in(serving: Serving, tmp_path: Path, monkeypatch) -> None:
    serving.register()
    assert serving._registered == set()
    monkeypatch.setattr(processes, "ANSWER_SECONDS", 30.0)
    flwr(tmp_path, ANSWERS)
    serving.register()
    assert serving._registered == {"kitchen.pub"}


def test_a_run_that_never_begins_is_submitted_again_with_more_patience(serving: Serving) -> None:
    serving.submit()
    assert serving.run == ""
    assert not serving.dead()
    serving.began -= PATIENCE + 1
    assert serving.dead()
    serving._resubmit()
    serving.began -= PATIENCE + 1
    assert not serving.dead()
    serving.began -= PATIENCE
    assert serving.dead()
