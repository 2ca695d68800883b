"""One process at a time in a folder: who holds it is said, and nothing outlives the process that started it."""

from __future__ import annotations

import dataclasses
import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import turnout as to
from same_rows import same
from turnout.errors import UserError
from turnout.machine.lock import Busy, Holder, is_locked, locked

PARENT = """
import multiprocessing, os, signal, time
from turnout.machine.threads import end_with_parent

def work(stopped):
    end_with_parent()
    os.write(1, f"{os.getpid()}\\n".encode())  # in one piece: two processes write
    if stopped:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        sum(range(10_000_000))

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    for stopped in (False, True):
        context.Process(target=work, args=(stopped,), daemon=True).start()
    time.sleep(60)
"""

HOLDER = """
import errno, fcntl, sys, time
from pathlib import Path
from turnout.machine.lock import locked

def no_locks(handle, how):
    raise OSError(errno.ENOLCK, "No locks available")

fcntl.flock = no_locks
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_workers_die_with_their_parent_even_if_they_are_busy_or_stopped(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    with subprocess.Popen([sys.executable, str(tmp_path / "parent.py")], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        were_alive = all(map(is_alive, workers))
        parent.kill()
    assert were_alive
    deadline = time.monotonic() + 10
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = [worker for worker in workers if is_alive(worker)]
    for worker in left:
        os.kill(worker, signal.SIGKILL)
    assert left == []


def test_who_holds_a_folder_is_said(tmp_path: Path) -> None:
    with locked(tmp_path / ".lock"):
        assert is_locked(tmp_path / ".lock")
        with pytest.raises(Busy, match=f"another process is running in {tmp_path}, process {os.getpid()} on .*since"):
            locked(tmp_path / ".lock").__enter__()
    assert not is_locked(tmp_path / ".lock")


@pytest.fixture
def _no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)


@pytest.mark.usefixtures("_no_locks")
def test_where_the_file_system_has_no_locks_a_file_is_one(tmp_path: Path) -> None:
    path, only = tmp_path / ".lock", tmp_path / ".lock.held"
    with locked(path):
        assert is_locked(path)
        with pytest.raises(Busy, match=f"process {os.getpid()} on .* if that process is gone, delete {only}"):
            locked(path).__enter__()
    assert not only.exists()
    only.write_text("1\nanother machine\n")  # whose processes cannot be checked
    path.write_text(json.dumps(dataclasses.asdict(Holder(1, "another machine", 0.0, "turnout run"))))
    assert is_locked(path)
    with pytest.raises(Busy, match="process 1 on another machine"):
        locked(path).__enter__()


@pytest.mark.usefixtures("_no_locks")
@pytest.mark.parametrize("reused", [False, True])
def test_a_file_left_by_a_killed_process_is_no_lock(tmp_path: Path, reused: bool) -> None:
    """Also if another process, this one, has its number by now."""
    path, only = tmp_path / ".lock", tmp_path / ".lock.held"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert is_locked(path)
        with pytest.raises(Busy, match=f"process {holder.pid} on"):
            locked(path).__enter__()
        holder.kill()
    left = only.read_text()
    if reused:
        left = left.replace(str(holder.pid), str(os.getpid()), 1)
    only.write_text(left)
    with locked(path):
        assert is_locked(path)
    only.write_text(left)
    assert not is_locked(path)


def test_a_lock_that_was_deleted_is_taken_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder / ".lock"):
        (folder / ".lock").unlink()
        with locked(folder / ".lock"):
            assert is_locked(folder / ".lock")


def start(folder: Path, gate: object, said: object) -> None:
    """Run a small experiment in a folder at the same moment as others, and say how that went."""
    experiment = to.Experiment(world=to.World(data=to.data.Synthetic(clients=4)), rounds=1)
    gate.wait()  # type: ignore[attr-defined]
    try:
        to.run(experiment, folder, quiet=True)
        said.put("ran")  # type: ignore[attr-defined]
    except UserError as mistake:
        said.put(str(mistake))  # type: ignore[attr-defined]
    except BaseException as error:
        said.put(f"broke: {error!r}")  # type: ignore[attr-defined]


def test_of_two_simultaneous_starts_one_runs_and_one_is_told(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["turnout.running.runs", "test_locks"])
    to.run(to.Experiment(world=to.World(data=to.data.Synthetic(clients=4)), rounds=1), tmp_path / "whole", quiet=True)
    for i in range(20):
        gate, said, folder = context.Barrier(2), context.Queue(), tmp_path / str(i)
        processes = [context.Process(target=start, args=(folder, gate, said)) for _ in range(2)]
        for process in processes:
            process.start()
        words = sorted(said.get(timeout=60) for _ in processes)
        for process in processes:
            process.join()
        assert words.count("ran") == 1, words
        assert not [word for word in words if word.startswith("broke")], words
        assert same(folder / "records.sqlite", tmp_path / "whole" / "records.sqlite") == []


KILLED_IN_A_TRANSACTION = """
import os
from pathlib import Path
from turnout.running.records.schema import connect

db = connect(Path("out/records.sqlite"), create=True)
db.execute("PRAGMA cache_size = 1")  # so that pages of an open transaction are on the disk
db.executescript("BEGIN IMMEDIATE; DELETE FROM clients; CREATE TABLE more AS SELECT zeroblob(100000) AS x")
assert os.path.getsize("out/records.sqlite-journal")
os._exit(0)
"""


def test_a_run_on_a_file_system_without_locks_is_the_same(tmp_path: Path) -> None:
    """Neither flock nor fcntl: the records are written without SQLite's own locks, also after a kill."""
    shim = Path(__file__).parents[1] / "campaign" / "no_locks.c"
    subprocess.run(["cc", "-shared", "-fPIC", str(shim), "-o", str(tmp_path / "no_locks.so"), "-ldl"], check=True)
    environment = os.environ | {"LD_PRELOAD": str(tmp_path / "no_locks.so")}
    command = [sys.executable, "-m", "turnout", "run", "digits", "--out", "out", "--quiet"]
    again = [*command, "--set", "rounds=3", "--resume"]
    for own in ([*command, "--set", "rounds=2"], [sys.executable, "-c", KILLED_IN_A_TRANSACTION], again):
        done = subprocess.run(own, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
    undisturbed = subprocess.run([*command[:-2], "whole", "--quiet", "--set", "rounds=3"], cwd=tmp_path)
    assert undisturbed.returncode == 0
    assert same(tmp_path / "out" / "records.sqlite", tmp_path / "whole" / "records.sqlite") == []
