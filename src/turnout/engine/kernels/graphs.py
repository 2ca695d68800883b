"""A local step captured as one CUDA graph, so that hundreds of small kernels are launched at once.

A graph only works for the shapes and addresses it was captured with. So a step is captured once it has run a few times
with the same ones, and everything it reads and writes lies in tensors that are held between rounds.

Shape letters: c clients of a chunk, P parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from turnout.engine.batches import Batch
from turnout.types import Tensors

EAGER_RUNS = 2  # before a shape is captured: warms up, and avoids capturing shapes that do not come back
MOST_GRAPHS = 64  # they share the memory of one step; if a round has more sizes, each is captured anew in every round

Step = Callable[..., Tensor]  # (*inputs) -> loss of each client
Replay = Callable[[Sequence[Tensor]], Tensor]  # the same as a captured graph
Fused = Callable[[Tensor, Tensors, Batch, Any, float], Tensor]  # (weights, states, batch, gain, keep) -> loss


class GraphCache:
    """Runs a step eagerly at first, then as a captured graph; keeps the graphs used last."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, int] = {}
        self._graphs: OrderedDict[Hashable, Replay | None] = OrderedDict()
        self._held: dict[Hashable, Tensor] = {}
        self._kept: dict[str, Tensor] = {}
        self._pool: Any = None

    def hold(self, name: str, value: Tensor, copy: bool = True) -> Tensor:
        """A copy of the rows `value` (or only memory for them) that has the same address in every round."""
        key = (name, value.shape[1:], value.dtype, value.device)
        if key not in self._held or len(self._held[key]) < len(value):
            self._held[key] = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        held = self._held[key][: len(value)]
        return held.copy_(value) if copy else held

    def keep(self, name: str, value: Tensor) -> None:
        """Register `value` as a tensor that has the same address in every round already."""
        self._kept[name] = value

    def forget(self) -> None:
        for kept in (self._seen, self._graphs, self._held, self._kept):
            kept.clear()

    def run(self, step: Step, fixed: Sequence[Tensor], inputs: Sequence[Tensor], also: Hashable = ()) -> Tensor:
        """One step, which reads and changes `fixed`; returns the loss of each client.

        Captured only if everything in `fixed` was held or kept. `also`: everything else the step depends on, apart from
        the values of its inputs.
        """
        lasting = {storage(value) for value in (*self._held.values(), *self._kept.values())}
        if not lasting.issuperset(storage(value) for value in fixed if value.numel()):
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
        return step(*inputs) if captured is None else captured(inputs)

    def _capture(self, step: Step, fixed: Sequence[Tensor], inputs: Sequence[Tensor]) -> Replay | None:
        """The step as a graph; None if it cannot be captured."""
        own = [value.clone() for value in inputs]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(own[0].device)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                loss_c = step(*own)
        except RuntimeError:  # something in it waits for the GPU, or reads a value from it
            torch.cuda.synchronize(own[0].device)
            return None

        def replay(inputs: Sequence[Tensor], fixed: Sequence[Tensor] = tuple(fixed)) -> Tensor:
            """Run the step on other inputs. `fixed`: held here so that their memory is not freed."""
            for mine, new in zip(own, inputs, strict=True):
                mine.copy_(new)
            graph.replay()
            return loss_c.clone()

        return replay


def storage(value: Tensor) -> int:
    """The address of a tensor's memory, the same for all its views."""
    return value.untyped_storage().data_ptr()


def descend_captured(
    graphs: GraphCache | None, fused: Fused, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, keep: float,
    beside: Sequence[Tensor] = (),
) -> Tensor:  # fmt: skip
    """A plain SGD step of any engine: x <- keep x - lr g in place; returns the loss of each client.

    On a GPU as a captured graph; the learning rate may differ each time. `beside`: other tensors that `fused` reads, at
    the same address each time.
    """
    if graphs is None or not flat_cP.is_cuda:
        return fused(flat_cP, states, batch, lr, keep)

    def step(gain: Tensor, *tensors: Tensor) -> Tensor:
        return fused(flat_cP, states, batch.with_tensors(tensors), gain, keep)

    gain = torch.full((), lr, device=flat_cP.device, dtype=flat_cP.dtype)
    also = (keep, batch.mask_cB is None, batch.keys_ck is None, batch.training, len(beside), "descend")
    return graphs.run(step, [flat_cP, *states.values(), *beside], [gain, *batch.tensors()], also)
