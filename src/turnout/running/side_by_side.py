"""Several runs side by side, in processes that take one run after another.

A run that fails or is killed by the system does not end the others: its process is replaced. The processes are forked
from a server that has the library loaded, so starting one takes milliseconds; on a GPU it takes seconds until the first
step (context, kernels), which is why a process is kept for the next run. If this process dies, each run ends at once:
nothing goes on working in a folder that somebody wants to resume.
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

import torch

from turnout.experiment import Experiment
from turnout.machine.parent import end_with_parent
from turnout.machine.script import script_left_alone
from turnout.running.display import Failed, Message
from turnout.running.messages import Place, guarded

Work = tuple[Experiment, Place]


@dataclass
class Worker:
    """A process and the run it has; it says None when it is ready for another one."""

    process: BaseProcess
    connection: Connection
    place: Place

    @classmethod
    def hired(cls, context: Any, work: Work) -> Worker:
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there,), daemon=True)
        with script_left_alone(), _interrupts_wait():
            process.start()
        there.close()
        worker = cls(process, here, work[1])
        worker.given(work)
        return worker

    def given(self, work: Work) -> None:
        self.place = work[1]
        with script_left_alone(), suppress(OSError):  # one that has just been killed is found out when it is heard
            self.connection.send(work)

    def dismissed(self) -> None:
        self.connection.close()
        self.process.join()


def side_by_side(work: Sequence[Work], jobs: int) -> Iterator[Message]:
    """Several runs, `jobs` at a time; no process outlives this generator, however it ends."""
    waiting, crew = deque(work), dict[Connection, Worker]()
    context = worker_context()
    try:
        while waiting or crew:
            while waiting and len(crew) < jobs:
                worker = Worker.hired(context, waiting.popleft())
                crew[worker.connection] = worker
            for connection in wait(list(crew)):
                assert isinstance(connection, Connection)
                yield from _heard(connection, crew, waiting)
    finally:
        for worker in crew.values():
            worker.process.terminate()
        for worker in crew.values():
            worker.process.join()


def _heard(connection: Connection, crew: dict[Connection, Worker], waiting: deque[Work]) -> Iterator[Message]:
    """The next message of a run. A process that ended in the middle of one was killed."""
    worker = crew[connection]
    try:
        message: Message | None = connection.recv()
    except (EOFError, OSError):
        del crew[connection]
        worker.dismissed()
        why = f"its process was ended from outside (code {worker.process.exitcode}); the machine may be short of memory"
        yield Failed(worker.place.name, why, mistake=False, began=True)
        return
    if isinstance(message, Failed) and not message.mistake:  # who knows what state its process is in
        del crew[connection]
        worker.dismissed()
    if message is not None:
        yield message
    elif waiting:
        worker.given(waiting.popleft())
    else:
        del crew[connection]
        worker.dismissed()


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Hold Ctrl-C back while a process is started; it inherits that, and this process ends it when it is interrupted.

    The server that forks processes loads the library for seconds, and would print a traceback of its own.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # its start would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["turnout.running.side_by_side", "turnout.config.read"])
    return context


def _work(there: Connection) -> None:
    """Run after run in a process of its own. It ignores Ctrl-C: the parent receives it too, and ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    try:
        while True:
            experiment, place = there.recv()
            for message in guarded(experiment, place):
                there.send(message)
            del experiment
            _made_room()
            there.send(None)
    except EOFError:  # no more work
        return
    except OSError:  # the parent is gone
        os._exit(1)


def _made_room() -> None:
    """Give back what the last run held, so that the next one (and other processes) find it free."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
