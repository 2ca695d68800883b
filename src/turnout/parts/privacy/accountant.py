"""What a run with Gaussian noise reveals of one client: ε at a δ, and the noise that an ε needs.

Without sampling, all releases of a run together are one Gaussian mechanism: its noise has standard deviation σ, and one
client moves its input by at most Δ. Only μ = Δ / σ matters, and (Balle and Wang, 2018)

    δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ).

Here Δ and σ are in units of the clipping length: σ is the noise multiplier, and Δ is the sensitivity of the
factorisation (factorisation.py) to a client that takes part at most k times, at least b rounds apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from turnout.errors import UserError

EXACT = 20.0  # beyond so many standard deviations the tail is an asymptotic series, below it is exact


@lru_cache(maxsize=1024)  # a run asks for it before and after every round, and μ seldom changes
def epsilon_of(mu: float, delta: float) -> float:
    """ε of a Gaussian mechanism at δ, given μ = sensitivity / standard deviation of the noise; inf without noise.

    >>> round(epsilon_of(1.0, 1e-6), 4)  # one participation at noise multiplier 1
    4.8866
    >>> round(epsilon_of(20**0.5, 1e-6), 1)  # 20 of them
    30.6
    """
    _check_delta(delta)
    if mu <= 0:
        return 0.0
    if not math.isfinite(mu):
        return math.inf
    if _delta_of(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while _delta_of(high, mu) > delta:
        high *= 2
    return _bisect(lambda epsilon: _delta_of(epsilon, mu) > delta, high)[1]


def mu_of(epsilon: float, delta: float) -> float:
    """The largest sensitivity / standard deviation at which the releases are (ε, δ)-private.

    >>> round(mu_of(epsilon_of(0.7, 1e-6), 1e-6), 9)
    0.7
    """
    _check_delta(delta)
    if not epsilon > 0 or not math.isfinite(epsilon):
        raise UserError(f"epsilon must be a number above 0, not {epsilon!r}: 1 is strong, 8 is weak")
    high = 1.0
    while _delta_of(epsilon, high) <= delta:
        high *= 2
    return _bisect(lambda mu: _delta_of(epsilon, mu) <= delta, high)[0]


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise UserError(f"delta must lie between 0 and 1, not {delta!r}: take less than 1 / the number of clients")


def _delta_of(epsilon: float, mu: float) -> float:
    """δ(ε), the difference of two tails, each in logarithms: e^ε alone may be too large for a float."""
    first, second = _log_tail(epsilon / mu - mu / 2), epsilon + _log_tail(epsilon / mu + mu / 2)
    return math.exp(first) * -math.expm1(second - first) if second < first else 0.0


def _log_tail(x: float) -> float:
    """log Φ(-x)."""
    if x < EXACT:
        return math.log(math.erfc(x / math.sqrt(2)) / 2)
    inverse = 1 / x**2
    series = 1 - inverse * (1 - 3 * inverse * (1 - 5 * inverse * (1 - 7 * inverse)))
    return -(x**2) / 2 - math.log(x * math.sqrt(2 * math.pi)) + math.log(series)


def _bisect(is_below: Callable[[float], bool], high: float) -> tuple[float, float]:
    """Two numbers up to `high` between which `is_below` turns false, apart by less than 1e-12 of them."""
    low = 0.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low, high
