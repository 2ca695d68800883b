"""Tasks: the loss and the metrics, each one number per sample, and the check that a model's output fits the targets.

Losses and metrics take the model's output and the targets of a batch and return a tensor [B], without averaging: the
round decides which samples count, and clients' numbers must add up over samples.

Shape letters: B samples of a batch, K scores or outputs, T positions of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from turnout.errors import UserError, nearest
from turnout.inputs import call

PerSample = Callable[[Tensor, Tensor], Tensor]  # (output, target) -> [B]
Positions = Callable[[Tensor], Tensor]  # targets [..., T] -> how many positions of each sample count [...]
Unit = Literal["number", "count", "percent", "bytes", "seconds"]  # how a number is shown; percent: of 1
IGNORED = -100  # the target of a position that does not count
Values = TypeVar("Values", Tensor, float)


@dataclass(frozen=True)
class MetricInfo:
    """How to read a metric.

    higher_is_better   which way is better
    unit               how its numbers are shown
    """

    higher_is_better: bool = True
    unit: Unit = "number"


# The direction and unit of plain functions, by the whole name of the metric.
WELL_KNOWN: Mapping[str, MetricInfo] = {
    "accuracy": MetricInfo(True, "percent"),
    **dict.fromkeys(("loss", "error", "mse", "rmse", "mae", "nll", "perplexity"), MetricInfo(False)),
}


@dataclass(frozen=True)
class Metric:
    """A metric with its direction and unit; it is called like its function.

    function           (output, target) -> one number per sample
    higher_is_better   which way is better
    unit               how its numbers are shown: number, count, percent (of 1), bytes or seconds
    of_mean            applied to the mean over samples, for a metric that is a function of a mean (perplexity: exp)

    >>> Metric(lambda output, target: (output - target).abs(), higher_is_better=False).info
    MetricInfo(higher_is_better=False, unit='number')
    """

    function: PerSample
    higher_is_better: bool = True
    unit: str = "number"
    of_mean: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UserError(f"a metric is a function (output, target) -> one number per sample, not {self.function!r}")
        if self.unit not in get_args(Unit):
            raise UserError(f"a metric cannot be shown in {self.unit!r}: {nearest(self.unit, get_args(Unit))}")

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return self.function(output, target)

    @property
    def info(self) -> MetricInfo:
        return MetricInfo(self.higher_is_better, cast(Unit, self.unit))


class TaskSpec(Protocol):
    """The promise of a task; `Task` makes one from a user's own functions.

    metrics            functions by name; a `Metric` has its direction and unit, see `metric_infos`
    main               the name of the metric by which runs are compared
    higher_is_better   which way is better for the main metric
    loss               the function that training minimises

    A task may also have `positions(target)`, where a sample's loss and metrics are means over its positions: how many
    of them count [B]. A mean over samples then weights each with its positions, so it is the mean over all positions.
    And it may have `models_own`: whether the model's own loss is minimised.
    """

    @property
    def metrics(self) -> Mapping[str, PerSample]: ...

    @property
    def main(self) -> str: ...

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def loss(self) -> PerSample: ...

    def highest(self, target: Tensor, classes: int) -> Tensor:
        """Targets of this shape that need all `classes` outputs: where targets are labels, the last label. A model is
        tried on them before training."""
        ...

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        """A `UserError` unless an output of this shape fits the targets."""
        ...


def metric_infos(task: TaskSpec) -> dict[str, MetricInfo]:
    """How to read each metric of a task, the main one first, and its loss.

    The task itself decides the direction of its main metric (`higher_is_better`). Any other `Metric` has its own; for a
    plain function a well-known name decides (loss, mse, accuracy, ...), and otherwise higher is better.

    >>> metric_infos(Regression())["mae"], list(metric_infos(Regression()))
    (MetricInfo(higher_is_better=False, unit='number'), ['mse', 'mae', 'loss'])
    """
    found = {}
    for name in dict.fromkeys([task.main, *task.metrics, "loss"]):
        metric = task.metrics.get(name)
        found[name] = metric.info if isinstance(metric, Metric) else WELL_KNOWN.get(name, MetricInfo())
    return found | {task.main: replace(found[task.main], higher_is_better=task.higher_is_better)}


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
        _check_scores(
            "[samples, labels]", "for numbers use Regression(), for text NextCharacter()", output_shape, target
        )


@dataclass(frozen=True)
class NextCharacter:
    """Cross-entropy of scores [B, T, K] against the next characters [B, T], a mean over a sample's positions.

    ignore   the target of positions that do not count (padding); a sample of padding only has loss and accuracy 0

    >>> scores_BTK, next_BT = torch.zeros(1, 3, 4), torch.tensor([[0, 2, -1]])
    >>> task = NextCharacter()
    >>> task.loss(scores_BTK, next_BT), task.metrics["accuracy"](scores_BTK, next_BT)
    (tensor([1.3863]), tensor([0.5000]))
    """

    ignore: int = -1

    main: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        loss_BT = _cross_entropies(output, target, self.ignore)
        return _mean_over_positions(loss_BT, target != self.ignore)

    @property
    def metrics(self) -> dict[str, PerSample]:
        return {"accuracy": Metric(self._accuracy, unit="percent")}

    def _accuracy(self, output: Tensor, target: Tensor) -> Tensor:
        return _mean_over_positions(correct(output, target), target != self.ignore)

    def highest(self, target: Tensor, classes: int) -> Tensor:
        return torch.full_like(target, classes - 1)

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        dimensions, instead = "[samples, positions, characters]", "for one label per text use Classification()"
        _check_scores(dimensions, instead, output_shape, target, self.ignore)


@dataclass(frozen=True)
class NextToken:
    """Cross-entropy of the scores [B, T, K] at each position against the token at the next one, over all positions that
    count together; perplexity, exp of that mean, and accuracy.

    Targets [B, T] are the tokens themselves, as for the models of transformers: the scores at position t are compared
    with the target at t + 1, so the first one is not used.

    ignore   the target of positions that do not count: padding, or a prompt

    >>> scores_BTK, token_BT = torch.zeros(1, 4, 8), torch.tensor([[3, 0, 2, -100]])
    >>> task = NextToken()
    >>> task.loss(scores_BTK, token_BT), task.positions(token_BT), task.metrics["accuracy"](scores_BTK, token_BT)
    (tensor([2.0794]), tensor([2]), tensor([0.5000]))
    """

    ignore: int = IGNORED

    main: ClassVar[str] = "perplexity"
    higher_is_better: ClassVar[bool] = False

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        _, next_BT = self._paired(output, target)
        next_BT = pad(next_BT, (0, 1), value=self.ignore)  # the last position has none: so no score has to be copied
        return _mean_over_positions(_cross_entropies(output, next_BT, self.ignore), next_BT != self.ignore)

    @property
    def metrics(self) -> dict[str, PerSample]:
        perplexity = Metric(self.loss, higher_is_better=False, of_mean=torch.exp)
        return {"perplexity": perplexity, "accuracy": Metric(self._accuracy, unit="percent")}

    def positions(self, target: Tensor) -> Tensor:
        """How many positions of each sample count: [..., T] -> [...]."""
        return (target[..., 1:] != self.ignore).sum(-1)

    def _accuracy(self, output: Tensor, target: Tensor) -> Tensor:
        scores_BTK, next_BT = self._paired(output, target)
        return _mean_over_positions(correct(scores_BTK, next_BT), next_BT != self.ignore)

    def _paired(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Each position's scores and the next token; positions at the end that no sample uses may have been cut off."""
        return output[:, :-1], target[:, 1 : output.shape[1]]

    def highest(self, target: Tensor, classes: int) -> Tensor:
        return torch.full_like(target, classes - 1)

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        dimensions, instead = "[samples, positions, tokens]", "for one label per text use Classification()"
        _check_scores(dimensions, instead, output_shape, target, self.ignore)


