"""Noise that is correlated between rounds: factorisations, what they cost in ε and what they gain.

The server releases x_t + (C⁻¹ z)_t in round t, where x_t is the sum of clipped contributions, z independent noise and C
a lower triangular Toeplitz matrix with coefficients c_0 ≥ c_1 ≥ ... ≥ 0. Later noise then cancels part of the earlier
noise in the sum over rounds, which is what training adds up. The releases are a function of C x + z, a Gaussian
mechanism, and one client moves its input by at most

    Δ(k, b) = max over rounds i_1 < ... < i_k at least b apart of |C e_{i_1} + ... + C e_{i_k}|.

For such coefficients the largest is at rounds 0, b, 2b, ... (Kalinin and Lampert 2024, theorem 2). Coefficients are
scaled to Σ c² = 1, so Δ(1, b) = 1 for every factorisation.

    gaussian  C = I
    banded    c_i = 0 from i = b on: clients that come back after b rounds meet no noise of their own, Δ = √k
    blt       c_i = Σ_j s_j d_j^(i-1) (a buffered linear Toeplitz matrix): few vectors of state for any b

Banded and blt coefficients minimise Δ² times the mean variance of the noise in the prefix sums Σ_{s ≤ t} (C⁻¹ z)_s.

Shape letters: T rounds, B bands, J buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

BUFFERS = 4  # of blt: with them its noise is within 6 % of a banded one
STEPS = 60  # of the optimisation at most


@dataclass(frozen=True)
class Factorisation:
    """A factorisation.

    noise  "gaussian", "banded" or "blt"
    coefs  banded: the coefficients c_0, c_1, ...; blt: c_0 alone
    decay  blt: d_j, factor by which each buffer decays in a round
    scale  blt: s_j / c_0, how much of each buffer is subtracted
    """

    noise: str = "gaussian"
    coefs: tuple[float, ...] = (1.0,)
    decay: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @lru_cache(maxsize=64)  # noqa: B019  a run has one factorisation
    def coefficients(self, rounds: int) -> Tensor:
        """c_0 ... c_{T-1}, float64.

        >>> Factorisation("blt", (0.8,), decay=(0.5,), scale=(0.5,)).coefficients(4)
        tensor([0.8000, 0.4000, 0.2000, 0.1000], dtype=torch.float64)
        """
        coef_T = torch.zeros(rounds, dtype=torch.float64)
        known = torch.tensor(self.coefs[:rounds], dtype=torch.float64)
        coef_T[: len(known)] = known
        if self.decay and rounds > 1:
            decay_J, scale_J = (torch.tensor(v, dtype=torch.float64) for v in (self.decay, self.scale))
            coef_T[1:] = self.coefs[0] * (scale_J * decay_J ** torch.arange(rounds - 1)[:, None]).sum(1)
        return coef_T

    def sensitivity(self, rounds: int, min_separation: int, most: int | None = None) -> float:
        """Δ(k, b) over so many rounds: by how much one client moves C x, in units of the clipping length.

        >>> Factorisation().sensitivity(rounds=200, min_separation=10, most=None)  # 20 participations
        4.47213595499958
        >>> Factorisation("banded", (0.8, 0.6)).sensitivity(rounds=10, min_separation=1, most=2)  # |0.8, 1.4, 0.6|
        1.7204650534085253
        """
        return self.sensitivities(rounds, min_separation, most)[-1]

    @lru_cache(maxsize=64)  # noqa: B019
    def sensitivities(self, rounds: int, min_separation: int, most: int | None = None) -> list[float]:
        """Δ(k, b) over the first round, the first two, ... and all of so many."""
        moved_T = _moved(self.coefficients(rounds), min_separation, most)
        return moved_T.square().cumsum(0).sqrt().tolist()

    def realised(self, round_N: Tensor, rounds: int) -> float:
        """Δ of a client that took part in exactly these rounds: |Σ_i C e_i|."""
        if self.noise == "gaussian":
            return math.sqrt(len(round_N))
        coef_T = self.coefficients(rounds)
        moved_T = torch.zeros(rounds, dtype=torch.float64)
        for i in round_N.tolist():
            moved_T[i:] += coef_T[: rounds - i]
        return float(moved_T.norm())

    def overlaps(self, t: int, rounds: int) -> Tensor:
        """(C e_i)ᵀ (C e_t) for i = t, t - 1, ..., 0 [t + 1]: what participations in rounds i and t add up to."""
        if self.noise == "gaussian":
            return torch.zeros(t + 1, dtype=torch.float64).index_fill(0, torch.tensor([0]), 1.0)
        coef_T = self.coefficients(rounds)
        return coef_T.unfold(0, rounds - t, 1) @ coef_T[: rounds - t]

    def prefix_noise(self, rounds: int) -> Tensor:
        """Variance of the noise in each prefix sum, for noise z of variance 1 [T]."""
        return _inverse(self.coefficients(rounds)).cumsum(0).square().cumsum(0)


@lru_cache(maxsize=64)
def factorise(noise: str, rounds: int, min_separation: int = 1, most: int | None = None) -> Factorisation:
    """The best factorisation of a kind for so many rounds and this participation.

    >>> factorise("banded", rounds=100, min_separation=1)  # a band of 1: independent noise
    Factorisation(noise='gaussian', coefs=(1.0,), decay=(), scale=())
    """
    bands = min(rounds, min_separation)
    if noise == "gaussian" or rounds == 1 or (noise == "banded" and bands == 1):
        return Factorisation()
    if noise == "banded":
        ratio_B = 1 - 0.5 / torch.arange(1, bands, dtype=torch.float64)  # c_i / c_{i-1} of 1 / √(1 - x)
        coef_T = _banded(_minimised(_banded, ratio_B.logit(), rounds, min_separation, most), rounds)
        return Factorisation("banded", tuple((coef_T / coef_T.norm()).tolist()[:bands]))
    time_J = rounds ** torch.linspace(0.0, 1.0, BUFFERS, dtype=torch.float64)  # rounds that each buffer remembers
    start = torch.cat([(1 - 0.5 / time_J).logit(), torch.full_like(time_J, 0.1).logit()])
    found = _minimised(_blt, start, rounds, min_separation, most)
    decay_J, scale_J = _buffers(found)
    first = 1 / float(_blt(found, rounds).norm())
    return Factorisation("blt", (first,), tuple(decay_J.tolist()), tuple(scale_J.tolist()))


def _banded(parameters: Tensor, rounds: int) -> Tensor:
    """c_0 = 1 and c_i = c_{i-1} · a number in (0, 1), 0 after the last."""
    coef_B = torch.cat([parameters.new_ones(1), parameters.sigmoid().cumprod(0)])
    return torch.cat([coef_B, coef_B.new_zeros(rounds - len(coef_B))])


def _blt(parameters: Tensor, rounds: int) -> Tensor:
    """c_0 = 1 and c_i = Σ_j s_j d_j^(i-1)."""
    decay_J, scale_J = _buffers(parameters)
    return torch.cat([scale_J.new_ones(1), (scale_J * decay_J ** torch.arange(rounds - 1)[:, None]).sum(1)])


def _buffers(parameters: Tensor) -> tuple[Tensor, Tensor]:
    """d_j in (0, 1), and s_j > 0 with Σ s_j < 1, so that the coefficients fall."""
    decay_J, share_J = parameters.sigmoid().chunk(2)
    return decay_J, share_J * torch.cat([share_J.new_ones(1), (1 - share_J[:-1]).cumprod(0)])


def _minimised(
    coefficients: Callable[[Tensor, int], Tensor], start: Tensor, rounds: int, min_separation: int, most: int | None
) -> Tensor:
    """The parameters at which Δ² times the mean variance of prefix sums is smallest, found by L-BFGS from a start."""
    parameters = start.clone().requires_grad_()
    search = torch.optim.LBFGS([parameters], max_iter=STEPS, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        coef_T = coefficients(parameters, rounds)
        noise = _inverse(coef_T).cumsum(0).square().cumsum(0).mean()
        value = noise.log() + _moved(coef_T, min_separation, most).square().sum().log()
        value.backward()
        return value

    with torch.enable_grad():
        search.step(loss)
    return parameters.detach()


def _moved(coef_T: Tensor, min_separation: int, most: int | None) -> Tensor:
    """Σ_j C e_{jb}, j < k, by sums over every b-th coefficient [T]: its length is Δ(k, b)."""
    rounds, b = len(coef_T), min_separation
    k = -(-rounds // b) if most is None else min(most, -(-rounds // b))
    padded = torch.cat([coef_T, coef_T.new_zeros(-rounds % b)])
    moved_T = padded.view(-1, b).cumsum(0).flatten()
    if b * k < len(moved_T):
        moved_T = torch.cat([moved_T[: b * k], moved_T[b * k :] - moved_T[: -b * k]])
    return moved_T[:rounds]


def _inverse(coef_T: Tensor) -> Tensor:
    """The first column of C⁻¹: the power series 1 / Σ c_i x^i, by Newton's iteration."""
    rounds, inverse_T = len(coef_T), 1 / coef_T[:1]
    while len(inverse_T) < rounds:
        n = min(2 * len(inverse_T), rounds)
        inverse_T = 2 * _padded(inverse_T, n) - _product(_product(coef_T[:n], inverse_T, n), inverse_T, n)
    return inverse_T


def _padded(series_T: Tensor, n: int) -> Tensor:
    return torch.cat([series_T, series_T.new_zeros(n - len(series_T))])


def _product(first_T: Tensor, second_T: Tensor, n: int) -> Tensor:
    """The first n coefficients of a product of power series."""
    size = len(first_T) + len(second_T)
    return torch.fft.irfft(torch.fft.rfft(first_T, size) * torch.fft.rfft(second_T, size), size)[:n]
