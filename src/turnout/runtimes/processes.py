"""Parts of a cohort in several processes of torch.distributed: this one is the server and works too.

`python -m turnout.runtimes.processes` is one of the others where this process starts them itself; under torchrun the
same command runs in all of them, and those that are not the first follow (`follow`). Workers remember nothing from part
to part (parted.py), so a process that dies takes nothing with it: the run ends with a sentence, and `--resume` goes on
to the same values.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.machine.threads import cores, script_left_alone
from turnout.runtimes.keeping import KEPT
from turnout.runtimes.ranks import Ranks, Torn, join_ranks, start_ranks, started_ranks, under_torchrun
from turnout.settings import InProcess, Processes
from turnout.types import State

GROUP = "processes"
CANNOT_TRAVEL = (
    "runtime.kind = 'processes' gives the experiment to other processes, and something in it is this program's alone "
    "(a function of the script itself, a lambda): put it into a module that can be imported ({})"
)


class ProcessWorkers:
    """This process, which does the first part itself, and others: started when there is work for them.

    A worker is `kind(setup(), compute)`.
    """

    here = 1

    def __init__(self, settings: Processes, kind: type, setup: Callable[[], Any]):
        self.parts, self.copies = number_of(settings), on_this_machine(settings)
        self._compute, self._kind, self._setup = settings.compute, kind, setup
        self._ranks: Ranks | None = None

    @property
    def ranks(self) -> Ranks:
        """The processes, made ready for this run."""
        if self._ranks is None:
            setup = packed((self._kind, self._setup(), self._compute))
            self._ranks = KEPT.started(GROUP, lambda: opened(self.parts), Ranks.end)
            self._ranks.tell_all({"what": "open", "setup": torch.frombuffer(setup, dtype=torch.uint8)})
        return self._ranks

    def each(self, what: str, common: State, parts: Sequence[State], meanwhile: Callable[[], None]) -> list[State]:
        if not parts:
            meanwhile()
            return []
        try:
            ranks, others = self.ranks, range(1, len(parts) + 1)
            ranks.tell_all({"what": what, "parts": len(parts), "common": common})
            for rank in others:
                ranks.send(parts[rank - 1], rank)
            meanwhile()
            return [_done(ranks.receive(rank)) for rank in others]
        except Torn as error:
            self._broken()
            raise UserError(
                f"{error}; what is on the disk is whole: go on with --resume (Python: resume=True)"
            ) from None
        except BaseException:  # the others are in the middle of something
            self._broken()
            raise

    def _broken(self) -> None:
        if self._ranks is not None:
            self._ranks.whole, self._ranks = False, None
        KEPT.end(GROUP)

    def close(self) -> None:
        if self._ranks is not None:
            self._ranks = None
            KEPT.let_go(GROUP)

    def describe(self) -> dict[str, Any]:
        return {"processes": self.parts}


def divided(settings: Processes) -> Processes:
    """The same with the cores of a machine divided among its processes, unless the settings say how many threads."""
    return replace(settings, compute=settings.compute.on_threads(max(1, cores() // on_this_machine(settings))))


def number_of(settings: Processes) -> int:
    """How many processes; torchrun has decided it where it has started them."""
    if not under_torchrun():
        return settings.number
    size = int(os.environ["WORLD_SIZE"])
    if os.environ["RANK"] != "0":
        raise UserError("torchrun runs this program in every process, and only the first has the experiment: use "
                      "torchrun -m turnout run, or runtime.kind = 'processes' without torchrun")  # fmt: skip
    if size != settings.number:
        raise UserError(f"torchrun has started {size} processes, and runtime.number is {settings.number}: say the same")
    return size


def on_this_machine(settings: Processes) -> int:
    return int(os.environ["LOCAL_WORLD_SIZE"]) if under_torchrun() else settings.number


def opened(number: int) -> Ranks:
    return join_ranks() if under_torchrun() else start_ranks(number, "turnout.runtimes.processes")


def packed(made_from: tuple[type, Any, InProcess]) -> bytearray:
    """What the others are made from, as bytes."""
    written = io.BytesIO()
    try:
        with script_left_alone():
            pickle.dump(made_from, written)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(CANNOT_TRAVEL.format(error)) from error
    return bytearray(written.getbuffer())


def _done(answer: State) -> State:
    """What a worker has done, or what went wrong there."""
    if "mistake" in answer:
        raise UserError(answer["mistake"])
    if "error" in answer:
        raise RuntimeError(f"in another process: {answer['error']}")
    return answer


# -- the other side


class Follower:
    """A process that does what the first one says."""

    def __init__(self, ranks: Ranks, local_rank: int):
        self.ranks, self.local_rank = ranks, local_rank
        self._given: Tensor | None = None  # what the next worker is made from
        self._worker: Any = None

    def follow(self) -> int:
        """Until all is over (0), or the first process is gone (1)."""
        torch.set_num_threads(1)
        try:
            while (order := self.ranks.hear())["what"] != "end":
                if order["what"] == "open":
                    self._given, self._worker = order["setup"], None
                elif self.ranks.rank <= order["parts"]:
                    part = self.ranks.receive(0)
                    self.ranks.send(self._answer(order["what"], order["common"], part), 0)
        except Torn as error:
            print(f"process {self.ranks.rank + 1} of {self.ranks.size} gives up: {error}", file=sys.stderr)
            return 1
        self.ranks.end()
        return 0

    def _answer(self, what: str, common: State, part: State) -> State:
        try:
            found: State = getattr(self._at_work(), what)(common, part)
            return found
        except UserError as mistake:
            return {"mistake": str(mistake)}
        except Exception:
            return {"error": traceback.format_exc()}

    def _at_work(self) -> Any:
        """The worker of this run, made for its first part."""
        if self._worker is None:
            assert self._given is not None
            kind, setup, compute = pickle.loads(self._given.numpy().tobytes())
            self._worker = kind(setup, _on_own_gpu(compute, self.local_rank))
            self._given = None
        return self._worker


def _on_own_gpu(compute: InProcess, local_rank: int) -> InProcess:
    """Each process of a machine on its own GPU, where there are enough."""
    gpus = torch.cuda.device_count()
    if gpus < 2 or compute.device not in ("auto", "cuda"):
        return compute
    return replace(compute, device=f"cuda:{local_rank % gpus}")


def follow_torchrun() -> int:
    """What all but the first process do under torchrun; its exit code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun ends all when one has failed; nothing is to be saved here
    return Follower(join_ranks(), int(os.environ["LOCAL_RANK"])).follow()


def main() -> None:
    """A process that `start_ranks` has started; it ends with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the first one, which ends the others
    port, rank, size = map(int, sys.argv[1:])

    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    code = Follower(started_ranks(port, rank, size), rank).follow()
    os._exit(code)  # the thread above is still reading


if __name__ == "__main__":
    main()
