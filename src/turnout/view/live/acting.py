"""Start, stop and resume a run: processes of their own, which continue when the server of the pages ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from turnout.errors import UserError, nearest
from turnout.recipes import recipes
from turnout.running.config.dotted import Code
from turnout.running.folder import contents, file_name
from turnout.running.state import is_held
from turnout.view.live.watched import WatchedFolder

MOST_RUNNING = 8  # runs started from a page at the same time
LOGS = ".watch"  # output of started runs, below the watched folder


class Started(NamedTuple):
    """A run that was started from a page: its process, and the log of its output."""

    process: subprocess.Popen[bytes]
    log: Path


@dataclass
class Actions:
    """What buttons do in a folder.

    watched  the folder
    started  the runs started from here, by name
    lock     held while a button acts: of several starts of one name, one runs
    """

    watched: WatchedFolder
    started: dict[str, Started] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def act(self, what: str, wanted: dict[str, Any]) -> str:
        """Do what a button says; the name of the run."""
        acts = {"stop": self.stop, "resume": self.resume}
        if what != "start" and what not in acts:
            raise UserError(f"there is no button {what!r}")
        with self.lock:
            return self.start(wanted) if what == "start" else acts[what](str(wanted.get("name", "")))

    def start(self, wanted: dict[str, Any]) -> str:
        """Run a recipe or an experiment file in a new folder."""
        source, name = self._source(_text(wanted, "source")), _text(wanted, "name")
        settings = [line.strip() for line in _text(wanted, "settings").splitlines() if line.strip()]
        seeds = _text(wanted, "seeds")
        if seeds and not re.fullmatch(r"[1-9]\d{0,3}", seeds):
            raise UserError(f"seeds {seeds!r}: how many, as a number")
        name = file_name(name or f"{Path(source).stem or 'absence'}-{time.strftime('%Y%m%d-%H%M%S')}")
        if self.watched.folder.resolve() == Path.cwd():
            name = f"runs/{name}"  # where `turnout run` makes them
        if contents(self.watched.folder / name):
            raise UserError(f"{name} is there already: choose another name")
        options = [word for setting in settings for word in ("--set", setting)] + (["--seeds", seeds] if seeds else [])
        self._run(name, [*([source] if source else []), *options, "--out", str(self.watched.folder / name)])
        return name

    def _source(self, given: str) -> str:
        """A recipe of Turnout's, or a file or a recipe of the user's own that lies below the watched folder."""
        folder, known = self.watched.folder.resolve(), recipes()
        if given == "" or given.replace("_", "-") in known:
            return given
        path = (folder / given).resolve()
        if path.is_relative_to(folder) and path.is_file():
            return str(path)
        with suppress(UserError):
            Code(below=folder).check(given, "the recipe")
            return given
        raise UserError(
            f"{given!r} cannot be started from a page, only a recipe of turnout list ({nearest(given, known)}) or what "
            f"lies below {self.watched.folder}: a file, named from there, or a recipe package.module:function"
        )

    def resume(self, name: str) -> str:
        """Resume a run."""
        self._run(name, ["--out", str(self.watched.path(name)), "--resume"])
        return name

    def stop(self, name: str) -> str:
        """Interrupt a run that was started from here, as Ctrl-C does; it can be resumed.

        No other process gets a signal, whatever a lock file says: a process that has this one as its parent keeps its
        number until this one has seen it end.
        """
        if name in self.started and self.started[name].process.poll() is None:
            process = self.started[name].process
            try:
                process.send_signal(signal.SIGINT)
            except ValueError:  # Windows: it ends without its report, and --resume continues it
                process.terminate()
        elif is_held(self.watched.path(name)):
            raise UserError(f"{name} was not started from this page: stop it where it was started")
        else:
            raise UserError(f"nothing is running in {name}")
        return name

    def failures(self) -> dict[str, str]:
        """Runs started from here that could not begin or failed, with the last line they printed."""
        found = {}
        for name, (process, log) in self.started.items():
            if process.poll() not in (None, 0, 130):
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                found[name] = lines[-1] if lines else f"it ended with code {process.returncode}"
        return found

    def _run(self, name: str, arguments: Sequence[str]) -> None:
        if name in self.started and self.started[name].process.poll() is None:
            raise UserError(f"{name} is running already")
        if sum(started.process.poll() is None for started in self.started.values()) >= MOST_RUNNING:
            raise UserError(f"{MOST_RUNNING} runs that were started from here are running: stop one, or wait")
        logs = self.watched.folder / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"{file_name(name)}.log"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "turnout", "run", *arguments, "--quiet"],
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "COLUMNS": "1000", "NO_COLOR": "1"},
            )  # fmt: skip
        self.started[name] = Started(process, log)


def _text(wanted: dict[str, Any], name: str) -> str:
    found = wanted.get(name, "")
    if not isinstance(found, str):
        raise UserError(f"{name} is {found!r}, and should be text")
    if not all(letter.isprintable() or letter in "\n\r\t" for letter in found):
        raise UserError(f"{name} has a character that cannot be typed")
    return found.strip()
