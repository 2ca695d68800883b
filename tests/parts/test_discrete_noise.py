"""Noise that devices add to secure sums: its distribution, what a sum of it reveals, and the round that uses it."""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import turnout as to
from turnout.errors import UserError
from turnout.parts.privacy.accountant import epsilon_of
from turnout.parts.privacy.discrete import BASE, STRIDE, PrivateSum, _table, discrete_gaussian, sum_rule
from turnout.parts.secure import HALF, SecureSum
from turnout.running.config.read import from_table, to_toml
from turnout.runtimes.secure_sum import (
    SumLost,
    _stream,
    simulated_noise_key,
    whole_numbers,
)
from worlds import local_updates, play, ready, world

STORED = json.loads((Path(__file__).parents[1] / "support" / "privacy_oracle.json").read_text(encoding="utf-8"))
DELTA = 1e-5


def words(name: str):
    return _stream(name.encode().ljust(32, b"."), torch.int64)


def probabilities(variance: float, reach: float = 9.0) -> np.ndarray:
    """P(y) ∝ exp(-y² / (2 variance)), y from -most to most."""
    most = math.ceil(reach * math.sqrt(variance))
    weight = np.exp(-(np.arange(-most, most + 1.0) ** 2) / (2 * variance))
    return weight / weight.sum()


def of_devices(variance: float, devices: int) -> np.ndarray:
    """The distribution of the sum of the noise of so many devices."""
    one, found = probabilities(variance), np.ones(1)
    for _ in range(devices):
        found = np.convolve(found, one)
    return found


def moved(noise: np.ndarray, by: int) -> tuple[np.ndarray, np.ndarray]:
    """The distributions of noise, and of noise plus a whole number."""
    none = np.zeros(by)
    return np.concatenate([noise, none]), np.concatenate([none, noise])


def exact_delta(pairs: list[tuple[np.ndarray, np.ndarray]], epsilon: float) -> float:
    """δ of several independent releases, over all their results: the larger of both directions."""
    with_it, without = np.ones(1), np.ones(1)
    for a, b in pairs:
        with_it, without = np.outer(with_it, a).ravel(), np.outer(without, b).ravel()
    ways = ((with_it, without), (without, with_it))
    return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in ways)


# -- the distribution


