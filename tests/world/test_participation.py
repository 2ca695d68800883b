"""Participation: published moments, exact counts, stationarity, addressing, and the speed a round can afford."""

from __future__ import annotations

import math
import time
from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnout.errors import UserError
from turnout.rng import uniform
from turnout.world.participation import (
    Always,
    Dropout,
    GroupDropout,
    Homogeneous,
    OnOff,
    Participation,
    Stratified,
    Traces,
    _tilt,
    divide,
)
from turnout.world.traces import TABLE_2, max_entropy, probabilities

KINDS: list[Participation] = [
    Always(),
    Traces(first=8),
    Traces(names=("T0", "Tlo")),
    Homogeneous("T70"),
    Dropout(0.4),
    Dropout(0.4, when_up=Traces()),
    OnOff(5, 2),
    OnOff(1, 1.5, when_up=Homogeneous("T30")),
]


# -- all kinds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_client_answers_the_same_whoever_else_is_asked(kind: Participation) -> None:
    everyone = torch.arange(300)
    some = torch.tensor([299, 4, 17])
    later = kind.fraction(everyone, 9, 5, seed=3)
    kind.fraction(everyone, 2, 5, seed=3)
    assert torch.equal(kind.fraction(some, 9, 5, seed=3), later[some])
    assert later.dtype == torch.float64
    assert ((later >= 0) & (later <= 1)).all()


@pytest.mark.parametrize("kind", KINDS[1:], ids=str)
def test_rounds_and_seeds_differ(kind: Participation) -> None:
    clients = torch.arange(200)
    first = kind.fraction(clients, 0, 5, seed=0)
    assert not torch.equal(first, kind.fraction(clients, 1, 5, seed=0))
    assert not torch.equal(first, kind.fraction(clients, 0, 5, seed=1))


@pytest.mark.parametrize("kind", [*KINDS, Stratified(0.3)], ids=str)
def test_nobody_asked_is_nobody(kind: Participation) -> None:
    assert kind.fraction(torch.empty(0, dtype=torch.int64), 0, 5, seed=0).shape == (0,)


@pytest.mark.parametrize("kind", [*KINDS, Stratified(0.3)], ids=str)
def test_a_cohort_costs_its_own_size_and_not_the_population_s(kind: Participation) -> None:
    def spent(clients: torch.Tensor, population: int) -> float:
        groups, found = torch.arange(population) // (population // 20), []
        for t in range(10):
            begin = time.thread_time()  # its own work, however busy the machine is
            kind.fraction(clients, t, 5, seed=0, groups=groups)
            found.append(time.thread_time() - begin)
        return min(found)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        small, large = spent(torch.arange(10_000), 10_000), spent(torch.arange(0, 1_000_000, 100), 1_000_000)
    finally:
        torch.set_num_threads(threads)
    assert large < 3 * small


def test_always_is_all_the_work() -> None:
    assert Always().fraction(torch.tensor([3, 8]), 0, 5, 0).tolist() == [1.0, 1.0]


# -- traces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full_work", [5, 6, 10, 37, 600])
@pytest.mark.parametrize("name", TABLE_2)
def test_surrogates_have_the_moments_of_table_2(name: str, full_work: int) -> None:
    mean, std, inactive = TABLE_2[name]
    p = probabilities(name, full_work)
    x = np.arange(full_work + 1) / full_work
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert p @ x == pytest.approx(mean, abs=1e-8)
    assert math.sqrt(max(p @ x**2 - (p @ x) ** 2, 0)) == pytest.approx(std, abs=1e-8)
    assert p[0] == (0.05 if inactive else 0.0)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("T0", [0, 0, 0, 0, 0, 1]),
        ("T30", [0, 0.001, 0.034, 0.312, 0.506, 0.147]),
        ("T50", [0, 0.000, 0.035, 0.580, 0.376, 0.010]),
        ("T70", [0, 0.005, 0.236, 0.655, 0.103, 0.001]),
        ("T90", [0, 0.027, 0.295, 0.521, 0.150, 0.007]),
        ("Thi", [0.05, 0.000, 0.007, 0.101, 0.400, 0.441]),
        ("Tmi", [0.05, 0.000, 0.023, 0.241, 0.492, 0.194]),
        ("Tlo", [0.05, 0.034, 0.331, 0.480, 0.102, 0.003]),
    ],
)
def test_five_epochs_have_the_known_probabilities(name: str, want: list[float]) -> None:
    assert probabilities(name, 5) == pytest.approx(np.array(want), abs=1e-3)


