"""What a diagnosis finds in logs of known truth, and what it does not; benchmarks/diagnosis_errors.py has the rates."""

from __future__ import annotations

import re

import numpy as np
import pytest

from known_logs import TRUTHS, drawn_log, log_of_presence, states
from turnout.fleet.diagnosis import Diagnosis, diagnose
from turnout.fleet.findings import clients_of_longer_rounds, trend_of
from turnout.fleet.joint_absence import JointAbsence, joint_absences
from turnout.fleet.rhythm import rhythm_chance

TESTED = {"outage", "trend", "rhythm", "labels"}


def kinds(found: Diagnosis) -> set[str]:
    return {one.kind for one in found.findings} & TESTED


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("seed", [1000, 1001])
def test_the_truth_is_found_and_nothing_else(truth: str, seed: int) -> None:
    assert kinds(diagnose(drawn_log(truth, seed))) == {truth} - {"independent"}


def test_coin_flips_have_no_rhythm_and_no_trend() -> None:
    """Each test has an error of half a percent: of 30 logs 0.15 are found, 3 or more with a chance of 1 in 2,000."""
    draw = np.random.default_rng(5)
    logs = [states(draw, np.full((7 * 24, 8), 0.5), keeps).astype(float) for keeps in (0.0, 0.6) for _ in range(15)]
    assert sum(rhythm_chance(came_TS, 24) <= 0.005 for came_TS in logs) < 3
    assert sum(trend_of(came_TS, 24) is not None for came_TS in logs) < 3


def test_groups_with_opposite_hours_do_not_hide_each_other() -> None:
    """Half of the clients come by day, half by night: the turnout of the fleet is the same at every hour."""
    draw = np.random.default_rng(3)
    by_night_M = np.arange(24) < 12
    night_T = (np.arange(14 * 24) % 24 >= 22) | (np.arange(14 * 24) % 24 < 5)
    q_TM = np.where(night_T[:, None] == by_night_M, 0.8, 0.1)
    q_TM[:, ~by_night_M] = np.where(night_T[:, None], 0.1, 0.38)
    found = diagnose(log_of_presence(draw.random(q_TM.shape) < q_TM))
    assert kinds(found) == {"rhythm"}
    words = next(one.words for one in found.findings if one.kind == "rhythm")
    assert "12 clients: 22 to 05 h" in words
    assert re.search(r"12 clients: 0[456] to 2[123] h", words)


def test_four_devices_that_are_out_for_nine_days() -> None:
    """As in a real log: the whole fleet is four devices."""
    draw = np.random.default_rng(0)
    came_TM = states(draw, np.full((28 * 24, 4), 0.4), 0.6)
    came_TM[200 : 200 + 9 * 24] = False
    (out,) = (one for one in diagnose(log_of_presence(came_TM)).findings if one.kind == "outage")
    assert out.rounds is not None
    assert out.rounds[0] == pytest.approx(200, abs=6)
    assert out.rounds[1] == pytest.approx(416, abs=6)
    assert "(9" in out.words or "(8.9" in out.words


def test_an_outage_of_some_names_them_and_leaves_the_others() -> None:
    draw = np.random.default_rng(1)
    came_TS = states(draw, np.full((21 * 24, 20), 0.5), 0.3).astype(float)
    came_TS[100:200, [3, 5, 8, 13]] = 0.0
    (found,) = joint_absences(came_TS, np.zeros(20, np.int64), 24, 0.005)
    assert found.clients == (3, 5, 8, 13)
    assert found.begin == pytest.approx(100, abs=3)
    assert found.end == pytest.approx(200, abs=3)
    came_TS = states(draw, np.full((21 * 24, 20), 0.5), 0.3).astype(float)
    came_TS[100:110] = 0.0
    assert joint_absences(came_TS, np.zeros(20, np.int64), 24, 0.005) == [JointAbsence(100, 110)]


def test_an_outage_is_not_a_trend_and_a_weekend_is_not_either() -> None:
    draw = np.random.default_rng(2)
    q_TM = np.full((28 * 24, 30), 0.6)
    q_TM[np.arange(28 * 24) // 24 % 7 >= 5] = 0.3  # one weekend in the first third, two in the last
    assert "trend" not in kinds(diagnose(log_of_presence(draw.random(q_TM.shape) < q_TM)))
    came_TM = draw.random((28 * 24, 30)) < 0.6
    came_TM[-100:-30] = False
    assert kinds(diagnose(log_of_presence(came_TM))) == {"outage"}


def test_a_trend_offers_the_last_third() -> None:
    draw = np.random.default_rng(4)
    came_TM = draw.random((30 * 24, 30)) < np.linspace(0.95, 0.1, 30 * 24)[:, None]
    (trend,) = (one for one in diagnose(log_of_presence(came_TM)).findings if one.kind == "trend")
    assert "falls from 8" in trend.words
    assert "--since 1970-01-25T00:00 reads the last third" in trend.words


def test_a_fleet_that_hardly_trains_is_told_how_long_rounds_should_be() -> None:
    """Ten clients come at their own hour each day: an hour has one at most; six hours, from 18 on, too."""
    came_TM = np.zeros((14 * 24, 10), dtype=bool)
    for m in range(10):
        came_TM[2 * m :: 24, m] = True
    log = log_of_presence(came_TM)
    found = {one.kind: one.words for one in diagnose(log).findings}
    assert found["empty rounds"] == "No client came to 196 of 336 rounds (58.3%)."
    few = "100% of its rounds have fewer than 2 clients."
    longer = "Rounds of 8 h (--every 8h) would have 3.3 clients on average, and 2 or more in 100%."
    assert found["hardly trains"] == f"This fleet hardly trains: {few} {longer}"
    assert clients_of_longer_rounds(log, 24).tolist() == [10] * 14
