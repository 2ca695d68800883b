"""What macOS and Windows lack, taken away here: a run works without it, or a message says what cannot be done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing import Process as Child
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed

import turnout as to
from turnout.deploy import processes
from turnout.deploy.processes import SUPERLINK_PID, SUPERLINKS, Process, ServerPlace, Serving, program
from turnout.errors import UserError
from turnout.running.folder import file_name
from turnout.running.plan import planned_runs
from turnout.running.side_by_side import Failed, RunWorker
from turnout.runtimes.processes import start_ranks
from turnout.view.live.acting import Actions, Started
from turnout.view.live.watched import WatchedFolder

AS_ON_WINDOWS = """
import multiprocessing, os, signal, sys
sys.modules["fcntl"] = sys.modules["resource"] = sys.modules["pwd"] = None
for module, names in {
    os: ("fork", "killpg", "setsid", "getpgid", "sched_getaffinity", "sysconf", "geteuid", "getuid", "getegid"),
    signal: ("SIGKILL", "pthread_sigmask", "SIGHUP", "SIGALRM"),
}.items():
    for name in names:
        delattr(module, name)
multiprocessing.get_all_start_methods = lambda: ["spawn"]
"""  # the module sitecustomize of each process


def test_runs_side_by_side_need_neither_fork_nor_file_locks(tmp_path: Path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(AS_ON_WINDOWS)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "CC": "no-such-compiler", "PATH": ""}
    (tmp_path / "small.toml").write_text('rounds = 2\nworld.data = { kind = "synthetic", clients = 4 }\n')
    for words in ("run small.toml --seeds 2 --jobs 2 --out out -q", "run --out out --resume -q", "runs"):
        command = [sys.executable, "-m", "turnout", *words.split()]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert "Traceback" not in done.stderr
    assert "4/4" in done.stdout
    assert len(to.open_run(tmp_path / "out")) == 2


def test_a_server_without_process_groups_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "killpg")
    with pytest.raises(UserError, match="needs process groups, which Windows does not have"):
        Process("SuperLink", [sys.executable, "-c", ""], tmp_path / "log").start()


def test_processes_of_a_killed_server_are_found_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As on macOS."""
    monkeypatch.setattr(processes, "PROC", tmp_path / "no-proc")
    serving = Serving(ServerPlace(tmp_path / "app", tmp_path / "work"), tmp_path / "e.toml", tmp_path / "run")
    (tmp_path / "work").mkdir()
    for words, ended in (([SUPERLINKS[0]], True), (["another program"], False)):
        orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *words])
        try:
            (tmp_path / "work" / SUPERLINK_PID).write_text(str(orphan.pid))
            serving._end_orphans()
            if ended:
                assert orphan.wait(10) < 0
            else:
                assert orphan.poll() is None
        finally:
            orphan.kill()
            orphan.wait()


def test_a_torch_that_cannot_start_processes_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(torch.distributed, "TCPStore")
    with pytest.raises(UserError, match="torch cannot start processes"):
        start_ranks(2)


@pytest.mark.parametrize("name", ["con", "NUL", "aux.txt", "com1", "LPT9", "x" * 99 + "..y"])
def test_folders_have_names_that_windows_accepts(name: str):
    found = file_name(name)
    assert found.partition(".")[0].upper() not in {"CON", "NUL", "AUX", "COM1", "LPT9"}
    assert not found.endswith(".")


def test_variants_that_differ_by_case_have_folders_of_their_own():
    """macOS and Windows take `a` and `A` for the same folder."""
    runs = planned_runs({"a": to.Experiment(), "A": to.Experiment()})
    assert [run.path for run in runs] == ["a/seed-0", "A-2/seed-0"]


def test_a_run_whose_process_has_ended_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Pipe()
    there.close()
    process = Child(target=int)
    process.start()
    monkeypatch.delattr(signal, "SIGKILL")
    found = RunWorker(process, here, (0, SimpleNamespace(name="mine"))).receive()  # type: ignore[arg-type]
    assert isinstance(found, Failed)
    assert not found.for_memory


def test_a_run_is_stopped_from_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actions = Actions(WatchedFolder(tmp_path))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        send = process.send_signal

        def windows(number: int) -> None:
            if number != signal.SIGTERM:
                raise ValueError(f"Unsupported signal: {number}")
            send(number)

        monkeypatch.setattr(process, "send_signal", windows)
        actions.started["mine"] = Started(process, tmp_path / "log")
        assert actions.stop("mine") == "mine"
        assert process.wait(30) != 0


def test_programs_of_flower_end_in_exe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flwr.EXE").touch(0o755)
    monkeypatch.setattr(processes.sys, "executable", str(tmp_path / "python.exe"))
    monkeypatch.setattr("shutil.which", lambda name, path: str(Path(path) / f"{name}.EXE"))  # as there
    assert program("flwr") == str(tmp_path / "flwr.EXE")
