"""Convolutional models: one general spec, and the papers' networks as functions that fill it in.

A layer is convolution, BatchNorm, activation and 2x2 max-pool, in this order; BatchNorm and pool are optional. Where a
paper pools before its ReLU the result is the same, because max-pool and ReLU commute.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from turnout.errors import Mistake
from turnout.models.layers import (
    ACTIVATIONS,
    Layers,
    Places,
    check_activation,
    check_classes,
    check_places,
    check_share,
    check_size,
    check_sizes,
    dense,
    placed,
    sequential,
)


@dataclass(frozen=True)
class CNN:
    """Convolutions, then fully connected layers.

    channels        filters of each convolution
    kernel          their size (square, stride 1), with `padding` zeros on each side
    pool            after which convolutions a 2x2 max-pool follows: "all", "none" or their numbers
    hidden          sizes of the fully connected layers before the output
    batch_norm      after which layers BatchNorm comes (before the activation); convolutions count first
    drop_channels   dropout of whole feature maps after the last convolution
    drop_features   dropout of single numbers there
    drop_hidden     dropout after each fully connected hidden layer

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

    def __post_init__(self) -> None:
        channels, hidden = check_sizes("channels", self.channels), check_sizes("hidden", self.hidden)
        if not channels:
            raise Mistake("channels is empty: name at least one convolution's filters, or use MLP")
        check_size("kernel", self.kernel)
        check_size("padding", self.padding, least=0)
        check_activation(self.activation)
        for name in ("drop_channels", "drop_features", "drop_hidden"):
            check_share(name, getattr(self, name))
        norm = check_places("batch_norm", self.batch_norm, len(channels) + len(hidden))
        pool = check_places("pool", self.pool, len(channels))
        for name, value in {"channels": channels, "hidden": hidden, "batch_norm": norm, "pool": pool}.items():
            object.__setattr__(self, name, value)

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        check_classes(classes)
        norm = placed(self.batch_norm, len(self.channels) + len(self.hidden))
        height, width = self.map_size(input_shape)
        layers = self._convolutions(input_shape[0], norm[: len(self.channels)])
        if self.drop_channels:
            layers.append(("drop_channels", nn.Dropout2d(self.drop_channels)))
        if self.drop_features:
            layers.append(("drop_features", nn.Dropout(self.drop_features)))
        layers.append(("flatten", nn.Flatten()))
        return sequential(
            layers
            + dense(
                self.channels[-1] * height * width,
                self.hidden,
                classes,
                self.activation,
                norm[len(self.channels) :],
                self.drop_hidden,
                first=len(self.channels) + 1,
            )
        )

    def map_size(self, input_shape: tuple[int, ...]) -> tuple[int, int]:
        """Height and width of the last feature maps.

        >>> CNN(channels=(6, 16), kernel=5).map_size((3, 32, 32))
        (5, 5)
        """
        _, height, width = check_image(input_shape)
        for number, pools in enumerate(placed(self.pool, len(self.channels)), 1):
            into = (height, width)
            height, width = (side + 2 * self.padding - self.kernel + 1 for side in into)
            if min(height, width) < 1:
                raise self._misfit(number, f"a {self.kernel}x{self.kernel} kernel", into, input_shape)
            if pools and min(height, width) < 2:
                raise self._misfit(number, "a 2x2 pool", (height, width), input_shape)
            if pools:
                height, width = height // 2, width // 2
        return height, width

    def _convolutions(self, inputs: int, norm: tuple[bool, ...]) -> Layers:
        layers: Layers = []
        pool = placed(self.pool, len(self.channels))
        for number, size in enumerate(self.channels, 1):
            layers.append((f"conv{number}", nn.Conv2d(inputs, size, self.kernel, padding=self.padding)))
            if norm[number - 1]:
                layers.append((f"norm{number}", nn.BatchNorm2d(size)))
            layers.append((f"act{number}", ACTIVATIONS[self.activation]()))
            if pool[number - 1]:
                layers.append((f"pool{number}", nn.MaxPool2d(2)))
            inputs = size
        return layers

    def _misfit(self, number: int, what: str, size: tuple[int, int], input_shape: tuple[int, ...]) -> Mistake:
        return Mistake(
            f"the CNN does not fit samples of shape {tuple(input_shape)}: at layer {number} of "
            f"{len(self.channels)} the maps are {size[0]}x{size[1]}, too small for {what}. Use more padding "
            f"(now {self.padding}), a smaller kernel (now {self.kernel}), fewer pools or fewer layers"
        )


