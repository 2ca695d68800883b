"""The arithmetic of an advice on outcomes that are given: tuning, scores, the race, hinges; nothing is run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

import turnout as to
from turnout.advising.aims import AIMS, Judge
from turnout.advising.candidates import PLAIN, Candidate
from turnout.advising.cases import Case
from turnout.advising.display import Board
from turnout.advising.ledger import Ledger
from turnout.advising.plan import Plan
from turnout.advising.race import LOOKS
from turnout.advising.trial import Outcome, Trial, Workers
from turnout.advising.work import Advising

LOW, SAME, HIGH = "lr × 0.333", "lr × 1", "lr × 3"
TUNING_SEEDS = (10_000, 10_001)
Accuracy = Callable[[Trial], float]


def reaching(accuracy: float, sent: float = 100.0) -> Outcome:
    """A run whose accuracy rises in a straight line to the first of its last three values, which are all the same."""
    values = tuple(accuracy * min(1.0, (i + 1) / 10) for i in range(12))
    steps = tuple(sent * (i + 1) / 12 for i in range(12))
    return Outcome(tuple(range(1, 13)), {"global_accuracy": values}, steps, sent / 2, sent / 2)


def advising(
    folder: Path, accuracy: Accuracy, names: tuple[str, ...] = (PLAIN, "other"), cases: tuple[str, ...] = ("w",),
    aim: str = "accuracy", seeds: int = 4,
) -> Advising:  # fmt: skip
    """An advice in whose ledger every run that it may ask for is there."""
    ledger = Ledger(folder)
    for part, ids in (("tune", (*TUNING_SEEDS, 0, 1)), ("race", range(seeds)), ("turnout halved", range(8))):
        for name in names:
            for settings in (LOW, SAME, HIGH):
                for case in cases:
                    for seed in ids:
                        trial = Trial(part, name, settings, case, seed)
                        ledger.add(trial, reaching(accuracy(trial)), spent=0.0)
    experiment = to.Experiment()
    judge = Judge.of(AIMS[aim], experiment.task)
    plan = Plan((1 / 3, 1.0, 3.0), 2, 12, 12, 1.0)
    listed = [Candidate(name, "") for name in names]
    worlds = [Case(case, "", experiment) for case in cases]
    board = Board(AIMS[aim], quiet=True)
    return Advising(listed, worlds, judge, plan, ledger, Workers(1), board, 1e9, 0.0, seeds, True, 0)


def test_every_candidate_is_tuned_to_its_best_rate_on_seeds_that_do_not_race(tmp_path: Path) -> None:
    """On seeds 0 and 1, which race, the other end would be best: they must not be looked at."""
    best = {PLAIN: HIGH, "other": LOW}
    order = {LOW: 0, SAME: 1, HIGH: 2}

    def accuracy(trial: Trial) -> float:
        distance = abs(order[trial.settings] - order[best[trial.candidate]])
        return 0.5 + 0.1 * (distance if trial.seed in (0, 1) else -distance)

    work = advising(tmp_path, accuracy)
    assert tuple(work.plan.seeds) == TUNING_SEEDS
    assert not set(work.plan.seeds) & set(range(LOOKS[-1]))
    work.tune()
    assert work.chosen == best


def test_a_rate_is_judged_by_the_mean_over_seeds_and_worlds(tmp_path: Path) -> None:
    """HIGH is best with the first seed, and in the first world; SAME is best on average (0.6 against 0.55 and 0.5)."""
    table = {
        (HIGH, "v"): (0.9, 0.5), (HIGH, "w"): (0.5, 0.3), (SAME, "v"): (0.6, 0.6), (SAME, "w"): (0.6, 0.6),
        (LOW, "v"): (0.5, 0.5), (LOW, "w"): (0.5, 0.5),
    }  # fmt: skip
    work = advising(tmp_path, lambda trial: table[trial.settings, trial.case][trial.seed % 2], cases=("v", "w"))
    work.tune()
    assert set(work.chosen.values()) == {SAME}


def test_what_was_not_tuned_with_all_seeds_is_tuned_with_those_that_are_whole(tmp_path: Path) -> None:
    """The runs of the second tuning seed are missing and the budget is spent: the first one decides."""
    work = advising(tmp_path, lambda trial: {LOW: 0.2, SAME: 0.9, HIGH: 0.3}[trial.settings])
    for key in [key for key in work.ledger.outcomes if key[0] == "tune" and key[-1] == TUNING_SEEDS[1]]:
        del work.ledger.outcomes[key]
    work.budget, work.started = 0.0, -1e6
    work.tune()
    assert (work.plan.tuning_seeds, set(work.chosen.values())) == (1, {SAME})


def test_the_target_for_bytes_is_that_of_plain_fedavg_at_its_best_rate(tmp_path: Path) -> None:
    at = {LOW: 0.4, SAME: 0.5, HIGH: 0.8}
    work = advising(tmp_path, lambda trial: at[trial.settings], aim="bytes")
    work.tune()
    assert work.judge.targets == pytest.approx({"w": 0.9 * 0.8})
    assert work.judge.whole == {"w": 100.0}


def test_the_race_compares_the_mean_over_worlds_seed_by_seed(tmp_path: Path) -> None:
    def accuracy(trial: Trial) -> float:
        shift = {"v": -0.1, "w": 0.2}[trial.case] + 0.01 * (trial.seed % 4)
        return 0.5 + shift + (0.05 + 0.001 * (trial.seed % 3) if trial.candidate == "other" else 0.0)

    work = advising(tmp_path, accuracy, cases=("v", "w"), seeds=6)
    work.tune()
    race, scores = work.race()
    assert scores[PLAIN] == pytest.approx({s: 0.55 + 0.01 * (s % 4) for s in range(6)})
    assert (race.seeds, race.running) == (4, ("other",))
    assert race.dropped[0].gap == pytest.approx(-(0.05 + 0.001 * (0 + 1 + 2 + 0) / 4))
    hinge = work.hinge(race, scores, "turnout halved")
    assert hinge is not None
    assert (hinge.seeds, hinge.ranking.best) == (8, "other")


def test_a_runs_value_is_the_mean_over_its_last_quarter() -> None:
    values = tuple(float(i * i) for i in range(12))
    final = Outcome(values={"m": values}).final
    assert final("m") == pytest.approx((9**2 + 10**2 + 11**2) / 3)
    assert Outcome(values={"m": values[:9]}).final("m") == pytest.approx((7**2 + 8**2) / 2)
    assert Outcome(values={"m": values[:3]}).final("m") == 4.0
    assert math.isnan(Outcome().final("m"))


def test_a_run_that_diverged_has_the_worst_score_there_is() -> None:
    """However good it was before: accuracy has a floor at 0, an error has none."""
    good_before = {"global_accuracy": (0.9,) * 4, "global_mse": (0.1,) * 4}
    gone = Outcome((1, 2, 3, 4), good_before, (1.0,) * 4, diverged="the loss is not finite")
    well = Outcome((1, 2, 3, 4), good_before, (1.0,) * 4)
    accuracy = Judge.of(AIMS["accuracy"], to.Classification())
    assert (accuracy.score(gone, "w"), accuracy.score(well, "w")) == (0.0, 0.9)
    error = Judge.of(AIMS["accuracy"], to.Regression())
    assert not error.higher
    assert error.score(gone, "w") == -math.inf
    assert error.score(well, "w") == pytest.approx(-0.1)
