"""Which rows of a client say what model it holds, found by asking a compression that is watched."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from turnout.experiment import Algorithm
from turnout.types import Tensors


class Watched(dict[str, Tensor]):
    """Rows that remember which of them were read; who goes through all of them has read all."""

    def __init__(self, rows: Tensors):
        super().__init__(rows)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.names.add(name)
        return super().__getitem__(name)

    def __getattribute__(self, name: str) -> Any:
        if name in ("items", "values", "keys", "get"):
            self.names.update(dict.keys(self))
        return super().__getattribute__(name)


def read_by_held(algorithm: Algorithm, initial: Tensors) -> set[str]:
    """Which rows of the store say what model a client holds: residuals themselves, as large as the model, do not."""
    mark = "residual/"
    rows = Watched({n.removeprefix(mark): v[None] for n, v in initial.items() if n.startswith(mark)})
    algorithm.compression.held(rows)
    return {mark + name for name in rows.names}
