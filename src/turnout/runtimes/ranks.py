"""Processes of torch.distributed that send each other trees of tensors and plain values.

The first of them (rank 0) is the server's; the others wait for what it says to all (`hear`). A header in JSON says what
tensors follow, which then travel as they are: through gloo, or from GPU to GPU through NCCL where every process of a
machine has a GPU of its own.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from turnout.errors import UserError
from turnout.types import State, Tensors, flatten, unflatten

PATIENCE = datetime.timedelta(days=1)  # for a process that is silent; one that has ended is noticed at once
START_SECONDS = 120.0
ALONE = 1 << 16  # bytes from which copying a tensor costs more than a message of its own
ALIGNED = 8
HOST = "127.0.0.1"
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Torn(Exception):
    """Another process has ended."""


class Ranks:
    """This process among others. `others`: those that it has started itself."""

    def __init__(self, rank: int, size: int, others: Sequence[subprocess.Popen[bytes]] = ()):
        self.rank, self.size, self.others, self.whole = rank, size, others, True
        self._by_gpu = "nccl" in str(dist.get_backend_config())

    # -- trees

    def send(self, tree: State, to: int) -> None:
        write_tree(tree, self._over(lambda value: dist.send(value, to)), self._by_gpu)

    def receive(self, source: int) -> State:
        return read_tree(self._over(lambda value: dist.recv(value, source)))

    def tell_all(self, tree: State) -> None:
        """From the first to all others."""
        write_tree(tree, self._over(lambda value: dist.broadcast(value, 0)), self._by_gpu)

    def hear(self) -> State:
        """What the first tells all others."""
        return read_tree(self._over(lambda value: dist.broadcast(value, 0)))

    def _over(self, carry: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
        """What carries a tensor; where it cannot, another process has ended."""

        def carried(value: Tensor) -> None:
            try:
                carry(value)
            except RuntimeError as error:
                raise self._torn(error) from error

        return carried

    def _torn(self, error: Exception) -> Torn:
        self.whole = False
        time.sleep(0.1)  # the system may close a connection before it says that the process has ended
        codes = {i + 1: code for i, process in enumerate(self.others) if (code := process.poll()) is not None}
        who = ", ".join(f"process {rank + 1} of {self.size} has ended ({_way(code)})" for rank, code in codes.items())
        return Torn(who or f"another process has ended ({str(error).splitlines()[0][:160]})")

    # -- the end

    def end(self) -> None:
        """Let the others go; where one is gone already, or is not where it should be, they are ended."""
        if self.whole and self.rank == 0:
            with suppress(Torn):
                self.tell_all({"what": "end"})
        with suppress(RuntimeError):
            dist.destroy_process_group()
        for process in self.others:
            if not self.whole:
                process.kill()
            if process.stdin is not None:
                process.stdin.close()
            process.wait()


def write_tree(tree: State, out: Callable[[Tensor], Any], by_gpu: bool = False) -> None:
    """Send a tree: two lengths, then a header with small tensors behind it, then large tensors one by one."""
    tensors, plain = flatten(tree)
    ready = {n: (v if by_gpu else v.cpu()).detach().contiguous() for n, v in tensors.items()}
    small, alone = _sorted(ready)
    header = _padded(json.dumps([plain, _table(ready, small)]).encode())
    first = torch.cat([header, *(_padded(v.numpy().tobytes()) for v in small.values() if v.numel())])
    for value in (torch.tensor([len(header), len(first)]), first, *alone.values()):
        out(value)


def read_tree(into: Callable[[Tensor], Any]) -> State:
    """Receive a tree; `into` fills a tensor with what comes next."""
    lengths = torch.zeros(2, dtype=torch.int64)
    into(lengths)
    first = torch.empty(int(lengths[1]), dtype=torch.uint8)
    into(first)
    plain, table = json.loads(first[: int(lengths[0])].numpy().tobytes())
    tensors = {name: _read(first[int(lengths[0]) :], *about) for name, about in table.items()}
    for name in (name for name, about in table.items() if about[-1] is None):
        into(tensors[name])
    return unflatten(tensors, plain)


def _sorted(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Those that travel together after the header (or are empty), and those that are large or on a GPU, and alone."""
    small = {n: v for n, v in tensors.items() if not v.numel() or (v.device.type == "cpu" and v.nbytes < ALONE)}
    return small, {n: v for n, v in tensors.items() if n not in small}


