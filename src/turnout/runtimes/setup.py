"""What a runtime is made from: a prepared experiment, and the data of the clients it will work for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from turnout.data import Federation
from turnout.engine.trainers import Place
from turnout.errors import UserError
from turnout.exchange import Runtime
from turnout.experiment import Algorithm, Experiment
from turnout.layout import Layout
from turnout.types import Tensors
from turnout.world.events import Calendar


@dataclass(frozen=True)
class Model:
    """A model ready for training: the module, its groups, and its first weights."""

    module: nn.Module
    layout: Layout
    flat_P: Tensor
    states: Tensors

    @property
    def batch_statistics(self) -> bool:
        """Whether a sample's output depends on the others of its batch: a last batch of one is then left out."""
        return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.module.modules())


@dataclass(frozen=True)
class Setup:
    """Everything that is settled before a runtime starts. `experiment` is as prepared: nothing in it is "auto".

    `federation` is None where clients are elsewhere and the server has no data at all. `first_marks` stand for what
    each parameter and buffer begins with, by name: a real device must have the same.
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
        """The data of the clients at hand, for those who work for them."""
        if self.federation is None:
            raise UserError("there is no data here to work with: clients are elsewhere, and each has its own")
        return self.federation


Factory = Callable[[Setup], Runtime]
