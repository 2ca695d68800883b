"""What a runtime is made from: a prepared experiment, and the data of the clients it will work for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from turnout.clients.state import central_model
from turnout.data import Federation
from turnout.engine.trainers import Place
from turnout.errors import UserError
from turnout.experiment import Algorithm, Experiment
from turnout.layout import Layout
from turnout.types import Tensors
from turnout.world.events import Calendar


@dataclass(frozen=True)
class Model:
    """A model ready for training.

    module  computes
    layout  groups of its parameters and buffers
    flat_P  first parameters
    states  first values of its buffers
    """

    module: nn.Module
    layout: Layout
    flat_P: Tensor
    states: Tensors

    @property
    def batch_statistics(self) -> bool:
        """Whether a sample's output depends on the others of its batch: a last batch of one is then left out."""
        return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.module.modules())

    def whole(self, shared_P: Tensor, states: Tensors) -> tuple[Tensor, Tensors]:
        """One model of what the server holds; parameters that are personal and not sent have their first values."""
        central = central_model(self.layout, shared_P, states)
        return central if central is not None else self.with_first_values(shared_P, states)

    def with_first_values(self, shared_P: Tensor, states: Tensors) -> tuple[Tensor, Tensors]:
        """One model of the shared parameters; personal ones have their first values."""
        layout = self.layout
        flat_P = torch.cat([shared_P, self.flat_P[layout.shared :].to(shared_P)])
        first = {n: self.states[n] for n in layout.personal_states}
        own = {n: v.to(shared_P) if v.is_floating_point() else v.to(shared_P.device) for n, v in first.items()}
        return flat_P, own | {name: states[name] for name in layout.shared_states}


@dataclass(frozen=True)
class Setup:
    """Everything that is settled before a runtime starts.

    experiment   as prepared: nothing in it is "auto"
    algorithm    its algorithm
    federation   the clients' data; None where clients are elsewhere and the server has no data at all
    model        first values
    calendar     who joins and leaves when
    place        device and precision
    first_marks  checksums of each parameter and buffer at the start, by name: a real device must have the same
    """

    experiment: Experiment
    algorithm: Algorithm
    federation: Federation | None
    model: Model
    calendar: Calendar
    place: Place
    first_marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Federation:
        """The clients' data, which must be here."""
        if self.federation is None:
            raise UserError("there is no data here to work with: clients are elsewhere, and each has its own")
        return self.federation
