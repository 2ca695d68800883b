"""A local step captured as one CUDA graph, so that hundreds of small kernels are launched at once.

A graph only works for the shapes and memory addresses it was captured with. So a step is captured once it has run a few
times with the same ones, its inputs are copied into the graph's own tensors, and the trainer keeps the matrix of
weights between rounds.

Shape letters: c clients of a chunk, P parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.engine.batches import Batch

EAGER_RUNS = 3  # before a shape is captured: warms up, and avoids capturing shapes that do not come back
MOST_GRAPHS = 8  # each holds the memory of one step

Step = Callable[[Tensor, Batch, Tensor, float], Tensor]  # (weights, batch, gain, keep) -> loss of each client


@dataclass
class CapturedStep:
    """A captured graph, the tensors it reads and those it writes."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    gain: Tensor
    loss_c: Tensor
    flat_cP: Tensor  # held so that the memory the graph writes to is not freed

    def replay(self, batch: Batch, gain: float) -> Tensor:
        """Run the step on another batch with another learning rate; returns the loss of each client."""
        for own, new in zip(self.batch.tensors(), batch.tensors(), strict=True):
            own.copy_(new)
        self.gain.fill_(gain)
        self.graph.replay()
        return self.loss_c.clone()


class GraphCache:
    """Runs a step eagerly at first, then as a captured graph; keeps the graphs used last."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, int] = {}
        self._graphs: OrderedDict[Hashable, CapturedStep] = OrderedDict()

    def run(self, step: Step, flat_cP: Tensor, batch: Batch, lr: float, decay: float) -> Tensor:
        """One step in place; returns the loss of each client."""
        keep = 1 - lr * decay
        shapes = tuple((tuple(t.shape), t.dtype) for t in batch.tensors())
        key = (flat_cP.data_ptr(), tuple(flat_cP.shape), flat_cP.stride(), shapes, batch.mask_cB is None, keep)
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return self._graphs[key].replay(batch, lr)
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] <= EAGER_RUNS:
            return step(flat_cP, batch, torch.tensor(lr, device=flat_cP.device, dtype=flat_cP.dtype), keep)
        self._graphs[key] = _capture(step, flat_cP, batch, keep)
        if len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return self._graphs[key].replay(batch, lr)


def _capture(step: Step, flat_cP: Tensor, batch: Batch, keep: float) -> CapturedStep:
    own = replace(
        batch,
        x=batch.x.clone(),
        y=batch.y.clone(),
        mask_cB=None if batch.mask_cB is None else batch.mask_cB.clone(),
        keys_ck=None if batch.keys_ck is None else batch.keys_ck.clone(),
    )
    gain = torch.zeros((), device=flat_cP.device, dtype=flat_cP.dtype)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(flat_cP.device)
    with torch.cuda.graph(graph):
        loss_c = step(flat_cP, own, gain, keep)
    return CapturedStep(graph, own, gain, loss_c, flat_cP)
