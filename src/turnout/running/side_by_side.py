"""Several runs side by side, in processes that take one run after another (worker.py).

A run that fails or is killed by the system does not end the others: its process is replaced.

A run that is prepared asks for memory, and waits for the word of this process, which knows what each of the others
needs, and hears of it when one ends, fails or is killed. Where there is not enough for all, some wait for others.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait

from turnout.running.display import Failed, Message, Note
from turnout.running.memory import Need, Room
from turnout.running.worker import Work, Worker, worker_context


def side_by_side(work: Sequence[Work], jobs: int, most: int | None = None) -> Iterator[Message]:
    """Several runs, `jobs` at a time; no process outlives this generator, however it ends.

    most  bytes that they may take together, where that is less than is free; one alone may take more
    """
    queue = RunQueue(work, jobs, most)
    try:
        while queue.hired():
            yield from queue.heard()
    finally:
        queue.ended()


class RunQueue:
    """The processes, the runs that are left for them, and the memory that they share, by device."""

    def __init__(self, work: Sequence[Work], jobs: int, most: int | None):
        self.left, self.jobs, self.context = deque(work), jobs, worker_context()
        self.workers: dict[Connection, Worker] = {}
        self.rooms: dict[str, Room] = defaultdict(partial(Room, most))
        self.said = False  # that there is not enough memory for all

    def hired(self) -> bool:
        """Start as many processes as there may be; whether there are any."""
        while self.left and len(self.workers) < self.jobs:
            worker = Worker.hired(self.context, self.left.popleft())
            self.workers[worker.connection] = worker
        return bool(self.workers)

    def ended(self) -> None:
        for worker in self.workers.values():
            worker.process.terminate()
        for worker in self.workers.values():
            worker.process.join()

    def heard(self) -> Iterator[Message]:
        """Wait until some have something to say, and hear each."""
        for connection in wait(list(self.workers)):
            assert isinstance(connection, Connection)
            yield from self._heard(self.workers[connection])

    def _heard(self, worker: Worker) -> Iterator[Message]:
        said = worker.says()
        if isinstance(said, Need):
            worker.room = self.rooms[said.device]
            worker.room.asks(worker.place.name, said)
            yield from self._told(worker.room)
            return
        if said is not None:
            yield said
        broken = isinstance(said, Failed) and not said.mistake  # who knows what state its process is in
        if said is None or broken:
            yield from self._freed(worker, broken)

    def _freed(self, worker: Worker, broken: bool) -> Iterator[Message]:
        """A run has ended and given its memory back: its process has the next one, or is dismissed."""
        name, room = worker.place.name, worker.room
        if self.left and not broken:
            worker.given(self.left.popleft())
        else:
            del self.workers[worker.connection]
            worker.dismissed()
        if room is not None:
            room.left(name)
            yield from self._told(room)

    def _told(self, room: Room) -> Iterator[Note]:
        """Tell those whose turn it is; once, that there is not enough memory for all."""
        workers = {worker.place.name: worker for worker in self.workers.values()}
        for name, word in room.words():
            workers[name].outbox(word)
        waits, others = room.waits(), len(room.activity)
        if waits is not None and not self.said:
            self.said = True
            who = "the run" if others == 1 else f"one of the {others} runs"
            short = f"there is not enough for {self.jobs} at a time"
            yield Note(waits, f"waits for memory until {who} at work has ended: {short}")