def check_image(input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of image samples."""
    if len(input_shape) != 3:
        raise Mistake(
            f"a convolutional model takes images [channels, height, width], but a sample here has shape "
            f"{tuple(input_shape)}: reshape the data (a grey image is [1, height, width]) or use MLP"
        )
    channels, height, width = input_shape
    return channels, height, width


def digits_cnn() -> CNN:
    """A small network for 8x8 digits, fast on a CPU."""
    return CNN(channels=(16, 32), kernel=3, padding=1)


def mcmahan_cnn() -> CNN:
    """McMahan's CNN for MNIST and EMNIST (paper 000): 5x5x32, pool, 5x5x64, pool, fc512, padded.

    >>> sum(p.numel() for p in mcmahan_cnn().build((1, 28, 28), classes=10).parameters())
    1663370
    """
    return CNN(channels=(32, 64), kernel=5, padding=2, hidden=(512,))


def fdms_mnist_cnn(dropout: float = 0.0) -> CNN:
    """Paper 003 on MNIST: 5x5x10, pool, 5x5x20, pool, 320-50-10.

    The authors' code drops half (0.5) of the second convolution's maps and of the 50 units;
    the paper does not say so.
    """
    return CNN(channels=(10, 20), kernel=5, hidden=(50,), drop_channels=dropout, drop_hidden=dropout)


def fdms_cifar_cnn() -> CNN:
    """Paper 003 on CIFAR-10: 5x5x6, pool, 5x5x16, pool, 400-120-84-10."""
    return CNN(channels=(6, 16), kernel=5, hidden=(120, 84))


def pfl_cifar_cnn(dropout: bool = True) -> CNN:
    """A CIFAR-10 network simulators are compared on: 3x3x32, 3x3x64, pool, dropout, fc128, dropout.

    >>> sum(p.numel() for p in pfl_cifar_cnn().build((3, 32, 32), classes=10).parameters())
    1626442
    """
    features, hidden = (0.25, 0.5) if dropout else (0.0, 0.0)
    return CNN((32, 64), kernel=3, pool=(2,), hidden=(128,), drop_features=features, drop_hidden=hidden)


def mtfl_cifar_cnn(batch_norm: Places = "all") -> CNN:
    """Paper 004 on CIFAR-10: 3x3x32, 3x3x64, each with BatchNorm and pool, then fc512 with BatchNorm.

    The authors' code has no BatchNorm after fc512: `batch_norm=(1, 2)`.
    """
    return CNN(channels=(32, 64), kernel=3, hidden=(512,), batch_norm=batch_norm)


def animals_cnn(*channels: int, activation: str = "relu") -> CNN:
    """Paper 002, Tables 1 and 2: 1 to 4 convolutions (3x3, a pool after each), activation relu or softmax.

    The paper's only network without convolutions, "ANN (16, 16, 32)", is `MLP(16, 16, 32)`.
    """
    return CNN(channels=channels or (16, 32), kernel=3, padding=1, activation=activation)


def vgg11() -> CNN:
    """VGG11 as simplified in sparse ternary compression's experiments (paper 001): half the width or less, no
    BatchNorm, no dropout; needs images of 32x32 or more.

    >>> sum(p.numel() for p in vgg11().build((3, 32, 32), classes=10).parameters())
    865482
    """
    channels = (32, 64, 128, 128, 128, 128, 128, 128)
    return CNN(channels=channels, kernel=3, padding=1, pool=(1, 2, 4, 6, 8), hidden=(128, 128))


KINDS = {
    "cnn": CNN,
    "digits-cnn": digits_cnn,
    "mcmahan-cnn": mcmahan_cnn,
    "fdms-mnist-cnn": fdms_mnist_cnn,
    "fdms-cifar-cnn": fdms_cifar_cnn,
    "pfl-cifar-cnn": pfl_cifar_cnn,
    "mtfl-cifar-cnn": mtfl_cifar_cnn,
    "vgg11": vgg11,
}
