"""Digits: 1,797 handwritten digits of 8 x 8 pixels (UCI), in the package: a first run needs no download."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from turnout.data.partitioned import Partitioned, Pool
from turnout.rng import rng

TEST_SAMPLES = 359  # a fifth


@dataclass(frozen=True, kw_only=True)
class Digits(Partitioned):
    """The embedded digits, pixels in [0, 1]; a fixed fifth, the same for every seed, is the central test set.

    clients   how many

    >>> data = Digits(clients=10).load(seed=0)
    >>> data.clients, data.input_shape, len(data.central_test()[0])
    (10, (1, 8, 8), 359)
    """

    clients: int | None = 50

    def read(self, data_dir: Path | None = None) -> Pool:
        with (files("turnout.data") / "digits.npz").open("rb") as file, np.load(file) as arrays:
            x = torch.from_numpy(arrays["x"]).float().div_(16).unsqueeze(1)
            y = torch.from_numpy(arrays["y"]).long()
        order = torch.randperm(len(y), generator=rng(0, "digits", "test"))
        test, train = order[:TEST_SAMPLES].sort().values, order[TEST_SAMPLES:].sort().values
        names = tuple(str(digit) for digit in range(10))
        return Pool(x[train], y[train], 10, names, test=(x[test], y[test]))


KINDS = {"digits": Digits}
