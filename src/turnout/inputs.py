"""Samples with several inputs: a dictionary of tensors that is indexed, moved and cut as one tensor of samples is.

Everywhere `x` is a tensor or `Inputs`. The model is called in one place, `call`: it takes a tensor as its first
argument, and several inputs by their names.
"""

# mypy: disable-error-code="override"

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree

from turnout.errors import UserError

MASK = "attention_mask"  # 1 where a position is real: by it, positions that no sample of a batch uses are cut off

if TYPE_CHECKING:  # what takes a tensor of samples takes these as well
    Like = Tensor
else:
    Like = object


class Inputs(Like):
    """Several inputs of the same samples, by name; each tensor has the samples (and clients) in its first dimensions.

    The first input stands for all where there can be only one answer: `shape` is its shape.

    >>> x = Inputs({"input_ids": torch.zeros(4, 3, dtype=torch.int64), "age": torch.zeros(4)})
    >>> len(x), x[:2].shape, x.to(torch.float64)["age"].dtype
    (4, torch.Size([2, 3]), torch.float64)
    >>> torch.stack([x, x]).shape, list(x)
    (torch.Size([2, 4, 3]), ['input_ids', 'age'])
    >>> torch.equal(x, x), torch.equal(x, Inputs({**x.tensors, "age": torch.ones(4)}))
    (True, False)
    """

    def __init__(self, tensors: Mapping[str, Tensor]):
        self.tensors = dict(tensors)

    @property
    def first(self) -> Tensor:
        return next(iter(self.tensors.values()))

    def _each(self, function: Callable[[Tensor], Any]) -> Inputs:
        return Inputs({name: function(value) for name, value in self.tensors.items()})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A function of torch works on every input: `torch.cat`, `torch.stack`; `torch.equal` needs all to be equal."""
        names = next(v for v in _pytree.tree_leaves(args, is_leaf=_are_inputs) if _are_inputs(v)).tensors
        found = {name: func(*_part(args, name), **_part(kwargs or {}, name)) for name in names}
        return Inputs(found) if all(isinstance(value, Tensor) for value in found.values()) else all(found.values())

    def __getitem__(self, rows: Any) -> Any:
        """Some of the samples, or one input by its name."""
        return self.tensors[rows] if isinstance(rows, str) else self._each(lambda value: value[rows])

    def __iter__(self) -> Iterator[Any]:  # as of a dictionary
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.first)

    def __repr__(self) -> str:
        return f"Inputs({', '.join(f'{name} {tuple(value.shape)}' for name, value in self.tensors.items())})"

    @property
    def shape(self) -> torch.Size:
        return self.first.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.first.dtype

    @property
    def device(self) -> torch.device:
        return self.first.device

    @property
    def is_cuda(self) -> bool:
        return self.first.is_cuda

    def is_floating_point(self) -> bool:
        """Whether one of them is: `to` changes the type of those alone."""
        return any(value.is_floating_point() for value in self.tensors.values())

    def numel(self) -> int:
        return sum(value.numel() for value in self.tensors.values())

    def element_size(self) -> int:
        """Of the largest kind of number."""
        return max(value.element_size() for value in self.tensors.values())

    def to(self, *where: Any, **how: Any) -> Inputs:
        """On another device, or with floating-point numbers of another type."""
        kept = tuple(place for place in where if not isinstance(place, torch.dtype))
        return self._each(lambda value: value.to(*(where if value.is_floating_point() else kept), **how))

    def cpu(self) -> Inputs:
        return self.to("cpu")

    def index_select(self, dim: Any, rows: Tensor) -> Inputs:
        return self._each(lambda value: value.index_select(dim, rows))

    def unflatten(self, dim: Any, sizes: Any) -> Inputs:
        return self._each(lambda value: value.unflatten(dim, sizes))

    def unsqueeze(self, dim: int) -> Inputs:
        return self._each(lambda value: value.unsqueeze(dim))

    def unbind(self, dim: Any = 0) -> tuple[Inputs, ...]:
        parts = zip(*(value.unbind(dim) for value in self.tensors.values()), strict=True)
        return tuple(Inputs(dict(zip(self.tensors, part, strict=True))) for part in parts)

    def split(self, size: Any, dim: int = 0) -> tuple[Inputs, ...]:
        return tuple(self[start : start + size] for start in range(0, len(self), size))


def _are_inputs(value: Any) -> bool:
    return isinstance(value, Inputs)


def _part(tree: Any, name: str) -> Any:
    """The same arguments with one input in place of all."""
    return _pytree.tree_map(lambda v: v.tensors[name] if _are_inputs(v) else v, tree, is_leaf=_are_inputs)


_pytree.register_pytree_node(  # so that vmap, export and captured graphs see the tensors
    Inputs,
    lambda x: (list(x.tensors.values()), list(x.tensors)),
    lambda values, names: Inputs(dict(zip(values and names, values, strict=True))),
    serialized_type_name="turnout.inputs.Inputs",
    to_dumpable_context=lambda names: names,
    from_dumpable_context=lambda names: names,
)


def call(model: nn.Module, x: Tensor, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
    """A model's scores of samples: the one place where a model is called.

    A tensor is the first argument, several inputs (`Inputs`) are arguments by name. `tensors` replace the model's own
    parameters and buffers.
    """
    return scores_of(raw_output(model, x, tensors))


def raw_output(model: nn.Module, x: Tensor, tensors: Mapping[str, Tensor] | None = None, **more: Any) -> Any:
    """What the model returns; `more`: other arguments by name."""
    args, named = ((), {**x.tensors, **more}) if isinstance(x, Inputs) else ((x,), more)
    return model(*args, **named) if tensors is None else functional_call(model, dict(tensors), args, named)


def scores_of(output: Any) -> Tensor:
    """The tensor that a loss compares with targets: the output itself, its `logits`, or the first item of a tuple.

    >>> scores_of((torch.zeros(2), None)), scores_of({"logits": torch.ones(1)})
    (tensor([0., 0.]), tensor([1.]))
    """
    scores = output
    if isinstance(output, Mapping):
        scores = output.get("logits")
    elif hasattr(output, "logits"):
        scores = output.logits
    elif isinstance(output, tuple | list) and output:
        scores = output[0]
    if isinstance(scores, Tensor):
        return scores
    kind = "None" if output is None else f"a {type(output).__name__}"
    inside = f" with {', '.join(map(repr, output))}" if isinstance(output, Mapping) else ""
    raise UserError(
        f"the model returns {kind}{inside}, and a task needs a tensor with a row for each sample: "
        "return a tensor, an object with .logits, or a tuple that begins with the tensor. For a model that you cannot "
        "change, write a module around it: def forward(self, x): return self.model(x)['name'], [1] or .name"
    )


def tensors_of(x: Tensor) -> list[Tensor]:
    """The tensors of samples, one or several."""
    return list(x.tensors.values()) if isinstance(x, Inputs) else [x]


def with_tensors(x: Tensor, tensors: Iterator[Tensor]) -> Tensor:
    """Samples like `x` made of the next of these tensors."""
    return Inputs({name: next(tensors) for name in x.tensors}) if isinstance(x, Inputs) else next(tensors)


def used_positions(mask: Tensor) -> Tensor:
    """How many positions of each row up to the last real one [..., T] -> [...].

    >>> used_positions(torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]))
    tensor([2, 3, 0])
    """
    number_T = torch.arange(1, mask.shape[-1] + 1, device=mask.device)
    return ((mask != 0) * number_T).amax(-1)


def trimmed(x: Tensor, width: int | None = None) -> Tensor:
    """Samples without the last positions that none of them uses, by their attention mask (if they have one); every
    input that has as many positions as the mask is cut. `width`: how many to keep, if that is known.

    >>> x = Inputs({"input_ids": torch.tensor([[5, 6, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 0, 0]])})
    >>> trimmed(x)["input_ids"]
    tensor([[5, 6]])
    """
    if not isinstance(x, Inputs) or MASK not in x.tensors:
        return x
    mask = x.tensors[MASK]
    if width is None:
        width = max(1, int(used_positions(mask).amax())) if mask.numel() else mask.shape[-1]
    last = mask.dim() - 1
    return Inputs(
        {
            name: value.narrow(last, 0, width) if value.dim() > last and value.shape[last] == mask.shape[-1] else value
            for name, value in x.tensors.items()
        }
    )


def check_inputs(x: Inputs, place: str) -> None:
    """A `UserError` unless every input has a row for each sample, and the inputs have names of arguments."""
    if not x.tensors:
        raise UserError(f"{place}: x is an empty dictionary: give the model's inputs by name")
    for name, value in x.tensors.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise UserError(
                f"{place}: the input {name!r} is no argument's name: name inputs as the model's forward does"
            )
        if value.dim() < 1 or len(value) != len(x):
            sizes = ", ".join(f"{n} {tuple(v.shape)}" for n, v in x.tensors.items())
            raise UserError(f"{place}: the inputs are {sizes}: give one row of each per sample")


def check_positions(x: Inputs, y: Tensor, place: str) -> None:
    """A `UserError` if a position that the attention mask leaves out has a target: it may be cut off."""
    mask = x.tensors.get(MASK)
    if mask is None or y.is_floating_point() or y.shape != mask.shape:
        return
    wrong_S = ((mask == 0) & (y >= 0)).any(1).nonzero()
    if len(wrong_S):
        raise UserError(
            f"{place}, row {int(wrong_S[0])}: a position with attention_mask 0 has a target: write "
            "labels[attention_mask == 0] = -100, which is ignored"
        )
