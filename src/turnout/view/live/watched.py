"""The watched folder: its runs and their states; and notifying open pages of changes.

Pages are notified by Server-Sent Events. One that receives a change fetches itself anew and replaces the parts that
differ (watch.js), so it shows what a fresh page would.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
from starlette.responses import StreamingResponse

from turnout.errors import UserError
from turnout.running.records.finding import runs_in
from turnout.running.state import RECORDS, ListedRun, is_held, listed_run, run_folders

LOOK_SECONDS = 0.5
ALIVE_SECONDS = 15.0  # a comment at least that often, so that a broken connection is noticed
_FILES = (RECORDS, f"{RECORDS}-wal", "state.json", "runs.json", "error.txt")

Fingerprint = tuple[object, ...]


@dataclass(frozen=True)
class WatchedFolder:
    """The folder; runs in it are named by their path below it, "." for the folder itself."""

    folder: Path

    def run_paths(self) -> dict[str, Path]:
        """Folders that are a run, or runs made together, by name."""
        return {self._name(path): path for path in run_folders(self.folder)} if self.folder.is_dir() else {}

    def runs(self) -> dict[str, ListedRun]:
        """All runs with their states, those that changed last first."""
        listed = {name: listed_run(path) for name, path in self.run_paths().items()}
        return dict(sorted(listed.items(), key=lambda item: -item[1].when))

    def path(self, name: str) -> Path:
        """The folder of a run by its name; only folders that are listed can be named."""
        found = self.run_paths().get(name)
        if found is None:
            raise UserError(f"there is no run {name!r} in {self.folder}")
        return found

    def fingerprints(self) -> dict[str, Fingerprint]:
        """By name: a value that differs once a run has changed."""
        found: dict[str, Fingerprint] = {}
        for name, path in self.run_paths().items():
            folders = [path]
            if (path / "runs.json").is_file():
                try:
                    inside = runs_in(path)
                    folders += [run.path for run in [*inside.runs, *inside.waiting]]
                except UserError:
                    pass
            found[name] = tuple((*(_stamp(one / file) for file in _FILES), is_held(one)) for one in folders)
        return found

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _stamp(path: Path) -> tuple[int, int] | None:
    """When a file was last written and how long it is."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class Changes:
    """Sends open pages the names of runs that changed."""

    def __init__(self, watched: WatchedFolder) -> None:
        self.watched, self.is_closed = watched, False
        self._last: tuple[float, dict[str, Fingerprint]] = (-LOOK_SECONDS, {})

    def answer(self) -> StreamingResponse:
        """The endless answer to one page; `close` ends it."""
        return StreamingResponse(self._events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _events(self) -> AsyncIterator[str]:
        before, sent = await self._look(), time.monotonic()
        yield "retry: 1000\n\nevent: hello\ndata: {}\n\n"
        while not self.is_closed:
            await asyncio.sleep(LOOK_SECONDS)
            now = await self._look()
            changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
            if changed or time.monotonic() - sent > ALIVE_SECONDS:
                sent = time.monotonic()
                yield f"event: changed\ndata: {json.dumps(changed)}\n\n" if changed else ": still here\n\n"
            before = now

    async def _look(self) -> dict[str, Fingerprint]:
        """The folder's fingerprints; one look serves all pages."""
        if time.monotonic() - self._last[0] > LOOK_SECONDS / 2:
            self._last = time.monotonic(), await anyio.to_thread.run_sync(self.watched.fingerprints)
        return self._last[1]

    def close(self) -> None:
        """End all answers."""
        self.is_closed = True