@pytest.mark.parametrize("name", [n for n in TABLE_2 if n != "T0"])
def test_surrogates_have_the_form_of_maximum_entropy(name: str) -> None:
    """log p(x) is a parabola on the grid: its third differences vanish."""
    log_p = np.log(probabilities(name, 8)[1:])
    assert np.diff(log_p, n=3) == pytest.approx(np.zeros(5), abs=1e-6)


@pytest.mark.parametrize("full_work", [2, 3, 4])
@pytest.mark.parametrize("name", TABLE_2)
def test_few_units_keep_the_mean_and_come_near_the_deviation(name: str, full_work: int) -> None:
    mean, std, _ = TABLE_2[name]
    p, x = probabilities(name, full_work), np.arange(full_work + 1) / full_work
    assert (p >= 0).all()
    assert p @ x == pytest.approx(mean, abs=1e-8)
    assert math.sqrt(max(p @ x**2 - mean**2, 0)) == pytest.approx(std, abs=0.14)
    if full_work == 4 and name != "T50":  # (.672 - .5)(.75 - .672) is above .113 squared: out of reach
        assert math.sqrt(max(p @ x**2 - mean**2, 0)) == pytest.approx(std, abs=1e-8)


@given(st.integers(2, 40), st.floats(0.05, 0.95), st.floats(0.02, 0.98))
def test_any_reachable_moments_are_met(points: int, where: float, spread: float) -> None:
    grid = np.arange(1, points + 1) / points
    mean = grid[0] + where * (grid[-1] - grid[0])
    below = int(np.searchsorted(grid, mean, side="right")) - 1
    smallest = (mean - grid[below]) * (grid[min(below + 1, points - 1)] - mean)
    variance = smallest + spread * ((mean - grid[0]) * (grid[-1] - mean) - smallest)
    p = max_entropy(grid, mean, variance)
    assert (p >= 0).all()
    assert p @ grid == pytest.approx(mean, abs=1e-8)
    assert p @ (grid - mean) ** 2 == pytest.approx(variance, abs=1e-8)


def test_draws_follow_the_distribution() -> None:
    work = torch.cat([Homogeneous("Tmi").fraction(torch.arange(5000), t, 5, seed=2) for t in range(8)])
    seen = torch.bincount((work * 5).round().to(torch.int64), minlength=6).numpy() / len(work)
    p = probabilities("Tmi", 5)
    assert np.abs(seen - p).max() < 4 * math.sqrt(0.25 / len(work))


def test_every_trace_is_given_to_as_many_clients_and_kept() -> None:
    traces = Traces(first=8)
    given_C = traces.trace(torch.arange(40_000), seed=1)
    per_trace = torch.bincount(given_C, minlength=8).double()
    assert float(((per_trace - 5000) ** 2 / 5000).sum()) < 7 + 4 * math.sqrt(14)
    work = torch.stack([traces.fraction(torch.arange(2000), t, 5, seed=1) for t in range(100)]).mean(0)
    for k, name in enumerate(TABLE_2):
        assert float(work[given_C[:2000] == k].mean()) == pytest.approx(TABLE_2[name][0], abs=0.01)


def test_no_client_is_inactive_in_the_first_five() -> None:
    work = torch.stack([Traces(first=5).fraction(torch.arange(1000), t, 5, seed=0) for t in range(20)])
    assert float(work.min()) >= 0.2
    assert Traces() == Traces(names=())
    assert Traces().chosen == ("T0", "T30", "T50", "T70", "T90")


def test_one_unit_has_no_parts() -> None:
    with pytest.raises(UserError, match="at least 2"):
        Traces().fraction(torch.arange(3), 0, 1, 0)
    assert Homogeneous("T0").fraction(torch.arange(3), 0, 1, 0).tolist() == [1, 1, 1]


# -- dropout -----------------------------------------------------------------------------------------------------


