"""The small statistics of studies against scipy's, which is the oracle here and is not needed by the library."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from turnout.statistics import (
    LEVEL,
    difference,
    interval,
    mean_over,
    sign_test,
    t_below,
    t_quantile,
)

seeds = st.lists(st.floats(-100, 100).map(lambda v: round(v, 3)), min_size=2, max_size=20)


@given(t=st.floats(-50, 50), df=st.integers(1, 200))
def test_students_distribution(t: float, df: int) -> None:
    assert t_below(t, df) == pytest.approx(stats.t.cdf(t, df), abs=1e-12)


@given(probability=st.floats(0.5, 0.9999), df=st.integers(1, 200))
def test_students_quantiles(probability: float, df: int) -> None:
    assert t_quantile(probability, df) == pytest.approx(stats.t.ppf(probability, df), rel=1e-9, abs=1e-9)


def test_a_quantile_of_what_is_no_probability_is_refused() -> None:
    for probability in (0.4, 1.0):
        with pytest.raises(ValueError, match="probabilities"):
            t_quantile(probability, 3)


@given(wins=st.integers(0, 60), losses=st.integers(0, 60))
def test_the_sign_test(wins: int, losses: int) -> None:
    assume(wins + losses)
    expected = stats.binomtest(wins, wins + losses, alternative="greater").pvalue
    assert sign_test(wins, losses) == pytest.approx(expected, rel=1e-12)


def test_differences_and_means_are_taken_over_the_seeds_that_all_have() -> None:
    assert difference({0: 5.0, 1: 7.0, 2: 9.0}, {1: 4.0, 2: 8.0, 3: 1.0}) == {1: 3.0, 2: 1.0}
    assert mean_over([{0: 1.0, 1: 2.0, 2: 9.0}, {1: 4.0, 2: 5.0}]) == {1: 3.0, 2: 7.0}
    assert mean_over([{1: 4.0, 2: 5.0}, {0: 1.0, 1: 2.0}]) == {1: 3.0}


@given(seeds)
def test_an_interval_over_seeds_is_that_of_the_t_test(values: list[float]) -> None:
    assume(max(values) - min(values) > 1e-2)
    found = interval(dict(enumerate(values)))
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(2 * LEVEL - 1)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-9)
