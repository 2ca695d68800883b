"""One pass for all clients' samples: layers whose weights all clients have in common run once over all rows, and
layers with weights of a client's own as batched products.

For models of which most is frozen (adapters on a base). Nothing is under `vmap`, so whatever the base does within a
sample works: grouped queries, masks, fused attention, checkpoints. A layer that mixes samples does not: `per_client`
refuses batch statistics, and trainers.py compares the gradients of two clients with the plain loop's.

Shape letters: c clients of a chunk, B batch, n rows of a client (samples times positions), i inputs, o outputs, r rank,
P parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from turnout.engine.batches import Batch
from turnout.engine.dropout import AddressedDropout, keep_mask
from turnout.engine.gradients import ROOM
from turnout.engine.kernels.graphs import GraphCache
from turnout.engine.network import Network
from turnout.models.adapters import lora_of
from turnout.models.quantized import PackedLinear, PackedMatrix, frozen_bytes
from turnout.types import Tensors


@dataclass
class Clients:
    """Whose rows go through the module now.

    number    of clients
    tensors   their own weights and dropout keys by name: [c, ...]
    """

    number: int = 0
    tensors: Tensors = field(default_factory=dict)

    def rows(self, x: Tensor) -> Tensor:
        """Activations [c B, ..., i] as [c, n, i]."""
        return x.reshape(self.number, -1, x.shape[-1])


class LowRank(torch.autograd.Function):
    """x Wᵀ + b + s (x Aᵀ) Bᵀ for rows [c, n, i], a common frozen W [o, i], and A [c, r, i], B [c, o, r] of each client.

    One product over all rows and two batched ones that add to it, forward and backward; x Aᵀ is kept, not its product.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, W: Tensor | PackedMatrix, b: Tensor | None, A: Tensor, B: Tensor, scale: float
    ) -> Tensor:
        h, scaled = torch.bmm(x, A.mT), B * scale
        y = functional.linear(x, _unpacked(W, x), b)
        ctx.save_for_backward(x, A, scaled, h)
        ctx.W, ctx.scale = W, scale
        return y.baddbmm_(h, scaled.mT)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        (d,), (x, A, scaled, h) = given, ctx.saved_tensors
        need_x, _, _, need_A, need_B, _ = ctx.needs_input_grad
        dh = torch.bmm(d, scaled) if need_x or need_A else None
        dx = torch.matmul(d, _unpacked(ctx.W, d)).baddbmm_(dh, A) if need_x and dh is not None else None
        dA = torch.bmm(dh.mT, x) if need_A and dh is not None else None
        return dx, None, None, dA, torch.bmm(d.mT, h).mul_(ctx.scale) if need_B else None, None


def _unpacked(W: Tensor | PackedMatrix, like: Tensor) -> Tensor:
    return W.unpacked(like.dtype) if isinstance(W, PackedMatrix) else W


Form = Callable[[Clients, dict[str, str], Any, Tensor], Tensor]  # (clients, names of own tensors, layer, x) -> output


def _linear(clients: Clients, own: dict[str, str], layer: nn.Linear, x: Tensor) -> Tensor:
    rows, bias = clients.rows(x), clients.tensors[own["bias"]].unsqueeze(1) if "bias" in own else layer.bias
    if "weight" not in own:
        y = functional.linear(rows, layer.weight)
        y = y if bias is None else y + bias
    else:
        W = clients.tensors[own["weight"]].mT
        y = torch.bmm(rows, W) if bias is None else torch.baddbmm(bias.to(rows), rows, W)
    return y.view(*x.shape[:-1], y.shape[-1])


def _norm(clients: Clients, own: dict[str, str], layer: nn.LayerNorm | nn.RMSNorm, x: Tensor) -> Tensor:
    if isinstance(layer, nn.LayerNorm):
        y = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    else:
        y = functional.rms_norm(x, list(layer.normalized_shape), eps=layer.eps)
    y = y.reshape(clients.number, -1, *layer.normalized_shape)
    for name in ("weight", "bias"):
        value = clients.tensors[own[name]].unsqueeze(1) if name in own else getattr(layer, name, None)
        if value is not None:
            y = y * value if name == "weight" else y + value
    return y.view(x.shape)


