"""A model as the engine trains it: a copy of the module with addressed dropout, and its layout.

Shape letters: c clients of a chunk, B batch, k dropout layers.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor, nn
from torch.func import functional_call

from turnout.engine.dropout import with_addressed_dropout
from turnout.engine.own_kernels import ForClients
from turnout.layout import Layout
from turnout.tasks import PerSample, scores_of
from turnout.types import Tensors


@dataclass
class Network:
    """A model made ready for the engine: its own copy, dropout addressed, groups fixed."""

    module: nn.Module
    layout: Layout
    loss: PerSample
    dropout_keys: tuple[str, ...] = field(default=())  # names of the buffers that hold the keys
    draws: bool = False  # whether training draws from torch's own generator too, inside the forward pass

    @classmethod
    def of(cls, module: nn.Module, layout: Layout, loss: PerSample) -> Network:
        prepared, names = with_addressed_dropout(copy.deepcopy(module))
        return cls(prepared, layout, loss, names)

    def twin(self) -> Network:
        """A copy for another thread (modules are not thread-safe)."""
        return Network(copy.deepcopy(self.module), self.layout, self.loss, self.dropout_keys, self.draws)

    def output(self, flat_P: Tensor, states: Tensors, x: Tensor) -> Tensor:
        """What the module makes of samples with these parameters and states.

        On a GPU with the operations that take weights as they lie: torch's recurrent layers want theirs in one piece.
        """
        with ForClients() if x.is_cuda else nullcontext():
            return self.scores(x, {**self.layout.unpack(flat_P), **states})

    def scores(self, x: Tensor, tensors: Tensors | None = None) -> Tensor:
        """The module's scores of samples, with these parameters and buffers instead of its own where given."""
        return scores_of(self.module(x) if tensors is None else functional_call(self.module, tensors, (x,)))

    @property
    def keys(self) -> int:
        """Keys that a client needs for a step: one for each dropout layer, and a last one for what else it draws."""
        return len(self.dropout_keys) + self.draws

    def keyed(self, keys_ck: Tensor | None) -> Tensors:
        """The dropout keys of a step by buffer name: name -> [c]."""
        if keys_ck is None:
            return {}
        return {name: keys_ck[:, i] for i, name in enumerate(self.dropout_keys)}

    def has_batch_statistics(self, channels: int | None = None) -> bool:
        """Whether the model has BatchNorm (with this many channels), so that padded samples would change the result."""
        return any(channels in (None, features) for features in self._norms)

    @cached_property
    def _norms(self) -> tuple[int, ...]:
        """The channels of each BatchNorm."""
        norms = (m for m in self.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
        return tuple(norm.num_features for norm in norms)
