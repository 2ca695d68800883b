"""A plain SGD step of any engine as a captured graph.

Shape letters: c clients of a chunk, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from turnout.engine.batches import Batch
from turnout.engine.gpu.graphs import GraphCache
from turnout.types import Tensors

Fused = Callable[[Tensor, Tensors, Batch, Tensor, float], Tensor]  # (weights, states, batch, gain, keep) -> loss


def descend_captured(
    graphs: GraphCache, fused: Fused, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, keep: float,
    beside: Sequence[Tensor] = (),
) -> Tensor:  # fmt: skip
    """x <- keep x - lr g in place, with another learning rate each time; returns the loss of each client.

    `beside`: what else `fused` reads, at the same address each time.
    """

    def step(gain: Tensor, *tensors: Tensor) -> Tensor:
        return fused(flat_cP, states, batch.with_tensors(tensors), gain, keep)

    gain = torch.full((), lr, device=flat_cP.device, dtype=flat_cP.dtype)
    also = (keep, batch.mask_cB is None, batch.keys_ck is None, batch.training, len(beside), "descend")
    return graphs.run(step, [flat_cP, *states.values(), *beside], [gain, *batch.tensors()], also)