def test_dropout_is_independent_with_its_rate() -> None:
    up = torch.stack([Dropout(0.3).fraction(torch.arange(2000), t, 5, seed=0) for t in range(40)])
    assert float(up.mean()) == pytest.approx(0.7, abs=4 * math.sqrt(0.21 / up.numel()))
    both = float((up[1:] * up[:-1]).mean())
    assert both == pytest.approx(0.49, abs=0.01)
    assert set(up.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("kind", [Dropout(0.9, full_first_round=True), Stratified(0.9, full_first_round=True)])
def test_the_first_round_can_be_full(kind: Participation) -> None:
    clients = torch.arange(100)
    assert kind.fraction(clients, 0, 5, 0).tolist() == [1.0] * 100
    assert float(kind.fraction(clients, 1, 5, 0).mean()) < 0.3


@pytest.mark.parametrize("kind", [Dropout, Stratified])
def test_when_up_says_how_much_the_present_finish(kind: type[Dropout] | type[Stratified]) -> None:
    clients = torch.arange(500)
    bare, composed = (kind(0.4, when_up=w).fraction(clients, 3, 5, 0) for w in (None, Traces()))
    assert torch.equal(bare > 0, composed > 0)
    assert torch.equal(composed, bare * Traces().fraction(clients, 3, 5, 0))


# -- stratified --------------------------------------------------------------------------------------------------


@given(
    clients=st.lists(st.integers(0, 99), min_size=1, max_size=60, unique=True),
    groups=st.integers(1, 12),
    rate=st.floats(0, 1),
    t=st.integers(0, 100),
)
def test_stratified_keeps_the_count_and_every_group(clients: list[int], groups: int, rate: float, t: int) -> None:
    client_C, group = torch.tensor(clients), torch.arange(100) % groups
    up = Stratified(rate).fraction(client_C, t, 2, seed=0, groups=group)
    want = round((1 - rate) * len(clients))
    assert int(up.sum()) == want
    kept = Counter(group[client_C[up > 0]].tolist())
    asked = set(group[client_C].tolist())
    if want >= len(asked):
        assert set(kept) == asked
    else:
        assert max(kept.values(), default=0) <= 1


@pytest.mark.parametrize(("sizes", "places"), [([4, 4, 4], 6), ([4, 4, 4], 9), ([1, 2, 5, 3], 7), ([3, 3], 1)])
def test_counts_per_group_are_uniform_over_the_allowed(sizes: list[int], places: int) -> None:
    """SPEC 1.3, FDMS 3: integers in [1, size] with the right sum, by rejection, so all such lists alike."""
    least = 1 if places >= len(sizes) else 0
    ranges = [range(least, (size if least else 1) + 1) for size in sizes]
    allowed = [c for c in product(*ranges) if sum(c) == places]
    rounds = 400 * len(allowed)
    seen = Counter(tuple(divide(torch.tensor(sizes), places, t, seed=5).tolist()) for t in range(rounds))
    assert set(seen) <= set(allowed)
    statistic = sum((seen[c] - 400) ** 2 / 400 for c in allowed)
    assert statistic < (len(allowed) - 1) + 4 * math.sqrt(2 * len(allowed))


@pytest.mark.parametrize(("most", "total"), [([3, 3, 8, 5], 4), ([1, 40], 9), ([2] * 30, 12)])
def test_counts_are_proposed_with_the_right_sum_on_average(most: list[int], total: int) -> None:
    """Σ_g Σ_n n exp(tilt n) / Σ_n exp(tilt n) = total, n in 0..most_g; with another tilt most proposals are lost."""
    tilt = _tilt(torch.tensor(most), total)
    weights = [np.exp(tilt * np.arange(n + 1)) for n in most]
    assert sum(w @ np.arange(len(w)) / w.sum() for w in weights) == pytest.approx(total, rel=1e-6)


def test_within_a_group_everyone_is_kept_alike() -> None:
    up = torch.stack([Stratified(0.5).fraction(torch.arange(10), t, 2, seed=0) for t in range(4000)])
    assert (up.sum(1) == 5).all()
    assert up.mean(0).numpy() == pytest.approx(np.full(10, 0.5), abs=4 * 0.5 / math.sqrt(4000))


@pytest.mark.parametrize(("rate", "active"), [(0.3, 14), (0.5, 10), (0.7, 6)])
def test_the_clustered_setting_of_paper_003(rate: float, active: int) -> None:
    group = torch.arange(20) // 4
    for t in range(50):
        up = Stratified(rate).fraction(torch.arange(20), t, 2, seed=1, groups=group).view(5, 4).sum(1)
        assert int(up.sum()) == active
        assert 1 <= int(up.min()) <= int(up.max()) <= 4


# -- on and off --------------------------------------------------------------------------------------------------


def _runs(up_RC: torch.Tensor) -> tuple[float, float]:
    """Mean lengths of the runs of ups and of downs that begin and end inside the window."""
    lengths: dict[bool, list[int]] = {True: [], False: []}
    for column in up_RC.bool().T.tolist():
        change = [0] + [i for i in range(1, len(column)) if column[i] != column[i - 1]] + [len(column)]
        for a, b in list(pairwise(change))[1:-1]:
            lengths[column[a]].append(b - a)
    return float(np.mean(lengths[True])), float(np.mean(lengths[False]))


@pytest.mark.parametrize(("mean_up", "mean_down"), [(6.0, 3.0), (1.25, 1.5), (1.0, 3.0), (2.0, 2.0)])
def test_on_off_has_its_mean_runs_and_is_stationary(mean_up: float, mean_down: float) -> None:
    clients = torch.arange(400)
    up_RC = torch.stack([OnOff(mean_up, mean_down).fraction(clients, t, 5, seed=4) for t in range(200)])
    runs_up, runs_down = _runs(up_RC)
    assert runs_up == pytest.approx(mean_up, rel=0.06)
    assert runs_down == pytest.approx(mean_down, rel=0.06)
    assert float(up_RC.mean()) == pytest.approx(mean_up / (mean_up + mean_down), abs=0.02)


@pytest.mark.parametrize("t", [0, 1, 1000])
@pytest.mark.parametrize(("mean_up", "mean_down"), [(50.0, 20.0), (1.1, 1.2)])
def test_on_off_starts_in_its_long_run(mean_up: float, mean_down: float, t: int) -> None:
    share = float(OnOff(mean_up, mean_down).fraction(torch.arange(20_000), t, 5, seed=0).mean())
    want = mean_up / (mean_up + mean_down)
    assert share == pytest.approx(want, abs=4 * math.sqrt(want * (1 - want) / 20_000))


@pytest.mark.parametrize(("mean_up", "mean_down"), [(6.0, 3.0), (1.25, 1.5)])
def test_on_off_equals_the_chain_walked_forward(mean_up: float, mean_down: float) -> None:
    """From the state of round t, u_{t+1} decides the next: up if u < 1 - 1/mean_up, or 1/mean_down when down."""
    clients = torch.arange(500)
    chain = OnOff(mean_up, mean_down)
    up = chain.fraction(clients, 0, 1, seed=8) > 0
    for t in range(1, 30):
        bound = torch.where(up, 1 - 1 / mean_up, 1 / mean_down)
        up = uniform(8, "onoff", t, ids=clients) < bound
        assert torch.equal(up, chain.fraction(clients, t, 1, seed=8) > 0)


def test_on_off_composes() -> None:
    clients = torch.arange(300)
    bare = OnOff(5, 2).fraction(clients, 7, 5, 0)
    assert torch.equal(
        OnOff(5, 2, when_up=Traces()).fraction(clients, 7, 5, 0), bare * Traces().fraction(clients, 7, 5, 0)
    )


# -- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Traces(first=0), "1 to 8"),
        (lambda: Traces(first=9), "1 to 8"),
        (lambda: Traces(first=2, names=("T0",)), "not both"),
        (lambda: Traces(names=("T33",)), "did you mean 'T30'"),
        (lambda: Traces(absence=0.2), "0 to 0.06"),
        (lambda: Homogeneous("Tlow"), "did you mean 'Tlo'"),
        (lambda: Dropout(1.2), "rate=1.2"),
        (lambda: Stratified(-0.1), "rate=-0.1"),
        (lambda: OnOff(0.5, 3), "1 or more"),
        (lambda: OnOff(3, math.inf), "1 or more"),
        (lambda: OnOff(1, 1), "alternate for ever"),
    ],
)
def test_impossible_settings_are_refused(make: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()  # type: ignore[operator]


# -- absence by group --------------------------------------------------------------------------------------------


def test_a_group_is_absent_as_often_as_its_rate_says() -> None:
    groups, rates = torch.arange(3000) % 3, (0.8, 0.0, 0.25)
    shown_C = sum(GroupDropout(rates).fraction(torch.arange(3000), t, 5, seed=4, groups=groups) for t in range(20)) / 20
    for group, rate in enumerate(rates):
        assert (
            abs(float(shown_C[groups == group].mean()) - (1 - rate)) < 4 * math.sqrt(rate * (1 - rate) / 20_000) + 1e-9
        )


def test_a_client_s_absence_depends_on_its_own_group_only() -> None:
    groups = torch.tensor([0, 1, 0, 1])
    work_C = GroupDropout((0.5, 0.5)).fraction(torch.tensor([1, 3]), t=2, full_work=1, seed=0, groups=groups)
    other_C = GroupDropout((0.9, 0.5)).fraction(torch.arange(4), t=2, full_work=1, seed=0, groups=groups)
    assert torch.equal(work_C, other_C[[1, 3]])


@pytest.mark.parametrize("groups", [None, torch.tensor([0, 0, 1, 2])])
def test_rates_are_those_of_the_groups_of_the_data(groups: torch.Tensor | None) -> None:
    with pytest.raises(UserError, match=r"2 rates.*(0|3) groups"):
        GroupDropout((0.5, 0.5)).fraction(torch.arange(4), t=0, full_work=1, seed=0, groups=groups)
    with pytest.raises(UserError, match=r"1\.5"):
        GroupDropout((0.5, 1.5))
