"""The gradient of a chunk of clients, or a plain SGD step on it: what every engine promises, and torch's own autograd.

`Vmapped` takes any module that vectorises; `Looped` takes any module, one client at a time, and is the reference that
tests compare the others with. `ByHand` (by_hand.py) takes plain stacks of layers.

Shape letters: c clients of a chunk, B batch, P parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.backends import cudnn
from torch.func import grad, vmap

from turnout.engine.batches import Batch
from turnout.engine.kernels.graphs import GraphCache, descend_captured
from turnout.engine.network import ForClients, Network
from turnout.inputs import Inputs
from turnout.machine.threads import map_in, thread_pool
from turnout.machine.triton_tools import rehearse
from turnout.types import Tensors

Item = TypeVar("Item")
Result = TypeVar("Result")
ROOM = {"cpu": 16 << 20, "cuda": 1 << 30}  # bytes of per-sample gradients held at once, under vmap


class Gradients(Protocol):
    """Gradients and plain SGD steps of a chunk. States (BatchNorm statistics) are updated in place, as by a module.

    network        the model
    title          the engine's name in records
    sees_padding   whether the samples that pad a short batch would enter BatchNorm's statistics
    graphs         the captured steps; None if steps cannot be captured
    """

    network: Network
    title: str
    sees_padding: bool
    graphs: GraphCache | None

    def gradient(self, flat_cP: Tensor, states: Tensors, batch: Batch, out_cP: Tensor) -> Tensor:
        """Write the gradients into `out_cP`; returns the mean loss of each client."""
        ...

    def descend(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        """One plain SGD step in place: x <- x - lr (g + decay x); returns the mean loss of each client."""
        ...

    def add_squares(
        self, flat_cP: Tensor, states: Tensors, batch: Batch, into_cP: Tensor, fresh: bool, scale: float
    ) -> None:
        """Add the square of each sample's own gradient times `scale`, in evaluation mode; samples with mask 0 do not
        count. `fresh`: `into_cP` holds no values yet.
        """
        ...

    def outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        """Outputs of each client's own model on its own samples [c, B, ...], in evaluation mode."""
        ...

    def twin(self) -> Gradients:
        """A copy for another thread (modules are not thread-safe)."""
        ...


