"""Selection: sizes, uniformity, addressing, and that a million members cost what the cohort costs."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from turnout.errors import UserError
from turnout.parts.selection import Count, Everyone, Fraction, Selection, chosen
from turnout.rng import draw
from turnout.types import State
from turnout.world.members import Members
from turnout.world.participation import finished


@given(among=st.integers(0, 60), share=st.floats(0, 1), t=st.integers(0, 10**6), seed=st.integers(0, 2**31))
def test_a_draw_is_sorted_distinct_and_in_range(among: int, share: float, t: int, seed: int) -> None:
    count = int(share * among)
    drawn = draw(count, among, t, seed).tolist()
    assert len(drawn) == count
    assert drawn == sorted(set(drawn))
    assert all(0 <= i < among for i in drawn)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_subset_is_equally_likely(count: int) -> None:
    """Chi-square over all n subsets: with n - 1 degrees of freedom, below mean + 4 std."""
    rounds, subsets = 6000, math.comb(6, count)
    seen = Counter(tuple(draw(count, 6, t, seed=1).tolist()) for t in range(rounds))
    expected = rounds / subsets
    statistic = sum((seen[s] - expected) ** 2 / expected for s in seen) + (subsets - len(seen)) * expected
    assert statistic < (subsets - 1) + 4 * math.sqrt(2 * (subsets - 1))


def test_members_of_a_large_population_are_asked_uniformly() -> None:
    drawn = torch.cat([draw(500, 1_000_000, t, seed=3) for t in range(40)]).double() / 1_000_000
    per_tenth = torch.histc(drawn, bins=10, min=0, max=1)
    assert float(((per_tenth - 2000) ** 2 / 2000).sum()) < 9 + 4 * math.sqrt(18)
    assert abs(float(drawn.mean()) - 0.5) < 4 / math.sqrt(12 * 20_000)


@pytest.mark.parametrize("selection", [Everyone(), Fraction(0.3), Count(7)])
def test_only_members_and_the_same_again(selection: Selection) -> None:
    members = Members(20).leave(4).leave(19).join(33)
    first = selection.choose(members, t=5, seed=2)
    assert first.dtype == torch.int64
    assert members.which(first).all()
    assert torch.equal(first, selection.choose(members, t=5, seed=2))


def test_rounds_and_seeds_differ() -> None:
    members = Members(1000)
    cohorts = {tuple(Count(10).choose(members, t, seed).tolist()) for t in range(5) for seed in range(5)}
    assert len(cohorts) == 25


@pytest.mark.parametrize(
    ("share", "clients", "asked"), [(0.1, 50, 5), (0.01, 20, 1), (1.0, 7, 7), (0.25, 10, 2), (0.5, 0, 0)]
)
def test_fraction_is_rounded_and_at_least_one(share: float, clients: int, asked: int) -> None:
    assert len(Fraction(share).choose(Members(clients), 0, 0)) == asked


def test_everyone_is_everyone() -> None:
    assert Everyone().choose(Members(5).leave(0), 3, 0).tolist() == [1, 2, 3, 4]


def test_asking_a_million_costs_what_the_cohort_costs() -> None:
    members = Members(1_000_000)
    Count(100).choose(members, 0, 0)
    begin = time.perf_counter()
    for t in range(50):
        assert len(Count(100).choose(members, t, 0)) == 100
    assert (time.perf_counter() - begin) / 50 < 0.01


def test_asking_for_more_than_there_are_names_both_numbers() -> None:
    with pytest.raises(UserError, match=r"clients=30.* 20 "):
        Count(30).choose(Members(20), 0, 0)
    with pytest.raises(UserError, match=r"clients=30.* 20 "):
        Count(30).check(20)


def test_members_who_left_do_not_stop_a_run() -> None:
    assert Count(5).choose(Members(5).leave(2), 0, 0).tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("make", [lambda: Fraction(0.0), lambda: Fraction(1.5), lambda: Count(0)])
def test_impossible_settings_are_refused(make: object) -> None:
    with pytest.raises(UserError, match=r"at least 1|at most 1"):
        make()  # type: ignore[operator]


@dataclass(frozen=True)
class Fixed(Selection):
    """Somebody's own selection."""

    clients: tuple[int, ...]

    def choose(self, members: Members, t: int, seed: int, state: State) -> Tensor:
        return torch.tensor(self.clients)


@dataclass(frozen=True)
class Given:
    """Somebody's own participation."""

    value: float

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        return torch.full((len(client_C),), self.value, dtype=torch.float64)


@pytest.mark.parametrize("clients", [(-1, 0), (0, 0, 1), (3, 1), (0, 7)])
def test_a_selection_of_one_s_own_is_held_to_its_promise(clients: tuple[int, ...]) -> None:
    assert chosen(Fixed((0, 3)), Members(7), 0, 0).tolist() == [0, 3]
    with pytest.raises(UserError, match=r"Fixed\.choose returned .* in round 2: a cohort is"):
        chosen(Fixed(clients), Members(7), 2, 0)


@pytest.mark.parametrize("value", [1.5, -1.0, float("nan"), float("inf")])
def test_a_participation_of_one_s_own_is_held_to_its_promise(value: float) -> None:
    assert finished(Given(0.25), torch.arange(2), 0, 5, 0, None).tolist() == [0.25, 0.25]
    with pytest.raises(UserError, match=r"Given\.fraction gave .* in round 2: it is the share of the work"):
        finished(Given(value), torch.arange(3), 2, 5, 0, None)
