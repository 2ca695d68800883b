"""The gradient of a chunk of clients, three ways with one signature; the plain loop is the oracle for the other two.

    ByHand      engine/backprop.py, for plain stacks of layers under a loss of engine/losses.py
    Vmapped     torch.func.vmap(grad), for any module that vectorises
    Looped      one client at a time with ordinary autograd: the oracle, and the fallback

Shape letters: c clients of a chunk, B batch, P parameters, k dropout layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.backends import cudnn
from torch.func import functional_call, grad, grad_and_value, vmap

from turnout.engine import losses
from turnout.engine.backprop import Stack, by_hand
from turnout.engine.batch_norm import REAL
from turnout.engine.dropout import with_addressed_dropout
from turnout.engine.factored import Loose, trail_bytes
from turnout.engine.gpu.graphs import Batch, Replays
from turnout.engine.gradient_sinks import Sink
from turnout.layout import Layout
from turnout.types import Tensors

ROOM = {"cpu": 16 << 20, "cuda": 1 << 30}  # bytes of samples' gradients at once, under vmap

Loss = Callable[[Tensor, Tensor], Tensor]  # (output, target) -> loss per sample [B]


class Gradients(Protocol):
    """States (BatchNorm statistics) are updated in place, as the module itself would."""

    network: Network
    title: str
    sees_padding: bool  # whether batch statistics would take in what fills up a short batch

    def gradient(self, flat_cP: Tensor, states: Tensors, batch: Batch, out_cP: Tensor) -> Tensor:
        """Write the gradients into `out_cP`; the mean loss of each client comes back."""
        ...

    def descend(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        """One plain SGD step in place: x <- x - lr (g + decay x); the mean loss of each client comes back."""
        ...

    def add_squares(self, flat_cP: Tensor, states: Tensors, batch: Batch, into_cP: Tensor) -> None:
        """Add the squares of each sample's own gradient (those of the mask), a batch in evaluation mode."""
        ...

    def loosen(self, start_cP: Tensor, clients: int, samples: int) -> Loose | None:
        """A chunk's first weights in memory of their own, where steps are faster on that than on the matrix.

        `samples` is how many each client will see at most, 0 where its weights change by more than those (decay).
        """
        ...

    def trail_bytes(self, start_cP: Tensor, samples: int) -> int:
        """What one client's trails take in such a chunk (engine/trail.py); 0 where there are none."""
        ...

    def outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        """Each client's own model on its own samples [c, B, ...], in evaluation mode: statistics do not move."""
        ...

    def twin(self) -> Gradients:
        """The same for another thread (modules are not thread-safe)."""
        ...


