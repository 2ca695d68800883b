"""What a model returns, read as one tensor: the one place that every forward pass of the library goes through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from turnout.errors import UserError


def scores_of(output: Any) -> Tensor:
    """The tensor that a loss compares with targets: the output itself, its `logits`, or the first item of a tuple.

    >>> import torch
    >>> scores_of((torch.zeros(2), None)), scores_of({"logits": torch.ones(1)})
    (tensor([0., 0.]), tensor([1.]))
    """
    if isinstance(output, Tensor):
        return output
    found = _held(output)
    if isinstance(found, Tensor):
        return found
    item = "['name']" if isinstance(output, Mapping) else "[0]" if isinstance(output, tuple | list) else ".name"
    raise UserError(
        f"the model returns {_described(output)}, and a task needs a tensor with a row for each sample: return a "
        "tensor, an object with .logits, or a tuple that begins with the tensor. For a model that you cannot change, "
        "write a module around it: def forward(self, x): return self.model(x)" + item
    )


def _held(output: Any) -> Any:
    """What stands where scores are looked for; None where there is no such place."""
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if hasattr(output, "logits"):
        return output.logits
    return output[0] if isinstance(output, tuple | list) and output else None


def _described(output: Any) -> str:
    if isinstance(output, Mapping):
        return f"a dict with {', '.join(map(repr, output)) or 'nothing in it'}"
    if hasattr(output, "logits"):
        return f"{_kind(output)} whose logits is {_kind(output.logits)}"
    if isinstance(output, tuple | list):
        name = type(output).__name__
        return f"a {name} whose first item is {_kind(output[0])}" if output else f"an empty {name}"
    return _kind(output)


def _kind(value: Any) -> str:
    if value is None or isinstance(value, str | tuple | list | dict | int | float):
        return "None" if value is None else f"a {type(value).__name__}"
    return f"an object of class {type(value).__name__}"


class ScoresOnly(nn.Module):
    """A model that returns its scores as a tensor, whatever `model` returns around them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return scores_of(self.model(x))
