"""Residual networks (He et al. 2016) of bottleneck blocks; paper 001 trains ResNet50 on MNIST and EMNIST.

No operation is in place and all shapes follow from the input's, so the network trains under `vmap`, with BatchNorm
statistics stacked over clients.

Shape letters: B samples, D channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from turnout.errors import UserError
from turnout.models.layers import Layers, check_choice, check_image, check_size, check_sizes, sequential

EXPANSION = 4  # a block's output is four times as wide as its 3x3 convolution


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, each with BatchNorm, added to the input: y = relu(F(x) + shortcut(x))."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.branch = sequential(
            [
                *_conv_norm(1, inputs, width, kernel=1),
                ("act1", nn.ReLU()),
                *_conv_norm(2, width, width, kernel=3, stride=stride),
                ("act2", nn.ReLU()),
                *_conv_norm(3, width, outputs, kernel=1),
            ]
        )
        same = stride == 1 and inputs == outputs
        projection = [] if same else _conv_norm(1, inputs, outputs, kernel=1, stride=stride)
        self.shortcut = sequential(projection)
        self.act = nn.ReLU()

    def forward(self, x_BDHW: Tensor) -> Tensor:
        return self.act(self.branch(x_BDHW) + self.shortcut(x_BDHW))


@dataclass(frozen=True)
class ResNet:
    """Four stages of bottleneck blocks; the default is ResNet50.

    blocks   blocks in each stage; every stage after the first halves height and width and doubles the width
    width    channels of the stem and of the first stage's 3x3 convolutions
    stem     "small" for images of about 32x32 (3x3, stride 1), "large" for photographs (7x7, stride 2, pool)

    >>> [name for name, _ in ResNet(blocks=(1, 1), width=4).build((1, 8, 8), classes=3).named_children()]
    ['conv0', 'norm0', 'act0', 'stage1', 'stage2', 'mean', 'flatten', 'output']
    """

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    stem: str = "small"

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", check_sizes("blocks", self.blocks))
        if not self.blocks:
            raise UserError("blocks is empty: give the number of blocks of each stage, such as [3, 4, 6, 3]")
        check_size("width", self.width)
        check_choice("stem", self.stem, ("small", "large"))

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        inputs, _, _ = check_image(input_shape)
        kernel, stride = (3, 1) if self.stem == "small" else (7, 2)
        layers: Layers = [*_conv_norm(0, inputs, self.width, kernel, stride), ("act0", nn.ReLU())]
        if self.stem == "large":
            layers.append(("pool0", nn.MaxPool2d(3, stride=2, padding=1)))
        inputs = width = self.width
        for stage, count in enumerate(self.blocks, 1):
            blocks = [Bottleneck(inputs, width, stride=1 if stage == 1 else 2)]
            inputs = EXPANSION * width
            blocks += [Bottleneck(inputs, width, stride=1) for _ in range(count - 1)]
            layers.append((f"stage{stage}", nn.Sequential(*blocks)))
            width *= 2
        layers += [("mean", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]
        return sequential([*layers, ("output", nn.Linear(inputs, classes))])


def resnet50(stem: str = "small") -> ResNet:
    """ResNet50 (paper 001), by default with a stem for small images."""
    return ResNet(blocks=(3, 4, 6, 3), width=64, stem=stem)


def _conv_norm(number: int, inputs: int, outputs: int, kernel: int, stride: int = 1) -> Layers:
    """A convolution that keeps the size (up to its stride), initialised as in He et al., and its BatchNorm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return [(f"conv{number}", conv), (f"norm{number}", nn.BatchNorm2d(outputs))]


KINDS = {"res-net": ResNet, "resnet50": resnet50}