@dataclass(frozen=True)
class ModelLoss:
    """The model's own loss, `model(..., labels=targets).loss`, of each sample alone; the metrics of another task.

    A model of transformers has one, which may have more terms than a task's (routing between experts). Samples pass
    through the model one at a time, so a task's loss is faster where it is the same.

    task   the metrics, and how much each sample counts
    """

    task: TaskSpec = field(default_factory=Classification)

    models_own: ClassVar[bool] = True

    @property
    def loss(self) -> PerSample:
        return self.task.loss

    @property
    def metrics(self) -> Mapping[str, PerSample]:
        return self.task.metrics

    @property
    def main(self) -> str:
        return self.task.main

    @property
    def higher_is_better(self) -> bool:
        return self.task.higher_is_better

    @property
    def positions(self) -> Positions | None:
        found: Positions | None = getattr(self.task, "positions", None)
        return found

    def highest(self, target: Tensor, classes: int) -> Tensor:
        return self.task.highest(target, classes)

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        self.task.check_output(output_shape, target)


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
        if output_shape[:1] != target.shape[:1] or torch.Size(output_shape).numel() != target.numel():
            raise UserError(
                f"regression compares a number with a number, but the model gives {tuple(output_shape)} and the data "
                f"{tuple(target.shape)} ({target.dtype}): build the model with one output per number to predict (a "
                "Table: regression=True), or use Classification() for labels"
            )


