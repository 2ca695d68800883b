"""Which named tensor is in which group, fixed once from the model and the algorithm.

Shared and personal parameters are columns of one flat matrix, shared first. Buffers are not in it (BatchNorm silently
does not update views of a larger matrix): each has a contiguous `[C, ...]` stack of its own.

Shape letters: c clients of a chunk, P parameters (all columns).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from turnout.types import Tensors

Predicate = Callable[[str, nn.Module], bool]  # (name of a parameter or buffer, the model) -> does it stay home?


@dataclass(frozen=True)
class Slot:
    """One parameter's place among the columns."""

    name: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True)
class Layout:
    """The columns of the flat matrix and the names of the buffers, by group."""

    slots: tuple[Slot, ...]
    shared: int  # columns [0, shared) travel, the rest stay home
    shared_states: tuple[str, ...]
    personal_states: tuple[str, ...]

    @cached_property
    def width(self) -> int:
        return self.slots[-1].start + self.slots[-1].size if self.slots else 0

    @property
    def personal(self) -> int:
        """How much stays home: columns and buffers."""
        return self.width - self.shared + len(self.personal_states)

    @property
    def states(self) -> tuple[str, ...]:
        return self.shared_states + self.personal_states

    @cached_property
    def shared_slots(self) -> tuple[Slot, ...]:
        return tuple(s for s in self.slots if s.start < self.shared)

    def views(self, flat_cP: Tensor) -> Tensors:
        """Each parameter of each client, without a copy."""
        rows = flat_cP.shape[0]
        return {
            s.name: flat_cP[:, s.start : s.start + s.size].view(rows, *s.shape)
            for s in self.slots
            if s.start < flat_cP.shape[1]
        }

    def pack(self, tensors: Tensors) -> Tensor:
        """Named tensors of one model as one row."""
        if not self.slots:
            return torch.zeros(0)
        return torch.cat([tensors[s.name].detach().reshape(-1) for s in self.slots])

    def unpack(self, flat_P: Tensor) -> Tensors:
        """One row as named tensors; a row of only the shared columns gives only those."""
        return {name: view[0] for name, view in self.views(flat_P[None]).items()}


def lay_out(module: nn.Module, personal: Predicate | None = None) -> Layout:
    """Put every trainable parameter and every buffer of a model into its group.

    A buffer that is not persistent (a table of sines, a mask) follows from the model and is no state: it neither
    travels nor is kept.

    >>> layout = lay_out(nn.Linear(3, 2), personal=lambda name, module: name == "bias")
    >>> [(s.name, s.start) for s in layout.slots], layout.shared, layout.width
    ([('weight', 0), ('bias', 6)], 6, 8)
    """
    home = personal or (lambda name, module: False)
    trainable = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    shared = [(n, p) for n, p in trainable if not home(n, module)]
    own = [(n, p) for n, p in trainable if home(n, module)]
    slots, start = [], 0
    for name, parameter in shared + own:
        slots.append(Slot(name, tuple(parameter.shape), start, parameter.numel()))
        start += parameter.numel()
    persistent = module.state_dict().keys()
    buffers = [n for n, _ in module.named_buffers() if n in persistent]
    return Layout(
        slots=tuple(slots),
        shared=sum(p.numel() for _, p in shared),
        shared_states=tuple(n for n in buffers if not home(n, module)),
        personal_states=tuple(n for n in buffers if home(n, module)),
    )


def copied(module: nn.Module) -> nn.Module:
    """A copy of a model that shares the memory of frozen parameters: a large base is held once."""
    frozen = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters() if not p.requires_grad}
    return copy.deepcopy(module, frozen)
