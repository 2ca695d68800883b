"""Start, stop and resume a run: processes of their own, which go on when the server of the pages ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnout.errors import UserError, nearest
from turnout.recipes import recipes
from turnout.running.config.dotted import Code
from turnout.running.folder import contents, file_name
from turnout.running.state import interrupt
from turnout.view.live.watched import Watched

LOGS = ".watch"  # what started runs print, below the watched folder


@dataclass
class Started:
    """A run that was started from a page."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def failed(self) -> str | None:
        """What it said if it ended with a mistake; None else."""
        if self.process.poll() in (None, 0, 130):
            return None
        said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return said[-1] if said else f"it ended with code {self.process.returncode}"


@dataclass
class Actions:
    """What buttons do in a folder."""

    watched: Watched
    started: dict[str, Started] = field(default_factory=dict)

    def start(self, wanted: dict[str, Any]) -> str:
        """Run a recipe or an experiment file in a new folder; the name of the run."""
        source, name = self._source(_text(wanted, "source")), _text(wanted, "name")
        settings = [line.strip() for line in _text(wanted, "settings").splitlines() if line.strip()]
        seeds = _text(wanted, "seeds")
        if seeds and not re.fullmatch(r"[1-9]\d{0,3}", seeds):
            raise UserError(f"seeds {seeds!r}: how many, as a number")
        name = file_name(name or f"{Path(source).stem or 'participation'}-{time.strftime('%Y%m%d-%H%M%S')}")
        if self.watched.folder.resolve() == Path.cwd():
            name = f"runs/{name}"  # where `turnout run` makes them
        if contents(self.watched.folder / name):
            raise UserError(f"{name} is there already: choose another name")
        options = [word for setting in settings for word in ("--set", setting)] + (["--seeds", seeds] if seeds else [])
        self._run(name, [*([source] if source else []), *options, "--out", str(self.watched.folder / name)])
        return name

    def _source(self, said: str) -> str:
        """A recipe of Turnout's, or a file or a recipe of the user's own that lies below the watched folder."""
        folder, known = self.watched.folder.resolve(), recipes()
        if said == "" or said.replace("_", "-") in known:
            return said
        path = (folder / said).resolve()
        if path.is_relative_to(folder) and path.is_file():
            return str(path)
        with suppress(UserError):
            Code(below=folder).check(said, "the recipe")
            return said
        raise UserError(
            f"{said!r} cannot be started from a page, only a recipe of turnout list ({nearest(said, known)}) or what "
            f"lies below {self.watched.folder}: a file, named from there, or a recipe package.module:function"
        )

    def resume(self, name: str) -> str:
        self._run(name, ["--out", str(self.watched.path(name)), "--resume"])
        return name

    def stop(self, name: str) -> str:
        interrupt(self.watched.path(name))
        return name

    def failures(self) -> dict[str, str]:
        """Runs started from here that could not begin or failed, with what they said."""
        found = {name: started.failed() for name, started in self.started.items()}
        return {name: said for name, said in found.items() if said}

    def _run(self, name: str, arguments: Sequence[str]) -> None:
        before = self.started.get(name)
        if before is not None and before.process.poll() is None:
            raise UserError(f"{name} is running already")
        logs = self.watched.folder / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"{file_name(name)}.log"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "turnout", "run", *arguments, "--quiet"],
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "COLUMNS": "1000", "NO_COLOR": "1"},
            )  # fmt: skip
        self.started[name] = Started(name, process, log)


def _text(wanted: dict[str, Any], name: str) -> str:
    found = wanted.get(name, "")
    if not isinstance(found, str):
        raise UserError(f"{name} is {found!r}, and should be text")
    if not all(request.isprintable() or request in "\n\r\t" for request in found):
        raise UserError(f"{name} has a character that cannot be typed")
    return found.strip()
