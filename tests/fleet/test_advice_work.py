"""The arithmetic of an advice on outcomes that are given: tuning, scores, the race; nothing is run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import turnout as to
from turnout.fleet import ParticipationLog, Reading, read_fleet
from turnout.fleet.advice.advice import Advice, cost_of
from turnout.fleet.advice.advise import AdviceWork, _able
from turnout.fleet.advice.candidates import AIMS, PLAIN, Candidate, Judge, known_candidates, own_layers
from turnout.fleet.advice.cases import RaceCase, _selection, chosen_clients, events_of, given_case
from turnout.fleet.advice.race import LOOKS, Race, RaceBoard, RacePlan, fitting
from turnout.fleet.advice.trials import Trial, TrialLedger, TrialOutcome, TrialWorkers, _rounds, measure
from turnout.fleet.diagnosis import diagnose
from turnout.parts.selection import Everyone, Fraction
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.tracks.prepare import prepare
from turnout.statistics import t_quantile
from turnout.world.log import write_turnout

LOW, SAME, HIGH = "lr × 0.333", "lr × 1", "lr × 3"
TUNING_SEEDS = (10_000, 10_001)
Accuracy = Callable[[Trial], float]


def reaching(accuracy: float, sent: float = 100.0) -> TrialOutcome:
    """A run whose accuracy rises in a straight line to the first of its last three values, which are all the same."""
    values = tuple(accuracy * min(1.0, (i + 1) / 10) for i in range(12))
    steps = tuple(sent * (i + 1) / 12 for i in range(12))
    return TrialOutcome(tuple(range(1, 13)), {"global_accuracy": values}, steps, sent / 2, sent / 2)


def advising(
    folder: Path, accuracy: Accuracy, names: tuple[str, ...] = (PLAIN, "other"), cases: tuple[str, ...] = ("w",),
    aim: str = "accuracy", seeds: int = 4,
) -> AdviceWork:  # fmt: skip
    """An advice in whose ledger every run that it may ask for is there."""
    ledger = TrialLedger(folder)
    for part, ids in (("tune", (*TUNING_SEEDS, 0, 1)), ("race", range(seeds))):
        for name in names:
            for settings in (LOW, SAME, HIGH):
                for case in cases:
                    for seed in ids:
                        trial = Trial(part, name, settings, case, seed)
                        ledger.add(trial, reaching(accuracy(trial)), spent=0.0)
    experiment = to.Experiment()
    judge = Judge.of(AIMS[aim], experiment.task)
    plan = RacePlan((1 / 3, 1.0, 3.0), 2, 12, 12, 1.0)
    listed = [Candidate(name, "") for name in names]
    worlds = [RaceCase(case, "", experiment) for case in cases]
    board = RaceBoard(quiet=True)
    return AdviceWork(listed, worlds, judge, plan, ledger, TrialWorkers(1), board, 1e9, 0.0, seeds, 0)


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


def test_a_seed_that_was_tuned_in_part_ends_the_tuning(tmp_path: Path) -> None:
    """A run of the first seed is missing: with the second alone, candidates would not be tuned alike."""
    work = advising(tmp_path, lambda trial: {LOW: 0.9, SAME: 0.2, HIGH: 0.3}[trial.settings])
    del work.ledger.outcomes["tune", "other", HIGH, "w", TUNING_SEEDS[0]]
    work.budget, work.started = 0.0, -1e6
    work.tune()
    assert (work.plan.tuning_seeds, set(work.chosen.values())) == (0, {SAME})


def test_the_target_for_bytes_is_that_of_plain_fedavg_at_its_best_rate(tmp_path: Path) -> None:
    at = {LOW: 0.4, SAME: 0.8, HIGH: 0.5}
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


def test_outside_a_terminal_the_race_prints_its_looks_and_nothing_about_steps_without_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = advising(tmp_path, lambda trial: 0.5 + (0.1 + 0.001 * (trial.seed % 3)) * (trial.candidate == "other"))
    work.board = RaceBoard()
    work.tune()
    work.race()
    assert capsys.readouterr().err == "after 4 seeds: 1 still in, 1 dropped, 0 set aside\n"
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


def test_the_interval_of_the_race_is_divided_among_all_looks_and_all_it_began_with() -> None:
    """Four candidates: each meets three others at twelve looks, two-sided; also when one has been dropped."""
    race = Race.of(["a", "b", "c", "d"])
    scores = {"a": noisy(0.5, 8), "b": {s: 0.5 + 0.02 * (s % 3) for s in range(8)}, "c": noisy(0.4, 8, 0.02),
              "d": noisy(-9.0, 8, 0.013)}  # fmt: skip
    after = race.looked_at(scores, 8)
    assert "d" not in after.running
    gaps = [scores["a"][s] - scores["b"][s] for s in range(8)]
    mean = sum(gaps) / 8
    deviation = math.sqrt(sum((g - mean) ** 2 for g in gaps) / 7)
    reach = t_quantile(1 - 0.05 / (2 * 3 * 12), 7) * deviation / math.sqrt(8)
    for one in (race, after):
        found = one.compared("a", "b", scores)
        assert (found.gap, found.low, found.high) == pytest.approx((mean, mean - reach, mean + reach))


def test_a_look_sees_the_seeds_up_to_it_and_the_next_one_is_later() -> None:
    race = Race.of(["a", "b"])
    scores = {"a": noisy(0.5, 9), "b": {s: 0.5 + 0.02 * (s % 3) + (99.0 if s >= 4 else 0.0) for s in range(9)}}
    after = race.looked_at(scores, 4)
    assert after.running == ("a", "b")  # the seeds from 4 on were not looked at
    assert (race.next_look(), after.next_look(), after.looked_at(scores, 6).next_look()) == (4, 6, 8)
    assert after.leader(scores) == "a"
    assert after.against("a", scores)["b"].gap == pytest.approx((0.06 - 0.07) / 4)


def test_who_is_behind_several_is_said_to_be_behind_the_best_of_them() -> None:
    scores = {"worst": noisy(0.0, 8, 0.003), "good": noisy(0.5, 8, 0.01), "best": noisy(0.9, 8, 0.02)}
    race = Race.of(list(scores)).looked_at(scores, 8)
    assert {d.name: d.by for d in race.dropped} == {"worst": "best", "good": "best"}
    assert next(d.gap for d in race.dropped if d.name == "worst") == pytest.approx(-0.9, abs=0.05)


def test_only_where_all_are_near_the_leader_are_they_level() -> None:
    """`near` is at most 0.002 behind; `far` may be 0.02 behind, though it may be ahead too."""
    lead = dict.fromkeys(range(12), 0.5)
    near, far = ({s: 0.5 - 0.0001 + wobble * (-1) ** s for s in lead} for wobble in (0.0008, 0.01))
    scores = {"lead": lead, "near": near, "far": far}
    race = Race.of(["lead", "near", "far"]).looked_at(scores, 12)
    assert race.running == ("lead", "near", "far")
    assert not race.level(scores, 0.005)
    assert race.level(scores, 0.05)
    assert Race.of(["lead", "near"]).looked_at(scores, 12).level(scores, 0.005)


def test_a_seed_counts_where_it_ran_in_every_world(tmp_path: Path) -> None:
    work = advising(tmp_path, lambda trial: 0.5, cases=("v", "w"))
    work.tune()
    del work.ledger.outcomes["race", PLAIN, work.chosen[PLAIN], "w", 2]
    found = work._scores([PLAIN, "other"], work.cases)
    assert (sorted(found[PLAIN]), sorted(found["other"])) == ([0, 1], [0, 1, 2, 3])


def test_a_trial_is_the_case_with_its_candidate_rate_and_seed(tmp_path: Path) -> None:
    work = advising(tmp_path, lambda trial: 0.5)
    work.first_seed = 500
    base = to.Experiment().but(**{"algorithm.local.optimizer.lr": 0.2})
    case, candidate = RaceCase("w", "", base), Candidate("c", "", {"algorithm.weighting": to.weighting.ByShare()})

    def made(part: str, settings: str = SAME, seed: int = 3) -> to.Experiment:
        return work._experiment(candidate, case, Trial(part, "c", settings, "w", seed))

    assert (made("race").seed, made("race").algorithm.weighting) == (503, to.weighting.ByShare())
    rates = [made("tune", settings).algorithm.local.optimizer.lr for settings in (LOW, SAME, HIGH)]
    assert rates == pytest.approx([0.2 / 3, 0.2, 0.6], rel=1e-2)
    assert made("race").world == base.world


def test_costs_are_means_over_runs_and_a_target_counts_where_all_reach_it() -> None:
    """Plain FedAvg ends at 0.5 in one world and 0.8 in the other: nine tenths are 0.45 and 0.72."""
    judge = Judge.of(AIMS["accuracy"], to.tasks.Classification())

    def run(values: tuple[float, ...], up: float) -> TrialOutcome:
        return TrialOutcome((10, 20, 30), {"global_accuracy": values}, (3.0, 6.0, 9.0), up, 2 * up, seconds=up)

    plain = {("v", 0): run((0.1, 0.2, 0.5), 1.0), ("w", 0): run((0.1, 0.2, 0.8), 1.0)}
    mine = {("v", 0): run((0.1, 0.45, 0.5), 2.0), ("w", 0): run((0.46, 0.6, 0.75), 4.0)}
    cost = cost_of(mine, plain, judge, rounds=30)
    assert cost is not None
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
    (folder / "out").mkdir()
    work = advising(folder / "out", accuracy, (PLAIN, "b", "c"), aim=aim, seeds=seeds)
    return work.advice(diagnose(small_log(folder)), {}, folder / "out")


def test_an_advice_names_the_best_and_lists_the_others_by_their_mean(tmp_path: Path) -> None:
    level = {PLAIN: 0.5, "b": 0.7, "c": 0.69}

    def accuracy(trial: Trial) -> float:
        best = trial.settings == (HIGH if trial.candidate == "b" else LOW)
        wobble = {PLAIN: 0.002 * (trial.seed % 3), "b": 0.03 * (trial.seed % 2), "c": 0.01 * (trial.seed % 3)}
        return level[trial.candidate] + 0.05 * best + wobble[trial.candidate]

    advice = found_advice(tmp_path, accuracy)
    assert (advice.best, advice.undecided, advice.leader) == (None, ["b", "c"], "b")
    assert [row.name for row in advice.rows()] == ["b", "c", PLAIN]
    assert advice.recommended == "b"
    swapped = replace(advice, scores={**advice.scores, "b": advice.scores["c"], "c": advice.scores["b"]})
    assert [row.name for row in swapped.rows()] == ["c", "b", PLAIN]
    lr = advice.cases[0].experiment.algorithm.local.optimizer.lr
    assert advice.recommended_experiment().algorithm.local.optimizer.lr == pytest.approx(3 * lr, rel=1e-2)
    edges = [words for words in advice.not_tried() if words.startswith("learning rates")]
    assert edges == [f"learning rates above {HIGH}, the best of those tried for b",
                     f"learning rates below {LOW}, the best of those tried for {PLAIN}, c"]  # fmt: skip
    unseen = replace(advice, race=replace(advice.race, running=("b",), seeds=0))
    assert unseen.best is None  # nothing was looked at yet
    assert "undecided" in unseen.sentence()


def test_an_advice_about_bytes_says_bytes(tmp_path: Path) -> None:
    advice = found_advice(tmp_path, lambda trial: 0.5 + 0.01 * (trial.seed % 2), aim="bytes")
    assert advice.score_text(-10.0) == "1.02 kB"  # 2^10
    assert advice._gap(-1.0, -2.0, 0.0) == "2.00× (1.00× to 4.00×)"
    accuracy = replace(advice, judge=Judge.of(AIMS["accuracy"], to.tasks.Classification()))
    assert accuracy._gap(-0.02, -0.03, -0.01) == "-2.0 (-3.0 to -1.0)"


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
    """A run takes 1.6 x (2 + 50 x 0.1) s on average, so tuning 10 candidates at 3 rates takes 336 s with one seed."""
    begin, each = [2.0], [0.1]
    each_run = 1.6 * (2.0 + 50 * 0.1)

    def planned(budget: float, jobs: int = 1) -> RacePlan:
        return fitting(begin, each, 50, candidates=10, budget=budget, jobs=jobs)

    one_seed = 10 * 3 * each_run / 0.4  # tuning may take 0.4 of the budget
    assert [planned(one_seed * part).tuning_seeds for part in (0.99, 1.01, 1.99, 2.01)] == [0, 1, 1, 2]
    assert [planned(one_seed / 2 * part, jobs=2).tuning_seeds for part in (0.99, 1.01)] == [0, 1]
    six_looks = 6 * 10 * each_run / 0.85  # the race's second look is after 6 seeds
    assert planned(six_looks * 1.01).rounds == 50
    assert 15 < planned(six_looks * 0.9).rounds < 50
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
