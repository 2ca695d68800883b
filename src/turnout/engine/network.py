"""A model as the engine trains it: a copy of the module with addressed dropout, and its layout.

Shape letters: c clients of a chunk, B batch, k dropout layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from turnout.engine.dropout import with_addressed_dropout
from turnout.engine.recurrent import gru, lstm
from turnout.engine.stacked import attention, conv2d
from turnout.layout import Layout, copied
from turnout.tasks import PerSample, scores_of
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
    rounded        the type of the module's parameters, if not that of the clients' weights: these are kept exact
    """

    module: nn.Module
    layout: Layout
    loss: PerSample
    dropout_keys: tuple[str, ...] = ()
    draws: bool = False
    rounded: torch.dtype | None = None

    @classmethod
    def of(cls, module: nn.Module, layout: Layout, loss: PerSample, rounded: torch.dtype | None = None) -> Network:
        prepared, names = with_addressed_dropout(copied(module))
        return cls(prepared, layout, loss, names, rounded=rounded)

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
            return scores_of(self.module(x) if tensors is None else functional_call(self.module, tensors, (x,)))
        names = {slot.name for slot in self.layout.slots}
        own = {n: v.to(self.rounded) if n in names else v for n, v in (tensors or {}).items()}
        return scores_of(
            functional_call(self.module, own, (self.round(x),)) if own else self.module(self.round(x))
        ).float()

    def round(self, x: Tensor) -> Tensor:
        """Samples in the type that the module computes in."""
        return x if self.rounded is None or not x.is_floating_point() else x.to(self.rounded)

    def first_weights(self) -> Tensor:
        found = self.layout.pack(dict(self.module.named_parameters()))
        return found if self.rounded is None else found.float()

    def first_states(self) -> Tensors:
        return {name: value for name, value in self.module.named_buffers() if name in self.layout.states}

    @property
    def keys(self) -> int:
        """Keys that a client needs for a step: one for each dropout layer, and a last one for other draws."""
        return len(self.dropout_keys) + self.draws

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
