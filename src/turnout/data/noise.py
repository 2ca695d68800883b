"""`Noisy`: adds noise to some clients' training samples (paper 004); wraps any data set in one pool.

Shape letters: N clients of the population, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.federation import DataSpec
from turnout.data.pooled import Pooled
from turnout.errors import UserError, nearest
from turnout.rng import rng

# Standard deviations by name: what paper 004 prints (a variance of 4), and what its authors' code has for each set.
LEVELS = {"paper": 2.0, "code-mnist": 3.0, "code-cifar": 0.2}


@dataclass(frozen=True)
class Noisy:
    """Add N(0, std^2) to the training samples of a random `share` of the clients, cut to [low, high].

    Paper 004: a fifth of the clients, variance 4 on pixels in [0, 1]. Test samples stay clean. `std` may be a name:
    "paper" (2.0), or "code-mnist" (3.0) and "code-cifar" (0.2) as in its authors' code.

    >>> from turnout.data import Digits
    >>> Noisy(Digits(), std="code-cifar").std
    0.2
    """

    data: DataSpec
    share: float = 0.2
    std: float | str = 2.0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.std, str):
            if self.std not in LEVELS:
                raise UserError(f"Noisy(std={self.std!r}): give a number, or a name: {nearest(self.std, LEVELS)}")
            object.__setattr__(self, "std", LEVELS[self.std])
        if not 0 <= self.share <= 1 or float(self.std) < 0 or self.low >= self.high:
            raise UserError("Noisy needs a share in [0, 1], std >= 0 and low < high")

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        clean = self.data.load(seed, data_dir)
        if not isinstance(clean, Pooled):
            raise UserError(f"Noisy needs a data set in one pool, not {type(self.data).__name__}, made on demand")
        if not clean.x.is_floating_point():
            raise UserError("Noisy needs samples of numbers, not of characters or words")
        noisy_C = self.clients(clean.clients, seed)
        row_R, _ = clean.train_rows.take(noisy_C)
        g = rng(seed, "noise")
        noise = torch.randn(len(row_R), *clean.input_shape, generator=g).mul_(float(self.std))
        x = clean.x.clone()
        x[row_R] = noise.add_(x[row_R]).clamp_(self.low, self.high)
        noisy_N = torch.zeros(clean.clients, dtype=torch.bool).index_fill(0, noisy_C, True)
        return replace(clean, x=x, noisy_N=noisy_N)

    def clients(self, clients: int, seed: int) -> Tensor:
        """Which clients are noisy, sorted."""
        count = round(self.share * clients)
        return torch.randperm(clients, generator=rng(seed, "noise", "who"))[:count].sort().values


KINDS = {"noisy": Noisy}
