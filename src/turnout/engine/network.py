"""A model as the engine trains it: a copy of the module with addressed dropout, and its layout.

Shape letters: c clients of a chunk, B batch, k dropout layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from turnout.engine.batches import Batch, shares
from turnout.engine.dropout import AddressedCalls, seeded, with_addressed_dropout
from turnout.engine.recurrent import gru, lstm
from turnout.engine.stacked import attention, conv2d
from turnout.inputs import call, raw_output
from turnout.layout import Layout, copied
from turnout.models.hugging_face import without_cache
from turnout.tasks import PerSample, Positions
from turnout.types import Tensors

# Operations of torch and our own for clients with weights of their own: without a batching rule (recurrent), or slow
# under `vmap`. One that returns NotImplemented leaves the call to torch.
OWN: dict[Any, Callable[..., Any]] = {
    torch.lstm: lstm,
    torch.gru: gru,
    torch.conv2d: conv2d,
    torch.nn.functional.scaled_dot_product_attention: attention,
}


class ForClients(TorchFunctionMode):
    """Inside `with ForClients():` modules call the operations of `OWN` instead of torch's."""

    def __torch_function__(self, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None) -> Any:
        own = OWN.get(func)
        if own is not None:
            found = own(*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        return func(*args, **(kwargs or {}))


@dataclass
class Network:
    """A model prepared for the engine.

    module         the engine's own copy, with addressed dropout
    layout         which tensors are shared, personal and states, and their columns
    loss           of each sample
    dropout_keys   names of the buffers that hold the dropout keys
    draws          whether training also draws from torch's own generator, inside the forward pass
    calls_dropout  whether it calls dropout as a function that has addressed masks
    positions      of targets: how many positions of each sample count; None: samples count alike
    models_own     whether the loss is the model's own
    rounded        the type of the module's parameters, if not that of the clients' weights: these are kept exact
    """

    module: nn.Module
    layout: Layout
    loss: PerSample
    dropout_keys: tuple[str, ...] = ()
    draws: bool = False
    positions: Positions | None = None
    models_own: bool = False
    rounded: torch.dtype | None = None
    calls_dropout: bool = False

    @classmethod
    def of(
        cls, module: nn.Module, layout: Layout, loss: PerSample, positions: Positions | None = None,
        models_own: bool = False, rounded: torch.dtype | None = None,
    ) -> Network:  # fmt: skip
        prepared, names = with_addressed_dropout(without_cache(copied(module)))
        return cls(prepared, layout, loss, names, positions=positions, models_own=models_own, rounded=rounded)

    def twin(self) -> Network:
        """A copy for another thread (modules are not thread-safe)."""
        return replace(self, module=copied(self.module))

    def output(self, flat_P: Tensor, states: Tensors, x: Tensor) -> Tensor:
        """The module's scores of samples with these parameters and states.

        On a GPU with our own operations: torch's recurrent ones need all weights of a layer in one piece.
        """
        with ForClients() if x.is_cuda else nullcontext():
            return self.scores(x, {**self.layout.unpack(flat_P), **states})

    def scores(self, x: Tensor, tensors: Tensors | None = None) -> Tensor:
        """The module's scores of samples; `tensors` replace its own parameters and buffers."""
        if self.rounded is None:
            return call(self.module, x, tensors)
        return call(self.module, x.to(self.rounded) if x.is_floating_point() else x, self.round(tensors)).float()

    def round(self, tensors: Tensors | None) -> Tensors | None:
        """Weights of clients as the module computes with them."""
        if tensors is None or self.rounded is None:
            return tensors
        names = {slot.name for slot in self.layout.slots}
        return {name: value.to(self.rounded) if name in names else value for name, value in tensors.items()}

    def losses(self, x: Tensor, y: Tensor, tensors: Tensors | None = None) -> Tensor:
        """The loss of each sample [B]: the task's, or the model's own of each sample alone."""
        if not self.models_own:
            return self.loss(self.scores(x, tensors), y)
        y = y if self.positions is None else y[:, : x.shape[1]]  # as many positions as the samples have
        one = (slice(i, i + 1) for i in range(len(y)))
        return torch.stack([raw_output(self.module, x[i], self.round(tensors), labels=y[i]).loss for i in one])

    def losses_at(self, flat_P: Tensor, states: Tensors, x: Tensor, y: Tensor) -> Tensor:
        """The same with these parameters and states, as in `output`."""
        with ForClients() if x.is_cuda else nullcontext():
            return self.losses(x, y, {**self.layout.unpack(flat_P), **states})

    def weights(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        """How much each sample counts [c, B]: its positions, or 1; 0 for samples that fill up a batch."""
        if self.positions is None and batch.mask_cB is not None:
            return batch.mask_cB
        weight_cB = torch.ones(batch.y.shape[:2], dtype=dtype, device=batch.y.device)
        for factor_cB in (self.positions and self.positions(batch.y), batch.mask_cB):
            weight_cB = weight_cB if factor_cB is None else weight_cB * factor_cB
        return weight_cB

    def shares(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        """Each sample's weight in its client's mean loss [c, B]; all 0 for a client without samples."""
        return shares(self.weights(batch, dtype))

    def first_weights(self) -> Tensor:
        found = self.layout.pack(dict(self.module.named_parameters()))
        return found if self.rounded is None else found.float()

    def first_states(self) -> Tensors:
        return {name: value for name, value in self.module.named_buffers() if name in self.layout.states}

    @property
    def keys(self) -> int:
        """Keys that a client needs for a step: one for each dropout layer, and a last one for other draws."""
        return len(self.dropout_keys) + (self.draws or self.calls_dropout)

    def addressed(self, keys_ck: Tensor | None, device: torch.device) -> AbstractContextManager[object]:
        """Inside, draws of the module's forward pass are those of a step of these clients."""
        if keys_ck is None or not (self.draws or self.calls_dropout):
            return nullcontext()
        return AddressedCalls(keys_ck[:, -1]) if self.calls_dropout else seeded(keys_ck[0, -1], device)

    def keyed(self, keys_ck: Tensor | None) -> Tensors:
        """The dropout keys of a step by buffer name: name -> [c]."""
        return {} if keys_ck is None else {name: keys_ck[:, i] for i, name in enumerate(self.dropout_keys)}

    def has_batch_statistics(self) -> bool:
        """Whether the model has BatchNorm, so that padded samples would change the result."""
        return bool(self.norms)

    @cached_property
    def norms(self) -> tuple[int, ...]:
        """The channels of each BatchNorm."""
        layers = (m for m in self.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
        return tuple(layer.num_features for layer in layers)
