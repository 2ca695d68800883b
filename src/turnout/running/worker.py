"""A process that takes one run after another, and the other end of it: who started it, and is told how the runs go on.

Such processes are forked from a server that has the library loaded, so starting one takes milliseconds; on a GPU it
takes seconds until the first step (context, kernels), which is why a process is kept for the next run. If the process
that started it dies, a run ends at once: nothing goes on working in a folder that somebody wants to resume.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from turnout.experiment import Experiment
from turnout.machine.memory import give_back_freed_memory
from turnout.machine.threads import end_with_parent, script_left_alone
from turnout.running.display import Failed, Message
from turnout.running.memory import Need, Room
from turnout.running.messages import Place, guarded

Work = tuple[Experiment, Place]


@dataclass
class Worker:
    """A process and the run it has; `room` is where that has asked for memory."""

    process: BaseProcess
    connection: Connection
    place: Place
    room: Room | None = None

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
        self.place, self.room = work[1], None
        self.outbox(work)

    def outbox(self, words: Work | bool) -> None:
        with script_left_alone(), suppress(OSError):  # one that has just been killed is found out when it is heard
            self.connection.send(words)

    def says(self) -> Message | Need | None:
        """What it says next; None if it is ready for another run. One that ended in the middle of a run was killed."""
        try:
            said: Message | Need | None = self.connection.recv()
            return said
        except (EOFError, OSError):
            self.dismissed()
            code = self.process.exitcode
            why = f"its process was ended from outside (code {code}); the machine may be short of memory"
            return Failed(self.place.name, why, mistake=False, began=True)

    def dismissed(self) -> None:
        self.connection.close()
        self.process.join()


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
    context.set_forkserver_preload(["turnout.running.worker", "turnout.running.config.read"])
    return context


def _work(there: Connection) -> None:
    """Run after run in a process of its own. It ignores Ctrl-C: the parent receives it too, and ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    try:
        while True:
            experiment, place = there.recv()
            for message in guarded(experiment, place, partial(_asked, there)):
                there.send(message)
            del experiment
            _made_room()
            there.send(None)
    except EOFError:  # no more work
        return
    except OSError:  # the parent is gone
        os._exit(1)


def _asked(there: Connection, need: Need) -> bool:
    """Ask the parent for memory, and wait for its word."""
    try:
        there.send(need)
        return bool(there.recv())
    except (EOFError, OSError):  # the parent is gone
        os._exit(1)


def _made_room() -> None:
    """Give back what the last run held, so that the next one (and other processes) find it free."""
    gc.collect()
    give_back_freed_memory()
