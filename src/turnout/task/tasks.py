"""The tasks: classification, next character, regression, and one from a user's own functions.

Shape letters: B samples of a batch, K scores or outputs, T positions of a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from turnout.errors import UserError, nearest
from turnout.task.checks import check_batch, check_labels, check_per_sample
from turnout.task.spec import Metric, PerSample


@dataclass(frozen=True)
class Classification:
    """Cross-entropy of scores [B, K] against labels [B]; accuracy.

    >>> task = Classification()
    >>> output_BK, label_B = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1])
    >>> task.loss(output_BK, label_B)
    tensor([0.6931, 0.6931])
    >>> task.metrics["accuracy"](output_BK, label_B)
    tensor([1., 0.])
    """

    main: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(output, target, reduction="none")

    @property
    def metrics(self) -> dict[str, PerSample]:
        return {"accuracy": Metric(correct, unit="percent")}

    def highest(self, target: Tensor, classes: int) -> Tensor:
        return torch.full_like(target, classes - 1)

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        """A `UserError` unless the scores fit the labels."""
        if len(output_shape) != 2 or target.ndim != 1:
            raise UserError(
                "classification compares scores [samples, labels] with labels [samples], but the model gives "
                f"{tuple(output_shape)} and the data {tuple(target.shape)}: for numbers use "
                "task=Regression(), for text NextCharacter()"
            )
        check_batch(output_shape, target)
        check_labels(output_shape[1], target)


@dataclass(frozen=True)
class NextCharacter:
    """Cross-entropy of scores [B, T, K] against the next characters [B, T], a mean over a sample's positions.

    Accuracy is the share of positions guessed right. Positions whose target is `ignore` (padding) do not
    count; a sample of padding only has loss and accuracy 0.

    >>> scores_BTK, next_BT = torch.zeros(1, 3, 4), torch.tensor([[0, 2, -1]])
    >>> task = NextCharacter()
    >>> task.loss(scores_BTK, next_BT), task.metrics["accuracy"](scores_BTK, next_BT)
    (tensor([1.3863]), tensor([0.5000]))
    """

    ignore: int = -1

    main: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        loss_BT = cross_entropy(output.transpose(1, 2), target, ignore_index=self.ignore, reduction="none")
        return self._mean(loss_BT, target)

    @property
    def metrics(self) -> dict[str, PerSample]:
        return {"accuracy": Metric(self._accuracy, unit="percent")}

    def _accuracy(self, output: Tensor, target: Tensor) -> Tensor:
        return self._mean(correct(output, target), target)

    def _mean(self, value_BT: Tensor, target_BT: Tensor) -> Tensor:
        counts_BT = target_BT != self.ignore
        return (value_BT * counts_BT).sum(1) / counts_BT.sum(1).clamp(min=1)

    def highest(self, target: Tensor, classes: int) -> Tensor:
        return torch.full_like(target, classes - 1)

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        """A `UserError` unless there is a row of scores for each position."""
        if len(output_shape) != 3 or target.ndim != 2 or output_shape[1] != target.shape[1]:
            raise UserError(
                "next-character prediction compares scores [samples, positions, characters] with characters "
                f"[samples, positions], but the model gives {tuple(output_shape)} and the data "
                f"{tuple(target.shape)}: for one label per text use Classification"
            )
        check_batch(output_shape, target)
        check_labels(output_shape[2], target[target != self.ignore])


@dataclass(frozen=True)
class Regression:
    """Squared error, a mean over a sample's outputs; metrics mse and mae, lower is better.

    >>> task = Regression()
    >>> task.loss(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 0.0]))
    tensor([1., 9.])
    """

    main: ClassVar[str] = "mse"
    higher_is_better: ClassVar[bool] = False

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return _errors(output, target).square().mean(1)

    @property
    def metrics(self) -> dict[str, PerSample]:
        return {"mse": Metric(self.loss, higher_is_better=False), "mae": Metric(_mae, higher_is_better=False)}

    def highest(self, target: Tensor, classes: int) -> Tensor:
        return target

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        """A `UserError` unless there is one output per number to predict."""
        check_batch(output_shape, target)
        if torch.Size(output_shape).numel() != target.numel():
            if not target.is_floating_point():
                raise UserError(
                    "regression predicts numbers, but the data has classes: give its targets as numbers with a "
                    "fraction (a Table: regression=True), or use Classification()"
                )
            raise UserError(
                f"the model gives {tuple(output_shape[1:])} numbers per sample but the data has "
                f"{tuple(target.shape[1:])}: build the model with one output per number to predict"
            )


@dataclass(frozen=True)
class Task:
    """A user's own loss and metrics. Each function maps (output, target) to one number per sample.

    A metric can be given as a `Metric`, which says which way is better and its unit. `higher_is_better` is for a main
    metric that is a plain function; where it is a `Metric`, the metric's own word counts.

    >>> def huber(output, target):
    ...     return torch.nn.functional.huber_loss(output.squeeze(1), target, reduction="none")
    >>> task = Task(loss=huber)
    >>> task.main, list(task.metrics), task.higher_is_better
    ('loss', ['loss'], False)
    """

    loss: PerSample
    metrics: Mapping[str, PerSample | Metric] = field(default_factory=dict)
    main: str = "loss"
    higher_is_better: bool = False

    def __post_init__(self) -> None:
        if not callable(self.loss):
            raise UserError(f"a task's loss is a function (output, target) -> one loss per sample, not {self.loss!r}")
        metrics = {"loss": self.loss} | dict(self.metrics) if self.main == "loss" else dict(self.metrics)
        if self.main not in metrics:
            hint = nearest(self.main, metrics)
            raise UserError(f"the task's main metric {self.main!r} is not among its metrics: {hint}")
        object.__setattr__(self, "metrics", metrics)
        main = metrics[self.main]
        if isinstance(main, Metric):
            object.__setattr__(self, "higher_is_better", main.higher_is_better)

    def highest(self, target: Tensor, classes: int) -> Tensor:
        """Whole numbers [B] are labels; anything else (numbers, a 0 or 1 for each label) is what it is."""
        labels = target.ndim == 1 and not target.is_floating_point()
        return torch.full_like(target, classes - 1) if labels else target

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        """A `UserError` unless the loss and every metric give one number per sample of such a batch."""
        output = torch.zeros(output_shape, device=target.device)
        check_per_sample("loss", self.loss, output, target)
        for name, metric in self.metrics.items():
            check_per_sample(f"metric {name!r}", metric, output, target)


def correct(output: Tensor, target: Tensor) -> Tensor:
    """1 where the largest score is the target's, else 0."""
    return (output.argmax(-1) == target).to(output.dtype)


def _mae(output: Tensor, target: Tensor) -> Tensor:
    return _errors(output, target).abs().mean(1)


def _errors(output: Tensor, target: Tensor) -> Tensor:
    """Output - target as [B, K]; a target [B] against an output [B, 1] must not spread to [B, B]."""
    error = output - target.reshape(output.shape)
    return error[:, None] if error.ndim == 1 else error.flatten(1)


KINDS = {"classification": Classification, "next-character": NextCharacter, "regression": Regression, "task": Task}
