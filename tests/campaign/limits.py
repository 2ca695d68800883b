"""Runs that get too little memory: an allocation that fails, and the kernel's killer of processes that take too much.

An allocation fails under a limit on a process's addresses. The killer comes where a worker is put into a control group
with hardly any memory; where there are no rights for that, the worker is killed as it would be.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from faults import Bench, Counts, Ended
from groups import PATIENCE, RUNS, command, members, started, went_on, whole_and_home

LEAST, MOST = 1 << 18, 1 << 26  # bytes beyond what the process has when it begins
HARDLY_ANY = 1 << 18  # bytes of a control group


def too_little_memory(bench: Bench, counts: Counts, times: int) -> None:
    """Every fourth time the killer comes; a sentence each time, and the same command goes on."""
    home = whole_and_home() if times > 3 else bench.home
    for number in range(times):
        if counts.over:
            break
        if number % 4 == 3:
            _killer(bench, counts, home)
        else:
            _failing_allocation(bench, counts)
    if home != bench.home:
        shutil.rmtree(home, ignore_errors=True)


def _failing_allocation(bench: Bench, counts: Counts) -> None:
    beyond = int(LEAST * (MOST / LEAST) ** bench.draw.random())
    out = bench.fresh()
    done = bench.ended(*bench.fork(bench.command(out), first=limited(beyond)))
    found = "an allocation that fails" if done.code else "just enough memory"
    found += " in a library, which ends the process" if done.code < 0 else ""
    counts.add(found, _no_sentence(done, beyond) or bench.resumed(out))
    shutil.rmtree(out, ignore_errors=True)


def limited(beyond: int) -> Callable[[], None]:
    """Lets the process that calls it have so many bytes more than it has."""

    def limit() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + beyond
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))

    return limit


def _no_sentence(done: Ended, beyond: int) -> str | None:
    if done.code == -signal.SIGABRT and "memory allocation of" in done.err:
        return None  # a library in Rust, which says so and ends the process
    if done.code not in (0, 1, 2) or "Traceback" in done.err:
        return f"with {beyond:,} bytes more it ended with {done.code}: {done.err[-600:]}"
    if done.code and "memory" not in done.err:
        return f"with {beyond:,} bytes more no word of memory: {done.err[-600:]}"
    return None


def _killer(bench: Bench, counts: Counts, home: Path) -> None:
    out, group = home / "run", control_group()
    process = started(command(home, out), home)
    worker, until = None, time.monotonic() + PATIENCE
    while worker is None and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
        worker = _worker_of(out, process.pid)
    time.sleep(0.3 * bench.draw.random())
    if worker is not None:
        _squeeze(worker, group)
    _, err = process.communicate(timeout=PATIENCE)
    said = process.returncode == 0 or ("short of memory" in err and "Traceback" not in err)
    wrong = None if said else f"it ended with {process.returncode}: {err[-500:]}"
    by = "by the kernel's killer" if group else "as by the kernel's killer"
    name = f"a worker killed {by}" if process.returncode else "a worker that ended before it was killed"
    counts.add(name, wrong or went_on(home, out))
    shutil.rmtree(out, ignore_errors=True)
    if group:
        with suppress(OSError):
            group.rmdir()


def _worker_of(out: Path, session: int) -> int | None:
    """A process of the session that has the records of a run open."""
    for pid in members(session):
        with suppress(OSError):
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
            if any(str(out / run / "records.sqlite") in links for run in RUNS):
                return pid
    return None


def _squeeze(worker: int, group: Path | None) -> None:
    with suppress(ProcessLookupError):
        if group is None:
            os.kill(worker, signal.SIGKILL)
        else:
            (group / "cgroup.procs").write_text(str(worker))


def control_group() -> Path | None:
    """A new control group with hardly any memory, of either version; None without the rights."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        made = Path(root) / f"campaign-{os.getpid()}-{time.monotonic_ns()}"
        if not Path(root).is_dir():
            continue
        try:
            made.mkdir()
            (made / limit).write_text(str(HARDLY_ANY))
        except OSError:
            with suppress(OSError):
                made.rmdir()
            continue
        return made
    return None
