"""Runs that are killed, stopped, or given a failing disk at every operation on a file.

Each case is a forked child of this process, which has the library loaded: so a case costs a fraction of a second. A run
that was disturbed is resumed by the same command line; its records must be those of a run that nobody disturbed.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from same_rows import same
from turnout.cli import main, planning
from turnout.machine.checksums import load_tensors
from turnout.machine.files import write_whole
from turnout.running import loop
from turnout.running.records.checkpoint import NAME

COUNT, KILL, FULL, ERROR = range(4)
KEEP_SECONDS, MOST_WRONG = 2.0, 20
LOADED = (planning,)  # what a run imports when it begins: children have it already
EXPERIMENT = """
rounds = 6
evaluate = {every = 2}
model = {kind = "mlp", hidden = [4], batch_norm = true}
[world]
data = {kind = "synthetic", clients = 8, sizes = {kind = "pareto", cap = 20}}
participation = {kind = "traces", first = 5}
[algorithm]
local = {epochs = 2, batch_size = 5}
personal = "batch-norm"
selection = {kind = "count", clients = 4}
"""


@dataclass
class Counts:
    """What was tried and what went wrong, in words; kept in a file as it goes on, and over after some time."""

    tried: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    path: Path | None = None
    until: float = math.inf
    _kept: float = 0.0

    def add(self, what: str, wrong: str | None) -> None:
        self.tried[what] = self.tried.get(what, 0) + 1
        if wrong:
            self.wrong.append(f"{what}: {wrong}")
        if time.monotonic() - self._kept > KEEP_SECONDS:
            self.keep()

    def keep(self) -> None:
        self._kept = time.monotonic()
        if self.path is not None:
            write_whole(self.path, json.dumps({"tried": self.tried, "wrong": self.wrong}))

    @property
    def over(self) -> bool:
        """Whether nothing more is begun."""
        return time.monotonic() > self.until or len(self.wrong) > MOST_WRONG


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code (negative: the signal), and what it printed on stderr."""

    code: int
    err: str


First = Callable[[], None]


def nothing() -> None: ...


