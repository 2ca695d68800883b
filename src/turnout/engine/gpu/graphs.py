"""A local step captured as one CUDA graph, so that hundreds of small kernels are launched at once.

A graph only works for the shapes and memory addresses it was captured with. So a step is captured once it has run a few
times with the same ones, its inputs are copied into the graph's own tensors, and what it reads and writes beside them
(weights, statistics, optimizer state, what terms keep) lies in tensors that are held between rounds. What cannot be
captured, because it waits for the GPU, runs as it is.

Shape letters: c clients of a chunk, P parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EAGER_RUNS = 2  # before a shape is captured: warms up, and avoids capturing shapes that do not come back
MOST_GRAPHS = 32  # they share the memory of one step

Step = Callable[..., Tensor]  # (*inputs) -> loss of each client


@dataclass
class CapturedStep:
    """A captured graph, the tensors it reads and the loss that it writes."""

    graph: Any
    inputs: Sequence[Tensor]
    loss_c: Tensor
    fixed: Sequence[Tensor]  # held so that the memory the graph writes to is not freed

    def replay(self, inputs: Sequence[Tensor]) -> Tensor:
        """Run the step on other inputs; returns the loss of each client."""
        for own, new in zip(self.inputs, inputs, strict=True):
            own.copy_(new)
        self.graph.replay()
        return self.loss_c.clone()


class GraphCache:
    """Runs a step eagerly at first, then as a captured graph; keeps the graphs used last."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, int] = {}
        self._graphs: OrderedDict[Hashable, CapturedStep | None] = OrderedDict()
        self._held: dict[Hashable, Tensor] = {}
        self._kept: dict[str, Tensor] = {}
        self._pool: Any = None

    def hold(self, name: str, value: Tensor, copy: bool = True) -> Tensor:
        """A copy of the rows `value` (or only room for them) that has the same address in every round."""
        key = (name, value.shape[1:], value.dtype, value.device)
        if key not in self._held or len(self._held[key]) < len(value):
            self._held[key] = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        held = self._held[key][: len(value)]
        return held.copy_(value) if copy else held

    def keep(self, name: str, value: Tensor) -> None:
        """Say that `value` has the same address in every round already."""
        self._kept[name] = value

    def forget(self) -> None:
        """Let go of everything that is held and was captured."""
        for kept in (self._seen, self._graphs, self._held, self._kept):
            kept.clear()

    def run(self, step: Step, fixed: Sequence[Tensor], inputs: Sequence[Tensor], also: Hashable = ()) -> Tensor:
        """One step, which reads and changes `fixed`; returns the loss of each client.

        Captured only if everything in `fixed` was held or kept. `also`: whatever else the step depends on, apart from
        the numbers in its inputs.
        """
        lasting = {_storage(value) for value in (*self._held.values(), *self._kept.values())}
        if not lasting.issuperset(_storage(value) for value in fixed if value.numel()):
            return step(*inputs)
        places = tuple((value.data_ptr(), tuple(value.shape), value.stride()) for value in fixed)
        key = (places, tuple((tuple(value.shape), value.dtype) for value in inputs), also)
        if key not in self._graphs:
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] <= EAGER_RUNS:
                return step(*inputs)
            self._graphs[key] = self._capture(step, fixed, inputs)
            if len(self._graphs) > MOST_GRAPHS:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        captured = self._graphs[key]
        return step(*inputs) if captured is None else captured.replay(inputs)

    def _capture(self, step: Step, fixed: Sequence[Tensor], inputs: Sequence[Tensor]) -> CapturedStep | None:
        """The step as a graph; None if it cannot be captured."""
        own = [value.clone() for value in inputs]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(own[0].device)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                loss_c = step(*own)
        except RuntimeError:  # something in it waits for the GPU, or asks for a number
            torch.cuda.synchronize(own[0].device)
            return None
        return CapturedStep(graph, own, loss_c, list(fixed))


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()
