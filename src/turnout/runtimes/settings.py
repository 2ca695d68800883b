"""Where client work runs: settings only, so that an experiment can name a runtime without importing it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from turnout.errors import Mistake, nearest

ENGINES = ("auto", "native", "by-hand", "vmap", "loop", "channels-last")
TRIED = {"by hand": "by-hand", **{name: name for name in ("native", "vmap", "loop", "channels-last")}}  # by record
PRECISIONS = ("float32", "float64", "tf32")


class RuntimeSpec(Protocol):
    """Settings of a runtime. runtimes/table.py knows which runtime they start; settings of one's own have a function
    `open(setup)` that makes it (on the score track, tracks/scores/prepare.py and `open_scores(setup)`).

    Where clients are real, settings have `enrol(experiment, data_dir)` too: what is known of the clients before the
    first round, and the data the server has for itself (None: it has none). The run then begins with nobody, and
    clients join as they enrol."""

    @property
    def kind(self) -> str: ...

    @property
    def compute(self) -> InProcess:
        """How a process computes: device, engine, precision, threads, chunk."""
        ...

    @property
    def shares_the_machine(self) -> bool:
        """Whether several runs may go on side by side."""
        ...

    def on_threads(self, threads: int) -> RuntimeSpec:
        """The same with so many threads, unless the settings say how many."""
        ...

    def as_begun(self, threads: int, chunk: int, device: str, engine: str = "auto") -> RuntimeSpec:
        """The same with what a run was begun with, so that sums are rounded the same way when it is resumed."""
        ...


MOST = {"threads": 1024, "chunk": 1 << 20}


@dataclass(frozen=True)
class InProcess:
    """In this process, vectorised over clients, on the CPU or one GPU.

    device     "cpu", "cuda", "cuda:1"; "auto" takes a GPU where there is one
    engine     how gradients are computed: "native" (SGD and Adam in C, the rest by hand), "by-hand", "vmap", "loop"
               (one client at a time; the oracle), "channels-last" (the same with pictures laid out pixel by pixel), or
               "auto" for the fastest that fits: on a CPU large models are tried with each, and a resumed run keeps it
    precision  "float32"; "float64" for parity tests; "tf32" lets a GPU round matrix products to 10 bits
    threads    CPU threads, each with clients of its own (default: the cores)
    chunk      clients advanced together (default: as many as fit the cache)
    """

    kind: ClassVar[str] = "in-process"

    device: str = "auto"
    engine: str = "auto"
    precision: str = "float32"
    threads: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise Mistake(f"runtime.engine is {self.engine!r}: {nearest(self.engine, ENGINES)}")
        if self.precision not in PRECISIONS:
            raise Mistake(f"runtime.precision is {self.precision!r}: {nearest(self.precision, PRECISIONS)}")
        for name in ("threads", "chunk"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST[name]:
                raise Mistake(f"runtime.{name} must be 1 to {MOST[name]}, not {value}; leave it out to have it chosen")

    @property
    def compute(self) -> InProcess:
        return self

    @property
    def shares_the_machine(self) -> bool:
        """A core each on a CPU, but one run at a time on a GPU."""
        return self.device == "cpu" or (self.device == "auto" and not has_gpu())

    def on_threads(self, threads: int) -> InProcess:
        return self if self.threads is not None else replace(self, threads=threads)

    def as_begun(self, threads: int, chunk: int, device: str, engine: str = "auto") -> InProcess:
        """On a CPU the chunk follows from the model and the threads; on a GPU it was chosen by the memory free then.

        A compiler that is here now, or a graphics processor, may not have been there when the run was begun.
        The engine may have been chosen by a trial (engine/trial.py), which need not end the same way twice.
        """
        begun = self.on_threads(threads)
        if self.engine == "auto" and not (engine == "native" and _no_compiler()):
            begun = replace(begun, engine=TRIED.get(engine, "auto"))
        if self.device == "auto" and device == "cpu":
            begun = replace(begun, device="cpu")
        return replace(begun, chunk=chunk) if self.chunk is None and device.startswith("cuda") else begun


def _no_compiler() -> bool:
    from turnout.machine.compiler import compiler  # imports torch, which is slow to load

    return compiler() is None


def has_gpu() -> bool:
    import torch  # slow to load, and settings are read by programs that never train

    return torch.cuda.is_available()


KINDS = {"in-process": InProcess}