@dataclass
class Network:
    """A model made ready for the engine: its own copy, dropout addressed, groups fixed."""

    module: nn.Module
    layout: Layout
    loss: Loss
    dropout_keys: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, module: nn.Module, layout: Layout, loss: Loss) -> Network:
        prepared, names = with_addressed_dropout(copy.deepcopy(module))
        return cls(prepared, layout, loss, names)

    def twin(self) -> Network:
        return Network(copy.deepcopy(self.module), self.layout, self.loss, self.dropout_keys)

    def keyed(self, keys_ck: Tensor | None) -> Tensors:
        if keys_ck is None:
            return {}
        return {name: keys_ck[:, i] for i, name in enumerate(self.dropout_keys)}

    def has_batch_statistics(self, channels: int | None = None) -> bool:
        """Whether a sample's output depends on the others of its batch, so that padding would be seen."""
        norms = (m for m in self.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
        return any(channels in (None, m.num_features) for m in norms)


class ByHand:
    """The hand-written pass; `descend` is one fused product per layer."""

    title = "by hand"
    sees_padding = False

    def __init__(self, network: Network, stack: Stack):
        self.network, self.stack, self._replays = network, stack, Replays()
        self._at_rest = stack.in_evaluation()

    def _run(self, flat_cP: Tensor, states: Tensors, batch: Batch, into_cP: Tensor, keep: float, scale: float,
             gain: Any) -> Tensor:  # fmt: skip
        weights = self._all(self.network.layout.views(flat_cP), states, batch)
        stack = self.stack if batch.training else self._at_rest
        sink = Sink(self.network.layout.views(into_cP), keep, scale, gain)
        return stack.descend(batch.x, batch.y, batch.mask_cB, weights, sink)

    def _all(self, weights: Tensors, states: Tensors, batch: Batch) -> Tensors:
        """Everything a layer may ask for by name: parameters, buffers, dropout keys, which samples are real."""
        if not batch.training:
            return {**weights, **states}
        real = {} if batch.mask_cB is None else {REAL: batch.mask_cB}
        return {**weights, **states, **self.network.keyed(batch.keys_ck), **real}

    def gradient(self, flat_cP: Tensor, states: Tensors, batch: Batch, out_cP: Tensor) -> Tensor:
        return self._run(flat_cP, states, batch, out_cP, keep=0.0, scale=1.0, gain=1.0)

    def add_squares(self, flat_cP: Tensor, states: Tensors, batch: Batch, into_cP: Tensor) -> None:
        weights = {**self.network.layout.views(flat_cP), **states}
        into = self.network.layout.views(into_cP)
        self._at_rest.add_squares(batch.x, batch.y, batch.mask_cB, weights, into)

    def loosen(self, start_cP: Tensor, clients: int, samples: int) -> Loose | None:
        if start_cP.is_cuda:
            return None
        return Loose.of(self.stack, self.network.layout.views(start_cP), clients, samples)

    def trail_bytes(self, start_cP: Tensor, samples: int) -> int:
        shared = samples > 0 and len(start_cP) == 1 and not start_cP.is_cuda
        return trail_bytes(self.stack, self.network.layout.views(start_cP), samples) if shared else 0

    def descend_loose(self, loose: Loose, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        """One plain SGD step on weights that `loosen` gave (or those of the first clients)."""
        sink = Sink(loose.weights, 1 - lr * decay, -1.0, lr)
        weights: dict[str, Any] = {**self._all(loose.weights, states, batch), **loose.trails}
        return loose.stack.descend(batch.x, batch.y, batch.mask_cB, weights, sink)

    def descend(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        if flat_cP.is_cuda and not states:  # a captured step would go on writing to an earlier round's statistics
            return self._replays.run(self._fused, flat_cP, batch, lr, decay)
        return self._run(flat_cP, states, batch, flat_cP, 1 - lr * decay, scale=-1.0, gain=lr)

    def _fused(self, flat_cP: Tensor, batch: Batch, gain: float | Tensor, keep: float) -> Tensor:
        return self._run(flat_cP, {}, batch, flat_cP, keep, scale=-1.0, gain=gain)

    def outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        return self._at_rest.outputs(x, {**self.network.layout.views(flat_cP), **states})

    def twin(self) -> ByHand:
        return ByHand(self.network.twin(), self.stack)


class Vmapped:
    """`vmap` of `grad` over the clients; works for any module without data-dependent control flow."""

    title = "vmap"
    sees_padding = True

    def __init__(self, network: Network):
        self.network = network
        self._grad = grad_and_value(self._loss)
        self._sample_grads = vmap(vmap(grad(self._loss), (None, None, 0, 0, 0)))
        self._cudnn = not network.has_batch_statistics(channels=1)  # vmap gives cuDNN those in a layout it refuses

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
        """As many samples at once as there is room for their gradients."""
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

    def loosen(self, start_cP: Tensor, clients: int, samples: int) -> Loose | None:
        return None

    def trail_bytes(self, start_cP: Tensor, samples: int) -> int:
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
    before = cudnn.enabled
    try:
        cudnn.enabled = before and wanted
        yield
    finally:
        cudnn.enabled = before


def _shares(batch: Batch, dtype: torch.dtype) -> Tensor:
    """Each sample's share in its client's mean loss [c, B]."""
    if batch.mask_cB is None:
        return _ones(batch, dtype) / batch.x.shape[1]
    return batch.mask_cB / batch.mask_cB.sum(1, keepdim=True)


def _ones(batch: Batch, dtype: torch.dtype) -> Tensor:
    return torch.ones(batch.x.shape[:2], dtype=dtype, device=batch.x.device)


class Looped:
    """One client after another, with the module's own parameters and ordinary autograd."""

    title = "loop"
    sees_padding = False  # it takes the real ones out

    def __init__(self, network: Network):
        self.network = network

    def _one(self, flat_P: Tensor, states: Tensors, batch: Batch, i: int) -> tuple[Tensor, Tensor]:
        module, layout = self.network.module, self.network.layout
        module.train(batch.training)
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        with torch.no_grad():
            for name, value in layout.unpack(flat_P).items():
                parameters[name].copy_(value)
            for name in layout.states:
                buffers[name].copy_(states[name][i])
            for name, value in self.network.keyed(batch.keys_ck).items():
                buffers[name].copy_(value[i])
        real = slice(None) if batch.mask_cB is None else batch.mask_cB[i].bool()
        loss = self.network.loss(module(batch.x[i][real]), batch.y[i][real]).mean()
        wanted = [parameters[s.name] for s in layout.slots]
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
            self.gradient(flat_cP, states, replace(batch, x=batch.x[:, s, None], y=batch.y[:, s, None], mask_cB=None),
                          grad_cP)  # fmt: skip
            real = 1.0 if batch.mask_cB is None else batch.mask_cB[:, s, None]
            into_cP.add_(grad_cP.square_().mul_(real))

    def loosen(self, start_cP: Tensor, clients: int, samples: int) -> Loose | None:
        return None

    def trail_bytes(self, start_cP: Tensor, samples: int) -> int:
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


def fastest(network: Network, loss: losses.Loss | None) -> ByHand | Vmapped:
    """By hand where the model is a plain stack under a loss that is written by hand, else under `vmap`."""
    stack: Any = by_hand(network.module, loss) if loss is not None else None
    return ByHand(network, stack) if stack is not None else Vmapped(network)
