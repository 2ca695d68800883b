"""ε of Gaussian releases and sensitivities of factorisations, against dp-accounting, jax-privacy and enumeration."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from turnout.errors import UserError
from turnout.parts.privacy.accountant import epsilon_of, mu_of
from turnout.parts.privacy.factorisation import Factorisation, factorise

STORED = json.loads((Path(__file__).parents[1] / "support" / "privacy_oracle.json").read_text(encoding="utf-8"))


def test_epsilon_is_that_of_dp_accounting_on_random_schedules():
    assert len(STORED["epsilons"]) == 60
    for delta, schedule, epsilon in STORED["epsilons"]:
        mu = math.sqrt(sum(times / multiplier**2 for multiplier, times in schedule))
        assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-3)


def test_sensitivities_are_those_of_jax_privacy_on_1000_random_settings():
    assert len(STORED["sensitivities"]) == 1000
    for rounds, b, k, coefs, decay, scale, expected in STORED["sensitivities"]:
        found = Factorisation("any", tuple(coefs), tuple(decay), tuple(scale)).sensitivity(rounds, b, k or None)
        assert found == pytest.approx(expected, rel=1e-9)


def test_without_sampling_epsilon_is_the_number_of_the_literature():
    assert epsilon_of(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-4)  # Balle and Wang 2018: σ = 1
    assert epsilon_of(math.sqrt(200), 1e-6) == pytest.approx(166.4, abs=0.05)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 8.0, 100.0, 5000.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
def test_the_noise_for_an_epsilon_gives_that_epsilon(epsilon, delta):
    assert epsilon_of(mu_of(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-9)
    assert epsilon_of(mu_of(epsilon, delta), delta) <= epsilon * (1 + 1e-12)


def test_no_noise_is_no_privacy_and_no_participation_costs_nothing():
    assert epsilon_of(math.inf, 1e-6) == math.inf
    assert epsilon_of(0.0, 1e-6) == 0.0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6])
def test_a_delta_outside_0_and_1_is_refused(delta):
    with pytest.raises(UserError, match="delta must lie between 0 and 1"):
        epsilon_of(1.0, delta)


@pytest.mark.parametrize("noise", ["gaussian", "banded", "blt"])
@pytest.mark.parametrize(("rounds", "b", "k"), [(9, 1, 3), (9, 2, None), (10, 3, 2), (8, 8, None), (7, 5, None)])
def test_no_pattern_of_participation_moves_the_releases_more_than_the_sensitivity(noise, rounds, b, k):
    factorisation = factorise(noise, rounds, b, k)
    coef_T = factorisation.coefficients(rounds)
    C_TT = torch.stack([torch.cat([torch.zeros(i), coef_T[: rounds - i]]) for i in range(rounds)], 1).double()
    largest, most = 0.0, k or rounds
    for count in range(1, most + 1):
        for pattern in itertools.combinations(range(rounds), count):
            if all(later - earlier >= b for earlier, later in itertools.pairwise(pattern)):
                moved = float(C_TT[:, list(pattern)].sum(1).norm())
                assert factorisation.realised(torch.tensor(pattern), rounds) == pytest.approx(moved)
                largest = max(largest, moved)
    assert factorisation.sensitivity(rounds, b, k) == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize("noise", ["banded", "blt"])
def test_coefficients_fall_and_have_length_1(noise):
    coef_T = factorise(noise, 60, 7).coefficients(60)
    assert bool((coef_T >= 0).all())
    assert bool((coef_T[1:] <= coef_T[:-1]).all())
    assert float(coef_T.norm()) == pytest.approx(1.0)
    if noise == "banded":
        assert not bool(coef_T[7:].any())
        assert factorise(noise, 60, 7).sensitivity(63, 7) == pytest.approx(math.sqrt(9))


@pytest.mark.parametrize(("rounds", "b", "gain"), [(200, 10, 2.5), (200, 20, 3.3), (200, 50, 4.3), (1000, 50, 5.0)])
def test_correlated_noise_gains_on_the_last_prefix_sum_at_equal_epsilon(rounds, b, gain):
    def last(noise: str) -> float:
        found = factorise(noise, rounds, b)
        return found.sensitivity(rounds, b) * math.sqrt(float(found.prefix_noise(rounds)[-1]))

    assert last("gaussian") / last("banded") >= gain
    assert last("gaussian") / last("blt") >= 0.95 * gain


def test_noise_of_prefix_sums_is_that_of_the_dense_inverse():
    factorisation = factorise("blt", 12, 3)
    coef_T = factorisation.coefficients(12)
    C_TT = torch.stack([torch.cat([torch.zeros(i), coef_T[: 12 - i]]) for i in range(12)], 1).double()
    prefix_TT = torch.ones(12, 12).tril().double() @ torch.linalg.inv(C_TT)
    assert torch.allclose(factorisation.prefix_noise(12), prefix_TT.square().sum(1))