def _table(tensors: Tensors, small: Tensors) -> dict[str, tuple[str, list[int], str, int | None]]:
    """What a reader must know of each tensor: type, shape, device, and where its bytes begin (None: it comes alone)."""
    found, at = {}, 0
    for name, value in tensors.items():
        found[name] = str(value.dtype)[6:], list(value.shape), value.device.type, at if name in small else None
        at += -(-value.nbytes // ALIGNED) * ALIGNED if name in small else 0
    return found


def _read(small: Tensor, kind: str, shape: list[int], device: str, at: int | None) -> Tensor:
    dtype: torch.dtype = getattr(torch, kind)
    if at is None or 0 in shape:
        return torch.empty(shape, dtype=dtype, device=device)
    return small[at : at + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _padded(value: bytes) -> Tensor:
    """Bytes, with spaces up to a multiple of what every type of number can begin at; JSON may end in spaces."""
    return torch.frombuffer(bytearray(value + b" " * (-len(value) % ALIGNED)), dtype=torch.uint8)


def _way(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"code {code}"


def under_torchrun() -> bool:
    """Whether torchrun has started this process with others."""
    return all(name in os.environ for name in TORCHRUN) and int(os.environ["WORLD_SIZE"]) > 1


def join_ranks() -> Ranks:
    """This process among those that torchrun has started."""
    dist.init_process_group(_backend(*_place()), timeout=PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size())


def start_ranks(size: int, module: str) -> Ranks:
    """Start the others on this machine, each as `python -m module PORT RANK SIZE`."""
    if dist.is_initialized():
        raise UserError("this program uses torch.distributed itself: runtime.kind = 'processes' cannot start it again")
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    command = [sys.executable, "-m", module, str(store.port)]
    others = [
        subprocess.Popen([*command, str(rank), str(size)], stdin=subprocess.PIPE, stdout=sys.stderr, env=environment)
        for rank in range(1, size)
    ]
    try:
        _wait_for(store, others)
        dist.init_process_group(_backend(0, size), store=store, rank=0, world_size=size, timeout=PATIENCE)
    except BaseException:
        for process in others:
            process.kill()
            process.wait()
        raise
    return Ranks(0, size, others)


def _wait_for(store: Any, others: Sequence[subprocess.Popen[bytes]]) -> None:
    """Until all have said that they are there."""
    deadline = time.monotonic() + START_SECONDS
    while not store.check([f"here/{i + 1}" for i in range(len(others))]):
        ended = [code for process in others if (code := process.poll()) is not None]
        if ended or time.monotonic() > deadline:
            raise UserError(f"a process could not be started ({_way(ended[0]) if ended else 'it did not answer'})")
        time.sleep(0.01)


def started_ranks(port: int, rank: int, size: int) -> Ranks:
    """The other side of `start_ranks`."""
    store = dist.TCPStore(HOST, port, is_master=False)
    store.set(f"here/{rank}", "1")
    dist.init_process_group(_backend(rank, size), store=store, rank=rank, world_size=size, timeout=PATIENCE)
    return Ranks(rank, size)


def _place() -> tuple[int, int]:
    """Which of the processes of this machine torchrun says this is, and how many they are."""
    return int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])


def _backend(local_rank: int, on_this_machine: int) -> str:
    """From GPU to GPU where every process of a machine has one of its own, and takes it; NCCL refuses to share one."""
    if torch.cuda.device_count() < on_this_machine:
        return "gloo"
    torch.cuda.set_device(local_rank)
    return "cpu:gloo,cuda:nccl"
