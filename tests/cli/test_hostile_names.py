"""Names that anybody may have written, damaged files of data, and what an interrupted start leaves behind."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import turnout as to
from turnout.cli import main
from turnout.clients.store import ClientStore
from turnout.machine.terminal import COMMANDS, Terminal

Capture = pytest.CaptureFixture[str]
NASTY = "a [/b] [bold] \x1b]0;mine\x07 \x1b[2J \u202e :smile:"
FILE = """
rounds = 1
title = "a [/b] [bold] \\u001b]0;mine\\u0007 \\u001b[2J \\u202e :smile:"
[world]
data = {kind = "synthetic", clients = 6, sizes = {kind = "pareto", cap = 30}}
[variants."[/b] \\u001b[31m"]
algorithm.weighting = "A"
[variants.plain]
algorithm.weighting = "C"
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "small.toml").write_text(FILE)


def test_no_name_is_markup_or_a_command_of_the_terminal(capsys: Capture) -> None:
    assert main(["run", "small.toml", "--seeds", "1", "--jobs", "1", "--out", "out"]) == 0
    for command in ("show", "runs", "report", "check"):
        assert main([command, "out"]) == 0
    out, err = capsys.readouterr()
    assert "[/b]" in out
    assert not COMMANDS.search(out + err)
    assert main(["run", NASTY]) == 2
    assert not COMMANDS.search(capsys.readouterr().err)


def test_a_real_terminal_gets_the_programs_own_colours_only(capsys: Capture) -> None:
    Terminal(force_terminal=True, width=80, color_system="standard").print(NASTY, style="red")
    shown = capsys.readouterr().out
    assert re.sub("\x1b\\[[0-9;]*m", "", shown).count("\x1b") == 0
    assert ":smile:" in shown


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n" + b"\x00" * 40, b"GIF89a", b"BM" + b"\xff" * 60])
def test_a_damaged_picture_is_named(content: bytes, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (4, 4), i).save(tmp_path / "pictures" / name / f"{i}.png")
    (tmp_path / "pictures" / "cat" / "1.png").write_bytes(content)
    with pytest.raises(to.UserError, match=r"1\.png cannot be read as a picture"):
        to.data.ImageFolder(tmp_path / "pictures", clients=2).load(0)


def test_a_damaged_file_of_arrays_is_named(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", x=draw.normal(size=(8, 3)).astype(np.float32), y=np.arange(8) % 2)
    whole = (tmp_path / "1.npz").read_bytes()
    for _ in range(60):
        at, value = int(draw.integers(len(whole))), int(draw.integers(1, 256))
        (tmp_path / "1.npz").write_bytes(whole[:at] + bytes([whole[at] ^ value]) + whole[at + 1 :])
        with suppress(to.UserError):  # and nothing else
            to.data.ClientFiles(tmp_path, pattern="*.npz", classes=2).load(0).train(torch.tensor([1]), 0)


def test_rows_that_do_not_fit_memory_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = ClientStore({"row": torch.zeros(1000)}, memory_limit=1000)
    store.scatter(torch.arange(5), {"row": torch.arange(5.0)[:, None].expand(5, 1000)})
    assert store.gather(torch.tensor([3]))["row"][0, 7] == 3.0
    assert [path for path in tmp_path.iterdir() if path.name != "small.toml"] == []


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_a_sentence_of_every_worker(tmp_path: Path) -> None:
    """No file may grow beyond some 60 kB: the workers' databases meet that in the first rounds."""
    command = [sys.executable, "-m", "turnout", "run", "small.toml", "--seeds", "1", "--jobs", "2", "--out", "o", "-q"]
    few = (60_000, 60_000)
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, few)
    )
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    assert done.stderr.count("records.sqlite cannot be used (disk I/O error): is the disk full") == 2, done.stderr


def loading(process: int) -> bool:
    """Whether the server that forks workers was started: it loads the library for seconds."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = path.read_text().rpartition(")")[2].split()[1]
            if parent == str(process) and b"forkserver" in (path.parent / "cmdline").read_bytes():
                return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.0, 0.3, 1.0, 3.0])
def test_ctrl_c_while_a_grid_is_started_is_quiet(after: float, tmp_path: Path) -> None:
    """So many seconds after the first process of its workers was started."""
    rounds = ["--set", "rounds=100000", "--jobs", "2", "--out", "o"]
    command = [sys.executable, "-m", "turnout", "run", "small.toml", *rounds]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while process.poll() is None and not loading(process.pid):
        time.sleep(0.01)
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err, err
