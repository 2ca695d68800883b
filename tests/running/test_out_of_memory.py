"""A lack of memory ends in a sentence, wherever it shows; the campaign's limits.py takes it away from real runs."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from turnout.cli import app, main
from turnout.errors import UserError, out_of_memory
from turnout.running.records import schema
from turnout.running.state import state_kept, state_of


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), RuntimeError("can't start new thread")]
)
def test_a_lack_of_memory_is_a_sentence_wherever_it_shows(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also outside the rounds: here while a command's modules are loaded."""

    def lacking(*given: object, **more: object) -> None:
        raise error

    monkeypatch.setattr(type(app), "__call__", lacking)
    assert main(["list"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("the machine is out of memory")
    assert len(said.splitlines()) == 1


def test_a_database_without_memory_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="out of memory"), schema.explained(tmp_path / "records.sqlite"):
        raise sqlite3.OperationalError("out of memory")


def test_a_run_s_state_has_the_sentence_and_not_a_device_s_report(tmp_path: Path) -> None:
    report = "CUDA out of memory. Tried to allocate 564.00 MiB.\n" + "Process 1 has 3.47 GiB memory in use. " * 20
    (tmp_path / "experiment.toml").touch()
    with pytest.raises(RuntimeError), state_kept(tmp_path):
        raise RuntimeError(report)
    found = state_of(tmp_path)
    assert (found.state, found.why) == ("failed", out_of_memory(RuntimeError(report)))
    assert (found.why or "").startswith("the machine is out of memory")
    assert len(found.why or "") < 400
