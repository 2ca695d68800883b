"""Gradients by torch's own autograd: all clients of a chunk under `vmap`, or one after another in a plain loop.

Shape letters: c clients of a chunk, B batch, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.backends import cudnn
from torch.func import functional_call, grad, grad_and_value, vmap

from turnout.engine.batches import Batch
from turnout.engine.dropout import seeded
from turnout.engine.factored import ChunkWeights
from turnout.engine.network import Network
from turnout.types import Tensors

ROOM = {"cpu": 16 << 20, "cuda": 1 << 30}  # bytes of per-sample gradients held at once, under vmap


class Vmapped:
    """`vmap(grad)` over the clients; works for any module without data-dependent control flow."""

    title = "vmap"
    sees_padding = True

    def __init__(self, network: Network):
        self.network = network
        self._grad = grad_and_value(self._loss)
        self._sample_grads = vmap(vmap(grad(self._loss), (None, None, 0, 0, 0)))
        self._cudnn = not network.has_batch_statistics(channels=1)  # under vmap cuDNN refuses BatchNorm of one channel

    def _loss(self, weights: Tensors, states: Tensors, x: Tensor, y: Tensor, share_B: Tensor) -> Tensor:
        output = functional_call(self.network.module, {**weights, **states}, (x,))
        return (self.network.loss(output, y) * share_B).sum()

    def _all(self, flat_cP: Tensor, states: Tensors, batch: Batch) -> tuple[list[Tensor], Tensor]:
        self.network.module.train(batch.training)
        weights = self.network.layout.views(flat_cP)
        inner = {**states, **(self.network.keyed(batch.keys_ck) if batch.training else {})}
        with _cudnn(self._cudnn):
            grads, loss_c = vmap(self._grad)(weights, inner, batch.x, batch.y, _shares(batch, flat_cP.dtype))
        return [grads[s.name] for s in self.network.layout.slots], loss_c

    def gradient(self, flat_cP: Tensor, states: Tensors, batch: Batch, out_cP: Tensor) -> Tensor:
        grads, loss_c = self._all(flat_cP, states, batch)
        torch.cat([g.reshape(g.shape[0], -1) for g in grads], 1, out=out_cP)
        return loss_c

    def descend(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        grads, loss_c = self._all(flat_cP, states, batch)
        weights = list(self.network.layout.views(flat_cP).values())
        if decay:
            torch._foreach_mul_(weights, 1 - lr * decay)
        torch._foreach_add_(weights, grads, alpha=-lr)
        return loss_c

    def add_squares(self, flat_cP: Tensor, states: Tensors, batch: Batch, into_cP: Tensor) -> None:
        """As many samples at once as `ROOM` allows for their gradients."""
        self.network.module.eval()
        weights, into = self.network.layout.views(flat_cP), self.network.layout.views(into_cP)
        real_cB = _ones(batch, flat_cP.dtype) if batch.mask_cB is None else batch.mask_cB
        each = max(1, ROOM[flat_cP.device.type] // (flat_cP.numel() * flat_cP.element_size()))
        for s in range(0, batch.x.shape[1], each):
            x, y, real = (v[:, s : s + each].unsqueeze(2) for v in (batch.x, batch.y, real_cB))
            with _cudnn(self._cudnn):
                grads = self._sample_grads(weights, states, x, y, real)
            for name, value in into.items():
                value.add_(grads[name].square_().sum(1))

    def chunk_weights(self, start_cP: Tensor, clients: int, samples: int) -> ChunkWeights | None:
        return None

    def factored_bytes(self, start_cP: Tensor, samples: int) -> int:
        return 0

    def outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        module = self.network.module.eval()
        weights = self.network.layout.views(flat_cP)
        with _cudnn(self._cudnn):
            return vmap(lambda w, s, xs: functional_call(module, {**w, **s}, (xs,)))(weights, states, x)

    def twin(self) -> Vmapped:
        return Vmapped(self.network.twin())


@contextmanager
def _cudnn(wanted: bool) -> Iterator[None]:
    """cuDNN switched off inside the block unless wanted."""
    before = cudnn.enabled
    try:
        cudnn.enabled = before and wanted
        yield
    finally:
        cudnn.enabled = before


def _shares(batch: Batch, dtype: torch.dtype) -> Tensor:
    """Each sample's weight in its client's mean loss [c, B]."""
    if batch.mask_cB is None:
        return _ones(batch, dtype) / batch.x.shape[1]
    return batch.mask_cB / batch.mask_cB.sum(1, keepdim=True)


def _ones(batch: Batch, dtype: torch.dtype) -> Tensor:
    return torch.ones(batch.x.shape[:2], dtype=dtype, device=batch.x.device)


class Looped:
    """One client after another, with the module's own parameters and ordinary autograd."""

    title = "loop"
    sees_padding = False  # only the real samples go through the module

    def __init__(self, network: Network):
        self.network = network

    def _load(self, flat_P: Tensor, states: Tensors, batch: Batch, i: int) -> tuple[dict[str, nn.Parameter], Tensors]:
        """Copy the i-th client's parameters, states and dropout keys into the module; returns what was filled."""
        module, layout = self.network.module, self.network.layout
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        with torch.no_grad():
            for name, value in layout.unpack(flat_P).items():
                parameters[name].copy_(value)
            for name in layout.states:
                buffers[name].copy_(states[name][i])
            for name, value in self.network.keyed(batch.keys_ck).items():
                buffers[name].copy_(value[i])
        return parameters, buffers

    def _one(self, flat_P: Tensor, states: Tensors, batch: Batch, i: int) -> tuple[Tensor, Tensor]:
        """The i-th client's gradient [P] and mean loss."""
        module, layout = self.network.module, self.network.layout
        module.train(batch.training)
        parameters, buffers = self._load(flat_P, states, batch, i)
        real = slice(None) if batch.mask_cB is None else batch.mask_cB[i].bool()
        wanted = [parameters[s.name] for s in layout.slots]
        address = batch.keys_ck[i, -1] if self.network.draws and batch.keys_ck is not None else None
        with seeded(address, flat_P.device):
            loss = self.network.loss(module(batch.x[i][real]), batch.y[i][real]).mean()
            grads = torch.autograd.grad(loss, wanted, allow_unused=True)
        for name in layout.states:
            states[name][i] = buffers[name]
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(wanted, grads, strict=True)]
        return torch.cat([g.reshape(-1) for g in filled]), loss.detach()

    def gradient(self, flat_cP: Tensor, states: Tensors, batch: Batch, out_cP: Tensor) -> Tensor:
        losses = []
        for i in range(flat_cP.shape[0]):
            out_cP[i], loss = self._one(flat_cP[i], states, batch, i)
            losses.append(loss)
        return torch.stack(losses)

    def descend(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        grad_cP = torch.empty_like(flat_cP)
        loss_c = self.gradient(flat_cP, states, batch, grad_cP)
        if decay:
            grad_cP.add_(flat_cP, alpha=decay)
        flat_cP.add_(grad_cP, alpha=-lr)
        return loss_c

    def add_squares(self, flat_cP: Tensor, states: Tensors, batch: Batch, into_cP: Tensor) -> None:
        grad_cP = torch.empty_like(flat_cP)
        for s in range(batch.x.shape[1]):
            sample = replace(batch, x=batch.x[:, s, None], y=batch.y[:, s, None], mask_cB=None)
            self.gradient(flat_cP, states, sample, grad_cP)
            real = 1.0 if batch.mask_cB is None else batch.mask_cB[:, s, None]
            into_cP.add_(grad_cP.square_().mul_(real))

    def chunk_weights(self, start_cP: Tensor, clients: int, samples: int) -> ChunkWeights | None:
        return None

    def factored_bytes(self, start_cP: Tensor, samples: int) -> int:
        return 0

    def outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        module, layout = self.network.module.eval(), self.network.layout
        found = []
        for i in range(flat_cP.shape[0]):
            own = {name: value[i] for name, value in states.items()}
            found.append(functional_call(module, {**layout.unpack(flat_cP[i]), **own}, (x[i],)))
        return torch.stack(found).detach()

    def twin(self) -> Looped:
        return Looped(self.network.twin())
