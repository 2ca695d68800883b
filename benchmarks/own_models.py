"""Models as users write them: ordinary modules that are no plain stack of layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions with GroupNorm, added to the input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(8, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, width)
        same = stride == 1 and inputs == width
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class ResNet20(nn.Module):
    """The ResNet-20 for CIFAR-10 with GroupNorm: 272,000 parameters."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(8, 16)
        widths = [16] * 3 + [32] * 3 + [64] * 3
        blocks = [Block(a, b, 1 if a == b else 2) for a, b in zip([16, *widths], widths, strict=False)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(torch.relu(self.norm(self.stem(x))))
        return self.head(h.mean((2, 3)))


class Layer(nn.Module):
    """A pre-norm transformer layer without dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(B, T, D))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Patches of 4x4, four layers of width 96: 450,000 parameters."""

    def __init__(self, classes: int = 10, width: int = 96, layers: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.place = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.layers = nn.Sequential(*(Layer(width, 4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.norm(self.layers(h)).mean(1))


class TextModel(nn.Module):
    """Embedding, `nn.LSTM` or `nn.GRU` of two layers, scores at the last position or at all of them."""

    def __init__(
        self, characters: int, hidden: int, classes: int, last: bool, layers: type[nn.RNNBase] = nn.LSTM
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 8)
        self.lstm = layers(8, hidden, num_layers=2, batch_first=True)
        self.head, self.last = nn.Linear(hidden, classes), last

    def forward(self, x: Tensor) -> Tensor:
        h = self.lstm(self.embedding(x))[0]
        return self.head(h[:, -1] if self.last else h)