class WorkerPool:
    """Ordered thread-pool map; each call gets a `Gradients` object that no other thread is using.

    Torch uses one core in each: the number of cores decides how it rounds a sum, and kernels that share cores wait for
    one another (127 ms a round on a busy machine, 10 ms without sharing).
    """

    def __init__(self, gradients: Gradients, threads: int):
        self.first, self.threads = gradients, threads
        self._idle: SimpleQueue[Gradients] = SimpleQueue()
        for i in range(threads):
            self._idle.put(gradients if i == 0 else gradients.twin())
        self._pool = thread_pool(threads) if threads > 1 else None

    def map(self, function: Callable[[Gradients, Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results in the order of the items; an error in one of them is raised here."""
        if self._pool is None:
            return [function(self.first, item) for item in items]
        rest = iter(items)
        first = list(itertools.islice(rest, 2))
        if len(first) < 2:
            return [function(self.first, item) for item in first]
        return list(map_in(self._pool, partial(self._one, function), itertools.chain(first, rest), self.threads + 1))

    def _one(self, function: Callable[[Gradients, Item], Result], item: Item) -> Result:
        gradients = self._idle.get()
        try:
            return function(gradients, item)
        finally:
            self._idle.put(gradients)


class Vmapped:
    """`vmap(grad)` over the clients; works for any module without data-dependent control flow."""

    title = "vmap"
    sees_padding = True

    def __init__(self, network: Network):
        self.network = network
        self.graphs: GraphCache | None = GraphCache()
        self._grad = vmap(grad(self._losses, has_aux=True))
        for module in network.module.modules():
            if isinstance(module, nn.RNNBase):  # it would ask for the addresses of weights, which vmap does not have
                module.flatten_parameters = lambda: None  # type: ignore[method-assign]
        self._sample_grads = vmap(vmap(grad(self._loss), (None, None, 0, 0, 0)))
        self._rehearsed = False
        self._cudnn = 1 not in network.norms  # under vmap cuDNN refuses BatchNorm of one channel

    def _loss(self, weights: Tensors, states: Tensors, x: Tensor, y: Tensor, share_B: Tensor) -> Tensor:
        return (self.network.losses(x, y, {**weights, **states}) * share_B).sum()

    def _losses(self, weights: Tensors, states: Tensors, x: Tensor, y: Tensor, share_B: Tensor, gain: Tensor) -> Any:
        """The loss times a gain, which only its gradient sees, and the loss."""
        loss = self._loss(weights, states, x, y, share_B)
        return loss * gain, loss

    def _all(self, flat_cP: Tensor, states: Tensors, batch: Batch, gain: float | Tensor) -> tuple[list[Tensor], Tensor]:
        if self.network.module.training != batch.training:
            self.network.module.train(batch.training)
        weights = self.network.layout.views(flat_cP)
        inner = {**states, **(self.network.keyed(batch.keys_ck) if batch.training else {})}
        share_cB = self.network.shares(batch, flat_cP.dtype)
        gain_c = torch.as_tensor(gain, dtype=flat_cP.dtype, device=flat_cP.device).expand(len(flat_cP))
        with _cudnn(self._cudnn), ForClients():
            grads, loss_c = self._grad(weights, inner, batch.x, batch.y, share_cB, gain_c)
        return [grads[s.name] for s in self.network.layout.slots], loss_c

    def gradient(self, flat_cP: Tensor, states: Tensors, batch: Batch, out_cP: Tensor) -> Tensor:
        grads, loss_c = self._all(flat_cP, states, batch, 1.0)
        torch.cat([g.reshape(g.shape[0], -1) for g in grads], 1, out=out_cP)
        return loss_c

    def descend(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        return descend_captured(self.graphs, self._fused, flat_cP, states, batch, lr, 1 - lr * decay)

    def _fused(self, flat_cP: Tensor, states: Tensors, batch: Batch, gain: float | Tensor, keep: float) -> Tensor:
        grads, loss_c = self._all(flat_cP, states, batch, gain)
        weights = list(self.network.layout.views(flat_cP).values())
        if keep != 1:
            torch._foreach_mul_(weights, keep)
        torch._foreach_sub_(weights, grads)
        return loss_c

    def add_squares(
        self, flat_cP: Tensor, states: Tensors, batch: Batch, into_cP: Tensor, fresh: bool, scale: float
    ) -> None:
        """As many samples at once as `ROOM` allows for their gradients."""
        self.network.module.eval()
        weights, into = self.network.layout.views(flat_cP), self.network.layout.views(into_cP)
        if fresh:
            into_cP.zero_()
        real_cB = _ones(batch, flat_cP.dtype) if batch.mask_cB is None else batch.mask_cB
        each = max(1, ROOM[flat_cP.device.type] // (flat_cP.numel() * flat_cP.element_size()))
        for s in range(0, batch.x.shape[1], each):
            x, y, real = (v[:, s : s + each].unsqueeze(2) for v in (batch.x, batch.y, real_cB))
            with _cudnn(self._cudnn), ForClients():
                grads = self._sample_grads(weights, states, x, y, real)
            for name, value in into.items():
                value.add_(grads[name].square_().sum(1), alpha=scale)

    def outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        if x.is_cuda and not self._rehearsed:
            rehearse(lambda: self.twin()._outputs(flat_cP, states, x))
            self._rehearsed = True
        return self._outputs(flat_cP, states, x)

    def _outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        self.network.module.eval()
        weights = self.network.layout.views(flat_cP)
        with _cudnn(self._cudnn), ForClients():
            return vmap(lambda w, s, xs: self.network.scores(xs, {**w, **s}))(weights, states, x)

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


def _ones(batch: Batch, dtype: torch.dtype) -> Tensor:
    return torch.ones(batch.x.shape[:2], dtype=dtype, device=batch.x.device)


class Looped:
    """One client after another, with the module's own parameters and ordinary autograd.

    With `channels_last` pictures are laid out pixel by pixel, which on a CPU makes torch's own convolutions and pools
    two to twenty times as fast.
    """

    sees_padding = False  # only the real samples go through the module

    def __init__(self, network: Network, channels_last: bool = False):
        self.network, self.channels_last = network, channels_last
        self.graphs: GraphCache | None = None
        self.title = "channels-last" if channels_last else "loop"
        named = dict(network.module.named_parameters())
        self._parameters = [named[slot.name] for slot in network.layout.slots]

    def _load(self, flat_P: Tensor, states: Tensors, batch: Batch, i: int) -> Tensors:
        """Put the i-th client's parameters, states and dropout keys into the module; returns the module's buffers.

        On a CPU the parameters become views of the client's row: nothing is copied, and a step changes the row.
        """
        views = self.network.layout.unpack(flat_P)
        for slot, parameter in zip(self.network.layout.slots, self._parameters, strict=True):
            if flat_P.is_cuda or self.network.rounded is not None:  # cuDNN wants recurrent weights in one piece
                parameter.data.copy_(views[slot.name])
            else:
                parameter.data = views[slot.name]
        if not states and not self.network.dropout_keys:
            return {}
        buffers = dict(self.network.module.named_buffers())
        with torch.no_grad():
            for name in self.network.layout.states:
                buffers[name].copy_(states[name][i])
            for name, value in self.network.keyed(batch.keys_ck).items():
                buffers[name].copy_(value[i])
        return buffers

    def _one(self, flat_P: Tensor, states: Tensors, batch: Batch, i: int) -> tuple[list[Tensor | None], Tensor]:
        """The i-th client's gradients (None where a parameter is not used) and mean loss."""
        module = self.network.module
        if module.training != batch.training:
            module.train(batch.training)
        buffers = self._load(flat_P, states, batch, i)
        x, y, share_B = batch.x[i], batch.y[i], None
        if self.network.positions is not None:
            share_B = self.network.shares(batch, flat_P.dtype)[i]
        if batch.mask_cB is not None:
            real_B = batch.mask_cB[i].bool()
            x, y, share_B = x[real_B], y[real_B], None if share_B is None else share_B[real_B]
        if self.channels_last and not isinstance(x, Inputs) and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        keys_1k = None if batch.keys_ck is None else batch.keys_ck[i : i + 1]
        with self.network.addressed(keys_1k, flat_P.device):
            loss_B = self.network.losses(x, y)
            loss = loss_B.mean() if share_B is None else (loss_B * share_B).sum()
            found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        grads: list[Tensor | None] = [
            g if g is None or self.network.rounded is None else g.to(flat_P.dtype) for g in found
        ]
        for name in self.network.layout.states:
            states[name][i] = buffers[name]
        return grads, loss.detach()

    def gradient(self, flat_cP: Tensor, states: Tensors, batch: Batch, out_cP: Tensor) -> Tensor:
        losses = []
        for i in range(flat_cP.shape[0]):
            grads, loss = self._one(flat_cP[i], states, batch, i)
            filled = [
                torch.zeros_like(p, dtype=flat_cP.dtype) if g is None else g
                for p, g in zip(self._parameters, grads, strict=True)
            ]
            torch.cat([g.reshape(-1) for g in filled], out=out_cP[i])
            losses.append(loss)
        return torch.stack(losses)

    def descend(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        losses = []
        for i in range(flat_cP.shape[0]):
            grads, loss = self._one(flat_cP[i], states, batch, i)
            views = self.network.layout.unpack(flat_cP[i]).values()
            if decay:
                flat_cP[i].mul_(1 - lr * decay)
            used = [(view, g) for view, g in zip(views, grads, strict=True) if g is not None]
            torch._foreach_add_([view for view, _ in used], [g for _, g in used], alpha=-lr)
            losses.append(loss)
        return torch.stack(losses)

    def add_squares(
        self, flat_cP: Tensor, states: Tensors, batch: Batch, into_cP: Tensor, fresh: bool, scale: float
    ) -> None:
        grad_cP = torch.empty_like(flat_cP)
        if fresh:
            into_cP.zero_()
        for s in range(batch.x.shape[1]):
            sample = replace(batch, x=batch.x[:, s, None], y=batch.y[:, s, None], mask_cB=None)
            self.gradient(flat_cP, states, sample, grad_cP)
            real = 1.0 if batch.mask_cB is None else batch.mask_cB[:, s, None]
            into_cP.add_(grad_cP.square_().mul_(real), alpha=scale)

    def outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        self.network.module.eval()
        found = []
        for i in range(flat_cP.shape[0]):
            own = {name: value[i] for name, value in states.items()}
            found.append(self.network.scores(x[i], {**self.network.layout.unpack(flat_cP[i]), **own}))
        return torch.stack(found).detach()

    def twin(self) -> Looped:
        return Looped(self.network.twin(), self.channels_last)