def _embedding(clients: Clients, own: dict[str, str], layer: nn.Embedding, x: Tensor) -> Tensor:
    if layer.max_norm is not None:
        raise RuntimeError("an embedding with max_norm has no form for several clients")
    first_c = layer.num_embeddings * torch.arange(clients.number, device=x.device)
    index = x.reshape(clients.number, -1) + first_c[:, None]
    y = functional.embedding(index, clients.tensors[own["weight"]].flatten(0, 1)).view(*x.shape, layer.embedding_dim)
    return y if layer.padding_idx is None else torch.where((x == layer.padding_idx).unsqueeze(-1), y.detach(), y)


def _dropout(clients: Clients, own: dict[str, str], layer: AddressedDropout, x: Tensor) -> Tensor:
    if not layer.training or layer.p == 0:
        return x
    shape = torch.Size((len(x) // clients.number, *x.shape[1:]))
    mask = keep_mask(clients.tensors[own["key"]], shape, layer.p, layer.whole_channels, x.dtype, x.device)
    return (x.view(clients.number, *shape) * mask).view(x.shape)


def _lora(clients: Clients, own: dict[str, str], layer: nn.Module, x: Tensor) -> Tensor:
    low = lora_of(layer)
    assert low is not None
    A, B = (clients.tensors[own[name]] if name in own else given.expand(clients.number, *given.shape)
            for name, given in (("A", low.A.weight), ("B", low.B.weight)))  # fmt: skip
    W = low.base.packed if isinstance(low.base, PackedLinear) else low.base.weight
    y = LowRank.apply(clients.rows(x), W, low.base.bias, A, B, low.scale)
    return y.view(*x.shape[:-1], y.shape[-1])


# Exact types: a subclass may compute something else.
FORMS: dict[type, Form] = {
    nn.Linear: _linear, nn.LayerNorm: _norm, nn.RMSNorm: _norm, nn.Embedding: _embedding, AddressedDropout: _dropout,
}  # fmt: skip


def can_join(network: Network) -> bool:
    """Whether part of a model is frozen and the rest has forms for several clients."""
    return frozen_bytes(network.module) > 0 and per_client(network) is not None


def per_client(network: Network) -> dict[str, tuple[Form, dict[str, str]]] | None:
    """The layers that have tensors of a client's own: their forms for several clients, and the names of those tensors.

    None if a layer has no such form.
    """
    if network.has_batch_statistics() or network.models_own:  # a model's own loss sees a sample at a time
        return None
    slots, found = {slot.name for slot in network.layout.slots}, dict[str, tuple[Form, dict[str, str]]]()
    first = {id(value): name for name, value in network.module.named_parameters()}  # of tied weights
    inside: set[int] = set()  # the parts of a low-rank layer, which it applies itself
    for path, layer in network.module.named_modules():
        own = {name: first[id(value)] for name, value in layer.named_parameters(recurse=False)}
        own = {name: whole for name, whole in own.items() if whole in slots}
        if isinstance(layer, AddressedDropout):
            own["key"] = f"{path}.key" if path else "key"
        low = lora_of(layer)
        if low is not None and low.plain:
            parts = {name: first[id(part.weight)] for name, part in (("A", low.A), ("B", low.B))}
            found[path] = _lora, {name: whole for name, whole in parts.items() if whole in slots}
            inside |= {id(low.A), id(low.B)}
        elif own and id(layer) not in inside:
            if type(layer) not in FORMS:
                return None
            found[path] = FORMS[type(layer)], own
    return found


class Joined:
    """Gradients of all clients of a chunk by one forward and backward pass over all their samples."""

    title = "joined"
    sees_padding = True
    graphs: GraphCache | None = None  # a step is long enough

    def __init__(self, network: Network):
        forms = per_client(network)
        assert forms is not None
        self.network, self.clients = network, Clients()
        self.joined = network.twin()  # whose layers look up whose rows they are given
        for path, (form, own) in forms.items():
            layer = self.joined.module.get_submodule(path)
            layer.forward = partial(form, self.clients, own, layer)

    def _pass(self, weights: Tensors, batch: Batch, function: Callable[..., Tensor]) -> Tensor:
        """A function of the network that is given all clients' samples in one dimension, unflattened again."""
        module, clients = self.joined.module, batch.x.shape[0]
        if module.training != batch.training:
            module.train(batch.training)
        self.clients.number, self.clients.tensors = clients, dict(self.network.round(weights) or {})
        self.clients.tensors |= self.network.keyed(batch.keys_ck) if batch.training else {}
        with self.network.addressed(batch.keys_ck if batch.training else None, batch.x.device):
            found = function(torch.flatten(batch.x, 0, 1), batch.y.flatten(0, 1))
        return found.unflatten(0, batch.x.shape[:2])

    def _gradients(self, flat_cP: Tensor, batch: Batch) -> tuple[list[Tensor], Tensor]:
        # .data: other threads change other rows of the same matrix meanwhile, which autograd must not mistake for these
        leaves = {n: v.data.requires_grad_() for n, v in self.network.layout.views(flat_cP).items()}
        share_cB = self.network.shares(batch, flat_cP.dtype)
        with torch.enable_grad():
            loss_c = (self._pass(leaves, batch, self.joined.losses) * share_cB).sum(1)
            found = torch.autograd.grad(loss_c.sum(), list(leaves.values()), allow_unused=True)
        self.clients.tensors = {}
        pairs = zip(found, leaves.values(), strict=True)
        return [torch.zeros_like(leaf) if grad is None else grad for grad, leaf in pairs], loss_c.detach()

    def gradient(self, flat_cP: Tensor, states: Tensors, batch: Batch, out_cP: Tensor) -> Tensor:
        grads, loss_c = self._gradients(flat_cP, batch)
        torch.cat([grad.flatten(1) for grad in grads], 1, out=out_cP)
        return loss_c

    def descend(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        grads, loss_c = self._gradients(flat_cP, batch)
        weights = list(self.network.layout.views(flat_cP).values())
        if decay:
            torch._foreach_mul_(weights, 1 - lr * decay)
        torch._foreach_add_(weights, grads, alpha=-lr)
        return loss_c

    def add_squares(
        self, flat_cP: Tensor, states: Tensors, batch: Batch, into_cP: Tensor, fresh: bool, scale: float
    ) -> None:
        """Every sample is a client of its own; as many at once as `ROOM` allows for their gradients."""
        if fresh:
            into_cP.zero_()
        clients, size = batch.x.shape[:2]
        each = max(1, min(size, ROOM[flat_cP.device.type] // (flat_cP.numel() * flat_cP.element_size())))
        for s in range(0, size, each):
            x, y = (torch.flatten(value[:, s : s + each], 0, 1).unsqueeze(1) for value in (batch.x, batch.y))
            alone = Batch(x, y, None, None, training=False)
            grads, _ = self._gradients(flat_cP.repeat_interleave(len(x) // clients, 0), alone)
            square = torch.cat([grad.flatten(1) for grad in grads], 1).square_().unflatten(0, (clients, -1))
            if batch.mask_cB is not None:
                square.mul_(batch.mask_cB[:, s : s + each, None])
            into_cP.add_(square.sum(1), alpha=scale)

    def outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        """The targets do not matter here."""
        batch = Batch(x, torch.zeros(x.shape[:2], device=x.device), None, None, training=False)
        with torch.no_grad():
            return self._pass(self.network.layout.views(flat_cP), batch, lambda x, y: self.joined.scores(x))

    def twin(self) -> Joined:
        return Joined(self.network.twin())
