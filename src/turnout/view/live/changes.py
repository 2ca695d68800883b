"""Tells open pages that something changed: an endless answer of Server-Sent Events.

One look at the folder serves all pages. A page that hears of a change fetches itself anew and replaces the parts that
differ (watch.js), so what it shows is what a fresh page would.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import anyio.to_thread
from starlette.responses import StreamingResponse

from turnout.view.live.watched import Watched

LOOK_SECONDS = 0.5
ALIVE_SECONDS = 15.0  # a comment at least that often, so that a broken connection is noticed


class Changes:
    """Looks at the folder while somebody listens, and passes on which runs changed."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._listeners: set[asyncio.Queue[list[str] | None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def answer(self) -> StreamingResponse:
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
        """While pages are open: what is different from the last look."""
        before = await anyio.to_thread.run_sync(self.watched.marks)
        while self._listeners:
            await asyncio.sleep(LOOK_SECONDS)
            now = await anyio.to_thread.run_sync(self.watched.marks)
            changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
            before = now
            if changed:
                for queue in self._listeners:
                    queue.put_nowait(changed)

    def close(self) -> None:
        """End all answers, which would go on for ever; from any thread, or a signal's handler."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for queue in self._listeners:
            queue.put_nowait(None)