@pytest.mark.parametrize("variance", [16.0, 37.5, 1000.0, 4 * BASE**2])
def test_a_table_has_the_probabilities_of_the_distribution(variance):
    least, threshold = _table(variance)
    edges = [-(2**63), *threshold.tolist(), 2**63]
    found = np.array([float(b - a) for a, b in itertools.pairwise(edges)]) / 2.0**64
    np.testing.assert_allclose(found, probabilities(variance), rtol=1e-12, atol=2.0**-63)
    assert least == -(len(threshold) // 2)


def test_a_wide_distribution_is_one_narrow_one_plus_a_stride_times_another():
    """Each probability of the sum, up to 6 standard deviations, where tables are not cut off yet."""
    variance = (3 * BASE) ** 2
    low, high = probabilities(BASE**2), probabilities((variance - BASE**2) / STRIDE**2)
    spread = np.zeros(STRIDE * (len(high) - 1) + 1)
    spread[::STRIDE] = high
    found, middle = np.convolve(low, spread), (len(low) + len(spread) - 2) // 2
    reach = int(6 * math.sqrt(variance))
    y = np.arange(-reach, reach + 1)
    weight = np.exp(-(y.astype(float) ** 2) / (2 * variance))
    expected = weight * probabilities(variance).max()
    np.testing.assert_allclose(found[middle - reach : middle + reach + 1], expected, rtol=1e-9)


@pytest.mark.parametrize("variance", [16.0, (3 * BASE) ** 2, 3.7e14])
def test_draws_are_whole_numbers_of_that_distribution(variance):
    draws = discrete_gaussian(variance, 200_000, words("draws"))
    assert draws.dtype == torch.int64
    value = draws.double() / math.sqrt(variance)
    assert abs(float(value.mean())) < 4 / 200_000**0.5
    assert abs(float(value.square().mean()) - 1) < 4 * (2 / 200_000) ** 0.5
    assert abs(float(value.pow(4).mean()) - 3) < 4 * (96 / 200_000) ** 0.5
    if variance > STRIDE**2:  # no remainder is more frequent than another
        counts, expected = torch.bincount(draws % STRIDE).double().numpy(), np.full(STRIDE, 200_000 / STRIDE)
    else:
        counts, expected = torch.bincount(draws + 40, minlength=81).numpy(), 200_000 * probabilities(16.0, 10.0)
    usual = expected > 10
    squared = float(((counts - expected)[usual] ** 2 / expected[usual]).sum())
    assert abs(squared - usual.sum()) < 5 * math.sqrt(2 * usual.sum())  # chi-square


@pytest.mark.parametrize("devices", [2, 3, 10])
def test_the_noise_of_several_devices_is_discrete_gaussian_too(devices):
    """From 4 steps of standard deviation on; with 0.5 it is not."""

    def error(variance: float) -> float:
        found, most = of_devices(variance, devices), int(6 * math.sqrt(devices * variance))
        middle = len(found) // 2
        y = np.arange(-most, most + 1.0)
        weight = np.exp(-(y**2) / (2 * devices * variance))
        expected = weight / np.exp(-(np.arange(-9 * most, 9 * most + 1.0) ** 2) / (2 * devices * variance)).sum()
        return float(np.abs(found[middle - most : middle + most + 1] / expected - 1).max())

    assert error(16.0) < 1e-9
    assert error(0.25) > 1e-2


# -- what a sum reveals


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("honest", [1, 3, 10])
def test_epsilon_is_that_of_gaussian_noise_and_bounds_the_exact_one(multiplier, honest):
    """One whole number that one client moves by C = 200, all of its results counted: with the noise of the fewest
    honest devices δ is not above the stated one, and ε is not much above what is needed."""
    steps, epsilon = 200, epsilon_of(1 / multiplier, DELTA)
    pair = moved(of_devices((multiplier * steps) ** 2 / honest + 16, honest), steps)
    assert exact_delta([pair], epsilon) <= DELTA * (1 + 1e-9)
    assert exact_delta([pair], 0.97 * epsilon) > DELTA
    one_less = moved(of_devices((multiplier * steps) ** 2 / (honest + 1) + 16, honest), steps)
    assert exact_delta([one_less], epsilon) > DELTA  # noise for one honest device more than there are


@pytest.mark.parametrize("shift", [(30, 0), (18, 24), (21, 21)])
def test_the_length_of_what_a_client_moves_is_what_counts(shift):
    """Two entries, or two rounds, of which the client moves both."""
    noise, epsilon = of_devices(30.0**2 / 2 + 16, 2), epsilon_of(1.0, DELTA)
    assert exact_delta([moved(noise, by) for by in shift], epsilon) <= DELTA
    epsilon_of_two = epsilon_of(math.sqrt(2), DELTA)
    both = [moved(noise, 30), moved(noise, 30)]
    assert exact_delta(both, epsilon) > DELTA >= exact_delta(both, epsilon_of_two)


def test_epsilon_is_that_of_dp_accounting_for_discrete_gaussian_noise():
    assert len(STORED["discrete"]) == 20
    for delta, deviation, sensitivity, times, epsilon in STORED["discrete"]:
        mu = sensitivity * math.sqrt(times) / math.sqrt(deviation**2 - 16)
        assert epsilon * (1 - 1e-3) <= epsilon_of(mu, delta) <= epsilon * (1 + 6e-3)
        assert epsilon_of(mu * math.sqrt(1 - 16 / deviation**2), delta) == pytest.approx(epsilon, rel=1e-3)


# -- clip, round, add noise


RULE = PrivateSum(least=6, dropout=0.5, corrupt=0.1, clip=0.8, multiplier=1.5)


def rows(clients: int, entries: int, length: float) -> torch.Tensor:
    value_RV = torch.randn(clients, entries, generator=torch.Generator().manual_seed(entries), dtype=torch.float64)
    return value_RV * length / value_RV.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("entries", [1, 3, 2000])
def test_whole_numbers_are_never_longer_than_the_clip(entries):
    rule, clients = PrivateSum(least=40_000, corrupt=0.0, clip=1.0, multiplier=1.0), 5_000_000  # steps are wide
    step = rule.step(clients)
    halves_RV = (torch.randint(0, 400 // entries + 1, (50, entries)).double() + 0.5) * step  # rounding away from 0
    for value_RV in (rows(50, entries, 0.1), rows(50, entries, 0.999), rows(50, entries, 9.0), halves_RV, -halves_RV):
        whole_RV = rule.encode(value_RV, clients).double()
        assert float(whole_RV.norm(dim=1).max()) * step <= rule.clip
        assert bool((whole_RV == whole_RV.round()).all())
    short_RV = rows(50, entries, 0.1)
    assert float((rule.decode(rule.encode(short_RV, clients), clients) - short_RV).abs().max()) <= step / 2
    lost = step * (math.sqrt(entries) / 2 + 1)
    long_R = (rule.decode(rule.encode(rows(50, entries, 9.0), clients), clients)).norm(dim=1)
    assert float(long_R.min()) >= 1.0 - 2 * lost


@pytest.mark.parametrize("clients", [6, 20, 59])
def test_a_sum_of_the_longest_updates_with_noise_does_not_wrap_around(clients):
    at_one_RV = torch.tensor([[RULE.clip * 2, 0.0]]).repeat(clients, 1)
    total = int(RULE.encode(at_one_RV, clients)[:, 0].sum())
    assert total + 10 * math.sqrt(clients * RULE.variance(clients)) <= HALF
    assert total + 10 * math.sqrt(clients * RULE.variance(clients)) > 0.999 * HALF  # no room is left unused


def test_the_fewest_survivors_less_those_that_collude_have_all_the_noise():
    """least = 6 with 12 asked: 5 honest ones add up to σ²; with 30 asked, 3 do."""
    for asked, honest in ((12, 5), (30, 3), (59, 1)):
        assert RULE.honest(asked) == honest
        together = honest * (RULE.variance(asked) - 16) * RULE.step(asked) ** 2
        assert together == pytest.approx((RULE.multiplier * RULE.clip) ** 2, rel=1e-9)


# -- a round


STEPS = to.Local(to.SGD(lr=0.1), steps=4, batch_size=4)
COUNTS, FRACTIONS = [8, 12, 4, 16], (1.0, 0.5, 0.0, 1.0)  # of 4 steps: 4, 2, none, 4
SECURE = SecureSum(least=2, dropout=0.4, corrupt=0.0)


def private(**settings) -> to.Private:
    return to.Private(**({"clip": 0.2, "n0": 5.0, "delta": 1e-3, "noise_multiplier": 0.7} | settings))


def secure_world(*fractions: float, **algorithm) -> to.Experiment:
    settings = {"privacy": private(), "secure": SECURE, "membership": to.Membership(join="vanilla")} | algorithm
    return world(COUNTS, *(fractions or FRACTIONS), local=STEPS, **settings)


@pytest.mark.parametrize(
    ("weighting", "factors", "after"),
    [
        (to.weighting.FedAvg(), [1, 1, 0, 1], 1.0),
        (to.weighting.ByWork(), [1, 2, 0, 1], 1.0),  # E / s inside the clip
        (to.weighting.CompleteOnly(), [1, 0, 0, 1], 4 / 2),  # N / K after the noise
        (to.weighting.FedNova(), [1 / 4, 1 / 2, 0, 1 / 4], (10 / 3) * (4 / 3)),  # τ_eff N / K after the noise
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_round_is_the_sum_of_clipped_and_noised_updates(weighting, factors, after):
    """Σ_k (round(clip(f_k u_k) / u) + noise_k) u · after / n0, noise by the addresses (seed, round, client)."""
    experiment = secure_world(weighting=weighting)
    prepared = ready(experiment)
    updates = local_updates(prepared)
    parts = {k: f * u for k, (f, u) in enumerate(zip(factors, updates, strict=True)) if f}
    clip = (min(float(u.norm()) for u in parts.values()) + max(float(u.norm()) for u in parts.values())) / 2
    prepared = ready(experiment.but(**{"algorithm.privacy.clip": clip}))
    rule = sum_rule(prepared.algorithm)
    assert isinstance(rule, PrivateSum)
    honest, d = 2, len(prepared.server.shared_P)
    u = clip * (4 + 10 * 0.7 * math.sqrt(4 / honest)) / (2**31 - 40 * math.sqrt(4))
    assert rule.step(4) == pytest.approx(u, rel=1e-12)
    total = torch.zeros(d, dtype=torch.float64)
    for k, vector in parts.items():
        most = clip - u * (math.sqrt(d) / 2 + 1)
        kept = vector.double() * min(1.0, most / float(vector.norm()))
        noise = discrete_gaussian(
            (0.7 * clip / u) ** 2 / honest + 16, d, _stream(simulated_noise_key(experiment.seed, 0, k), torch.int64)
        )
        total += ((kept / u).round() + noise) * u
    server, records = play(prepared)
    torch.testing.assert_close(server.shared_P - prepared.server.shared_P, total * after / 5.0)
    assert records[0].extra["epsilon"] == pytest.approx(epsilon_of(1 / 0.7, 1e-3))
    assert records[0].counted == len(parts)
    assert math.isnan(records[0].train_loss)  # a mean loss would be a release of its own


def test_a_secure_private_run_ends_like_a_private_one_and_is_repeatable(tmp_path):
    """The same clip, divisor and ε; the noise is another, and `secret` draws it anew each time."""
    experiment = secure_world().but(rounds=4)
    quiet = {"algorithm.privacy.noise_multiplier": 1e-9}
    plain = play(ready(experiment, **quiet, **{"algorithm.secure": None}), 4)
    sums = play(ready(experiment, **quiet), 4)
    torch.testing.assert_close(plain[0].shared_P, sums[0].shared_P, atol=1e-6, rtol=0)
    assert [r.extra["epsilon"] for r in plain[1]] == [r.extra["epsilon"] for r in sums[1]]
    assert [r.extra["epsilon_realised"] for r in plain[1]] == [r.extra["epsilon_realised"] for r in sums[1]]
    first, second = (play(ready(experiment), 4)[0].shared_P for _ in range(2))
    assert torch.equal(first, second)
    secret = [play(ready(experiment, **{"algorithm.privacy.secret": True}), 4)[0].shared_P for _ in range(2)]
    assert not torch.equal(secret[0], secret[1])
    run = to.run(experiment.but(**{"algorithm.privacy.secret": True}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "noise.key").exists()  # the server adds no noise
    assert run.rounds() == 4


def test_separation_is_enforced_as_in_other_private_runs():
    experiment = secure_world(1.0, 1.0, 1.0, 1.0, privacy=private(min_separation=2, most=2)).but(rounds=6)
    _, records = play(ready(experiment), 6)
    assert [r.counted for r in records] == [4, 0, 4, 0, 0, 0]


def test_a_round_without_enough_clients_for_the_noise_is_lost_in_words():
    """Of 30 clients 3 may be corrupt, and a sum needs 3 only: refused before the run and, for one round, by clients."""
    weak = PrivateSum(least=3, corrupt=0.1, clip=1.0, multiplier=1.0)
    with pytest.raises(SumLost, match="set least to 4 or more"):
        whole_numbers(weak, torch.ones(2, 3), 30, [bytes(32)] * 2)
    with pytest.raises(UserError, match=r"least = 2 beside algorithm\.privacy: of 4 devices, 2 may be corrupt"):
        ready(secure_world(secure=SecureSum(least=2, dropout=0.1, corrupt=0.5)))


def test_too_many_devices_for_the_whole_numbers_are_refused_with_numbers():
    rule = PrivateSum(least=2000, corrupt=0.0, clip=0.5, multiplier=1.0)
    rule.check(100_000, 1_000_000)
    with pytest.raises(UserError, match=r"sums of 1,000,000 devices .* 4,000,000 entries .* takes 47% of privacy.clip"):
        rule.check(1_000_000, 4_000_000)


REFUSED = {
    "noise = 'banded'": {"privacy": private(noise="banded", min_separation=2)},
    "noise = 'blt'": {"privacy": private(noise="blt", min_separation=2)},
    "quantile": {"privacy": private(quantile=0.5)},
    "substitution = Spread": {"substitution": to.substitution.Spread()},
    "terms": {"terms": [to.terms.Scaffold()]},
    "scale_at": {"scale_at": "server"},
}


@pytest.mark.parametrize("what", REFUSED)
def test_parts_that_devices_cannot_do_are_refused_by_name_with_an_alternative(what):
    with pytest.raises(UserError, match=rf"algorithm\.(privacy\.)?{what}") as refused:
        secure_world(**REFUSED[what])
    assert any(word in str(refused.value) for word in ("use ", "leave ", "give "))


def test_a_file_has_both():
    text = {"membership": {"join": "vanilla"}, "secure": {"least": 10}, "privacy": vars(private()) | {"clip": 0.5}}
    text["privacy"] = {name: value for name, value in text["privacy"].items() if value is not None}
    found = from_table({"algorithm": text})
    assert isinstance(sum_rule(found.but(**{"algorithm.privacy.rounds": 5}).algorithm), PrivateSum)
    assert from_table(tomllib.loads(to_toml(found))) == found
