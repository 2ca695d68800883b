"""Several runs side by side, in processes that take one run after another.

A run that fails or is killed by the system does not end the others: its process is replaced. The first run begins
alone; its estimate limits how many are made at a time to those that fit into free memory. One that runs out of memory
beside others, or is refused for it, is run again alone when they have ended.

Worker processes are forked from a server that has the library loaded, so starting one takes milliseconds; on a GPU the
first step takes seconds (context, kernels), which is why a process is kept for the next run. If the process that
started it dies, a worker ends at once: nothing may work in a folder that a user wants to resume.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from turnout.experiment import Experiment
from turnout.machine.memory import give_back_freed_memory
from turnout.machine.threads import end_with_parent, script_left_alone
from turnout.running.messages import Began, Failed, Message, Note, RunPlace, guarded

Work = tuple[Experiment, RunPlace]


def side_by_side(work: Sequence[Work], jobs: int) -> Iterator[Message]:
    """Several runs, at most `jobs` at a time; no process outlives this generator."""
    left, context = deque(work), worker_context()
    workers: dict[Connection, RunWorker] = {}
    limit: int | None = None  # unknown until a run has begun
    alone = list[Work]()  # runs that did not fit beside others
    try:
        while left or workers or alone:
            if not left and not workers:
                left, alone, limit = deque(alone), [], 1
            while left and len(workers) < (limit or 1):
                worker = RunWorker.spawn(context, left.popleft())
                workers[worker.connection] = worker
            for connection in wait(list(workers)):
                worker = workers[connection]  # type: ignore[index]
                message = worker.receive()
                if isinstance(message, Failed) and message.for_memory and len(workers) > 1:
                    alone.append(worker.work)
                    yield Note(message.name, "waits for the other runs to end: there is not enough memory beside them")
                elif message is not None:
                    yield message
                if isinstance(message, Began) and limit is None:
                    limit = at_a_time(jobs, message)
                    if limit < jobs:
                        yield Note("", f"{limit} runs at a time: there is not enough memory for {jobs}")
                broken = isinstance(message, Failed) and not message.mistake  # the state of its process is unknown
                if message is None and left:
                    worker.give(left.popleft())
                elif message is None or broken:
                    del workers[worker.connection]
                    worker.end()
    finally:
        for worker in workers.values():
            worker.process.terminate()
        for worker in workers.values():
            worker.process.join()


def at_a_time(jobs: int, first: Began) -> int:
    """As many runs as fit into memory if all are like the first, and at least one."""
    return jobs if first.alike is None else max(1, min(jobs, first.alike))


# -- one worker process, and the other end of it


@dataclass
class RunWorker:
    """A process and its run.

    process     the process
    connection  this end of the pipe to it
    work        its run
    """

    process: BaseProcess
    connection: Connection
    work: Work

    @classmethod
    def spawn(cls, context: Any, work: Work) -> RunWorker:
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there,), daemon=True)
        with script_left_alone(), _interrupts_wait():
            process.start()
        there.close()
        worker = cls(process, here, work)
        worker.give(work)
        return worker

    def give(self, work: Work) -> None:
        self.work = work
        with script_left_alone(), suppress(OSError):  # `receive` notices a process that was killed
            self.connection.send(work)

    def receive(self) -> Message | None:
        """Its next message; None if it is ready for another run. If it ended during a run, it was killed."""
        try:
            message: Message | None = self.connection.recv()
            return message
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            why = f"its process was ended from outside (code {code}); the machine may be short of memory"
            killed = hasattr(signal, "SIGKILL") and code == -signal.SIGKILL  # Windows has no signals
            return Failed(self.work[1].name, why, mistake=False, began=True, for_memory=killed)

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
    try:
        while True:
            experiment, place = there.recv()
            for message in guarded(experiment, place):
                there.send(message)
            del experiment
            gc.collect()
            give_back_freed_memory()  # for the next run, and for other processes
            there.send(None)
    except EOFError:  # no more work
        return
    except OSError:  # the parent is gone
        os._exit(1)
