"""The check that a model takes the samples and that its output fits the targets, before the first round."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from turnout.errors import UserError
from turnout.inputs import Inputs, call, raw_output
from turnout.tasks import TaskSpec


def check_model(task: TaskSpec, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """A `UserError` unless the model takes these samples and its output fits their targets; changes nothing."""
    was_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            output = call(model, x)
            own = raw_output(model, x, labels=y).loss if getattr(task, "models_own", False) else None
    except UserError:
        raise
    except Exception as error:  # any failure of a user's model
        raise UserError(_cannot_take(model, x, error)) from error
    finally:
        for module in was_training:
            module.training = True
    task.check_output(tuple(output.shape), y)
    if own is not None and not (isinstance(own, Tensor) and own.dim() == 0):
        raise UserError(
            f"the model's own loss is {own!r:.60}, and ModelLoss needs a single number: give the task itself "
            f"({type(getattr(task, 'task', task)).__name__}()), or write a module around the model with .loss"
        )


def _cannot_take(model: nn.Module, x: Tensor, error: Exception) -> str:
    """What is wrong, and the module to write around a model that cannot be changed."""
    why = " ".join(str(error).split())[:300]
    if not isinstance(x, Inputs):
        advice = "Choose a model for such samples, or reshape the data"
        if isinstance(error, TypeError):
            advice = "Write a module around one that needs more: def forward(self, x): return self.model(x, ...)"
        return f"the model cannot take samples of shape {tuple(x.shape[1:])} ({x.dtype}): {why}. {advice}"
    names, taken = ", ".join(x.tensors), ", ".join(inspect.signature(model.forward).parameters)
    return (
        f"the model cannot take the inputs {names} ({why}): its forward takes {taken}. Name the inputs so, or write a "
        f"module around it: def forward(self, {names}): return self.model(...)"
    )
