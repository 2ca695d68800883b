"""Targets that were standardised for training, and the way back to their own unit: metrics, and trained models.

Shape letters: B samples of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from turnout.task.outputs import scores_of
from turnout.task.spec import Metric, PerSample, TaskSpec, metric_infos

Values = TypeVar("Values", Tensor, float)


@dataclass(frozen=True)
class Standardised:
    """Targets are (value - mean) / std.

    >>> Standardised(mean=10.0, std=2.0).standard(14.0), Standardised(mean=10.0, std=2.0).original(2.0)
    (2.0, 14.0)
    """

    mean: float
    std: float

    def standard(self, value: Values) -> Values:
        return (value - self.mean) / self.std

    def original(self, value: Values) -> Values:
        return value * self.std + self.mean


@dataclass(frozen=True)
class InOwnUnit:
    """A task on standardised targets: the loss is of those, metrics are computed in the target's own unit.

    >>> from turnout.task import Regression
    >>> task = InOwnUnit(Regression(), mean=100.0, std=10.0)
    >>> output, target = torch.tensor([[1.0]]), torch.tensor([[0.5]])  # 110 and 105
    >>> task.loss(output, target), task.metrics["mae"](output, target)
    (tensor([0.2500]), tensor([5.]))
    """

    task: TaskSpec
    mean: float
    std: float

    @property
    def loss(self) -> PerSample:
        return self.task.loss

    @property
    def main(self) -> str:
        return self.task.main

    @property
    def higher_is_better(self) -> bool:
        return self.task.higher_is_better

    @property
    def metrics(self) -> Mapping[str, PerSample]:
        infos = metric_infos(self.task)
        return {
            name: Metric(partial(self._measured, metric), infos[name].higher_is_better, infos[name].unit)
            for name, metric in self.task.metrics.items()
        }

    def _measured(self, metric: PerSample, output: Tensor, target: Tensor) -> Tensor:
        unit = Standardised(self.mean, self.std)
        return metric(unit.original(output), unit.original(target))

    def highest(self, target: Tensor, classes: int) -> Tensor:
        return self.task.highest(target, classes)

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        self.task.check_output(output_shape, target)


class Predictor(nn.Module):
    """A trained model that speaks the target's own unit; `model` is the one that was trained, on standardised targets.

    >>> Predictor(nn.Identity(), Standardised(mean=10.0, std=2.0))(torch.tensor([1.0]))
    tensor([12.])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, unit: Standardised) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(unit.mean))
        self.register_buffer("std", torch.tensor(unit.std))

    def forward(self, x: Tensor) -> Tensor:
        return scores_of(self.model(x)) * self.std + self.mean


KINDS = {"in-own-unit": InOwnUnit}
