"""The arithmetic of an advice on outcomes that are given: tuning, scores, the race; nothing is run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch

import turnout as to
from turnout.fleet import ParticipationLog, Reading, read_fleet
from turnout.fleet.advice.advice import Advice, cost_of
from turnout.fleet.advice.advice_page import write_advice
from turnout.fleet.advice.advise import _able
from turnout.fleet.advice.budget import RaceBoard, RacePlan, fitting
from turnout.fleet.advice.candidates import AIMS, PLAIN, Candidate, Judge, known_candidates, own_layers, settings_of
from turnout.fleet.advice.cases import RaceCase, _selection, chosen_clients, events_of, given_case
from turnout.fleet.advice.certainty import compared_over_logs
from turnout.fleet.advice.levers import Lever
from turnout.fleet.advice.race import Arm, Race, Scores
from turnout.fleet.advice.trials import Trial, TrialLedger, TrialOutcome, TrialWorkers, _rounds, measure
from turnout.fleet.advice.work import AdviceWork
from turnout.fleet.diagnosis import diagnose
from turnout.parts.selection import Everyone, Fraction
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.tracks.prepare import prepare
from turnout.statistics import t_quantile
from turnout.world.log import write_turnout

LOW, SAME, HIGH = "lr × 0.333", "lr × 1", "lr × 3"
RATES = [settings_of(k) for k in range(-3, 4)]
Accuracy = Callable[[Trial], float]


def reaching(accuracy: float, sent: float = 100.0) -> TrialOutcome:
    """A run whose accuracy rises in a straight line to the first of its last three values, which are all the same."""
    values = tuple(accuracy * min(1.0, (i + 1) / 10) for i in range(12))
    steps = tuple(sent * (i + 1) / 12 for i in range(12))
    return TrialOutcome(tuple(range(1, 13)), {"global_accuracy": values}, steps, sent / 2, sent / 2)


class Given(TrialWorkers):
    """Workers that run nothing: the outcome of a trial is given."""

    def __init__(self, accuracy: Accuracy) -> None:
        super().__init__(1)
        self.accuracy = accuracy

    def outcomes(
        self, work: Iterable[tuple[Trial, to.Experiment]], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[Trial, TrialOutcome]]:
        for trial, _ in work:
            if stop():
                break
            yield trial, reaching(self.accuracy(trial))


def advising(
    folder: Path, accuracy: Accuracy, names: tuple[str, ...] = (PLAIN, "other"), cases: tuple[str, ...] = ("w",),
    aim: str = "accuracy", seeds: int = 4, tuned: bool = True,
) -> AdviceWork:  # fmt: skip
    """An advice whose runs have given accuracies; without tuning, at one rate."""
    folder.mkdir(exist_ok=True)
    ledger = TrialLedger(folder)
    experiment = to.Experiment()
    judge = Judge.of(AIMS[aim], experiment.task)
    listed = [Candidate(name, "") for name in names]
    worlds = [RaceCase(case, "", experiment) for case in cases]
    board, plan = RaceBoard(quiet=True), RacePlan(tuned, 12, 12, 1.0)
    return AdviceWork(listed, worlds, judge, plan, ledger, Given(accuracy), board, 1e9, 0.0, seeds, 0)


def wobble(trial: Trial) -> float:
    """A little for each seed, of each candidate in another way."""
    return 0.01 * ((trial.seed * 7 + 3 * len(trial.candidate)) % 5)


def rates_of(race: Race, name: str) -> list[str]:
    """The rates of a candidate that raced."""
    arms = [*race.running, *(one.arm for one in race.dropped), *race.same]
    return sorted({arm.settings for arm in arms if arm.candidate == name}, key=RATES.index)


def test_every_candidate_races_at_every_rate_and_stands_with_its_best(tmp_path: Path) -> None:
    best, order = {PLAIN: HIGH, "other": LOW}, {LOW: 0, SAME: 1, HIGH: 2}

    def accuracy(trial: Trial) -> float:
        if trial.settings not in order:
            return 0.01
        return 0.5 - 0.1 * abs(order[trial.settings] - order[best[trial.candidate]]) + wobble(trial)

    race, scores = advising(tmp_path, accuracy).race()
    assert [race.best_arm(name, scores).settings for name in (PLAIN, "other")] == [HIGH, LOW]
    tried = ["lr × 0.111", LOW, SAME, HIGH, "lr × 9"]  # one beyond the best of each, for both
    assert (rates_of(race, PLAIN), rates_of(race, "other")) == (tried, tried)


def test_the_grid_is_extended_while_its_edge_is_best_and_the_page_names_an_edge_that_stays_best(tmp_path: Path) -> None:
    """The experiment's rate is 1/27 of the best of `other`; plain FedAvg is best at the experiment's own."""
    at = {name: (lambda k, top=top: 0.6 - 0.05 * abs(k - top)) for name, top in ((PLAIN, 0), ("other", 2))}

    def accuracy(trial: Trial) -> float:
        return at[trial.candidate](RATES.index(trial.settings) - 3) + 2 * wobble(trial)

    work = advising(tmp_path, accuracy)
    race, _ = work.race()
    assert (rates_of(race, PLAIN), work.edge) == ([LOW, SAME, HIGH, "lr × 9", "lr × 27"], "")
    at["other"] = lambda k: 0.45 + 0.05 * k
    (tmp_path / "trials.jsonl").unlink()
    work = advising(tmp_path, accuracy)
    race, _ = work.race()
    assert (rates_of(race, PLAIN)[-1], work.edge) == ("lr × 27", "beyond lr × 27, the best of some candidate")


def test_candidates_that_are_alike_at_every_rate_have_the_same_rates_and_no_winner(tmp_path: Path) -> None:
    """Two rates are about equally good, so noise decides which seems best for each candidate."""
    draw = np.random.default_rng(5)
    noise = {}

    def accuracy(trial: Trial) -> float:
        level = {SAME: 0.5, HIGH: 0.51}.get(trial.settings, 0.3)
        return level + noise.setdefault(trial[1:], 0.02 * draw.standard_normal())

    race, _ = advising(tmp_path, accuracy, ("a", "b", "c"), seeds=32).race()
    assert race.candidates == ["a", "b", "c"]
    assert {arm.settings for arm in race.running} <= {SAME, HIGH}


def test_a_rate_that_no_time_is_left_for_is_named_and_the_race_goes_without_it(tmp_path: Path) -> None:
    def accuracy(trial: Trial) -> float:
        if trial.settings == LOW:
            work.started = time.monotonic() - 1e9  # the budget is spent
        return 0.5 + wobble(trial)

    work = advising(tmp_path, accuracy)
    work.started = time.monotonic()
    race, _ = work.race()
    assert (race.seeds, rates_of(race, PLAIN)) == (4, [SAME, HIGH])
    assert work.edge == "lr × 0.333 and further: the budget was too small"


def test_without_a_comparison_there_is_no_recommendation(tmp_path: Path) -> None:
    def accuracy(trial: Trial) -> float:
        if trial.seed == 2:
            work.started = time.monotonic() - 1e9  # the budget is spent
        return 0.5 + wobble(trial)

    work = advising(tmp_path / "out", accuracy)
    work.started = time.monotonic()
    advice = work.advice(diagnose(small_log(tmp_path)), {}, tmp_path / "out")
    assert (advice.recommended, advice.ahead, advice.rows()) == (None, None, [])
    assert advice.sentence().startswith("no recommendation for accuracy")
    (tmp_path / "out" / "recommended.toml").write_text("of an earlier call")
    write_advice(advice)
    assert not (tmp_path / "out" / "recommended.toml").exists()
    assert "no recommendation" in (tmp_path / "out" / "advice.html").read_text()
    with pytest.raises(to.UserError, match="no recommendation"):
        advice.recommended_experiment()


def test_the_target_for_bytes_is_that_of_plain_fedavg_at_its_best_rate(tmp_path: Path) -> None:
    at = {LOW: 0.4, SAME: 0.8, HIGH: 0.5}
    work = advising(tmp_path, lambda trial: at.get(trial.settings, 0.1), aim="bytes")
    work.set_target()
    assert work.judge.targets == pytest.approx({"w": 0.9 * 0.8})
    assert work.judge.whole == {"w": 100.0}


def certain(folder: Path, log_effect: float, collapses: tuple[int, ...] = (), seeds: int = 192) -> Advice:
    """`other` is 0.05 better than plain FedAvg, more or less as a log says, and collapses in some seeds."""
    draw = np.random.default_rng(6)
    of_log, noise = log_effect * draw.standard_normal(192), 0.02 * draw.standard_normal((2, 2, 192))

    def accuracy(trial: Trial) -> float:
        other = trial.candidate == "other"
        if other and trial.part == "race" and trial.seed in collapses:
            return 0.1
        gain = 0.05 + of_log[trial.seed] if other else 0.0
        return 0.6 + gain + noise[int(other), int(trial.part == "again"), trial.seed]

    work = advising(folder / "out", accuracy, seeds=seeds, tuned=False)
    return work.advice(diagnose(small_log(folder)), {}, folder / "out")


def test_best_takes_122_seeds_without_a_collapse_and_a_log_that_matters_little(tmp_path: Path) -> None:
    advice = certain(tmp_path, log_effect=0.001)
    assert (advice.ahead, advice.best) == ("other", "other")
    assert advice.certainty is not None
    assert (advice.certainty.seeds, advice.certainty.collapses) == (122, 0)
    assert advice.sentence() == "other is best for accuracy: all other candidates are behind with 95 % confidence"


def test_a_collapse_after_the_race_was_decided_takes_the_word_best_away(tmp_path: Path) -> None:
    advice = certain(tmp_path, log_effect=0.001, collapses=(100,))
    assert (advice.ahead, advice.best) == ("other", None)
    assert "it collapsed in 1 of 122 seeds (at most 4.5 %)" in advice.sentence()
    (tmp_path / "out" / "trials.jsonl").unlink()
    few = certain(tmp_path, log_effect=0.001, seeds=24)
    assert "it collapsed in 0 of 24 seeds (at most 14.2 %), and best takes 122 seeds" in few.sentence()


def test_where_logs_differ_much_another_log_might_not_agree_and_the_rounds_that_would_decide_are_named(
    tmp_path: Path,
) -> None:
    advice = certain(tmp_path, log_effect=0.04)
    assert (advice.ahead, advice.best) == ("other", None)
    sure = advice.certainty
    assert sure is not None
    rival = sure.rivals[0]
    assert rival.measured
    assert rival.spread == pytest.approx(0.04, rel=0.5)
    assert rival.low < rival.gap < 0 < rival.high
    assert rival.rounds > advice.facts.rounds
    assert f"about {float(f'{rival.rounds:.2g}'):,.0f} rounds of log would decide" in advice.sentence()


def test_the_interval_over_logs_adds_the_variance_from_log_to_log() -> None:
    """d = -1 and +1 in turn about -10; the second runs repeat half of it: the covariance is half the variance."""
    first = {s: -10.0 + (-1) ** s for s in range(12)}
    again = {s: -10.0 + 0.5 * (-1) ** s for s in range(12)}
    a, b, race = Arm("a", ""), Arm("b", ""), Race(("a", "b"), rates=1).joined("", ("a", "b"))
    zero = dict.fromkeys(range(12), 0.0)
    alone = race.compared(b, a, {a: zero, b: first})
    found = compared_over_logs(race, a, b, {a: zero, b: first}, {a: zero, b: again}, rounds=50)
    variance = 12 / 11
    between, of_both = variance / 2, variance * variance / 4
    most = between + 1.6448536 * math.sqrt((of_both + between**2) / 11)
    reach = NormalDist().inv_cdf(1 - 0.0125) * math.sqrt(most)
    assert alone.high is not None
    assert found.high == pytest.approx(-10 + math.hypot(alone.high + 10, reach))
    assert (found.measured, found.rounds, found.spread) == (True, 0, pytest.approx(math.sqrt(between)))
    bound = compared_over_logs(race, a, b, {a: zero, b: first}, {}, rounds=50)
    assert (bound.measured, bound.spread) == (False, pytest.approx(math.sqrt(variance)))
    assert bound.high == pytest.approx(-10 + math.hypot(alone.high + 10, t_quantile(1 - 0.0125, 11) * bound.spread))


def test_the_race_compares_the_mean_over_worlds_seed_by_seed(tmp_path: Path) -> None:
    def accuracy(trial: Trial) -> float:
        shift = {"v": -0.1, "w": 0.2}[trial.case] + 0.01 * (trial.seed % 4)
        return 0.5 + shift + (0.05 + 0.001 * (trial.seed % 3) if trial.candidate == "other" else 0.0)

    work = advising(tmp_path, accuracy, cases=("v", "w"), seeds=6, tuned=False)
    race, scores = work.race()
    assert scores[Arm(PLAIN, SAME)] == pytest.approx({s: 0.55 + 0.01 * (s % 4) for s in range(4)})
    assert (race.seeds, race.candidates) == (4, ["other"])
    assert race.dropped[0].gap == pytest.approx(-(0.05 + 0.001 * (0 + 1 + 2 + 0) / 4))


def test_outside_a_terminal_the_race_prints_its_looks_and_nothing_about_steps_without_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def accuracy(trial: Trial) -> float:
        return 0.5 + (0.1 + 0.001 * (trial.seed % 3)) * (trial.candidate == "other")

    work = advising(tmp_path, accuracy, tuned=False)
    work.board = RaceBoard()
    work.race()
    capsys.readouterr()
    work.race()  # again, when all runs are there
    said = "after 4 seeds: 1 candidates still in (1 with their rates), 1 out, 0 set aside\n"
    assert capsys.readouterr().err == said
    work.board.begin("racing 2 candidates", runs=6, spent=60.0, budget=360.0)
    assert capsys.readouterr().err == "racing 2 candidates: 6 runs, 5 min left\n"


def test_a_single_job_needs_no_other_process() -> None:
    with TrialWorkers(1) as alone, TrialWorkers(2) as together:
        assert (alone.pool is None, together.pool is None) == (True, False)


def test_a_candidate_that_cannot_run_is_refused_with_its_reason_but_plain_fedavg_must_run() -> None:
    base = to.Experiment(to.World(to.data.Digits(clients=4)), to.models.Logistic())
    by_time = {"algorithm.closing": to.closing.Deadline(1.0)}
    cases = [RaceCase("w", "", base)]
    able, refused = _able([Candidate(PLAIN, ""), Candidate("on time", "", by_time)], cases, None)
    assert [candidate.name for candidate in able] == [PLAIN]
    assert list(refused) == ["on time"]
    assert "world.devices" in refused["on time"]
    with pytest.raises(to.UserError, match=r"world\.devices"):
        _able([Candidate(PLAIN, "", by_time)], cases, None)


def test_a_runs_value_is_the_mean_over_its_last_quarter() -> None:
    values = tuple(float(i * i) for i in range(12))
    final = TrialOutcome(values={"m": values}).final
    assert final("m") == pytest.approx((9**2 + 10**2 + 11**2) / 3)
    assert TrialOutcome(values={"m": values[:9]}).final("m") == pytest.approx((7**2 + 8**2) / 2)
    assert TrialOutcome(values={"m": values[:3]}).final("m") == 4.0
    assert math.isnan(TrialOutcome().final("m"))


def test_a_run_that_diverged_has_the_worst_score_there_is() -> None:
    """However good it was before: accuracy has a floor at 0, an error has none."""
    good_before = {"global_accuracy": (0.9,) * 4, "global_mse": (0.1,) * 4}
    gone = TrialOutcome((1, 2, 3, 4), good_before, (1.0,) * 4, diverged="the loss is not finite")
    well = TrialOutcome((1, 2, 3, 4), good_before, (1.0,) * 4)
    accuracy = Judge.of(AIMS["accuracy"], to.tasks.Classification())
    assert (accuracy.score(gone, "w"), accuracy.score(well, "w")) == (0.0, 0.9)
    error = Judge.of(AIMS["accuracy"], to.tasks.Regression())
    assert not error.higher
    assert error.score(gone, "w") == -math.inf
    assert error.score(well, "w") == pytest.approx(-0.1)


def bytes_judge(task: to.tasks.Task) -> Judge:
    return Judge.of(AIMS["bytes"], task)


def test_a_target_of_an_error_is_above_what_plain_fedavg_gets_and_is_reached_from_above() -> None:
    plain = TrialOutcome((1, 2), {"global_mse": (2.0, 0.9)}, (10.0, 20.0), 12.0, 8.0)
    judge = bytes_judge(to.tasks.Regression()).aimed_at({"w": [plain]})
    assert judge.targets == pytest.approx({"w": 0.9 / 0.9})
    assert judge.whole == {"w": 20.0}
    reached = TrialOutcome((1, 2, 3), {"global_mse": (3.0, judge.targets["w"], 0.1)}, (5.0, 8.0, 9.0))
    assert judge.spent(reached, "w") == 8.0  # at the target counts
    assert judge.spent(TrialOutcome((1,), {"global_mse": (1.1,)}, (5.0,)), "w") is None


def test_a_target_that_is_just_reached_is_reached() -> None:
    plain = TrialOutcome((1,), {"global_accuracy": (0.5,)}, (10.0,))
    judge = bytes_judge(to.tasks.Classification()).aimed_at({"w": [plain]})
    assert judge.spent(TrialOutcome((1, 2), {"global_accuracy": (0.45, 0.6)}, (3.0, 4.0)), "w") == 3.0


def test_differences_are_shown_in_the_unit_of_the_metric_and_small_ones_do_not_matter() -> None:
    accuracy, error = (Judge.of(AIMS["accuracy"], task) for task in (to.tasks.Classification(), to.tasks.Regression()))
    assert (accuracy.shown(0.021), error.shown(0.25), error.shown(-0.25)) == ("+2.1", "-0.25", "+0.25")
    assert (accuracy.margin, error.margin) == (0.005, 0.0)
    assert bytes_judge(to.tasks.Classification()).margin == pytest.approx(-math.log2(0.95), abs=0.005)  # a twentieth


def noisy(level: float, seeds: int, wobble: float = 0.01) -> dict[int, float]:
    """Scores around a level: every third seed is a little better, so that differences to others vary."""
    return {s: level + wobble * ((s * 7) % 5) for s in range(seeds)}


def race_of(*names: str, rates: int = 1) -> Race:
    return Race(names, rates=rates).joined("", names)


def arms(scores: dict[str, dict[int, float]]) -> Scores:
    return {Arm(name, ""): score for name, score in scores.items()}


def test_the_interval_of_the_race_is_divided_among_all_looks_and_all_arms_there_may_be() -> None:
    """Four candidates at up to seven rates: each arm meets 27 others at twelve looks, two-sided, within 2.5 %; also
    when one has been dropped."""
    race = race_of("a", "b", "c", "d", rates=7)
    scores = {"a": noisy(0.5, 8), "b": {s: 0.5 + 0.02 * (s % 3) for s in range(8)}, "c": noisy(0.4, 8, 0.02),
              "d": noisy(-9.0, 8, 0.013)}  # fmt: skip
    after = race.looked_at(arms(scores), 8)
    assert "d" not in after.candidates
    gaps = [scores["a"][s] - scores["b"][s] for s in range(8)]
    mean = sum(gaps) / 8
    deviation = math.sqrt(sum((g - mean) ** 2 for g in gaps) / 7)
    reach = t_quantile(1 - 0.025 / (2 * 27 * 12), 7) * deviation / math.sqrt(8)
    for one in (race, after):
        found = one.compared(Arm("a", ""), Arm("b", ""), arms(scores))
        assert (found.gap, found.low, found.high) == pytest.approx((mean, mean - reach, mean + reach))


def test_a_look_sees_the_seeds_up_to_it_and_the_next_one_is_later() -> None:
    race = race_of("a", "b")
    scores = arms({"a": noisy(0.5, 9), "b": {s: 0.5 + 0.02 * (s % 3) + (99.0 if s >= 4 else 0.0) for s in range(9)}})
    after = race.looked_at(scores, 4)
    assert after.candidates == ["a", "b"]  # the seeds from 4 on were not looked at
    assert (race.next_look(), after.next_look(), after.looked_at(scores, 6).next_look()) == (4, 6, 8)
    assert after.leader(scores) == Arm("a", "")
    assert after.against(Arm("a", ""), scores)["b"].gap == pytest.approx((0.06 - 0.07) / 4)


def test_who_is_behind_several_is_said_to_be_behind_the_best_of_them() -> None:
    scores = arms({"worst": noisy(0.0, 8, 0.003), "good": noisy(0.5, 8, 0.01), "best": noisy(0.9, 8, 0.02)})
    race = race_of("worst", "good", "best").looked_at(scores, 8)
    assert {d.arm.candidate: d.by for d in race.dropped} == {"worst": "best", "good": "best"}
    assert next(d.gap for d in race.dropped if d.arm.candidate == "worst") == pytest.approx(-0.9, abs=0.05)


def test_a_candidate_is_out_when_its_last_rate_is() -> None:
    low, high, other = Arm("a", "low"), Arm("a", "high"), Arm("b", "low")
    scores = {low: noisy(0.1, 8, 0.003), high: noisy(0.5, 8, 0.01), other: {s: 0.5 + 0.02 * (s % 3) for s in range(8)}}
    race = replace(race_of("a", "b"), running=(low, high, other)).looked_at(scores, 8)
    assert (race.candidates, race.running) == (["a", "b"], (high, other))
    assert race.best_arm("a", scores) == high


def test_only_where_all_are_near_the_leader_are_they_level() -> None:
    """`near` is at most 0.002 behind; `far` may be 0.02 behind, though it may be ahead too."""
    lead = dict.fromkeys(range(12), 0.5)
    near, far = ({s: 0.5 - 0.0001 + wobble * (-1) ** s for s in lead} for wobble in (0.0008, 0.01))
    scores = arms({"lead": lead, "near": near, "far": far})
    race = race_of("lead", "near", "far").looked_at(scores, 12)
    assert race.candidates == ["lead", "near", "far"]
    assert not race.level(scores, 0.005)
    assert race.level(scores, 0.05)
    assert race_of("lead", "near").looked_at(scores, 12).level(scores, 0.005)


def test_a_seed_counts_where_it_ran_in_every_world(tmp_path: Path) -> None:
    work = advising(tmp_path, lambda trial: 0.5 + wobble(trial), cases=("v", "w"), tuned=False)
    work.race()
    one, two = Arm(PLAIN, SAME), Arm("other", SAME)
    del work.ledger.outcomes["race", PLAIN, SAME, "w", 2]
    found = work._scores("race", [one, two], work.cases)
    assert (sorted(found[one]), sorted(found[two])) == ([0, 1], [0, 1, 2, 3])


def test_a_trial_is_the_case_with_its_candidate_rate_and_seed(tmp_path: Path) -> None:
    work = advising(tmp_path, lambda trial: 0.5)
    work.first_seed = 500
    base = to.Experiment().but(**{"algorithm.local.optimizer.lr": 0.2})
    base = base.but(**{"world.participation": to.participation.FleetLog("log.csv", mode="blocks")})
    work.cases = [RaceCase("w", "", base)]
    work.candidates = [Candidate("c", "", {"algorithm.weighting": to.weighting.ByShare()})]
    work.levers = [Lever("slow", "", "", {"algorithm.local.epochs": 9})]

    def made(part: str, settings: str = SAME, case: str = "w") -> to.Experiment:
        return work._experiment(Trial(part, "c", settings, case, 3))

    assert (made("race").seed, made("race").algorithm.weighting) == (503, to.weighting.ByShare())
    rates = [made("race", settings).algorithm.local.optimizer.lr for settings in (LOW, SAME, HIGH)]
    assert rates == pytest.approx([0.2 / 3, 0.2, 0.6], rel=1e-2)
    again = made("again")  # another seed on the same bootstrap log
    assert (again.seed, again.world) == (20_503, made("race").world)
    assert again.world.participation == replace(base.world.participation, again=503)
    lever = made("lever", case="w | slow")
    assert (lever.seed, lever.algorithm.local.epochs, lever.algorithm.weighting) == (503, 9, to.weighting.ByShare())


def test_costs_are_means_over_runs_and_a_target_counts_where_all_reach_it() -> None:
    """Plain FedAvg ends at 0.5 in one world and 0.8 in the other: nine tenths are 0.45 and 0.72."""
    judge = Judge.of(AIMS["accuracy"], to.tasks.Classification())

    def run(values: tuple[float, ...], up: float) -> TrialOutcome:
        return TrialOutcome(
            (10, 20, 30), {"global_accuracy": values}, (3.0, 6.0, 9.0), up, 2 * up, 3600 * up, seconds=up
        )

    plain = {("v", 0): run((0.1, 0.2, 0.5), 1.0), ("w", 0): run((0.1, 0.2, 0.8), 1.0)}
    mine = {("v", 0): run((0.1, 0.45, 0.5), 2.0), ("w", 0): run((0.46, 0.6, 0.75), 4.0)}
    cost = cost_of(mine, plain, judge, rounds=30, watts=5.0)
    assert cost is not None
    assert (cost.device_hours, cost.energy) == (3.0, pytest.approx(0.015))
    assert (cost.up, cost.down, cost.seconds) == (3.0, 6.0, 3.0)
    assert (cost.near_rounds, cost.near_bytes) == ((20 + 30) / 2, (6.0 + 9.0) / 2)
    never = cost_of({**mine, ("w", 1): run((0.1, 0.2, 0.3), 4.0)}, plain, judge, rounds=30)
    assert never is not None
    assert (never.near_rounds, never.near_bytes) == (None, None)


def small_log(folder: Path) -> ParticipationLog:
    """Ten rounds: a always does all, b half in every other round, c comes once in ten, d was asked twice and came."""
    rows = [
        (t, name, work) for t in range(10) for name, work in (("a", 1.0), ("b", 0.5 * (t % 2)), ("c", float(t == 5)))
    ]
    write_turnout(folder / "log.csv", [*rows, (3, "d", 1.0), (4, "d", 1.0)])
    return read_fleet(folder / "log.csv")


def test_facts_are_shares_of_those_asked(tmp_path: Path) -> None:
    facts = diagnose(small_log(tmp_path))
    assert (facts.clients, facts.rounds) == (4, 10)
    assert facts.turnout == pytest.approx((10 + 5 + 1 + 2) / (10 + 10 + 10 + 2))
    assert facts.work == pytest.approx((10 + 5 * 0.5 + 1 + 2) / 18)
    assert facts.complete == pytest.approx((10 + 1 + 2) / 18)
    assert facts.asked_share == pytest.approx(32 / 40)
    assert facts.turnout_by_round[:4] == pytest.approx((1 / 3, 2 / 3, 1 / 3, 3 / 4))
    assert facts.hardly_there == ()  # c comes to a tenth of its rounds


def test_stand_ins_are_every_kth_client_by_how_often_it_came_with_its_joins_and_leaves(tmp_path: Path) -> None:
    fleet = small_log(tmp_path)
    assert [fleet.names[i] for i in chosen_clients(fleet)] == ["a", "b", "d", "c"]
    assert [fleet.names[i] for i in chosen_clients(fleet, most=2)] == ["a", "c"]
    late = [(t, c, 1.0) for t in range(40) for c in ("stays", "joins", "leaves") if (t % 2 == 0) and
            not (c == "joins" and t < 20) and not (c == "leaves" and t >= 20)]  # fmt: skip
    write_turnout(tmp_path / "late.csv", late)
    log = read_fleet(tmp_path / "late.csv", Reading(missing="absent"))
    places = np.array([log.names.index(name) for name in ("leaves", "stays", "joins")])
    found = [(type(e).__name__, e.client, e.round) for e in events_of(log, places, rounds=20)]
    assert found == [("Leave", 0, int(19 * 20 / 39)), ("Join", 2, int(20 * 20 / 39))]  # of 39 rounds, the last is 38
    assert log.rounds == 39
    assert (len(diagnose(log).joined), len(diagnose(log).left)) == (1, 1)


@pytest.mark.parametrize(
    ("asked", "clients", "share"), [(0.95, 40, None), (0.5, 40, 0.5), (0.02, 40, 0.1), (0.3, 4, None)]
)
def test_as_large_a_part_is_asked_as_the_log_asked_but_at_least_four(
    tmp_path: Path, asked: float, clients: int, share: float | None
) -> None:
    found = diagnose(small_log(tmp_path))
    facts = replace(found, asked_by_round=(round(asked * 4000),), clients=4000, rounds=1)
    expected = Everyone() if share is None else Fraction(share)
    assert _selection(facts, clients) == expected


def test_a_shorter_case_has_its_events_at_the_same_part_of_the_run() -> None:
    events = (to.Join(client=1, round=30), to.Leave(client=2, round=45))
    base = to.Experiment(rounds=60).but(**{"world.events": events})
    made = RaceCase("w", "", base).lasting(20).experiment
    assert (made.rounds, [e.round for e in made.world.events]) == (20, [10, 15])


def test_a_given_experiment_races_with_plain_fedavg_and_its_own_local_training(tmp_path: Path) -> None:
    kept = {"local": to.Local(to.SGD(lr=0.3), epochs=3), "selection": to.selection.Count(2),
            "shares": to.weighting.Shares(by="uniform"), "nonfinite": "absent"}  # fmt: skip
    parts = {"weighting": to.weighting.FedNova(), "compression": to.compression.Quantise(), "max_weight": 0.5}
    given = to.Experiment(to.World(to.data.Digits(clients=5)), algorithm=to.Algorithm(**kept, **parts), rounds=7)
    case = given_case(given, tmp_path / "log.csv", Reading(every="1h"))
    assert case.experiment.algorithm == to.Algorithm(**kept)
    away = case.experiment.world.participation
    assert (away.path, away.mode, away.reading.every) == (str(tmp_path / "log.csv"), "blocks", "1h")
    assert case.experiment.rounds == 7
    assert given_case(given, tmp_path / "log.csv", Reading(), rounds=4).experiment.rounds == 4


def found_advice(folder: Path, accuracy: Accuracy, aim: str = "accuracy", seeds: int = 4) -> Advice:
    work = advising(folder / "out", accuracy, (PLAIN, "b", "c"), aim=aim, seeds=seeds)
    return work.advice(diagnose(small_log(folder)), {}, folder / "out")


def test_an_advice_names_the_best_and_lists_the_others_by_their_mean(tmp_path: Path) -> None:
    level = {PLAIN: 0.5, "b": 0.7, "c": 0.69}

    def accuracy(trial: Trial) -> float:
        best = trial.settings == (HIGH if trial.candidate == "b" else LOW)
        if trial.settings not in (LOW, SAME, HIGH):
            return 0.1
        wobble = {PLAIN: 0.002 * (trial.seed % 3), "b": 0.03 * (trial.seed % 2), "c": 0.01 * (trial.seed % 3)}
        return level[trial.candidate] + 0.05 * best + wobble[trial.candidate]

    advice = found_advice(tmp_path, accuracy)
    assert (advice.ahead, advice.undecided) == (None, ["b", "c"])
    assert [row.name for row in advice.rows()] == ["b", "c", PLAIN]
    assert [row.settings for row in advice.rows()] == [HIGH, LOW, LOW]
    assert advice.recommended == "b"
    lr = advice.cases[0].experiment.algorithm.local.optimizer.lr
    assert advice.recommended_experiment().algorithm.local.optimizer.lr == pytest.approx(3 * lr, rel=1e-2)
    assert set(advice.spent_on) == {"the comparison", "learning rates"}


def test_an_advice_about_bytes_says_bytes(tmp_path: Path) -> None:
    advice = found_advice(tmp_path, lambda trial: 0.5 + 0.01 * (trial.seed % 2), aim="bytes")
    assert advice.score_text(-10.0) == "1.02 kB"  # 2^10
    assert advice.gap_text(-1.0, -2.0, 0.0) == "2.00× (1.00× to 4.00×)"
    accuracy = replace(advice, judge=Judge.of(AIMS["accuracy"], to.tasks.Classification()))
    assert accuracy.gap_text(-0.02, -0.03, -0.01) == "-2.0 (-3.0 to -1.0)"


def test_a_run_in_memory_counts_bytes_and_ends_with_its_last_round() -> None:
    """16 rounds are evaluated every round, 31 rounds every second, and always the last."""
    data, model = to.data.Digits(clients=4, sizes=to.data.Equal(20)), to.models.Logistic()
    runtime = to.runtime.InProcess(device="cpu", threads=1)
    base = to.Experiment(to.World(data, to.participation.Dropout(0.5)), model, rounds=31, runtime=runtime)
    base = base.but(**{"algorithm.compression": to.compression.Quantise()})  # less up than down
    found = measure(base)
    assert found.rounds == (*range(2, 31, 2), 31)
    records, state, track = [], None, prepare(base)
    state = track.begin()
    for t in range(31):
        state, record = track.round(state, t)
        records.append(record)
    up, down = sum(r.bytes_up for r in records), sum(r.bytes_down for r in records)
    assert up != down
    assert (found.up, found.down, found.sent[-1]) == (up, down, up + down)
    assert found.sent[0] == sum(r.bytes_up + r.bytes_down for r in records[:2])
    assert not found.diverged
    wild = measure(base.but(**{"algorithm.local.optimizer.lr": 1e39}))
    assert wild.diverged
    assert len(wild.rounds) < 16


class Track:
    """A track whose evaluations are given: one after each round, every client answers."""

    def __init__(self, evaluations: list[dict[str, float]]) -> None:
        self.evaluations, self.experiment = evaluations, to.Experiment(rounds=len(evaluations))

    def begin(self) -> None:
        return None

    def round(self, state: None, t: int) -> tuple[None, RoundRecord]:
        return None, RoundRecord(round=t, asked=4, answered=3, bytes_up=10, bytes_down=20)

    def evaluate(self, state: None, t: int) -> Evaluation:
        return Evaluation(t, self.evaluations[t])


def test_a_run_with_one_loss_that_is_not_finite_has_diverged() -> None:
    calm = {"global_loss": 1.0, "personal_loss": 1.0, "global_accuracy": 0.5}
    found = _rounds(Track([calm, calm, calm | {"global_loss": math.inf}, calm]), 0.0)  # type: ignore[arg-type]
    assert found.diverged == "the loss is not finite after round 2"
    assert (found.rounds, found.values["global_accuracy"], found.sent) == ((1, 2), (0.5, 0.5), (30.0, 60.0))
    odd = calm | {"personal_accuracy": math.nan}  # a metric that no client has is no divergence
    assert not _rounds(Track([odd]), 0.0).diverged  # type: ignore[arg-type]


def test_a_ledger_knows_how_long_it_took_so_far(tmp_path: Path) -> None:
    ledger = TrialLedger(tmp_path)
    for seed, spent in enumerate((5.0, 9.0, 7.0)):
        ledger.add(Trial("race", "a", SAME, "w", seed), reaching(0.5), spent)
    again = TrialLedger(tmp_path)
    assert (again.spent, len(again.outcomes)) == (9.0, 3)
    assert again.outcomes[Trial("race", "a", SAME, "w", 1)] == reaching(0.5)


def test_a_plan_counts_rates_seeds_candidates_and_jobs() -> None:
    """A run takes 1.6 x (2 + 50 x 0.1) s on average; to the first look, with four rates, a candidate has 16 of them."""
    begin, each = [2.0], [0.1]
    each_run = 1.6 * (2.0 + 50 * 0.1)

    def planned(budget: float, jobs: int = 1) -> RacePlan:
        return fitting(begin, each, 50, candidates=10, budget=budget, jobs=jobs)

    first_look = 10 * 16 * each_run / 0.4  # rates may take until 0.4 of the budget
    assert [planned(first_look * part).tuned for part in (0.99, 1.01)] == [False, True]
    assert [planned(first_look / 2 * part, jobs=2).tuned for part in (0.99, 1.01)] == [False, True]
    six_seeds = 6 * 10 * each_run / 0.6  # the race's second look is after 6 seeds
    assert planned(six_seeds * 1.01).rounds == 50
    assert 15 < planned(six_seeds * 0.9).rounds < 50
    assert planned(1.0).rounds == 15
    assert fitting(begin, each, 9, 10, 1.0, 1).rounds == 9


def test_small_models_keep_more_and_the_last_layer_stays_home(tmp_path: Path) -> None:
    facts = diagnose(small_log(tmp_path))
    small = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 2))
    large = torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.Linear(400, 2))
    for module, keep in ((small, 0.05), (large, 0.01)):
        listed = {c.name: c for c in known_candidates(AIMS["accuracy"], facts, module)}
        assert listed["ternary"].changes == {"algorithm.compression": to.compression.SparseTernary(keep)}
    assert own_layers(small) == {"last layer": to.personal.Named("2.*")}
