"""Several runs side by side, in processes that take one run after another.

A run that fails or is killed by the system does not end the others: its process is replaced. A prepared run asks this
process for memory and waits for the answer; if there is not enough for all, some wait for others to end (memory.py).

Worker processes are forked from a server that has the library loaded, so starting one takes milliseconds; on a GPU the
first step takes seconds (context, kernels), which is why a process is kept for the next run. If the process that
started it dies, a worker ends at once: nothing may work in a folder that a user wants to resume.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from turnout.experiment import Experiment
from turnout.machine.memory import give_back_freed_memory
from turnout.machine.threads import end_with_parent, script_left_alone
from turnout.running.display import Failed, Message, Note
from turnout.running.memory import Need, Room
from turnout.running.messages import RunPlace, guarded

Work = tuple[Experiment, RunPlace]


def side_by_side(work: Sequence[Work], jobs: int, most: int | None = None) -> Iterator[Message]:
    """Several runs, `jobs` at a time; no process outlives this generator.

    most  bytes that they may take together, if less than is free; one alone may take more
    """
    queue = RunQueue(work, jobs, most)
    try:
        while queue.spawn():
            yield from queue.receive()
    finally:
        for worker in queue.workers.values():
            worker.process.terminate()
        for worker in queue.workers.values():
            worker.process.join()


class RunQueue:
    """The processes, the runs left for them, and the memory they share, by device."""

    def __init__(self, work: Sequence[Work], jobs: int, most: int | None):
        self.left, self.jobs, self.context = deque(work), jobs, worker_context()
        self.workers: dict[Connection, RunWorker] = {}
        self.rooms: dict[str, Room] = defaultdict(partial(Room, most))
        self.warned = False  # that there is not enough memory for all

    def spawn(self) -> bool:
        """Start processes up to the limit; returns whether there are any."""
        while self.left and len(self.workers) < self.jobs:
            worker = RunWorker.spawn(self.context, self.left.popleft())
            self.workers[worker.connection] = worker
        return bool(self.workers)

    def receive(self) -> Iterator[Message]:
        """Wait for messages, and handle each."""
        for connection in wait(list(self.workers)):
            assert isinstance(connection, Connection)
            worker = self.workers[connection]
            message = worker.receive()
            if isinstance(message, Need):
                worker.room = self.rooms[message.device]
                worker.room.asks(worker.place.name, message)
                yield from self._answer(worker.room)
                continue
            if message is not None:
                yield message
            broken = isinstance(message, Failed) and not message.mistake  # the state of its process is unknown
            if message is not None and not broken:
                continue
            name, room = worker.place.name, worker.room
            if self.left and not broken:  # its process takes the next run
                worker.give(self.left.popleft())
            else:
                del self.workers[worker.connection]
                worker.end()
            if room is not None:
                room.left(name)
                yield from self._answer(room)

    def _answer(self, room: Room) -> Iterator[Note]:
        """Answer the runs whose turn it is; note once that there is not enough memory for all."""
        workers = {worker.place.name: worker for worker in self.workers.values()}
        for name, word in room.words():
            workers[name].send(word)
        waits, others = room.waits(), len(room.activity)
        if waits is not None and not self.warned:
            self.warned = True
            who = "the run" if others == 1 else f"one of the {others} runs"
            short = f"there is not enough for {self.jobs} at a time"
            yield Note(waits, f"waits for memory until {who} at work has ended: {short}")


# -- one worker process, and the other end of it


@dataclass
class RunWorker:
    """A process and its run.

    process     the process
    connection  this end of the pipe to it
    place       the folder of its run
    room        the memory that the run has asked for a share of
    """

    process: BaseProcess
    connection: Connection
    place: RunPlace
    room: Room | None = None

    @classmethod
    def spawn(cls, context: Any, work: Work) -> RunWorker:
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there,), daemon=True)
        with script_left_alone(), _interrupts_wait():
            process.start()
        there.close()
        worker = cls(process, here, work[1])
        worker.give(work)
        return worker

    def give(self, work: Work) -> None:
        self.place, self.room = work[1], None
        self.send(work)

    def send(self, words: Work | bool) -> None:
        with script_left_alone(), suppress(OSError):  # `receive` notices a process that was killed
            self.connection.send(words)

    def receive(self) -> Message | Need | None:
        """Its next message; None if it is ready for another run. If it ended during a run, it was killed."""
        try:
            message: Message | Need | None = self.connection.recv()
            return message
        except (EOFError, OSError):
            self.end()
            code = self.process.exitcode
            why = f"its process was ended from outside (code {code}); the machine may be short of memory"
            return Failed(self.place.name, why, mistake=False, began=True)

    def end(self) -> None:
        self.connection.close()
        self.process.join()


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Block Ctrl-C while a process starts; it inherits that, and this process ends it when interrupted.

    The server that forks processes loads the library for seconds, and would print its own traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # its start would unblock Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["turnout.running.side_by_side", "turnout.running.config.read"])
    return context


def _work(there: Connection) -> None:
    """Work in a process of its own, run after run. It ignores Ctrl-C: the parent receives it too, and ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()

    def ask(need: Need) -> bool:
        """Ask the parent for memory, and wait for its answer."""
        try:
            there.send(need)
            return bool(there.recv())
        except (EOFError, OSError):  # the parent is gone
            os._exit(1)

    try:
        while True:
            experiment, place = there.recv()
            for message in guarded(experiment, place, ask):
                there.send(message)
            del experiment
            gc.collect()
            give_back_freed_memory()  # for the next run, and for other processes
            there.send(None)
    except EOFError:  # no more work
        return
    except OSError:  # the parent is gone
        os._exit(1)
