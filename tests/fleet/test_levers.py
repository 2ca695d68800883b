"""Levers of production: which a fleet has, what each costs, and which no other beats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import turnout as to
from turnout.fleet import Reading, read_fleet
from turnout.fleet.advice.candidates import AIMS, Judge
from turnout.fleet.advice.cases import stand_ins
from turnout.fleet.advice.levers import AS_NOW, Lever, PulledLever, levers_of, pulled
from turnout.fleet.advice.privacy import private_levers, replies_with_rest
from turnout.fleet.advice.trials import TrialOutcome, measure
from turnout.fleet.diagnosis import diagnose
from turnout.fleet.example import ExampleFleet
from turnout.running.config.read import parse_value
from turnout.running.config.variants import with_value

JUDGE = Judge.of(AIMS["accuracy"], to.tasks.Classification())


def outcome(accuracy: float, hours: float, worst: float = 0.1, sent: float = 100.0) -> TrialOutcome:
    values = {"global_accuracy": (accuracy,), "personal_accuracy_worst": (worst,)}
    return TrialOutcome((10,), values, (sent,), sent / 4, 3 * sent / 4, 3600 * hours, 50.0)


def test_a_lever_is_compared_by_seed_and_its_cost_is_the_mean_of_its_runs() -> None:
    half = Lever("half", "", "--x", {"rounds": 5}, every=7200.0)
    levers = [Lever(AS_NOW, "", every=3600.0), half, Lever("never ran", "")]
    runs = {
        AS_NOW: {("w", s): outcome(0.5 + 0.1 * s, hours=4.0) for s in range(3)},
        "half": {("w", s): outcome(0.4 + 0.1 * s + 0.01 * (s == 1), hours=1.0 + s, worst=0.2) for s in range(3)},
    }
    now, found = pulled(levers, runs, JUDGE, ["w"], rounds=10, watts=5.0)
    assert (now.against, now.days, now.round_takes) == (None, pytest.approx(10 / 24), 5.0)
    assert found.against is not None
    assert found.against.gap == pytest.approx(-0.1 + 0.01 / 3)
    assert (found.seeds, found.worst, found.sent) == (3, pytest.approx(0.2), 100.0)
    assert (found.device_hours, found.energy) == (2.0, pytest.approx(0.01))
    assert (found.days, found.round_takes) == (pytest.approx(10 / 24), 10.0)  # half the rounds, of twice the length
    assert (now.is_front, found.is_front) == (True, True)


def front(*points: tuple[float, float]) -> list[int]:
    """Which of these accuracies and device-hours are on the front."""
    levers = [Lever(AS_NOW if i == 0 else str(i), "") for i in range(len(points))]
    runs = {lever.name: {("w", 0): outcome(*point)} for lever, point in zip(levers, points, strict=True)}
    found: list[PulledLever] = pulled(levers, runs, JUDGE, ["w"], 10, None)
    return [i for i, one in enumerate(found) if one.is_front]


def test_the_front_has_what_no_other_beats_in_both() -> None:
    assert front((0.5, 2.0), (0.6, 3.0), (0.55, 3.0), (0.4, 1.0), (0.4, 2.0)) == [0, 1, 3]
    assert front((0.5, 2.0), (0.5, 1.0)) == [1]
    assert front((0.5, 2.0), (0.5, 2.0)) == [0, 1]


def test_a_log_with_times_is_cut_again_for_the_same_clients_and_every_lever_runs(tmp_path: Path) -> None:
    log = tmp_path / "checkins.csv"
    ExampleFleet(devices=20, days=7).write(log)
    reading = Reading(every="1h")
    fleet = read_fleet(log, reading)
    case = stand_ins(fleet, diagnose(fleet), tmp_path, rounds=12)[0]
    levers = {lever.name: lever for lever in levers_of(case, 20, fleet, log, reading, tmp_path, None)}
    assert {"rounds of 30 min", "rounds of 2 h"} <= set(levers)
    assert sum(name.split()[0] in ("ask", "rest", "wait", "deadline", "buffer") for name in levers) >= 4
    longer = levers["rounds of 2 h"].on(case.experiment)
    assert (longer.rounds, levers["rounds of 2 h"].every) == (6, 7200.0)
    cut = longer.world.participation.log
    again = read_fleet(log, replace(reading, every="2h"))
    first = again.names.index(case.chosen[0])  # stand-in 0 is the same client of the log
    assert [cut.work(t)[cut.names.index("0")] for t in range(10)] == pytest.approx(
        [again.work(t)[first] for t in range(10)], nan_ok=True, abs=1e-3
    )
    for lever in levers.values():
        found = measure(lever.on(case.experiment).but(**{"world.events": ()}))
        assert not found.diverged
        assert min(found.devices, found.waited) > 0


def test_a_log_of_rounds_is_not_cut_again(tmp_path: Path) -> None:
    rows = [f"{t},{c},{(t + c) % 2}" for t in range(40) for c in range(6)]
    (tmp_path / "log.csv").write_text("round,client,work\n" + "\n".join(rows) + "\n")
    fleet = read_fleet(tmp_path / "log.csv")
    case = stand_ins(fleet, diagnose(fleet), tmp_path, rounds=8)[0]
    found = levers_of(case, 6, fleet, tmp_path / "log.csv", Reading(), tmp_path, None)
    assert found[0].name == AS_NOW
    assert not any("rounds of" in lever.name for lever in found)


def test_a_client_that_rests_takes_part_less_often(tmp_path: Path) -> None:
    """Client a comes in every round, b in every third, in rounds 0, 3 and 6 of 8; b is never slowed down by three."""
    rows = [f"{t},a,1" for t in range(8)] + [f"{t},b,{int(t % 3 == 0)}" for t in range(8)]
    (tmp_path / "log.csv").write_text("round,client,work\n" + "\n".join(rows) + "\n")
    log = read_fleet(tmp_path / "log.csv")
    assert replies_with_rest(log, 1) == (8 + 3) / 8
    assert replies_with_rest(log, 3) == (3 + 3) / 8  # a in rounds 0, 3, 6
    assert replies_with_rest(log, 4) == (2 + 2) / 8  # a in 0 and 4, b in 0 and 6


def test_private_settings_reach_epsilon_for_the_fleet_and_stand_ins_have_its_noise_in_the_mean(tmp_path: Path) -> None:
    rows = [f"{t},{c},{int((t + c) % 2)}" for t in range(40) for c in range(60)]
    (tmp_path / "log.csv").write_text("round,client,work\n" + "\n".join(rows) + "\n")
    fleet = read_fleet(tmp_path / "log.csv")
    case = stand_ins(fleet, diagnose(fleet), tmp_path, rounds=24)[0]
    levers = private_levers(case, 40, fleet, epsilon=4.0, delta=1e-4, data_dir=None)
    assert levers[0].name == AS_NOW
    assert [lever.name.split(",")[0] for lever in levers[1::3]] == ["b=1", "b=4", "b=12"]
    for lever in levers[1:]:
        part = lever.changes["algorithm.privacy"]
        left = float(f"{replies_with_rest(fleet, part.min_separation):.3g}")
        whole = replace(part, n0=left, noise_multiplier=None, epsilon=4.0).tied(24)
        state = whole.begin()
        assert whole.epsilon_after(state, 24) == pytest.approx(4.0)
        assert part.noise_multiplier / part.n0 == pytest.approx(state["multiplier"] / left)  # of a mean
        assert f"k={-(-24 // part.min_separation)}" in lever.name
        settings = parse_value(lever.setting.split("=", 1)[1].rstrip("'"))
        assert with_value(case.experiment, "algorithm.privacy", settings).algorithm.privacy == replace(
            part, n0=left, noise_multiplier=None, epsilon=4.0
        )
    assert not measure(levers[1].on(case.experiment)).diverged
