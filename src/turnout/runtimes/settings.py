"""Where client work runs: settings only, so that an experiment can name a runtime without importing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from turnout.errors import Mistake, nearest

ENGINES = ("auto", "native", "by-hand", "vmap", "loop")
PRECISIONS = ("float32", "float64", "tf32")


class RuntimeSpec(Protocol):
    """Settings of a runtime; `kind` picks the module that runs it."""

    @property
    def kind(self) -> str: ...


MOST = {"threads": 1024, "chunk": 1 << 20}


@dataclass(frozen=True)
class InProcess:
    """In this process, vectorised over clients, on the CPU or one GPU.

    device     "cpu", "cuda", "cuda:1"; "auto" takes a GPU where there is one
    engine     how gradients are computed: "native" (plain SGD in C, the rest by hand), "by-hand", "vmap", "loop" (the
               oracle), or "auto" for the fastest that fits
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
