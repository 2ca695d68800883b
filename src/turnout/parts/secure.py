"""Secure sums: the server learns the sum of the updates of a round, and no single one.

Here are the settings, the size of the neighbourhoods, and updates as whole numbers modulo 2^32. The protocol that uses
them (Bonawitz et al. 2017, with the sparse graph of Bell et al. 2020) is in runtimes/secure_sum.py.

Shape letters: R replies, V entries of a vector that is summed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from turnout.errors import UserError, check_settings

HALF = 1 << 31  # sums lie between -HALF and HALF
LEAK = 1e-9  # probability that corrupt devices can unmask any client of a round, at most
LOSS = 1e-6  # probability that a round's sum is lost although no more than `dropout` of its devices dropped out


@dataclass(frozen=True)
class SecureSum:
    """The server learns only sums. Each device masks its update; masks cancel, also where devices drop out.

    least    fewest devices that a sum may have: devices do not unmask a smaller one
    dropout  largest part of the devices of a round that may drop out once they have shared their secrets
    corrupt  largest part of the devices that may give all they know to the server
    limit    largest absolute value of an entry of an update; larger ones are cut to it. Not used with `privacy`
    """

    least: int = 3
    dropout: float = 0.3
    corrupt: float = 0.1
    limit: float = 16.0

    def __post_init__(self) -> None:
        check_settings(self, least="[2, inf)", dropout="[0, 1)", corrupt="[0, 1)", limit="(0, inf)")
        if self.dropout + self.corrupt >= 1:
            raise UserError(
                f"algorithm.secure: dropout {self.dropout:g} and corrupt {self.corrupt:g} together leave no device to "
                "unmask a sum: their sum must be below 1"
            )

    def neighbourhood(self, clients: int) -> tuple[int, int]:
        """Neighbours that each client shares its secrets with, and how many of them can restore one.

        >>> SecureSum().neighbourhood(20), SecureSum().neighbourhood(1000)
        ((19, 13), (80, 31))
        """
        return _neighbourhood(clients, math.floor(self.dropout * clients), math.floor(self.corrupt * clients))

    def step(self, clients: int) -> float:
        """The value of 1 in the whole numbers of a round in which so many clients were asked."""
        return self.limit * clients / (HALF - clients)

    def encode(self, value_RV: Tensor, clients: int) -> Tensor:
        """Values as whole numbers (int32, modulo 2^32), rounded to the nearest.

        >>> rule = SecureSum(limit=1.0)
        >>> rule.decode(rule.encode(torch.tensor([0.5, -3.0]), clients=4), clients=4)
        tensor([ 0.5000, -1.0000], dtype=torch.float64)
        """
        cut_RV = value_RV.to("cpu", torch.float64).clamp(-self.limit, self.limit)
        return (cut_RV / self.step(clients)).round().to(torch.int32)

    def beyond(self, value_RV: Tensor) -> int:
        """How many values are cut to the limit."""
        return int((value_RV.abs() > self.limit).sum())

    def decode(self, total_V: Tensor, clients: int) -> Tensor:
        """The values of a sum of such numbers."""
        return total_V.to(torch.float64) * self.step(clients)


@lru_cache
def _neighbourhood(clients: int, dropped: int, corrupt: int) -> tuple[int, int]:
    """The smallest even number of neighbours, and a threshold, for which all hold; else all others are neighbours.

    - corrupt neighbours reach the threshold of any client with a probability of at most LEAK;
    - neighbours that stay miss it with a probability of at most LOSS;
    - clients next to each other on the ring that are all corrupt or gone do not cut it: at most LEAK.
    """
    others, staying = clients - 1, clients - 1 - dropped
    gone = (dropped + corrupt) / clients
    for k in range(2, others, 2):
        if gone and clients * gone ** (k // 2) > LEAK:
            continue
        away = next(away for away in range(k + 1) if clients * _tail(others, dropped, k, away + 1) <= LOSS)
        if away < k - 1 and clients * _tail(others, corrupt, k, k - away) <= LEAK:
            return k, k - away
    threshold = max(1, staying)
    if threshold <= corrupt:
        raise UserError(
            f"algorithm.secure: with {clients} devices, {dropped} of which may drop out and {corrupt} be corrupt, the "
            "corrupt ones could unmask the others: lower dropout or corrupt"
        )
    return others, threshold


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """Probability that at least so many of the drawn ones are marked (hypergeometric)."""

    def log_ways(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    fewest = max(least, drawn - (population - marked))
    hits = range(fewest, min(marked, drawn) + 1)
    every = log_ways(population, drawn)
    return sum(math.exp(log_ways(marked, h) + log_ways(population - marked, drawn - h) - every) for h in hits)
