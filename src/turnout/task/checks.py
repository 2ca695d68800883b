"""Checks that a model's output fits the targets: each refusal is a sentence that says what to change."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from turnout.errors import UserError
from turnout.task.outputs import scores_of
from turnout.task.spec import PerSample, TaskSpec


def check_model(task: TaskSpec, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """A `UserError` unless the model takes these samples and its output fits their targets; changes nothing."""
    was_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            output = scores_of(model(x))
    except (RuntimeError, IndexError) as error:
        raise UserError(
            f"the model cannot take samples of shape {tuple(x.shape[1:])} ({x.dtype}): {error}. "
            "Choose a model for such samples, or reshape the data"
        ) from error
    finally:
        for module in was_training:
            module.training = True
    task.check_output(tuple(output.shape), y)


def check_batch(output_shape: tuple[int, ...], target: Tensor) -> None:
    if not output_shape or target.ndim == 0 or output_shape[0] != target.shape[0]:
        raise UserError(
            f"the model gives shape {tuple(output_shape)} for targets of shape {tuple(target.shape)}: "
            "the first dimension of both is the samples of the batch and must agree"
        )


def check_labels(scores: int, label: Tensor) -> None:
    if label.is_floating_point():
        raise UserError(f"labels are whole numbers, but the data has {label.dtype}: convert them, or use Regression")
    if label.numel() == 0:
        return
    low, high = int(label.min()), int(label.max())
    if low < 0:
        raise UserError(f"the data has label {low}: number the labels from 0")
    if high >= scores:
        raise UserError(
            f"the model gives {scores} scores but the data has {high + 1} labels: "
            f"build the model with classes={high + 1}, or drop the samples with labels from {scores} on"
        )


def check_per_sample(name: str, function: PerSample, output: Tensor, target: Tensor) -> None:
    try:
        value = function(output, target)
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