class Bench:
    """A folder with an experiment, and the run of it that nobody disturbed."""

    def __init__(self, seed: int):
        self.home = Path(tempfile.mkdtemp(prefix="campaign-"))
        (self.home / "e.toml").write_text(EXPERIMENT)
        self.draw, self.number = random.Random(seed), 0
        loop.CHECKPOINT_SECONDS = 0.0  # a checkpoint after every round
        self.shim = ctypes.CDLL(None) if "shim" in os.environ.get("LD_PRELOAD", "") else None
        assert self.child(self.command(self.home / "whole")).code == 0
        self.seconds = 1.0
        start = time.monotonic()
        assert self.child(self.command(self.home / "timed")).code == 0
        self.seconds = time.monotonic() - start

    def close(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def command(self, out: Path, *more: str) -> list[str]:
        return ["run", str(self.home / "e.toml"), "--out", str(out), "--jobs", "1", "-q", *more]

    def fresh(self) -> Path:
        self.number += 1
        return self.home / f"run-{self.number}"

    def fork(
        self, command: list[str], at: int = 0, what: int | None = None, times: int = 1, first: First = nothing
    ) -> tuple[int, Path]:
        """Start a command in a child, which does something `first`; its number, and the file that has what it says."""
        self.number += 1
        said = self.home / f"said-{self.number}"
        child = os.fork()
        if child:
            return child, said
        code = 99
        try:
            handle = os.open(said, os.O_WRONLY | os.O_CREAT)
            os.dup2(handle, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stderr, sys.stdout = os.fdopen(2, "w"), os.fdopen(1, "w")
            if what is not None and self.shim is not None:
                self.shim.shim_arm(str(self.home / "run-").encode(), ctypes.c_long(at), what, ctypes.c_long(times))
            first()
            code = main(command)
            if what == COUNT and self.shim is not None:
                self.shim.shim_count.restype = ctypes.c_long
                (self.home / "operations").write_text(str(self.shim.shim_count()))
            sys.stderr.flush()
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def child(self, command: list[str], at: int = 0, what: int | None = None, times: int = 1) -> Ended:
        """Run a command in a child to its end."""
        return self.ended(*self.fork(command, at, what, times))

    def ended(self, child: int, said: Path) -> Ended:
        _, status = os.waitpid(child, 0)
        words = said.read_text(errors="replace") if said.exists() else ""
        said.unlink(missing_ok=True)
        return Ended(os.waitstatus_to_exitcode(status), words)

    def resumed(self, out: Path) -> str | None:
        """What is wrong with a run that is gone on with; None where it is as if nobody had disturbed it."""
        done = self.child(self.command(out, "--resume"))
        if done.code != 0:
            return f"resume ended with {done.code}: {done.err[-400:]}"
        return self.differs(out)

    def differs(self, out: Path) -> str | None:
        found = same(self.home / "whole" / "records.sqlite", out / "records.sqlite")
        if found:
            return f"records differ: {found[:2]}"
        if (out / "turnout.csv").read_bytes() != (self.home / "whole" / "turnout.csv").read_bytes():
            return "turnout.csv differs"
        a, b = kept(out), kept(self.home / "whole")
        wrong = [name for name in a.keys() | b.keys() if name not in a or name not in b or a[name] != b[name]]
        return f"the state differs: {sorted(wrong)[:3]}" if wrong else None

    def operations(self) -> int:
        """How many operations on files a whole run makes."""
        assert self.child(self.command(self.fresh()), 0, COUNT).code == 0
        return int((self.home / "operations").read_text())


def kept(folder: Path) -> dict[str, bytes]:
    """Every tensor of a run's state and of its clients' rows, as bytes; which files hold the rows does not matter."""
    tensors, about = load_tensors(folder / NAME, "")
    found = {name: value.numpy().tobytes() for name, value in tensors.items()}
    found["about"] = repr({name: said for name, said in about.items() if name != "client_files"}).encode()
    for file in about["client_files"]:
        rows, _ = load_tensors(folder / "clients" / file, "")
        for client in rows.pop("forgotten").tolist():
            found = {name: value for name, value in found.items() if not name.startswith(f"client {client} ")}
        for i, client in enumerate(rows.pop("client").tolist()):
            found |= {f"client {client} {name}": value[i].numpy().tobytes() for name, value in rows.items()}
    return found


def killed_at_operations(bench: Bench, counts: Counts, places: Iterator[int]) -> None:
    """Kill at an operation on a file, and go on."""
    for at in places:
        if counts.over:
            return
        out = bench.fresh()
        done = bench.child(bench.command(out), at, KILL)
        wrong = None if done.code in (0, -signal.SIGKILL) else f"it was not killed at {at}: {done}"
        name = "kills at a file operation" if done.code else "runs that ended before the last operation of another"
        counts.add(name, wrong or bench.resumed(out))
        shutil.rmtree(out, ignore_errors=True)


def failing_disk(bench: Bench, counts: Counts, places: Iterator[int]) -> None:
    """A full disk, and one that gives errors, at an operation or from there on; a sentence, and then go on."""
    for at, what in ((at, what) for at in places for what in (FULL, ERROR)):
        if counts.over:
            return
        times = bench.draw.choice([1, 5, 1_000_000])
        out = bench.fresh()
        done = bench.child(bench.command(out), at, what, times)
        name = "a full disk" if what == FULL else "a disk that gives errors"
        wrong = f"traceback at {at}, {times} times: {done.err[-600:]}" if "Traceback" in done.err else None
        wrong = wrong or (f"ended with {done.code} at {at}: {done.err[-300:]}" if done.code not in (0, 1, 2) else None)
        counts.add(name, wrong or bench.resumed(out))
        shutil.rmtree(out, ignore_errors=True)


def killed_at_random(bench: Bench, counts: Counts, kills: int) -> None:
    """Kill at a random moment, several times in a row, until the run is complete."""
    while kills > 0 and not counts.over:
        out = bench.fresh()
        for _ in range(bench.draw.randint(1, 4)):
            child, said = bench.fork(bench.command(out, "--resume"))
            time.sleep(bench.draw.random() * bench.seconds)
            os.kill(child, signal.SIGKILL)
            bench.ended(child, said)
            kills -= 1
            counts.add("kills at a random moment", None)
        counts.add("runs resumed after random kills", bench.resumed(out))
        shutil.rmtree(out, ignore_errors=True)


def stopped(bench: Bench, counts: Counts, times: int) -> None:
    """Stop a run for a moment, ask for its folder meanwhile, and let it go on."""
    for _ in range(times):
        if counts.over:
            return
        out = bench.fresh()
        child, said = bench.fork(bench.command(out))
        time.sleep(bench.draw.random() * bench.seconds)
        os.kill(child, signal.SIGSTOP)
        other = bench.child(["check", str(out)]) if out.is_dir() else Ended(0, "")
        os.kill(child, signal.SIGCONT)
        done = bench.ended(child, said)
        wrong = None if done.code == 0 else f"ended with {done.code}: {done.err[-300:]}"
        wrong = wrong or ("traceback of a reader: " + other.err[-300:] if "Traceback" in other.err else None)
        counts.add("stopped and continued", wrong or bench.differs(out))
        shutil.rmtree(out, ignore_errors=True)
