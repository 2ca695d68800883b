"""Settings of an experiment that name no part: where client work runs, and what is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from turnout.errors import UserError, check_settings

ENGINES = ("auto", "native", "by-hand", "joined", "vmap", "loop", "channels-last")
TRIED = {"by hand": "by-hand", **{n: n for n in ("native", "joined", "vmap", "loop", "channels-last")}}  # by record
PRECISIONS = ("float32", "float64", "tf32")
BASE_PRECISIONS = ("as-precision", "bfloat16", "int8", "nf4")
THREADS = "[1, 1024]"


class RuntimeSpec(Protocol):
    """Settings of a runtime. runtimes/parted.py knows which runtime they start; settings of one's own have a function
    `open(setup)` that makes it; another track may look for a function of another name.

    Where clients are real, settings have `enrol(experiment, data_dir)` too: what is known of the clients before the
    first round, and the data the server has for itself (None: it has none). The run then starts without clients, and
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


@dataclass(frozen=True)
class InProcess:
    """In this process, vectorised over clients, on the CPU or one GPU.

    device     "cpu", "cuda", "cuda:1"; "auto" takes a GPU where there is one
    engine     how gradients are computed: "native" (SGD and Adam in C, the rest by hand), "by-hand", "joined" (frozen
               layers once over all clients' samples), "vmap", "loop" (one client at a time; the oracle),
               "channels-last" (the same with pictures laid out pixel by pixel), or "auto" for the fastest that fits:
               on a CPU large models are tried with each, and a resumed run keeps it
    precision  "float32"; "float64" for parity tests; "tf32" lets a GPU round matrix products to 10 bits
    base_precision  "bfloat16" holds the frozen base in 16 bits and computes in them; "int8" and "nf4" also hold the
               weights of its linear layers in 8 or 4 bits (torchao); what is trained, its optimizer state, updates
               and losses stay in `precision`
    threads    CPU threads, each with clients of its own (default: the cores)
    chunk      clients advanced together (default: as many as fit the cache)
    """

    kind: ClassVar[str] = "in-process"

    device: str = "auto"
    engine: str = "auto"
    precision: str = "float32"
    threads: int | None = None
    chunk: int | None = None
    base_precision: str = "as-precision"

    def __post_init__(self) -> None:
        check_settings(
            self, engine=ENGINES, precision=PRECISIONS, threads=THREADS, chunk="[1, 1048576]",
            base_precision=BASE_PRECISIONS,
        )  # fmt: skip

    @property
    def compute(self) -> InProcess:
        return self

    @property
    def shares_the_machine(self) -> bool:
        """A core each on a CPU, but one run at a time on a GPU."""
        if self.device != "auto":
            return self.device == "cpu"
        import torch  # slow to load, and settings are read by programs that never train

        return not torch.cuda.is_available()

    def on_threads(self, threads: int) -> InProcess:
        return self if self.threads is not None else replace(self, threads=threads)

    def as_begun(self, threads: int, chunk: int, device: str, engine: str = "auto") -> InProcess:
        """On a CPU the chunk follows from the model and the threads; on a GPU, and for all clients' samples in one
        pass, it was chosen by the memory free then.

        A compiler that is here now, or a graphics processor, may not have been there when the run was begun.
        The engine may have been chosen by a trial (engine/trainers.py), which need not end the same way twice.
        """
        begun = self.on_threads(threads)
        if self.engine == "auto":
            from turnout.machine.compiler import has_kernels  # imports torch, which is slow to load

            if engine != "native" or has_kernels():
                begun = replace(begun, engine=TRIED.get(engine, "auto"))
        if self.device == "auto" and device == "cpu":
            begun = replace(begun, device="cpu")
        by_memory = device.startswith("cuda") or engine == "joined"
        return replace(begun, chunk=chunk) if self.chunk is None and by_memory else begun


@dataclass(frozen=True)
class Processes:
    """Parts of each cohort in several processes, each on its own GPU where there are several.

    This process is the first of them and the server; it starts the others, or torchrun does. Every process holds all
    the data. See docs/devices-and-clusters.md for when it pays.

    number   how many, this one included
    compute  how each of them computes; without `threads` they divide the cores of a machine among them
    """

    kind: ClassVar[str] = "processes"
    shares_the_machine: ClassVar[bool] = False

    number: int = 2
    compute: InProcess = InProcess()

    def __post_init__(self) -> None:
        check_settings(self, number=THREADS)

    def on_threads(self, threads: int) -> Processes:
        return replace(self, compute=self.compute.on_threads(max(1, threads // self.number)))

    def as_begun(self, threads: int, chunk: int, device: str, engine: str = "auto") -> Processes:
        return replace(self, compute=self.compute.as_begun(threads, chunk, device, engine))


@dataclass(frozen=True)
class Ray:
    """Parts of each cohort on the workers of a Ray cluster. This process is the server; it holds what clients keep.

    A worker or a machine that dies costs a repetition of its part of the round, and nothing else. Every worker holds
    all the data. See docs/devices-and-clusters.md for when it pays.

    address  of a cluster that runs ("auto", "host:6379", "ray://host:10001"); without one, Ray is started on this
             machine and stopped after the run
    workers  how many (default: as many as the cluster has cores, or GPUs, for)
    cpus     cores of each worker
    gpus     GPUs of each worker; a fraction lets several share one
    compute  how a worker computes; without `threads`, on the cores it has
    """

    kind: ClassVar[str] = "ray"
    shares_the_machine: ClassVar[bool] = False

    address: str | None = None
    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    compute: InProcess = InProcess()

    def __post_init__(self) -> None:
        check_settings(self, workers="[1, 10000]", cpus=THREADS, gpus="[0, inf)")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise UserError(f"Ray.gpus must be a part of one or a whole number for each worker, not {self.gpus}")

    def on_threads(self, threads: int) -> Ray:
        return self

    def as_begun(self, threads: int, chunk: int, device: str, engine: str = "auto") -> Ray:
        return replace(self, compute=self.compute.as_begun(threads, chunk, device, engine))


@dataclass(frozen=True)
class Evaluate:
    """What to measure and how often: the global model on the central test set every `every` rounds (and at the end).

    per_client    also the global model on each member's own test data (`client_...`)
    personal      also each member's own model, what it has of its own included, on its own test data (`personal_...`):
                  after download, before training; by default where something is personal
    clients       how many members are measured one by one, a fixed sample where there are more
    substitution  train the missing too, as if they had been there (a simulation can; nothing of it is used), to record
                  how far each round's sum is from that of all clients' complete work, and whether stand-ins are of the
                  same cluster
    recovery      participants measure their own models before and after local training, every round: the drop at
                  aggregation and what training makes of it (`before_...`, `after_...`)
    gradients     participants report the mean magnitude of their gradients, by parameter (`gradient_...`)
    activations   participants compare their neurons before and after aggregation, with their own BatchNorm and with
                  the averaged one: paper 004, (10) (`neurons_...`)
    """

    every: int = 1
    per_client: bool = False
    personal: bool | None = None
    clients: int = 1000
    substitution: bool = False
    recovery: bool = False
    gradients: bool = False
    activations: bool = False

    def __post_init__(self) -> None:
        check_settings(self, every="[1, inf)", clients="[1, inf)")


IN_FOLDER = (InProcess, Processes, Ray)  # what clients keep is in the run's folder, whichever of these worked
KINDS = {"in-process": InProcess, "processes": Processes, "ray": Ray}
