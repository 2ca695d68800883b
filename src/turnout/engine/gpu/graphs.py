"""A local step as one captured CUDA graph: hundreds of small kernels launched at once.

A graph is fixed to its shapes and addresses, so a step is captured when it has been asked for a few times with the same
ones (the matrix of weights is kept between rounds for that), and its inputs are copied into the graph's own tensors.

Shape letters: c clients of a chunk, B batch, P parameters, k dropout layers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

AFTER = 3  # eager runs of a shape before it is captured: warm-up, and no capture for shapes that do not come back
MOST = 8  # graphs kept, each with the memory of one step

Step = Callable[[Tensor, "Batch", Tensor, float], Tensor]  # (weights, batch, gain, keep) -> loss of each client


@dataclass(frozen=True)
class Batch:
    """One local step's samples for a chunk; `mask_cB` is None where every client has a full batch."""

    x: Tensor
    y: Tensor
    mask_cB: Tensor | None
    keys_ck: Tensor | None  # dropout keys
    training: bool = True

    def tensors(self) -> list[Tensor]:
        return [t for t in (self.x, self.y, self.mask_cB, self.keys_ck) if t is not None]


@dataclass
class Captured:
    """A graph with the tensors it reads and the one it writes its result to."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    gain: Tensor
    loss_c: Tensor
    flat_cP: Tensor  # keeps the weights' memory alive while the graph writes to it

    def replay(self, batch: Batch, gain: float) -> Tensor:
        for own, new in zip(self.batch.tensors(), batch.tensors(), strict=True):
            own.copy_(new)
        self.gain.fill_(gain)
        self.graph.replay()
        return self.loss_c.clone()


class Replays:
    """Runs a step eagerly at first, then as a graph."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, int] = {}
        self._graphs: OrderedDict[Hashable, Captured] = OrderedDict()

    def run(self, step: Step, flat_cP: Tensor, batch: Batch, lr: float, decay: float) -> Tensor:
        """One step in place; the loss of each client comes back."""
        keep = 1 - lr * decay
        shapes = tuple((tuple(t.shape), t.dtype) for t in batch.tensors())
        key = (flat_cP.data_ptr(), tuple(flat_cP.shape), flat_cP.stride(), shapes, batch.mask_cB is None, keep)
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return self._graphs[key].replay(batch, lr)
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] <= AFTER:
            return step(flat_cP, batch, torch.tensor(lr, device=flat_cP.device, dtype=flat_cP.dtype), keep)
        self._graphs[key] = _capture(step, flat_cP, batch, keep)
        if len(self._graphs) > MOST:
            self._graphs.popitem(last=False)
        return self._graphs[key].replay(batch, lr)


def _capture(step: Step, flat_cP: Tensor, batch: Batch, keep: float) -> Captured:
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
    return Captured(graph, own, gain, loss_c, flat_cP)
