"""Texts by author, half of them to pretrain on and half to fine-tune on; and a small decoder of bytes.

    presidents  addresses to Congress, presidents in the order of time      turnout bench data --only addresses
    speakers    roles of Shakespeare with 100 windows or more, by play      shakespeare/by_role.csv in the data folder
    made-up     sentences drawn at random, from words that differ by author

The halves are of authors, not of each author's text: clients that come later are not those the base was made for.

Shape letters: A authors, S windows, T bytes of a window, B texts of a batch, D width, K kinds of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from turnout.data.files import find_data_dir
from turnout.data.partitioned import MayHaveOwners, Pool
from turnout.data.text_table import read_tables
from turnout.errors import UserError
from turnout_papers.bench.data import FOLDER, WINDOW, windows

BYTES = 256
LEAST_WINDOWS = 100  # of a speaker

Windows = dict[str, NDArray[np.uint8]]  # [S, T] of each author, in order


def presidents(data_dir: Path | None) -> Windows:
    path = find_data_dir(data_dir) / FOLDER / "addresses.npz"
    if not path.is_file():
        raise UserError(f"there is no {path}: `turnout bench data --help` says how to make it (--only addresses)")
    with np.load(path) as file:
        x_ST, owner_S, owners = (file[key] for key in ("x", "owner", "owners"))
    return {str(name): x_ST[owner_S == number] for number, name in enumerate(owners)}


def speakers(data_dir: Path | None) -> Windows:
    table, found = read_tables("shakespeare/by_role.csv", data_dir), dict[str, list[str]]()
    for play, name, words in zip(*(table.column(column) for column in ("play", "speaker", "text")), strict=True):
        found.setdefault(f"{play} / {name}", []).append(words)
    made = {name: windows("\n".join(found[name])) for name in sorted(found)}
    return {name: x_ST for name, x_ST in made.items() if len(x_ST) >= LEAST_WINDOWS}


def made_up(data_dir: Path | None) -> Windows:
    draw, found = np.random.default_rng(0), {}
    words = ["".join(draw.choice(list("abcdefghij"), draw.integers(2, 6))) for _ in range(60)]
    for number in range(8):
        own = draw.dirichlet(np.full(len(words), 0.2))
        found[f"author {number}"] = windows(" ".join(draw.choice(words, 500, p=own)))[:12]
    return found


READERS: dict[str, Callable[[Path | None], Windows]] = {
    "presidents": presidents, "speakers": speakers, "made-up": made_up
}  # fmt: skip


@dataclass(frozen=True)
class Authors(MayHaveOwners):
    """Windows of bytes, each author a client; the targets are the bytes themselves (task NextToken).

    name    presidents, speakers or made-up; several joined by "+"
    half    of the authors: 0, the first ones, or 1
    length  bytes of a sample: 128, or a part of it
    most    windows of 128 bytes of an author, spread over all there are
    """

    name: str
    half: int = 1
    length: int = WINDOW
    most: int = 400

    def read(self, data_dir: Path | None) -> Pool:
        found: Windows = {}
        for name in self.name.split("+"):
            every = list(READERS[name](data_dir).items())
            found |= dict(every[: len(every) // 2] if self.half == 0 else every[len(every) // 2 :])
        x_A = []
        for x_ST in found.values():
            chosen = np.linspace(0, len(x_ST) - 1, min(self.most, len(x_ST))).astype(int)
            x_A.append(torch.from_numpy(x_ST[chosen].astype(np.int64)).view(-1, self.length))
        owner_S = torch.arange(len(x_A)).repeat_interleave(torch.tensor([len(own) for own in x_A]))
        byte_ST = torch.cat(x_A)
        return Pool(byte_ST, byte_ST, BYTES, (), None, owner_S, tuple(found))


@dataclass(frozen=True)
class Decoder:
    """A decoder with learned places, attention before each hidden layer, and norms before both.

    layers, width, heads  its size; a hidden layer is four times as wide
    """

    layers: int = 4
    width: int = 192
    heads: int = 4

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return DecoderModule(self, input_shape[0], classes)


class DecoderModule(nn.Module):
    """Scores of the next byte at each place [B, T, K]."""

    def __init__(self, size: Decoder, length: int, classes: int):
        super().__init__()
        self.bytes, self.places = nn.Embedding(classes, size.width), nn.Embedding(length, size.width)
        self.layers = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, classes, bias=False)
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, byte_BT: Tensor) -> Tensor:
        x_BTD = self.bytes(byte_BT) + self.places(torch.arange(byte_BT.shape[1], device=byte_BT.device))
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        scores_BTK: Tensor = self.head(self.norm(x_BTD))
        return scores_BTK


class Block(nn.Module):
    def __init__(self, size: Decoder):
        super().__init__()
        width = size.width
        self.heads, self.before, self.after = size.heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_BTD = self.before(x_BTD)
        q, k, v = (
            layer(h_BTD).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.o_proj(seen.transpose(1, 2).flatten(2))
        return x_BTD + self.down(functional.gelu(self.up(self.after(x_BTD))))
