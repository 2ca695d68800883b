"""Parts of a cohort in several processes of torch.distributed: this one is the server and works too.

`python -m turnout.runtimes.processes` is one of the others where this process starts them itself; under torchrun the
same command runs in all of them, and all but the first follow it (`follow_torchrun`). Trees (wire.py) travel through
gloo, or from GPU to GPU through NCCL where every process of a machine has a GPU of its own. torch.distributed cannot
replace a process: where one dies, the run ends with an error, and `--resume` continues to the same values.
"""

from __future__ import annotations

import datetime
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from turnout.errors import UserError
from turnout.machine.threads import cores, script_left_alone
from turnout.runtimes.crew import LazyWorker, RemoteWorkers, WorkerLost
from turnout.runtimes.wire import read_tree, write_tree
from turnout.settings import InProcess, Processes
from turnout.types import State

GROUP = "processes"
CANNOT_TRAVEL = (
    "runtime.kind = 'processes' gives the experiment to other processes, and something in it is this program's alone "
    "(a function of the script itself, a lambda): put it into a module that can be imported ({})"
)
PATIENCE = datetime.timedelta(days=1)  # for a process that is silent; one that has ended is noticed at once
START_SECONDS = 120.0
OPEN_FILES, FILES_EACH = 32, 3  # connections and files of this process, and more for each process
HOST = "127.0.0.1"
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def process_workers(settings: Processes, kind: type, setup: Callable[[], Any]) -> RemoteWorkers:
    """This process, which does the first part itself, and others; torchrun decides how many where it starts them."""
    number = settings.number
    if under_torchrun():
        size = int(os.environ["WORLD_SIZE"])
        if os.environ["RANK"] != "0":
            raise UserError("torchrun runs this program in every process, and only the first has the experiment: use "
                          "torchrun -m turnout run, or runtime.kind = 'processes' without torchrun")  # fmt: skip
        if size != number:
            raise UserError(f"torchrun has started {size} processes, but runtime.number is {number}: make them equal")
    about, copies = {"processes": number}, on_this_machine(settings)
    return RemoteWorkers(GROUP, lambda: opened(number), kind, setup, settings.compute, about, here=1, copies=copies)


