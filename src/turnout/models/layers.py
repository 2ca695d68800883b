"""Model specs: their protocol, stacks of named layers, activations, checks of settings.

If possible a model is one plain `nn.Sequential` of named layers (`conv1`, `norm1`, `act1`, `pool1`, `flatten`,
`linear3`, ..., `output`), so that the engine can read its structure. Layers are numbered from 1.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from math import prod
from typing import Protocol

from torch import nn

from turnout.errors import UserError, nearest

Places = bool | str | tuple[int, ...]  # True or "all", False or "none", or the numbers of the layers
Layers = list[tuple[str, nn.Module]]

# Softmax is over features (or channels), as for a hidden activation in Keras: paper 002, Table 1.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "softmax": lambda: nn.Softmax(dim=1),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


NORM_AT = ("before", "after")  # where BatchNorm is, seen from the activation


class ModelSpec(Protocol):
    """The promise of a model spec."""

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new module for samples of this shape; the caller seeds torch's generator."""
        ...


Model = ModelSpec | nn.Module | Callable[..., nn.Module]  # any model that a user may give


def sequential(layers: Layers) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def placed(places: Places, layers: int) -> tuple[bool, ...]:
    """For each of the layers 1..n, whether it is among the places.

    >>> placed("all", 3), placed((1, 3), 3), placed(False, 2)
    ((True, True, True), (True, False, True), (False, False))
    """
    if isinstance(places, tuple):
        return tuple(number in places for number in range(1, layers + 1))
    return (places in (True, "all"),) * layers


def check_places(name: str, places: object, layers: int) -> Places:
    """Places as a user wrote them (a list is fine), checked."""
    if isinstance(places, bool | str):
        if isinstance(places, str):
            check_choice(name, places, ("all", "none"))
        return places
    numbers = check_sizes(name, places)
    if beyond := [n for n in numbers if n > layers]:
        raise UserError(
            f"{name} names layer {beyond[0]}, but there are {layers} layers (numbered from 1): "
            "name existing layers, or write 'all' or 'none'"
        )
    return numbers


def check_sizes(name: str, sizes: object) -> tuple[int, ...]:
    """Whole numbers of at least 1 as a tuple, checked."""
    if not isinstance(sizes, Iterable) or isinstance(sizes, str):
        raise UserError(f"{name} is {sizes!r}: write a list of whole numbers, such as [200, 200]")
    values = tuple(sizes)
    for value in values:
        check_size(name, value)
    return values


def check_size(name: str, value: object, least: int = 1) -> None:
    """A UserError unless the value is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(f"{name} has {value!r}: it takes whole numbers of at least {least}")


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """A UserError unless the value is one of the known names."""
    if value not in known:
        raise UserError(f"{name} is {value!r}: {nearest(str(value), known)}")


def dense(
    inputs: int,
    hidden: tuple[int, ...],
    classes: int,
    activation: str,
    norm: tuple[bool, ...],
    drop: float = 0.0,
    first: int = 1,
    norm_at: str = "before",
) -> Layers:
    """Hidden layers (linear, BatchNorm before or after the activation, dropout), then the output."""
    layers: Layers = []
    for number, (size, with_norm) in enumerate(zip(hidden, norm, strict=True), first):
        layers.append((f"linear{number}", nn.Linear(inputs, size)))
        own: Layers = [(f"norm{number}", nn.BatchNorm1d(size))] if with_norm else []
        act = (f"act{number}", ACTIVATIONS[activation]())
        layers += [*own, act] if norm_at == "before" else [act, *own]
        if drop:
            layers.append((f"drop{number}", nn.Dropout(drop)))
        inputs = size
    return [*layers, ("output", nn.Linear(inputs, classes))]


def features(input_shape: tuple[int, ...]) -> int:
    """How many numbers one sample has.

    >>> features((1, 28, 28))
    784
    """
    if not input_shape or prod(input_shape) < 1:
        raise UserError(
            f"a sample of shape {tuple(input_shape)} holds no features: give samples at least one dimension"
        )
    return prod(input_shape)
