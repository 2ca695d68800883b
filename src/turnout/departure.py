"""Whether a client that leaves stays in the objective, as pure functions: paper 000 Corollary 4.0.3 and its variants.

f0 and f1 are the paper's bounds on the loss τ rounds into training if the client that left at τ0 is kept in the
objective (include) or not (exclude):

    f0(τ) = ((τ - τ0) D + V) / (τ E + γ)        f1(τ) = V~ / ((τ - τ0) E + γ),    V~ = V / (τ0 E + γ) + Γ_l

D is the bias of an objective that has lost somebody, V what training starts from (distance to the optimum, noise of the
gradients), Γ_l how far the client's own optimum is from everybody's. Rounds are counted since the objective last
shifted. Paper 001's Corollary 1, on clients that are hardly ever there, is at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from turnout.errors import Mistake, nearest

RULES = ("crossing", "literal", "sqrt")


@dataclass(frozen=True)
class Bounds:
    """The constants of f0 and f1, in one unit of loss and of work.

    noise   the second of the two terms of which the paper's V~ is the larger, 0 where the first rules, as it assumes
    """

    D: float
    V: float
    gamma: float
    Gamma_l: float
    E: float
    noise: float = 0.0

    def include(self, tau: float, tau0: float) -> float:
        """f0(τ) = ((τ - τ0) D + V) / (τ E + γ).

        >>> Bounds(D=2.0, V=10.0, gamma=5.0, Gamma_l=1.0, E=5.0).include(tau=3, tau0=1)  # (2 · 2 + 10) / 20
        0.7
        """
        return ((tau - tau0) * self.D + self.V) / (tau * self.E + self.gamma)

    def exclude(self, tau: float, tau0: float) -> float:
        """f1(τ) = V~ / ((τ - τ0) E + γ), V~ = max(V / (τ0 E + γ) + Γ_l, noise).

        >>> Bounds(D=2.0, V=10.0, gamma=5.0, Gamma_l=1.0, E=5.0).exclude(tau=4, tau0=1)  # (10 / 10 + 1) / 20
        0.1
        """
        restart = max(self.V / (tau0 * self.E + self.gamma) + self.Gamma_l, self.noise)
        return restart / ((tau - tau0) * self.E + self.gamma)


def should_exclude(bounds: Bounds, tau0: float, T: float, rule: str = "crossing", c: float = 1.0) -> bool:
    """Whether leaving the client out promises the smaller loss at the deadline T.

    crossing  f0(T) >= f1(T)
    literal   min over τ in [τ0, T] of f0(τ) >= f1(T): equation (8) as printed; f0 is monotone, so its ends suffice
    sqrt      T - τ0 >= c √(Γ_l τ0): equation (9)

    >>> b = Bounds(D=1.0, V=1.0, gamma=1.0, Gamma_l=4.0, E=1.0)
    >>> [should_exclude(b, tau0=25, T=T, rule="sqrt") for T in (34, 35)]  # 25 + √100
    [False, True]
    >>> [should_exclude(b, tau0=25, T=T) for T in (36, 37)]  # 12/37 < (1/26 + 4)/12, but 13/38 > (1/26 + 4)/13
    [False, True]
    """
    if rule == "sqrt":
        return T - tau0 >= c * math.sqrt(bounds.Gamma_l * tau0)
    kept, left_out = bounds.include(T, tau0), bounds.exclude(T, tau0)
    if rule == "literal":
        kept = min(kept, bounds.include(tau0, tau0))
    return kept >= left_out


def check_rule(rule: str) -> None:
    if rule not in RULES:
        raise Mistake(f"there is no rule {rule!r} for a client that leaves: {nearest(rule, RULES)}")


@dataclass(frozen=True)
class Fit:
    """A loss curve as c + V / (τ E + γ): the floor c, and V and γ of Theorem 3.1."""

    floor: float
    V: float
    gamma: float


def fit_curve(curve: Sequence[tuple[float, float]], E: float) -> Fit | None:
    """Losses (τ, loss) as c + V / (τ E + γ), by least squares with V >= 0; None for fewer than three rounds.

    For a given γ the rest is a straight line in 1 / (τ E + γ), so γ is tried on a grid from E / 4 to 256 E.

    >>> fit = fit_curve([(tau, 1.0 + 30.0 / (5 * tau + 10)) for tau in range(8)], E=5)
    >>> round(fit.floor, 6), round(fit.V, 6), fit.gamma
    (1.0, 30.0, 10.0)
    """
    if len(curve) < 3:
        return None
    tried = [_line(curve, E, E * 2.0**power) for power in range(-2, 9)]
    return min(tried, key=lambda found: found[0])[1]


def _line(curve: Sequence[tuple[float, float]], E: float, gamma: float) -> tuple[float, Fit]:
    """The best line for one γ, and the squares that are left."""
    x, y = [1 / (tau * E + gamma) for tau, _ in curve], [loss for _, loss in curve]
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((a - mean_x) ** 2 for a in x)
    V = max(0.0, math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread)
    floor = mean_y - V * mean_x
    rest = math.fsum((b - floor - V * a) ** 2 for a, b in zip(x, y, strict=True))
    return rest, Fit(floor, V, gamma)


def bounds_from(fit: Fit, E: float, share: float, loss_of_l: float, mean_loss: float, lowest_of_l: float) -> Bounds:
    """The constants from what a server knows when client l leaves, with the unit of work chosen so that γ is 1.

    V and E are the curve's V / γ and E / γ: in this unit V is the loss above the floor at the first step, and f1 begins
    Γ_l above f0, as V~ is meant. Γ_l = max(0, F_l(w) - the lowest loss l ever reported). D / E, what the old objective
    ends above the new one, is p_l (F_l(w) - F(w)), at least 0: what l's samples add to the mean. Noise is V: an
    objective that shifts sets the learning rate back to its first value, and with it the noise of the first steps.

    >>> bounds_from(Fit(0.5, 20.0, 10.0), E=5, share=0.1, loss_of_l=1.5, mean_loss=0.5, lowest_of_l=1.0)
    Bounds(D=0.05, V=2.0, gamma=1.0, Gamma_l=0.5, E=0.5, noise=2.0)
    """
    unit = E / fit.gamma
    bias = share * max(0.0, loss_of_l - mean_loss)
    V = fit.V / fit.gamma
    return Bounds(D=bias * unit, V=V, gamma=1.0, Gamma_l=max(0.0, loss_of_l - lowest_of_l), E=unit, noise=V)


def should_drop(absence: float, J: float, C: float, gamma: float, tau0: float, T: float, E: float) -> bool:
    """Paper 001, Corollary 1: abandon a client if y_a J > f1(T), f1(τ) = C~ / (E (τ - τ0) + γ~)², C~ = τ C and γ~ = γ.

    `absence` is y_a, the share of rounds in which it was asked and did not answer; J what its absence costs, C how much
    there is to learn again once the objective has shifted.

    >>> [should_drop(y, J=1.0, C=1.0, gamma=0.0, tau0=50, T=100, E=1) for y in (0.03, 0.05)]  # f1 = 100 / 50² = 0.04
    [False, True]
    """
    return absence * J > T * C / (E * (T - tau0) + gamma) ** 2