@dataclass(frozen=True)
class Task:
    """A user's own loss and metrics. Each function maps (output, target) to one number per sample.

    loss               the function that training minimises
    metrics            functions by name; a `Metric` has its direction and unit
    main               the metric by which runs are compared; "loss" for the loss
    higher_is_better   which way is better for a main metric that is a plain function; a `Metric` has its own

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
        """Whole numbers [B] are labels; other targets (numbers, a 0 or 1 for each label) stay as they are."""
        labels = target.ndim == 1 and not target.is_floating_point()
        return torch.full_like(target, classes - 1) if labels else target

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        """A `UserError` unless the loss and every metric give one number per sample of such a batch."""
        output = torch.zeros(output_shape, device=target.device)
        functions = {"loss": self.loss, **{f"metric {name!r}": metric for name, metric in self.metrics.items()}}
        for name, function in functions.items():
            try:
                value: Any = function(output, target)
            except (RuntimeError, IndexError, ValueError) as error:
                raise UserError(
                    f"the task's {name} fails on an output of shape {tuple(output.shape)} with targets of shape "
                    f"{tuple(target.shape)}: {error}"
                ) from error
            if not isinstance(value, Tensor) or value.shape != target.shape[:1]:
                shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise UserError(
                    f"the task's {name} gives {shape} for {target.shape[0]} samples: return one number per sample, "
                    f"shape ({target.shape[0]},), without averaging over the batch (in torch, reduction='none')"
                )


def correct(output: Tensor, target: Tensor) -> Tensor:
    """1 where the largest score is the target's, else 0."""
    return (output.argmax(-1) == target).to(output.dtype)


def _cross_entropies(scores_BTK: Tensor, target_BT: Tensor, ignore: int) -> Tensor:
    """Of each position. The scores of a position lie side by side; strided ones would take at least twice as long."""
    flat = cross_entropy(scores_BTK.flatten(0, 1), target_BT.flatten(), ignore_index=ignore, reduction="none")
    return flat.view(target_BT.shape)


def _mean_over_positions(value_BT: Tensor, counts_BT: Tensor) -> Tensor:
    return (value_BT * counts_BT).sum(1) / counts_BT.sum(1).clamp(min=1)


def _mae(output: Tensor, target: Tensor) -> Tensor:
    return _errors(output, target).abs().mean(1)


def _errors(output: Tensor, target: Tensor) -> Tensor:
    """Output - target as [B, K]; a target [B] against an output [B, 1] must not spread to [B, B]."""
    error = output - target.reshape(output.shape)
    return error[:, None] if error.ndim == 1 else error.flatten(1)


def _check_scores(
    dimensions: str, instead: str, output_shape: tuple[int, ...], target: Tensor, ignore: int | None = None
) -> None:
    """A `UserError` unless scores of these dimensions, the last of which is the labels, fit labels of the others."""
    if target.is_floating_point():
        raise UserError(f"labels are whole numbers, but the data has {target.dtype}: convert them, or use Regression")
    if len(output_shape) != dimensions.count(",") + 1 or tuple(output_shape[:-1]) != tuple(target.shape):
        longer = len(output_shape) == 3 and target.dim() == 2 and output_shape[1] > target.shape[1]
        own = (
            ". For a model that puts positions of its own before the text, write a module around it: def forward(self, "
            "input_ids, ...): return self.model(input_ids, ...).logits[:, -input_ids.shape[1]:]"
        )
        raise UserError(
            f"the model gives {tuple(output_shape)} for targets {tuple(target.shape)}: the task compares scores "
            f"{dimensions} with a label for each, and the other dimensions must agree; {instead}{own * longer}"
        )
    label, scores = target if ignore is None else target[target != ignore], output_shape[-1]
    if label.numel() and int(label.min()) < 0:
        raise UserError(f"the data has label {int(label.min())}: number the labels from 0")
    if label.numel() and (high := int(label.max())) >= scores:
        raise UserError(
            f"the model gives {scores} scores but the data has {high + 1} labels: "
            f"build the model with classes={high + 1}, or drop the samples with labels from {scores} on"
        )


@dataclass(frozen=True)
class Standardised:
    """How targets were standardised: (value - mean) / std.

    mean   in the target's own unit
    std    in the target's own unit

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
    """A task on standardised targets: the loss is that of the standardised ones, metrics are in the target's own unit.

    task   the task in its own unit
    mean   of the targets, in their own unit
    std    of the targets, in their own unit

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
    """A trained model that returns only its scores, in the target's own unit if it was trained on standardised targets.

    >>> Predictor(nn.Identity(), Standardised(mean=10.0, std=2.0))(torch.tensor([1.0]))
    tensor([12.])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, unit: Standardised | None = None) -> None:
        super().__init__()
        self.model, self.in_unit = model, unit is not None
        if unit is not None:
            self.register_buffer("mean", torch.tensor(unit.mean))
            self.register_buffer("std", torch.tensor(unit.std))

    def forward(self, x: Tensor) -> Tensor:
        scores = call(self.model, x)
        return scores * self.std + self.mean if self.in_unit else scores


KINDS = {
    "classification": Classification,
    "next-character": NextCharacter,
    "next-token": NextToken,
    "model-loss": ModelLoss,
    "regression": Regression,
    "task": Task,
    "in-own-unit": InOwnUnit,
}
