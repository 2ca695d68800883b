"""Model specs: their protocol, activations, checks of settings, and stacks of named layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol

from torch import nn

from turnout.errors import UserError, nearest

Places = bool | str | tuple[int, ...]  # True or "all", False or "none", or the numbers of the layers, from 1
Layers = list[tuple[str, nn.Module]]

# Softmax is over features (or channels), as for a hidden activation in Keras: paper 002, Table 1.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "softmax": lambda: nn.Softmax(dim=1),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


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
    if isinstance(places, str):
        check_choice(name, places, ("all", "none"))
    if isinstance(places, bool | str):
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


def check_image(input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of image samples."""
    if len(input_shape) != 3:
        raise UserError(
            f"a convolutional model takes images [channels, height, width], but a sample here has shape "
            f"{tuple(input_shape)}: reshape the data (a grey image is [1, height, width]) or use MLP"
        )
    channels, height, width = input_shape
    return channels, height, width
