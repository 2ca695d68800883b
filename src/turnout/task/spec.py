"""What a task promises: a loss and metrics, each one number per sample, and which way each metric is better.

Everything takes the model's output and the targets of a batch and returns a tensor of shape [B], without averaging:
the round decides which samples count, and clients' numbers must add up over samples.

Shape letters: B samples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, cast, get_args

from torch import Tensor

from turnout.errors import UserError, nearest

PerSample = Callable[[Tensor, Tensor], Tensor]  # (output, target) -> [B]
Unit = Literal["number", "count", "percent", "bytes", "seconds"]  # what a number is shown in; percent: of 1


@dataclass(frozen=True)
class MetricInfo:
    """What a reader of a metric must know: which way is better, and the unit it is shown in."""

    higher_is_better: bool = True
    unit: Unit = "number"


# A plain function says nothing about itself. These names mean what they mean everywhere; they are whole names of
# metrics, not parts of names.
WELL_KNOWN: Mapping[str, MetricInfo] = {
    "accuracy": MetricInfo(True, "percent"),
    **dict.fromkeys(("loss", "error", "mse", "rmse", "mae", "nll", "perplexity"), MetricInfo(False)),
}


@dataclass(frozen=True)
class Metric:
    """A metric that says which way is better and in which unit it is shown; it is called like its function.

    >>> Metric(lambda output, target: (output - target).abs(), higher_is_better=False).info
    MetricInfo(higher_is_better=False, unit='number')
    """

    function: PerSample
    higher_is_better: bool = True
    unit: str = "number"

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
    """What every task offers; `Task` makes one from a user's own functions.

    metrics           functions by name; a `Metric` says which way is better and its unit, see `metric_infos`
    main              the name of the metric by which runs are compared
    higher_is_better  which way is better for the main metric
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
        """Targets like these that need the most outputs, to try a model with so many on: the last label, where targets
        are numbers of labels."""
        ...

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None: ...


def metric_infos(task: TaskSpec) -> dict[str, MetricInfo]:
    """What is known of each metric of a task, the main one first, and of its loss.

    The main metric goes the way the task says (`higher_is_better`). Any other that is a `Metric` says it itself; of a
    plain function a well-known name decides (loss, mse, accuracy, ...), and without one higher is better.

    >>> from turnout.task import Regression
    >>> metric_infos(Regression())["mae"], list(metric_infos(Regression()))
    (MetricInfo(higher_is_better=False, unit='number'), ['mse', 'mae', 'loss'])
    """
    found = {}
    for name in dict.fromkeys([task.main, *task.metrics, "loss"]):
        metric = task.metrics.get(name)
        found[name] = metric.info if isinstance(metric, Metric) else WELL_KNOWN.get(name, MetricInfo())
    return found | {task.main: replace(found[task.main], higher_is_better=task.higher_is_better)}
