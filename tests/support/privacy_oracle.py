"""Sensitivities by jax-privacy and ε by dp-accounting, as the stored numbers of tests/parts/test_accountant.py.

    pip install jax-privacy==2.0.0 dp-accounting==0.6.0    # in an environment of their own: they need other versions
    python tests/support/privacy_oracle.py                 # writes privacy_oracle.json beside this file

sensitivities  1,000 rows [T, b, k, coefs, decay, scale, Δ(k, b)]; k = 0: as often as b allows; `coefs` are those of a
               banded matrix, or c_0 alone of a buffered one, not scaled
epsilons       rows [δ, [[noise multiplier, participations], ...], ε] by the privacy loss distribution
discrete       rows [δ, standard deviation, sensitivity, participations, ε] of discrete Gaussian noise, by the same
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_suffix(".json")


def sensitivities(draw: np.random.Generator, count: int) -> list[list[object]]:
    import jax
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

    jax.config.update("jax_enable_x64", True)
    rows: list[list[object]] = []
    for number in range(count):
        rounds = int(draw.integers(1, 301))
        b = int(draw.integers(1, rounds + 1))
        k = int(draw.integers(0, -(-rounds // b) + 2))
        if number % 2:
            width = int(min(rounds, draw.integers(1, 9)))
            falling = np.sort(draw.random(width - 1))[::-1]
            coefs, decay, scale = [1.0, *(round(float(c), 3) for c in falling)], [], []
            full = np.zeros(rounds)
            full[:width] = coefs
        else:
            buffers = int(draw.integers(1, 4))
            coefs = [1.0]
            decay = [round(float(d), 3) for d in draw.uniform(0.05, 0.999, buffers)]
            scale = [round(float(s) / buffers, 3) for s in draw.uniform(0.01, 0.9, buffers)]
            full = buffered_toeplitz.BufferedToeplitz.build(decay, scale).toeplitz_coefs(rounds)
        squared = toeplitz.minsep_sensitivity_squared(jax.numpy.asarray(full), b, k or None, rounds)
        rows.append([rounds, b, k, coefs, decay, scale, float(np.sqrt(squared))])
    return rows


def epsilons(draw: np.random.Generator, count: int) -> list[list[object]]:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    rows: list[list[object]] = []
    for _ in range(count):
        delta = float(10.0 ** -draw.integers(4, 9))
        schedule = [
            [round(float(np.exp(draw.uniform(np.log(0.5), np.log(30)))), 3), int(draw.integers(1, 30))]
            for _ in range(int(draw.integers(1, 4)))
        ]
        accountant = PLDAccountant(value_discretization_interval=1e-4)
        for multiplier, times in schedule:
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier), times)
        rows.append([delta, schedule, float(accountant.get_epsilon(delta))])
    return rows


def discrete(draw: np.random.Generator, count: int) -> list[list[object]]:
    from dp_accounting.pld.privacy_loss_distribution import from_discrete_gaussian_mechanism

    rows: list[list[object]] = []
    for _ in range(count):
        delta, times = float(10.0 ** -draw.integers(4, 9)), int(draw.integers(1, 20))
        sensitivity = int(draw.integers(50, 200))
        deviation = round(float(sensitivity * np.exp(draw.uniform(np.log(0.5), np.log(10)))), 3)
        found = from_discrete_gaussian_mechanism(deviation, sensitivity, value_discretization_interval=1e-4)
        epsilon = float(found.self_compose(times).get_epsilon_for_delta(delta))
        rows.append([delta, deviation, sensitivity, times, epsilon])
    return rows


if __name__ == "__main__":
    generator = np.random.default_rng(0)
    found = {"sensitivities": sensitivities(generator, 1000), "epsilons": epsilons(generator, 60)}
    found["discrete"] = discrete(np.random.default_rng(1), 20)
    lines = [f'"{name}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in found.items()]
    FILE.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
