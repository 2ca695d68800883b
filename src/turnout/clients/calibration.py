"""Statistics of newcomers (`newcomers = "calibrated"`): one pass over their own samples that changes nothing else.

A new client has the BatchNorm statistics of the initial model, which do not fit any client's data. Before it trains or
predicts, they are replaced by the means over its batches of one epoch: of the batches' means, and of their variances.
Weights, shared statistics and dropout stay as in evaluation.

Shape letters: I newcomers, A all parameters, B samples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from turnout.engine.batches import address_batches
from turnout.engine.gradients import Gradients, WorkerPool
from turnout.parts.local import steps_per_epoch
from turnout.rng import key
from turnout.types import Samples, Tensors


@dataclass(frozen=True)
class Calibration:
    """What the statistics of newcomers are made from.

    start    the weights a newcomer begins with [A], by its place in the list
    states   the states it begins with: shared ones, and its own of the initial model
    """

    client_I: Tensor
    samples: Samples
    start: Callable[[int], Tensor]
    states: Tensors
    batch_size: int
    seed: int

    def run(self, workers: WorkerPool, names: tuple[str, ...]) -> Tensors:
        """The newcomers' own statistics: name -> [I, ...]; a client without a batch keeps the initial ones."""

        @torch.no_grad()
        def one(gradients: Gradients, i: int) -> Tensors:
            network, states = gradients.network, {name: value.clone() for name, value in self.states.items()}
            weights, batches = network.layout.unpack(self.start(i)), self._batches(i)
            with _only_statistics(network.module, names) as layers:
                for layer in layers if batches else ():
                    states[f"{layer}num_batches_tracked"].zero_()
                for row_B in batches:
                    network.scores(self.samples.x[row_B], {**weights, **states})
            return {name: states[name] for name in names}

        statistics = workers.map(one, range(len(self.client_I)))
        return {name: torch.stack([states[name] for states in statistics]) for name in names}

    def _batches(self, i: int) -> list[Tensor]:
        """The rows of one epoch, in an addressed order that is the same in every round."""
        own, client_1 = self.samples.take(torch.tensor([i])), self.client_I[i : i + 1]
        steps_1 = steps_per_epoch(own.count_C.cpu(), self.batch_size, drop_single=True)
        if not int(steps_1[0]):
            return []
        seed = key(self.seed, "calibration")
        order = address_batches(own, client_1, steps_1, self.batch_size, drop_single=True, seed=seed, t=0)
        rows = zip(order.row_cJB[0], order.size_cJ[0].tolist(), strict=True)
        return [row_B[:size].to(self.samples.x.device) for row_B, size in rows]


@contextmanager
def _only_statistics(module: nn.Module, names: tuple[str, ...]) -> Iterator[list[str]]:
    """Inside, the module is in evaluation mode but for the BatchNorm layers that these statistics belong to (their
    names, each with its dot): they gather the mean over all batches they see."""
    norms = {f"{name}." if name else "": m for name, m in module.named_modules() if isinstance(m, _BatchNorm)}
    norms = {prefix: norm for prefix, norm in norms.items() if f"{prefix}running_mean" in names}
    momenta = [norm.momentum for norm in norms.values()]
    module.eval()
    for norm in norms.values():
        norm.train().momentum = None
    try:
        yield list(norms)
    finally:
        for norm, momentum in zip(norms.values(), momenta, strict=True):
            norm.eval().momentum = momentum
