"""Noise that devices add to a secure sum themselves, so that the sum is private from the server too.

In a round with n devices, C the clip, z the noise multiplier and u the step of the whole numbers, a device

    clips its update, with all factors of its own, to the length C - u (√d / 2 + 1), d the number of entries,
    rounds it to multiples of u, which adds √d / 2 steps at most: C stays the length of the whole numbers, in steps,
    adds N_Z(0, s²) to each of them, s² = (z C / u)² / h + 16, h = least - ⌊corrupt n⌋.

No device unmasks a sum of fewer than `least`, and the server knows the noise of ⌊corrupt n⌋ of them at most. So a sum
has the noise of h honest devices at least; more noise does no harm. N_Z(0, s²) is the discrete Gaussian distribution,
P(y) ∝ f_s(y) = exp(-y² / 2s²), y whole.

ε is that of Gaussian noise with multiplier z (accountant.py). By Poisson's summation formula, for every real c,

    Σ_y f_t(y - c) = t √2π (1 ± η_t),   η_t = 2 Σ_{j≥1} exp(-2π² t² j²);   f_a(x) f_b(y - x) = f_s(y) f_t(x - c),
    s² = a² + b², t = a b / s, c = y a² / s².

Hence N_Z(0, a²) + N_Z(0, b²) is N_Z(0, a² + b²) up to factors 1 ± 5 η_t of each probability, and so is what a
continuous N(0, a²) becomes when it is rounded at random, by N_Z(0, b²) around it. With s ≥ 4 on every device, t² ≥ 8
and η_t < 1e-68: the noise of h devices is that of a Gaussian mechanism with standard deviation z C whose result is
rounded at random with b = 4, which reveals nothing more, up to a factor 1 ± 1e-67 h d of each probability. The same
formula makes a wide distribution of narrow ones, of which tables are kept (`discrete_gaussian`).

Shape letters: R replies, V entries of a vector that is summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.parts.privacy.private import Private
from turnout.parts.secure import HALF, SecureSum

SMOOTH = 4.0  # standard deviation, in steps, from which sums of discrete noise are those of Gaussian noise
TAIL = 10.0  # standard deviations of noise for which a sum has room: beyond, with probability 2e-23, it wraps around
COARSE = 0.1  # part of the clip that rounding may cost at most
BASE, STRIDE = 256.0, 64  # of a wide distribution: its lowest part's standard deviation, and the step of the next
REACH = 9.0  # standard deviations that a table covers: 2e-19 are beyond
Words = Callable[[int], Tensor]  # so many random words of 64 bits (int64)


@dataclass(frozen=True)
class PrivateSum(SecureSum):
    """A secure sum of clipped updates with noise.

    clip        C: the longest update
    multiplier  z: standard deviation of the noise of the fewest honest devices that a sum can have, in units of C
    """

    clip: float = 1.0
    multiplier: float = 1.0

    def honest(self, clients: int) -> int:
        """Fewest honest devices in a sum, if so many were asked."""
        return self.least - math.floor(self.corrupt * clients)

    def check(self, clients: int, entries: int) -> None:
        """Refuse settings with which no noise is certain to be in a sum, or too few whole numbers are left."""
        if self.honest(clients) < 1:
            corrupt = math.floor(self.corrupt * clients)
            raise UserError(
                f"algorithm.secure.least = {self.least} beside algorithm.privacy: of {clients} devices, {corrupt} may "
                f"be corrupt, so a sum of {self.least} may lack any noise that the server does not know: set least to "
                f"{corrupt + 1} or more (the more, the less noise each device adds), or lower corrupt"
            )
        step = self.step(clients)
        if (lost := step * self._rounding(entries) / self.clip) > COARSE:
            raise UserError(
                f"algorithm.secure beside algorithm.privacy: sums of {clients:,} devices modulo 2^32 have room for "
                f"steps of {step:.3g}, and rounding {entries:,} entries to them takes {lost:.0%} of privacy.clip = "
                f"{self.clip:g}; at most {COARSE:.0%} may be: ask fewer devices in a round, or share fewer parameters"
            )

    def step(self, clients: int) -> float:
        """u: all updates, each as long as it may be, fit in one entry of a sum, and so do TAIL deviations of noise.

        n C + TAIL √n √((z C)² / h + (SMOOTH u)²) ≤ HALF u, with √(a² + b²) ≤ a + b.
        """
        noise = TAIL * self.multiplier * math.sqrt(clients / self.honest(clients))
        return self.clip * (clients + noise) / (HALF - TAIL * SMOOTH * math.sqrt(clients))

    def variance(self, clients: int) -> float:
        """s²: of the noise of one device, in steps.

        >>> rule = PrivateSum(least=10, corrupt=0.1, clip=2.0, multiplier=3.0)
        >>> ((rule.variance(20) - 16) * rule.honest(20)) ** 0.5 * rule.step(20)  # z C
        6.0
        """
        return (self.multiplier * self.clip / self.step(clients)) ** 2 / self.honest(clients) + SMOOTH**2

    def encode(self, value_RV: Tensor, clients: int) -> Tensor:
        """Updates as whole numbers whose length is C at most."""
        step, entries = self.step(clients), value_RV.shape[1]
        value_RV = value_RV.to("cpu", torch.float64) / step
        most = self.clip / step - self._rounding(entries)
        kept_R1 = most / torch.linalg.vector_norm(value_RV, dim=1, keepdim=True).clamp(min=most)
        return (value_RV * kept_R1).round().to(torch.int32)

    def noise(self, entries: int, clients: int, words: Words) -> Tensor:
        """The noise of one device (int64)."""
        return discrete_gaussian(self.variance(clients), entries, words)

    def beyond(self, value_RV: Tensor) -> int:
        return 0  # updates are clipped as a whole

    @staticmethod
    def _rounding(entries: int) -> float:
        """By how many steps whole numbers can be longer than what they are rounded from; 1 is for floating point."""
        return math.sqrt(entries) / 2 + 1


def sum_rule(algorithm: Any) -> SecureSum | None:
    """The settings of an algorithm's secure sums: with `privacy`, devices add the noise. None: sums are not secure."""
    secure, private = algorithm.secure, algorithm.privacy
    if not isinstance(secure, SecureSum) or not isinstance(private, Private):
        return secure if isinstance(secure, SecureSum) else None
    return PrivateSum(**vars(secure), clip=private.clip, multiplier=private.begin()["multiplier"])


def discrete_gaussian(variance: float, entries: int, words: Words) -> Tensor:
    """Whole numbers with P(y) ∝ exp(-y² / (2 variance)) (int64): a narrow distribution plus STRIDE times another, each
    from a table, so that no logarithm or rounding of a floating-point number decides. A probability in a table is right
    to 1e-14 of itself and 2^-64."""
    if variance <= 4 * BASE**2:
        least, threshold = _table(variance)
        return torch.searchsorted(threshold, words(entries), right=True) + least
    low_V = discrete_gaussian(BASE**2, entries, words)
    return low_V + STRIDE * discrete_gaussian((variance - BASE**2) / STRIDE**2, entries, words)


@lru_cache(maxsize=64)
def _table(variance: float) -> tuple[int, Tensor]:
    """The least number, and where in all words of 64 bits those of each further number begin."""
    most = math.ceil(REACH * math.sqrt(variance))
    weights = [int(math.exp(-(y**2) / (2 * variance)) * 2.0**64) for y in range(-most, most + 1)]
    total, below, threshold = sum(weights), 0, list[int]()
    for weight in weights[:-1]:
        below += weight
        threshold.append((below << 64) // total - (1 << 63))
    return -most, torch.tensor(threshold, dtype=torch.int64)
