"""Model specs: their protocol, checks of settings, and the plain stacks: logistic regression, MLP and CNN.

A plain stack is an `nn.Sequential` of named layers (`conv1`, `norm1`, `act1`, `pool1`, `flatten`, `linear3`, ...,
`output`, numbered from 1), so that the engine can read its structure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
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


@dataclass(frozen=True)
class Logistic:
    """Multinomial logistic regression: scores = W x + b (paper 000, SYNTHETIC). Also linear regression.

    zero_init   whether the first weights are zero

    >>> model = Logistic(zero_init=True).build((60,), classes=10)
    >>> sum(p.numel() for p in model.parameters())
    610
    """

    zero_init: bool = False

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        output = nn.Linear(prod(input_shape), classes)
        if self.zero_init:
            nn.init.zeros_(output.weight)
            nn.init.zeros_(output.bias)
        return sequential([("flatten", nn.Flatten()), ("output", output)])


@dataclass(frozen=True, init=False)
class MLP:
    """Fully connected layers of the given sizes; `MLP(200, 200)` is McMahan's 2NN (papers 000 and 004).

    hidden       the sizes of the hidden layers
    batch_norm   which of them have BatchNorm: all (True), or those numbered; the 2NN of paper 004 has it after the
                 first only: `MLP(200, 200, batch_norm=(1,))`
    activation   relu, softmax, tanh or sigmoid
    norm_at      "before" the activation or "after" it

    >>> model = MLP(200, 200).build((1, 28, 28), classes=10)
    >>> sum(p.numel() for p in model.parameters())
    199210
    """

    hidden: tuple[int, ...] = ()
    batch_norm: Places = False
    activation: str = "relu"
    norm_at: str = "before"

    def __init__(
        self, *sizes: int, hidden: Sequence[int] = (), batch_norm: Places | list[int] = False, activation: str = "relu",
        norm_at: str = "before",
    ) -> None:  # fmt: skip
        if sizes and hidden:
            raise UserError(f"MLP got sizes {sizes} and hidden={hidden}: write them once")
        checked = check_sizes("hidden", sizes or hidden)
        check_order(activation, norm_at)
        object.__setattr__(self, "hidden", checked)
        object.__setattr__(self, "batch_norm", check_places("batch_norm", batch_norm, len(checked)))
        object.__setattr__(self, "activation", activation)
        object.__setattr__(self, "norm_at", norm_at)

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        layers, norm = Layers([("flatten", nn.Flatten())]), placed(self.batch_norm, len(self.hidden))
        add_dense(layers, prod(input_shape), self, norm)
        return sequential([*layers, ("output", nn.Linear([prod(input_shape), *self.hidden][-1], classes))])


@dataclass(frozen=True)
class CNN:
    """Convolutions, then fully connected layers.

    A layer is convolution, BatchNorm, activation and 2x2 max-pool, in this order; BatchNorm and pool are optional.
    Where a paper pools before its ReLU the result is the same, because max-pool and ReLU commute.

    channels        filters of each convolution
    kernel          their size (square, stride 1)
    padding         zeros on each side
    pool            after which convolutions a 2x2 max-pool follows: "all", "none" or their numbers
    hidden          sizes of the fully connected layers before the output
    batch_norm      which layers have BatchNorm; convolutions count first
    activation      relu, softmax, tanh or sigmoid
    drop_channels   dropout of whole feature maps after the last convolution
    drop_features   dropout of single numbers there
    drop_hidden     dropout after each fully connected hidden layer
    norm_at         "before" the activation (paper 004), or "after" it and the pool (its authors' code)
    init            first weights: "torch" (torch's own), or "glorot" (TensorFlow's own, without which a deep network
                    that has no BatchNorm hardly begins to learn)

    >>> model = CNN(channels=(16, 32), kernel=3, padding=1).build((1, 8, 8), classes=10)
    >>> [name for name, _ in model.named_children()]
    ['conv1', 'act1', 'pool1', 'conv2', 'act2', 'pool2', 'flatten', 'output']
    """

    channels: tuple[int, ...] = (32, 64)
    kernel: int = 5
    padding: int = 0
    pool: Places = "all"
    hidden: tuple[int, ...] = ()
    batch_norm: Places = False
    activation: str = "relu"
    drop_channels: float = 0.0
    drop_features: float = 0.0
    drop_hidden: float = 0.0
    norm_at: str = "before"
    init: str = "torch"

    def __post_init__(self) -> None:
        channels, hidden = check_sizes("channels", self.channels), check_sizes("hidden", self.hidden)
        if not channels:
            raise UserError("channels is empty: name at least one convolution's filters, or use MLP")
        check_size("kernel", self.kernel)
        check_size("padding", self.padding, least=0)
        check_order(self.activation, self.norm_at)
        check_choice("init", self.init, ("torch", "glorot"))
        for name in ("drop_channels", "drop_features", "drop_hidden"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)!r}: it is a probability, at least 0 and below 1")
        norm = check_places("batch_norm", self.batch_norm, len(channels) + len(hidden))
        pool = check_places("pool", self.pool, len(channels))
        for name, value in {"channels": channels, "hidden": hidden, "batch_norm": norm, "pool": pool}.items():
            object.__setattr__(self, name, value)

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        norm = placed(self.batch_norm, len(self.channels) + len(self.hidden))
        height, width = self.map_size(input_shape)
        pool, inputs, layers = placed(self.pool, len(self.channels)), input_shape[0], Layers()
        for number, size in enumerate(self.channels, 1):
            layers.append((f"conv{number}", nn.Conv2d(inputs, size, self.kernel, padding=self.padding)))
            after: Layers = [(f"pool{number}", nn.MaxPool2d(2))] if pool[number - 1] else []
            add_activation(layers, number, self, nn.BatchNorm2d(size) if norm[number - 1] else None, after)
            inputs = size
        if self.drop_channels:
            layers.append(("drop_channels", nn.Dropout2d(self.drop_channels)))
        if self.drop_features:
            layers.append(("drop_features", nn.Dropout(self.drop_features)))
        layers.append(("flatten", nn.Flatten()))
        inputs *= height * width
        add_dense(layers, inputs, self, norm[len(self.channels) :], len(self.channels) + 1, self.drop_hidden)
        model = sequential([*layers, ("output", nn.Linear([inputs, *self.hidden][-1], classes))])
        if self.init == "glorot":
            for layer in model:
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    nn.init.xavier_uniform_(layer.weight)
                    if layer.bias is not None:
                        nn.init.zeros_(layer.bias)
        return model

    def map_size(self, input_shape: tuple[int, ...]) -> tuple[int, int]:
        """Height and width of the last feature maps.

        >>> CNN(channels=(6, 16), kernel=5).map_size((3, 32, 32))
        (5, 5)
        """
        _, height, width = check_image(input_shape)
        for number, pools in enumerate(placed(self.pool, len(self.channels)), 1):
            before = f"{height}x{width}"
            height, width = (side + 2 * self.padding - self.kernel + 1 for side in (height, width))
            if pools:
                height, width = height // 2, width // 2
            if min(height, width) < 1:
                raise UserError(
                    f"the CNN does not fit samples of shape {tuple(input_shape)}: the maps before layer {number} of "
                    f"{len(self.channels)} are {before}, too small for a {self.kernel}x{self.kernel} kernel"
                    f"{' and a 2x2 pool' * pools}. Use more padding, a smaller kernel, fewer pools or fewer layers"
                )
        return height, width


def check_order(activation: str, norm_at: str) -> None:
    check_choice("activation", activation, ACTIVATIONS)
    check_choice("norm_at", norm_at, ("before", "after"))


def add_activation(layers: Layers, number: int, spec: MLP | CNN, norm: nn.Module | None, pool: Layers) -> None:
    """Append activation and pool, with BatchNorm before or after them."""
    own: Layers = [] if norm is None else [(f"norm{number}", norm)]
    after: Layers = [(f"act{number}", ACTIVATIONS[spec.activation]()), *pool]
    layers += [*own, *after] if spec.norm_at == "before" else [*after, *own]


def add_dense(
    layers: Layers, inputs: int, spec: MLP | CNN, norm: tuple[bool, ...], first: int = 1, drop: float = 0.0
) -> None:
    """Append the hidden layers: linear, BatchNorm, activation, dropout."""
    for number, (size, with_norm) in enumerate(zip(spec.hidden, norm, strict=True), first):
        layers.append((f"linear{number}", nn.Linear(inputs, size)))
        add_activation(layers, number, spec, nn.BatchNorm1d(size) if with_norm else None, [])
        if drop:
            layers.append((f"drop{number}", nn.Dropout(drop)))
        inputs = size


KINDS = {"logistic": Logistic, "mlp": MLP, "cnn": CNN}