def divided(settings: Processes) -> Processes:
    """The settings with the cores of a machine divided among its processes, unless they set the number of threads."""
    return replace(settings, compute=settings.compute.on_threads(max(1, cores() // on_this_machine(settings))))


def on_this_machine(settings: Processes) -> int:
    return int(os.environ["LOCAL_WORLD_SIZE"]) if under_torchrun() else settings.number


def opened(number: int) -> Ranks:
    return join_ranks() if under_torchrun() else start_ranks(number)


class Ranks:
    """This process in a group of torch.distributed. Rank 0 is the server's; the others wait for its orders.

    others   the processes that this one has started itself
    settled  whether the others wait for orders; otherwise they are killed at the end
    """

    def __init__(self, rank: int, size: int, others: Sequence[subprocess.Popen[bytes]] = ()):
        self.rank, self.size, self.others, self.settled = rank, size, others, True
        self._by_gpu = "nccl" in str(dist.get_backend_config())
        self._given = deque[int]()

    # -- the first process

    def ready(self) -> int:
        return self.size

    def open(self, kind: type, setup: Any, compute: InProcess) -> None:
        written = io.BytesIO()
        try:
            with script_left_alone():
                pickle.dump((kind, setup, compute), written)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(CANNOT_TRAVEL.format(error)) from error
        given = torch.frombuffer(bytearray(written.getbuffer()), dtype=torch.uint8)
        self._send_all({"what": "open", "setup": given})

    def share(self, what: str, common: State, parts: int) -> None:
        self._given.clear()
        self._send_all({"what": what, "parts": parts, "common": common})

    def is_free(self) -> bool:
        return True  # a cohort is cut into as many parts as there are processes

    def give(self, i: int, part: State) -> None:
        self.send(part, i + 1)
        self._given.append(i)

    def collect(self) -> tuple[int, State | WorkerLost]:
        i = self._given.popleft()
        return i, self.receive(i + 1)

    def _send_all(self, tree: State) -> None:
        write_tree(tree, self._over(lambda value: dist.broadcast(value, 0)), self._by_gpu)

    # -- all processes

    def send(self, tree: State, to: int) -> None:
        write_tree(tree, self._over(lambda value: dist.send(value, to)), self._by_gpu)

    def receive(self, source: int) -> State:
        return read_tree(self._over(lambda value: dist.recv(value, source)))

    def receive_order(self) -> State:
        """What the first process sends to all others."""
        return read_tree(self._over(lambda value: dist.broadcast(value, 0)))

    def _over(self, carry: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
        """`carry`, but it raises `WorkerLost` if another process has ended."""

        def carried(value: Tensor) -> None:
            try:
                carry(value)
            except RuntimeError as error:
                self.settled = False
                time.sleep(0.1)  # the system may close a connection before it reports that the process has ended
                codes = {i + 2: code for i, process in enumerate(self.others) if (code := process.poll()) is not None}
                who = ", ".join(f"process {i} of {self.size} has ended ({_way(code)})" for i, code in codes.items())
                first_line = str(error).splitlines()[0][:160]
                raise WorkerLost(who or f"another process has ended ({first_line})") from error

        return carried

    def end(self) -> None:
        """End the other processes; kill them if one has ended already or is still busy."""
        if self.settled and self.rank == 0:
            with suppress(WorkerLost):
                self._send_all({"what": "end"})
        with suppress(RuntimeError):
            dist.destroy_process_group()
        for process in self.others:
            if not self.settled:
                process.kill()
            if process.stdin is not None:
                process.stdin.close()
            process.wait()


def _way(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"code {code}"


def under_torchrun() -> bool:
    """Whether torchrun has started this process with others."""
    return all(name in os.environ for name in TORCHRUN) and int(os.environ["WORLD_SIZE"]) > 1


def join_ranks() -> Ranks:
    """Join the processes that torchrun has started."""
    place = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    with _connecting():
        dist.init_process_group(_backend(*place), timeout=PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size())


def start_ranks(size: int) -> Ranks:
    """Start the others on this machine, each as this module with PORT RANK SIZE."""
    if dist.is_initialized():
        raise UserError("this program uses torch.distributed itself: runtime.kind = 'processes' cannot start it again")
    _check_open_files(OPEN_FILES + FILES_EACH * size)
    with _connecting():
        store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    command = [sys.executable, "-P", "-m", "turnout.runtimes.processes", str(store.port)]
    others = [
        subprocess.Popen([*command, str(rank), str(size)], stdin=subprocess.PIPE, stdout=sys.stderr, env=environment)
        for rank in range(1, size)
    ]
    deadline = time.monotonic() + START_SECONDS
    try:
        while not store.check([f"here/{rank}" for rank in range(1, size)]):
            ended = [code for process in others if (code := process.poll()) is not None]
            if ended or time.monotonic() > deadline:
                raise UserError(f"a process could not be started ({_way(ended[0]) if ended else 'it did not answer'})")
            time.sleep(0.01)
        with _connecting():
            dist.init_process_group(_backend(0, size), store=store, rank=0, world_size=size, timeout=PATIENCE)
    except BaseException:
        for process in others:
            process.kill()
            process.wait()
        raise
    return Ranks(0, size, others)


def _check_open_files(needed: int) -> None:
    """Refuse to start where so many files cannot be opened: torch would try for minutes, and print its C++ frames."""
    opened: list[int] = []
    try:
        while len(opened) < needed:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise UserError(
            f"runtime.kind = 'processes' opens about {needed} files, and only {len(opened)} more can be opened here: "
            "allow more (ulimit -n), or use runtime.kind = 'in-process'"
        ) from error
    finally:
        for file in opened:
            os.close(file)


@contextmanager
def _connecting() -> Iterator[None]:
    """What torch reports while processes connect, as a sentence."""
    try:
        yield
    except AttributeError as error:  # torch was built without it
        raise UserError(f"this torch cannot start processes ({error}): use runtime.kind = 'in-process'") from error
    except RuntimeError as error:
        raise UserError(f"processes cannot be connected ({str(error).splitlines()[0][:160]})") from error


def _backend(local_rank: int, on_this_machine: int) -> str:
    """NCCL if every process of a machine has a GPU of its own, which it selects; else gloo: NCCL shares no GPU."""
    if torch.cuda.device_count() < on_this_machine:
        return "gloo"
    torch.cuda.set_device(local_rank)
    return "cpu:gloo,cuda:nccl"


# -- the other processes


def follow(ranks: Ranks, local_rank: int) -> int:
    """Follow the orders of the first process; returns 0 when the run ends, 1 if that process has ended."""
    torch.set_num_threads(1)

    def make(given: Tensor) -> Any:
        kind, setup, compute = pickle.loads(given.numpy().tobytes())
        gpus = torch.cuda.device_count()
        if gpus > 1 and compute.device in ("auto", "cuda"):  # each process of a machine on its own
            compute = replace(compute, device=f"cuda:{local_rank % gpus}")
        return kind(setup, compute)

    try:
        while (order := ranks.receive_order())["what"] != "end":
            if order["what"] == "open":
                worker = LazyWorker(partial(make, order["setup"]))
            elif ranks.rank <= order["parts"]:
                part = ranks.receive(0)
                ranks.send(worker.answer(order["what"], order["common"], part), 0)
    except WorkerLost as error:
        print(f"process {ranks.rank + 1} of {ranks.size} gives up: {error}", file=sys.stderr)
        return 1
    ranks.end()
    return 0


def follow_torchrun() -> int:
    """The work of all but the first process under torchrun; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun ends all when one has failed; nothing is to be saved here
    return follow(join_ranks(), int(os.environ["LOCAL_RANK"]))


def main() -> None:
    """Run a process that `start_ranks` has started; it ends with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the first one, which ends the others
    port, rank, size = map(int, sys.argv[1:])

    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    store = dist.TCPStore(HOST, port, is_master=False)
    store.set(f"here/{rank}", "1")
    dist.init_process_group(_backend(rank, size), store=store, rank=rank, world_size=size, timeout=PATIENCE)
    os._exit(follow(Ranks(rank, size), rank))  # the thread above is still reading


if __name__ == "__main__":
    main()
