"""The watched folder: its runs and their states, studies, races; and telling open pages that something changed.

One look at the folder serves all pages (Server-Sent Events). A page that receives a change fetches itself anew and
replaces the parts that differ (watch.js), so it shows what a fresh page would.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
from starlette.responses import StreamingResponse

from turnout.errors import UserError
from turnout.running.listing import DEEPEST, ListedRun, listed_run, run_folders
from turnout.running.records.finding import runs_in
from turnout.running.state import RECORDS, is_held
from turnout.view.live.outcomes import ANSWER, STUDY, TRIALS

LOOK_SECONDS = 0.5
ALIVE_SECONDS = 15.0  # a comment at least that often, so that a broken connection is noticed
_FILES = (RECORDS, f"{RECORDS}-wal", "state.json", "runs.json", "error.txt")

Fingerprint = tuple[object, ...]


@dataclass(frozen=True)
class Watched:
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

    def studies(self) -> dict[str, Path]:
        """The files of studies, by name."""
        return {self._name(path.parent): path for path in self._files(STUDY)}

    def races(self) -> dict[str, Path]:
        """The folders of races, by name."""
        return {self._name(path.parent): path.parent for path in self._files(TRIALS)}

    def fingerprints(self) -> dict[str, Fingerprint]:
        """By name: a value that differs once a run, study or race has changed."""
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
        for name, path in self.studies().items():
            found[name] = (*found.get(name, ()), _stamp(path))
        for name, path in self.races().items():
            found[name] = (*found.get(name, ()), _stamp(path / TRIALS), _stamp(path / ANSWER))
        return found

    def _files(self, name: str) -> list[Path]:
        levels = ("/".join(["*"] * level + [name]) for level in range(DEEPEST + 1))
        return [path for level in levels for path in sorted(self.folder.glob(level))]

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
    """Looks at the folder while pages are open, and sends them the names of runs that changed."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._listeners: set[asyncio.Queue[list[str] | None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def answer(self) -> StreamingResponse:
        """The endless answer to one page."""
        return StreamingResponse(self._events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _events(self) -> AsyncIterator[str]:
        queue: asyncio.Queue[list[str] | None] = asyncio.Queue()
        self._listeners.add(queue)
        self._loop = asyncio.get_running_loop()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        yield "retry: 1000\n\nevent: hello\ndata: {}\n\n"
        try:
            while True:
                try:
                    changed = await asyncio.wait_for(queue.get(), ALIVE_SECONDS)
                    if changed is None:
                        return
                    yield f"event: changed\ndata: {json.dumps(changed)}\n\n"
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self._listeners.discard(queue)

    async def _look(self) -> None:
        before = await anyio.to_thread.run_sync(self.watched.fingerprints)
        while self._listeners:
            await asyncio.sleep(LOOK_SECONDS)
            now = await anyio.to_thread.run_sync(self.watched.fingerprints)
            changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
            before = now
            if changed:
                self._send(changed)

    def _send(self, changed: list[str] | None) -> None:
        for queue in self._listeners:
            queue.put_nowait(changed)

    def close(self) -> None:
        """End all answers; from any thread, or from a signal's handler."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, None)
