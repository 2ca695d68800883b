"""Student's t, the sign test and rank correlation, from their closed forms: all the statistics a study needs.

`seeds_to_decide` and `seeds_to_sign` say how many seeds an open comparison would take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

LEVEL = 0.95  # of the one-sided bounds by which a study decides
MOST_SEEDS = 10_000  # nobody runs more
MOST_SIGNS = 1_000  # the same for the sign test, which takes longer to ask


def t_below(t: float, df: int) -> float:
    """P(T <= t) for Student's t with a whole number of degrees of freedom, by its finite series.

    With θ = atan(t / √ν), P(|T| <= t) is 2/π (θ + sin θ (cos θ + 2/3 cos³ θ + ...)) for odd ν, the sum ending at
    cos^(ν-2), and sin θ (1 + 1/2 cos² θ + 3/8 cos⁴ θ + ...) for even ν.

    >>> t_below(1.0, 1), round(t_below(2.0, 2), 6)
    (0.75, 0.908248)
    """
    theta = math.atan(t / math.sqrt(df))
    cosine, odd = math.cos(theta), df % 2
    total, term = 0.0, cosine if odd else 1.0
    for power in range(odd, df - 1, 2):  # `term` is the one with cos^power
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    within = math.sin(theta) * total
    if odd:
        within = 2 / math.pi * (theta + within)
    return 0.5 + within / 2


@cache
def t_quantile(probability: float, df: int) -> float:
    """The t with P(T <= t) = probability, by halving an interval.

    >>> [round(t_quantile(0.95, df), 3) for df in (1, 2, 4, 30)]
    [6.314, 2.92, 2.132, 1.697]
    """
    if not 0.5 <= probability < 1:
        raise ValueError(f"the quantile is for probabilities in [0.5, 1), not {probability}")
    low, high = 0.0, 1.0
    while t_below(high, df) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_below(middle, df) < probability else (low, middle)
    return (low + high) / 2


def sign_test(wins: int, losses: int) -> float:
    """P(at least so many wins) if wins and losses were equally likely; ties do not count.

    >>> sign_test(5, 0), sign_test(3, 1)
    (0.03125, 0.3125)
    """
    n = wins + losses
    total, ways = 0, math.comb(n, wins)
    for k in range(wins, n + 1):
        total += ways
        ways = ways * (n - k) // (k + 1)
    return total / 2**n


def seeds_to_decide(gap: float, deviation: float) -> int | None:
    """The fewest seeds at which the one-sided bound of a mean excludes the margin, if the mean's distance from it
    (`gap`) and the standard deviation over seeds stay as they are: |gap| > t(95 %, n - 1) s / √n. None: too many.

    >>> seeds_to_decide(1.0, 2.0), seeds_to_decide(-1.0, 2.0), seeds_to_decide(0.0, 2.0)
    (13, 13, None)
    """

    def decides(n: int) -> bool:
        return deviation == 0 or t_below(abs(gap) * math.sqrt(n) / deviation, n - 1) > LEVEL

    if gap == 0 or not decides(MOST_SEEDS):
        return None
    low, high = 1, 2
    while not decides(high):
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


def seeds_to_sign(wins: int, losses: int, seeds: int) -> int | None:
    """The fewest seeds at which the sign test decides, if wins and losses keep their shares; None: too many.

    >>> seeds_to_sign(3, 0, 3), seeds_to_sign(1, 4, 5), seeds_to_sign(2, 2, 5)
    (5, 11, None)
    """
    more, fewer = max(wins, losses), min(wins, losses)
    if more == fewer:
        return None
    lead = (more - fewer) / (more + fewer)
    rough = 0.25 / lead**2 * seeds / (more + fewer)  # a tenth of what the normal distribution would ask for
    for n in range(max(seeds + 1, int(rough)), MOST_SIGNS + 1):
        if sign_test(round(n * more / seeds), round(n * fewer / seeds)) <= 1 - LEVEL:
            return n
    return None


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs.

    >>> ranks([5.0, 1.0, 5.0])
    [2.5, 1.0, 2.5]
    """
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation; 0 where one of the two does not vary.

    >>> spearman([10, 20, 30, 40], [1, 5, 3, 9])
    0.8
    """
    a, b = ranks(x), ranks(y)
    mean = (len(a) + 1) / 2
    product = math.fsum((u - mean) * (v - mean) for u, v in zip(a, b, strict=True))
    size = math.sqrt(math.fsum((u - mean) ** 2 for u in a) * math.fsum((v - mean) ** 2 for v in b))
    return product / size if size else 0.0
