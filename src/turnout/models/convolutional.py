"""Convolutional models: one general spec.

A layer is convolution, BatchNorm, activation and 2x2 max-pool, in this order; BatchNorm and pool are optional. Where a
paper pools before its ReLU the result is the same, because max-pool and ReLU commute.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from turnout.errors import UserError
from turnout.models.layers import (
    ACTIVATIONS,
    NORM_AT,
    Layers,
    Places,
    check_choice,
    check_places,
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
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("norm_at", self.norm_at, NORM_AT)
        check_choice("init", self.init, ("torch", "glorot"))
        for name in ("drop_channels", "drop_features", "drop_hidden"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)!r}: it is a probability, at least 0 and below 1")
        norm = check_places("batch_norm", self.batch_norm, len(channels) + len(hidden))
        pool = check_places("pool", self.pool, len(channels))
        for name, value in {"channels": channels, "hidden": hidden, "batch_norm": norm, "pool": pool}.items():
            object.__setattr__(self, name, value)

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        check_size("classes", classes)
        norm = placed(self.batch_norm, len(self.channels) + len(self.hidden))
        height, width = self.map_size(input_shape)
        pool, inputs = placed(self.pool, len(self.channels)), input_shape[0]
        layers: Layers = []
        for number, size in enumerate(self.channels, 1):
            layers.append((f"conv{number}", nn.Conv2d(inputs, size, self.kernel, padding=self.padding)))
            after: Layers = [(f"act{number}", ACTIVATIONS[self.activation]())]
            if pool[number - 1]:
                after.append((f"pool{number}", nn.MaxPool2d(2)))
            own: Layers = [(f"norm{number}", nn.BatchNorm2d(size))] if norm[number - 1] else []
            layers += [*own, *after] if self.norm_at == "before" else [*after, *own]
            inputs = size
        if self.drop_channels:
            layers.append(("drop_channels", nn.Dropout2d(self.drop_channels)))
        if self.drop_features:
            layers.append(("drop_features", nn.Dropout(self.drop_features)))
        layers.append(("flatten", nn.Flatten()))
        layers += dense(
            self.channels[-1] * height * width,
            self.hidden,
            classes,
            self.activation,
            norm[len(self.channels) :],
            self.drop_hidden,
            first=len(self.channels) + 1,
            norm_at=self.norm_at,
        )
        model = sequential(layers)
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
            size, what = (height, width), f"a {self.kernel}x{self.kernel} kernel"
            height, width = (side + 2 * self.padding - self.kernel + 1 for side in size)
            fits = min(height, width) >= 1
            if fits and pools:
                size, what, fits = (height, width), "a 2x2 pool", min(height, width) >= 2
                height, width = height // 2, width // 2
            if not fits:
                raise UserError(
                    f"the CNN does not fit samples of shape {tuple(input_shape)}: at layer {number} of "
                    f"{len(self.channels)} the maps are {size[0]}x{size[1]}, too small for {what}. Use more padding "
                    f"(now {self.padding}), a smaller kernel (now {self.kernel}), fewer pools or fewer layers"
                )
        return height, width


def check_image(input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of image samples."""
    if len(input_shape) != 3:
        raise UserError(
            f"a convolutional model takes images [channels, height, width], but a sample here has shape "
            f"{tuple(input_shape)}: reshape the data (a grey image is [1, height, width]) or use MLP"
        )
    channels, height, width = input_shape
    return channels, height, width


KINDS = {"cnn": CNN}
