"""What is learned: a loss and metrics, each one number per sample.

Everything here takes the model's output and the targets of a batch and returns a tensor of shape [B], without
averaging: the round decides which samples count, and clients' numbers must add up over samples.

Shape letters: B samples of a batch, K scores or outputs, T positions of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from turnout.errors import Mistake, nearest

PerSample = Callable[[Tensor, Tensor], Tensor]  # (output, target) -> [B]


class TaskSpec(Protocol):
    """What every task offers; `Task` makes one from a user's own functions."""

    @property
    def metrics(self) -> Mapping[str, PerSample]: ...

    @property
    def main(self) -> str: ...

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def loss(self) -> PerSample: ...

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None: ...


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
        return {"accuracy": correct}

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        """A `Mistake` unless the scores fit the labels."""
        if len(output_shape) != 2 or target.ndim != 1:
            raise Mistake(
                "classification compares scores [samples, labels] with labels [samples], but the model gives "
                f"{tuple(output_shape)} and the data {tuple(target.shape)}: for numbers use "
                "Regression, for text NextCharacter"
            )
        _check_batch(output_shape, target)
        _check_labels(output_shape[1], target)


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
        return {"accuracy": lambda output, target: self._mean(correct(output, target), target)}

    def _mean(self, value_BT: Tensor, target_BT: Tensor) -> Tensor:
        counts_BT = target_BT != self.ignore
        return (value_BT * counts_BT).sum(1) / counts_BT.sum(1).clamp(min=1)

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        """A `Mistake` unless there is a row of scores for each position."""
        if len(output_shape) != 3 or target.ndim != 2 or output_shape[1] != target.shape[1]:
            raise Mistake(
                "next-character prediction compares scores [samples, positions, characters] with characters "
                f"[samples, positions], but the model gives {tuple(output_shape)} and the data "
                f"{tuple(target.shape)}: for one label per text use Classification"
            )
        _check_batch(output_shape, target)
        _check_labels(output_shape[2], target[target != self.ignore])


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
        return {"mse": self.loss, "mae": lambda output, target: _errors(output, target).abs().mean(1)}

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        """A `Mistake` unless there is one output per number to predict."""
        _check_batch(output_shape, target)
        if torch.Size(output_shape).numel() != target.numel():
            raise Mistake(
                f"the model gives {tuple(output_shape[1:])} numbers per sample but the data has "
                f"{tuple(target.shape[1:])}: build the model with one output per number to predict"
            )


@dataclass(frozen=True)
class Task:
    """A user's own loss and metrics. Each function maps (output, target) to one number per sample.

    >>> def huber(output, target):
    ...     return torch.nn.functional.huber_loss(output.squeeze(1), target, reduction="none")
    >>> task = Task(loss=huber)
    >>> task.main, list(task.metrics), task.higher_is_better
    ('loss', ['loss'], False)
    """

    loss: PerSample
    metrics: Mapping[str, PerSample] = field(default_factory=dict)
    main: str = "loss"
    higher_is_better: bool = False

    def __post_init__(self) -> None:
        if not callable(self.loss):
            raise Mistake(f"a task's loss is a function (output, target) -> one loss per sample, not {self.loss!r}")
        metrics = {"loss": self.loss} | dict(self.metrics) if self.main == "loss" else dict(self.metrics)
        if self.main not in metrics:
            hint = nearest(self.main, metrics)
            raise Mistake(f"the task's main metric {self.main!r} is not among its metrics: {hint}")
        object.__setattr__(self, "metrics", metrics)

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        """A `Mistake` unless the loss and every metric give one number per sample of such a batch."""
        output = torch.zeros(output_shape, device=target.device)
        _check_per_sample("loss", self.loss, output, target)
        for name, metric in self.metrics.items():
            _check_per_sample(f"metric {name!r}", metric, output, target)


def check_model(task: TaskSpec, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """A `Mistake` unless the model takes these samples and its output fits their targets; changes nothing."""
    was_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            output = model(x)
    except (RuntimeError, IndexError) as error:
        raise Mistake(
            f"the model cannot take samples of shape {tuple(x.shape[1:])} ({x.dtype}): {error}. "
            "Choose a model for such samples, or reshape the data"
        ) from error
    finally:
        for module in was_training:
            module.training = True
    task.check_output(tuple(output.shape), y)


def correct(output: Tensor, target: Tensor) -> Tensor:
    """1 where the largest score is the target's, else 0."""
    return (output.argmax(-1) == target).to(output.dtype)


def _errors(output: Tensor, target: Tensor) -> Tensor:
    """Output - target as [B, K]; a target [B] against an output [B, 1] must not spread to [B, B]."""
    error = output - target.reshape(output.shape)
    return error[:, None] if error.ndim == 1 else error.flatten(1)


def _check_batch(output_shape: tuple[int, ...], target: Tensor) -> None:
    if not output_shape or target.ndim == 0 or output_shape[0] != target.shape[0]:
        raise Mistake(
            f"the model gives shape {tuple(output_shape)} for targets of shape {tuple(target.shape)}: "
            "the first dimension of both is the samples of the batch and must agree"
        )


def _check_labels(scores: int, label: Tensor) -> None:
    if label.is_floating_point():
        raise Mistake(f"labels are whole numbers, but the data has {label.dtype}: convert them, or use Regression")
    if label.numel() == 0:
        return
    low, high = int(label.min()), int(label.max())
    if low < 0:
        raise Mistake(f"the data has label {low}: number the labels from 0")
    if high >= scores:
        raise Mistake(
            f"the model gives {scores} scores but the data has {high + 1} labels: "
            f"build the model with classes={high + 1}, or drop the samples with labels from {scores} on"
        )


def _check_per_sample(name: str, function: PerSample, output: Tensor, target: Tensor) -> None:
    try:
        value = function(output, target)
    except (RuntimeError, IndexError, ValueError) as error:
        raise Mistake(
            f"the task's {name} fails on an output of shape {tuple(output.shape)} with targets of shape "
            f"{tuple(target.shape)}: {error}"
        ) from error
    if not isinstance(value, Tensor) or value.shape != target.shape[:1]:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise Mistake(
            f"the task's {name} gives {shape} for {target.shape[0]} samples: return one number per sample, "
            f"shape ({target.shape[0]},), without averaging over the batch (in torch, reduction='none')"
        )


KINDS = {"classification": Classification, "next-character": NextCharacter, "regression": Regression, "task": Task}
