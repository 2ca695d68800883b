"""Study `deadline`: what its claims say of numbers made up to bear them out, and the deadlines it gives its fleets."""

from __future__ import annotations

import numpy as np
import pytest

import turnout as to
from turnout.world.devices.tiers import TIERS as FIGURES
from turnout_papers.recipes.clock import (
    FEDAVG,
    FEDBUFF,
    FLEETS,
    LOADS,
    METHODS,
    TERNARY,
    TIERS,
    WAIT,
    C,
    fleet,
    median_seconds,
    timed,
)  # fmt: skip
from turnout_papers.studies import deadline
from turnout_papers.studies.running import run_study
from turnout_papers.studies.study import Curve, Curves
from worlds import ready


def made_up(final: float, slow: float, turnout: float) -> dict[str, np.ndarray]:
    return {
        "turnout": np.array([turnout]),
        "turnout by tier": np.array([1.0, 1.0, turnout]),
        "accuracy by tier": np.array([final, final, slow]),
        "rounds": np.array([40.0]),
        "wasted": np.array([0.1]),
        "time": np.array([0.0, 5.0, 9.0]),
        "accuracy": np.array([0.1, final / 2, final]),
    }


def all_as_claimed(reverse: bool = False) -> Curves:
    """Three seeds of every variant: what is claimed to be better is better in each of them."""
    good = {WAIT: (0.6, 0.6, 1.0), FEDAVG: (0.7, 0.1, 0.5), C: (0.8, 0.7, 0.9), FEDBUFF: (0.75, 0.5, 1.0)}
    good |= {"B": (0.79, 0.3, 0.9), TERNARY: (0.8, 0.4, 0.8), "8 bit": (0.75, 0.2, 0.7), "friends": (0.7, 0.1, 0.5)}
    if reverse:
        good |= {C: good[FEDAVG], FEDAVG: good[C], TERNARY: (0.5, 0.1, 0.3), "8 bit": (0.5, 0.1, 0.3)}
    looks, curves = {}, {}
    for name_of_fleet, load in deadline.cases("small"):
        for method in METHODS:
            name = deadline.variant(name_of_fleet, load, method)
            looks[name] = {seed: made_up(*(value - 0.001 * seed for value in good[method])) for seed in range(3)}
            curves[name] = {seed: Curve(np.array([0]), np.array([0.5])) for seed in range(3)}
    return Curves(curves, looks=looks)


def test_claims_hold_of_numbers_that_bear_them_out():
    found = deadline.STUDY.decide("small", all_as_claimed())
    assert [claim.outcome for claim in found] == ["holds"] * len(found)
    assert len(found) == 1 + 5 + 3
    wrong = deadline.STUDY.decide("small", all_as_claimed(reverse=True))
    assert sum(claim.outcome == "refuted" for claim in wrong) == 8
    rows = list(deadline.rows("small", all_as_claimed()))
    assert len(rows) == 6 * 3 * len(METHODS)
    assert "deadline.svg" in deadline.pictures("small", all_as_claimed())


def test_a_variant_that_did_not_run_is_said_so():
    assert {row.ours for row in deadline.rows("small", Curves({}))} == {"not run"}
    assert {claim.outcome for claim in deadline.STUDY.decide("small", Curves({}))} == {"not run"}


def test_it_runs_end_to_end(tmp_path):
    """At this scale the simulated time ends before the first round of waiting for all does."""
    found = run_study(deadline.STUDY, "smoke", tmp_path / "study", quiet=True, jobs=1)
    rows = {(row.case, row.metric): row.ours for row in found.rows}
    assert rows["tiers, 20 k: wait", "turnout, %"] is None
    assert rows["tiers, 20 k: C", "turnout, %"] > 50
    assert (tmp_path / "study" / "deadline.svg").is_file()


def test_models_have_the_sizes_they_are_called_by():
    for load in LOADS.values():
        prepared = ready(timed(TIERS, load, 10, 3)[WAIT])
        assert prepared.model.layout.shared == load.parameters
        assert prepared.runtime.timing.flops == load.flops
    assert [load.parameters for load in LOADS.values()] == [19_210, 1_606_390]


def test_a_deadline_is_the_median_of_a_fleet():
    seconds = {name: median_seconds(name, LOADS["20 k"], 50, 5, 10) for name in FLEETS}
    assert seconds["even"] < seconds["tiers"]
    # A phone of 2018: 2 x 40 ms, 76,840 bytes at 36 and 11.2 Mbit/s, 125 samples of 113,664 operations at 4.2 G / 20.
    phone = 0.08 + 76_840 * 8 / 36e6 + 76_840 * 8 / 11.2e6 + 125 * 113_664 / (0.03 * 139.3e9 / 20)
    assert seconds["tiers"] == pytest.approx(phone, rel=0.1)
    assert isinstance(fleet("thin", 1.0), to.devices.SpreadDevices)
    assert all(tier.source for tier in FIGURES.values())
