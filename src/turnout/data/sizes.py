"""How many samples each client has: addressed draws, for any list of clients.

Shape letters: C clients that were asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.rng import uniform

LARGEST = 2**40  # samples of one client: a sum over a million clients still fits into 64 bits


class Sizes(Protocol):
    """A rule for the number of samples of a client."""

    def draw(self, client_C: Tensor, seed: int) -> Tensor:
        """The sizes of these clients, int64; a client's size does not depend on the other clients of the list."""
        ...


@dataclass(frozen=True)
class Equal:
    """Every client has the same number of samples.

    each   how many; None divides all samples equally. Refused if there are fewer samples than clients x `each`, or too
           few of a client's own labels

    >>> Equal(200).draw(torch.tensor([0, 7]), seed=0)
    tensor([200, 200])
    """

    each: int | None = None

    def __post_init__(self) -> None:
        if self.each is not None and not 1 <= self.each <= LARGEST:
            raise UserError(f"Equal(each={self.each}): every client needs at least 1 sample, and at most {LARGEST}")

    def draw(self, client_C: Tensor, seed: int) -> Tensor:
        if self.each is None:
            raise UserError("Equal() needs a number where data is generated: write Equal(each=100)")
        return torch.full_like(client_C, self.each, dtype=torch.int64)


@dataclass(frozen=True)
class Pareto:
    """Pareto of type I: P(n_k > n) = (x_m / n)^index, cut at `cap`.

    With index 0.5 (paper 000) the mean is infinite, the median 4 x_m and the 90th percentile 100 x_m, so a
    cap is needed; the paper gives neither x_m nor a cap. By inversion n = x_m (1 - u)^(-1 / index), rounded down.

    index   the smaller, the heavier the tail
    scale   x_m
    cap     the most samples of a client
    floor   the fewest

    >>> sizes = Pareto().draw(torch.arange(10_000), seed=0)
    >>> sizes.min().item(), sizes.max().item(), 70 < sizes.median().item() < 90
    (20, 2000, True)
    """

    index: float = 0.5
    scale: float = 20.0
    cap: int = 2000
    floor: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.index < math.inf and 0 < self.scale < math.inf):
            raise UserError(f"Pareto(index={self.index}, scale={self.scale}): both must be finite and above 0")
        if not 1 <= self.floor <= self.cap <= LARGEST:
            raise UserError(f"Pareto(floor={self.floor}, cap={self.cap}): need 1 <= floor <= cap <= {LARGEST}")

    def draw(self, client_C: Tensor, seed: int) -> Tensor:
        u_C = uniform(seed, "sizes", ids=client_C)
        return (self.scale * (1 - u_C) ** (-1 / self.index)).clamp(self.floor, self.cap).floor().long()


@dataclass(frozen=True)
class LogNormal:
    """FedProx's sizes for SYNTHETIC: int(lognormal(mean, std)) + plus.

    mean   of the logarithm
    std    of the logarithm
    plus   added to every size

    >>> LogNormal(std=0.0).draw(torch.tensor([3]), seed=0)  # int(e^4) + 50
    tensor([104])
    """

    mean: float = 4.0
    std: float = 2.0
    plus: int = 50

    def __post_init__(self) -> None:
        if not (self.mean <= math.log(LARGEST) and 0 <= self.std < math.inf and self.plus >= 1):
            raise UserError(
                f"{self}: mean is of the logarithm (4 for a median of 55 samples), std is 0 or more, plus 1 or more"
            )

    def draw(self, client_C: Tensor, seed: int) -> Tensor:
        u_C = uniform(seed, "sizes", ids=client_C).clamp(min=2.0**-53)
        return torch.exp(self.mean + self.std * torch.special.ndtri(u_C)).clamp(max=LARGEST).long() + self.plus


def train_count(size_C: Tensor, test_share: float) -> Tensor:
    """How many of n samples are for training: floor((1 - test_share) n), at least 1.

    >>> train_count(torch.tensor([1, 10, 25]), 0.1)
    tensor([ 1,  9, 22])
    """
    kept_C = (size_C.double() * (1 - test_share) + 1e-9).floor().long()
    return torch.minimum(kept_C.clamp(min=1), size_C)


def check_test_share(test_share: float) -> None:
    if not 0 <= test_share < 1:
        raise UserError(f"test_share={test_share}: the share of a client's samples kept for testing is in [0, 1)")


KINDS = {"equal": Equal, "pareto": Pareto, "log-normal": LogNormal}
