"""One model of what the server holds, completed with first values where something is personal."""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.clients.state import central_model
from turnout.runtimes.setup import Model
from turnout.types import Tensors


def whole_model(first: Model, shared_P: Tensor, states: Tensors) -> tuple[Tensor, Tensors]:
    """One model of what the server holds; what is personal and not sent has its first values."""
    found = central_model(first.layout, shared_P, states)
    return found if found is not None else with_first_values(first, shared_P, states)


def with_first_values(first: Model, shared_P: Tensor, states: Tensors) -> tuple[Tensor, Tensors]:
    """One model of what is shared; what is personal has its first values."""
    layout = first.layout
    flat_P = torch.cat([shared_P, first.flat_P[layout.shared :].to(shared_P)])
    own = {n: _like(first.states[n], shared_P) for n in layout.personal_states}
    return flat_P, own | {name: states[name] for name in layout.shared_states}


def _like(value: Tensor, other: Tensor) -> Tensor:
    return value.to(other) if value.is_floating_point() else value.to(other.device)
