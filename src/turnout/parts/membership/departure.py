"""Whether a client that leaves stays in the objective, as pure functions: paper 000 Corollary 4.0.3 and its variants.

f0 and f1 are the paper's bounds on the loss τ rounds into training if the client that left at τ0 is kept in the
objective (include) or not (exclude):

    f0(τ) = ((τ - τ0) D + V) / (τ E + γ)        f1(τ) = V~ / ((τ - τ0) E + γ),    V~ = V / (τ0 E + γ) + Γ_l

D is the bias of an objective that has lost a client, V the start of training (distance to the optimum, noise of the
gradients), Γ_l how far the client's own optimum is from that of all. Rounds are counted since the objective last
shifted. Paper 001's Corollary 1, on clients that are rarely present, is at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from turnout.errors import check_settings

RULES = ("crossing", "literal", "sqrt")


@dataclass(frozen=True)
class Constants:
    """D, V and γ of paper 000's bounds, given instead of fitted; Γ_l (`Gamma_l`) is estimated if None."""

    D: float
    V: float
    gamma: float
    Gamma_l: float | None = None

    def __post_init__(self) -> None:
        check_settings(self, D="[0, inf)", V="[0, inf)", gamma="(0, inf)", Gamma_l="[0, inf)")


@dataclass(frozen=True)
class Bounds:
    """The constants of f0 and f1, in one unit of loss and of work.

    D, V, gamma, Gamma_l, E  as above
    noise                    the second of the two terms of which the paper's V~ is the larger; the paper assumes 0
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
    """Whether excluding the client promises the smaller loss at the deadline T.

    crossing  f0(T) >= f1(T)
    literal   min over τ >= τ0 of f0(τ) >= f1(T): equation (8) as printed, which has no upper end; f0 is monotone, so
              the minimum is f0(τ0) or its limit D / E
    sqrt      T - τ0 >= c √(Γ_l τ0): equation (9)

    Past the deadline (T <= τ0) the client stays in: no round is left in which a restart could pay.

    >>> b = Bounds(D=1.0, V=1.0, gamma=1.0, Gamma_l=4.0, E=1.0)
    >>> [should_exclude(b, tau0=25, T=T, rule="sqrt") for T in (34, 35)]  # 25 + √100
    [False, True]
    >>> [should_exclude(b, tau0=25, T=T) for T in (36, 37)]  # 12/37 < (1/26 + 4)/12, but 13/38 > (1/26 + 4)/13
    [False, True]
    """
    if tau0 >= T:
        return False
    if rule == "sqrt":
        return T - tau0 >= c * math.sqrt(bounds.Gamma_l * tau0)
    kept = bounds.include(T, tau0)
    if rule == "literal":
        kept = min(bounds.include(tau0, tau0), bounds.D / bounds.E)
    return kept >= bounds.exclude(T, tau0)


def fit_curve(curve: Sequence[tuple[float, float]]) -> float | None:
    """V of a fit of c + V / (τ + 1) to the later half of the losses (τ, loss), by least squares with V >= 0, where τ is
    the rounds since the objective last shifted; None below three losses.

    Theorem 3.1 has V / (τ E + γ) under a rate that falls like 1 / (τ E + γ); η0 / (τ + 1) is such a rate, with γ = E.
    The first rounds are left out: they show how far from the optimum training began, which a shift does not repeat.

    >>> fit_curve([(tau, 1.0 + 30.0 / (tau + 1)) for tau in range(8)])
    30.0
    """
    later = curve[min(len(curve) // 2, len(curve) - 3) :]
    if len(curve) < 3:
        return None
    x, y = [1 / (tau + 1) for tau, _ in later], [loss for _, loss in later]
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((a - mean_x) ** 2 for a in x)
    V = max(0.0, math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread)
    return round(V, 12)


def bounds_from(V: float, tau0: float, restart: float, share: float, latest: float, lowest: float) -> Bounds:
    """The constants as a server can estimate them when client l leaves, with a round as the unit of work (E = γ = 1).

    V        of the loss curve: its height above the floor, times τ + 1
    Γ_l      max(0, F_l(w) - the lowest loss l ever reported), F_l(w) its latest report
    D / E    p_l F_l(w): the increase of the old objective if l's loss doubled without its updates
    noise    the cost of the restart: the curve is V / (τ0 + 1) above its floor, by the noise of a rate that a shift
             multiplies by `restart`, η(0) / η(τ0); under η0 / (τ + 1) that makes V again

    >>> bounds_from(6.0, tau0=29, restart=30.0, share=0.1, latest=1.5, lowest=1.0)
    Bounds(D=0.15, V=6.0, gamma=1.0, Gamma_l=0.5, E=1.0, noise=6.0)
    """
    noise = V / (tau0 + 1) * restart
    return Bounds(round(share * latest, 12), V, 1.0, max(0.0, latest - lowest), 1.0, noise)


def left_to_learn(C: float, gamma: float, tau0: float, T: float, E: float) -> float:
    """Paper 001, Corollary 1: f1(T) = C~ / (E (T - τ0) + γ~)², C~ = T C and γ~ = γ.

    The loss that remains at the deadline if the objective shifts at τ0. A client is dropped if y_a J > f1(T): y_a is
    the share of rounds in which it was asked and did not answer, J the cost of its absence. Past the deadline (T <= τ0)
    a shift cannot be made up for: infinite.

    >>> left_to_learn(C=1.0, gamma=0.0, tau0=50, T=100, E=1)
    0.04
    """
    return T * C / (E * (T - tau0) + gamma) ** 2 if tau0 < T else math.inf
