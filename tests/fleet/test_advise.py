"""Advice: the race names a wrong winner rarely, fleets with a known answer get it, and it can be stopped."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import turnout as to
from known_fleets import KNOWN, KnownFleet
from turnout.cli import main
from turnout.fleet import Reading, read_fleet
from turnout.fleet.advice.budget import fitting, timed
from turnout.fleet.advice.candidates import AIMS, Judge
from turnout.fleet.advice.cases import stand_ins
from turnout.fleet.advice.race import LOOKS, Arm, Race, Scores
from turnout.fleet.advice.trials import TrialOutcome, measure
from turnout.fleet.diagnosis import diagnose
from turnout.fleet.example import ExampleFleet
from turnout.running.config.read import load, to_toml
from turnout.world.log import write_turnout

Draw = Callable[[random.Random], float]
NOISES: dict[str, Draw] = {
    "normal": lambda draw: draw.gauss(0, 1),
    "skewed": lambda draw: draw.expovariate(1.0),
    "coarse": lambda draw: float(draw.randrange(4)),
}


def plain_race(*names: str) -> Race:
    """A race at one learning rate."""
    return Race(names, rates=1).joined("", names)


def by_arm(scores: dict[str, dict[int, float]]) -> Scores:
    return {Arm(name, ""): score for name, score in scores.items()}


def raced(draw: random.Random, noise: Draw, gains: list[float], looks: int) -> Race:
    """A race of candidates with these true gains; a seed does the same to all of them, and something to each."""
    names = [f"c{i}" for i in range(len(gains))]
    scores: dict[str, dict[int, float]] = {name: {} for name in names}
    for seed in range(LOOKS[looks - 1]):
        shared = 5 * draw.gauss(0, 1)
        for name, gain in zip(names, gains, strict=True):
            scores[name][seed] = shared + gain + noise(draw)
    race = plain_race(*names)
    for look in LOOKS[:looks]:
        if not race.decided:
            race = race.looked_at(by_arm(scores), look)
    return race


@pytest.mark.parametrize("noise", NOISES)
def test_candidates_that_are_alike_rarely_have_a_winner(noise: str) -> None:
    draw, races = random.Random(1), 150
    found = [raced(draw, NOISES[noise], [0.0] * 4, looks=5) for _ in range(races)]
    most = 0.05 + 2 * math.sqrt(0.05 * 0.95 / races)
    assert sum(race.decided for race in found) / races <= most
    assert sum("c0" not in race.candidates for race in found) / races <= most  # any one candidate is dropped in 2.5 %


def test_the_best_is_found_and_the_race_says_who_was_behind_whom() -> None:
    race = raced(random.Random(2), NOISES["normal"], [0.0, 3.0, 0.5], looks=7)
    assert race.candidates == ["c1"]
    assert {d.arm.candidate: d.by for d in race.dropped} == {"c0": "c1", "c2": "c1"}
    assert all(d.high < 0 and d.after in LOOKS for d in race.dropped)


def test_candidates_with_the_very_same_scores_are_set_aside() -> None:
    scores = {name: {seed: 0.1 * seed for seed in range(4)} for name in ("plain", "twin")}
    scores["other"] = {seed: 0.1 * seed + 0.01 * (-1) ** seed for seed in range(4)}
    race = plain_race("plain", "twin", "other").looked_at(by_arm(scores), 4)
    assert (race.candidates, race.twins) == (["plain", "other"], {"twin": "plain"})


def test_a_candidate_that_diverges_is_behind() -> None:
    scores = {name: {seed: 0.1 * seed for seed in range(4)} for name in ("plain", "wild")}
    scores["wild"][2] = -math.inf
    race = plain_race("plain", "wild").looked_at(by_arm(scores), 4)
    assert (race.candidates, [d.arm.candidate for d in race.dropped]) == (["plain"], ["wild"])


def test_what_is_closer_than_a_margin_is_as_good() -> None:
    draw = random.Random(3)
    scores = by_arm({name: {s: draw.gauss(0, 0.0002) for s in range(12)} for name in ("a", "b")})
    race = plain_race("a", "b").looked_at(scores, 12)
    assert race.level(scores, 0.005)
    assert not race.level(scores, 0.00001)


def test_bytes_are_counted_until_the_target_is_reached() -> None:
    plain = TrialOutcome((10, 20), {"global_accuracy": (0.5, 1.0)}, (100.0, 200.0), 100.0, 100.0)
    judge = Judge.of(AIMS["bytes"], to.tasks.Classification()).aimed_at({"w": [plain]})  # of one evaluation: the last
    assert judge.targets == {"w": 0.9}
    quick = TrialOutcome((10, 20), {"global_accuracy": (0.95, 0.2)}, (25.0, 50.0))
    assert judge.score(quick, "w") - judge.score(plain, "w") == 3.0  # an eighth of the bytes
    assert judge.score(TrialOutcome((10,), {"global_accuracy": (0.1,)}, (1.0,)), "w") == -math.log2(10 * 200.0)
    assert judge.shown(3.0) == "0.12×"


def test_a_small_budget_tunes_less_and_then_runs_fewer_rounds() -> None:
    plans = [fitting([0.1], [0.01], 60, candidates=10, budget=b, jobs=2) for b in (600, 60, 20, 5)]  # seconds
    assert [(p.tuned, p.rounds) for p in plans] == [(True, 60), (False, 60), (False, 15), (False, 15)]
    assert (len(plans[0].notes()), len(plans[1].notes()), len(plans[-1].notes())) == (0, 1, 2)


def made_log(path: Path, work: Callable[[int, int], float], clients: int, rounds: int = 60) -> Path:
    write_turnout(path, [(t, c, work(t, c)) for t in range(rounds) for c in range(clients)])
    return path


def digits(partition: to.partition.Partition, clients: int = 10, rounds: int = 20) -> to.Experiment:
    data = to.data.Digits(clients=clients, partition=partition)
    local = to.Local(to.SGD(lr=0.1), epochs=2, batch_size=10)
    runtime = to.runtime.InProcess(device="cpu", threads=1)
    return to.Experiment(to.World(data), to.models.MLP(16), to.Algorithm(local), rounds=rounds, runtime=runtime)


def test_a_fleet_that_always_finishes_needs_nothing_but_fedavg(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = made_log(tmp_path / "log.csv", lambda t, c: 1.0, clients=10)
    (tmp_path / "mine.toml").write_text(to_toml(digits(to.partition.IID(), rounds=4)))
    only = [word for name in ("FedAvg", "scheme C", "friends") for word in ("--only", name)]
    out = tmp_path / "out"
    asked = ["advise", str(log), str(tmp_path / "mine.toml"), "--seeds", "4", "--no-tune", *only, "--jobs", "1", "-q"]
    asked.append("--no-levers")
    assert main([*asked, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "FedAvg is ahead for accuracy (scheme C and friends would do the very same here) on this log" in said
    assert "it collapsed in 0 of 4 seeds (at most 60.2 %)" in said
    runs = (out / "trials.jsonl").read_text()
    slower = re.sub(r'"spent": [\d.]+', '"spent": 100.0', runs)
    (out / "trials.jsonl").write_text(slower[:-30])  # killed while it was writing
    assert main([*asked, "--out", str(out), "--json", "-"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert resumed["recommended"] == "FedAvg"
    assert 100 < resumed["seconds"] < 200, "time that was spent before counts"
    again = (out / "trials.jsonl").read_text()
    assert again.count("\n") == runs.count("\n") + 1, "only what was lost is run again"
    assert main([*asked, "--out", str(out), "--for", "bytes"]) == 2
    assert "another question (aim differ)" in capsys.readouterr().err


def test_clients_with_labels_of_their_own_want_personal_layers(tmp_path: Path) -> None:
    draw = random.Random(4)
    log = made_log(tmp_path / "log.csv", lambda t, c: float(draw.random() < 0.7), clients=10)
    experiment = digits(to.partition.Classes(per_client=2), rounds=12)
    mine = {"mine": {"algorithm.weighting": to.weighting.ByShare(), "algorithm.local.epochs": 1}}
    advice = to.advise(
        log, experiment, aim="personal", out=tmp_path / "out", candidates=mine, seeds=6, quiet=True,
        only=["FedAvg", "personal last layer", "mine"], jobs=1,
    )  # fmt: skip
    assert (advice.ahead, advice.best) == ("personal last layer", None)  # six seeds do not show that it never collapses
    assert {d.arm.candidate for d in advice.race.dropped} >= {"FedAvg", "mine"}
    assert json.loads((tmp_path / "out" / "advice.json").read_text())["ahead"] == advice.ahead
    recommended = load(tmp_path / "out" / "recommended.toml")
    assert isinstance(recommended.algorithm, to.Algorithm)
    assert recommended.algorithm.personal == to.personal.Named("output.*")
    page = (tmp_path / "out" / "advice.html").read_text()
    for heading in ("Ranking", "What was not tried", "recommended.toml"):
        assert f"<h2>{heading}" in page
    assert page.count('<figure><svg class="chart"') == 4  # intervals, curves, levers, the log's turnout
    assert "is ahead for personal" in advice._repr_html_()


@pytest.mark.slow
@pytest.mark.parametrize("fleet", KNOWN, ids=lambda fleet: fleet.name)
def test_fleets_with_a_known_answer_get_it(fleet: KnownFleet, tmp_path: Path) -> None:
    log = fleet.write_log(tmp_path / "log.csv")
    advice = to.advise(
        log, fleet.experiment(), aim=fleet.aim, only=fleet.candidates, out=tmp_path / "out", seeds=24, budget=1e9,
        quiet=True, levers=False,
    )  # fmt: skip
    assert fleet.is_right(advice), advice.sentence()


@pytest.mark.slow
def test_stand_ins_give_an_answer(tmp_path: Path) -> None:
    ExampleFleet(devices=20, days=7).write(tmp_path / "checkins.csv")
    advice = to.advise(
        tmp_path / "checkins.csv", reading=Reading(every="1h"), out=tmp_path / "out", seeds=6, budget=1e9, rounds=20,
        only=["FedAvg", "scheme C", "friends", "SCAFFOLD"],
    )  # fmt: skip
    assert {case.name for case in advice.cases} == {"mild", "skewed", "harsh"}
    assert len(advice.world_sentences()) == 3
    assert advice.cost() is not None
    assert to.run(load(tmp_path / "out" / "recommended.toml"), tmp_path / "run", quiet=True).rounds() == 20


def test_a_log_with_joins_and_leaves_fits_into_a_short_run(tmp_path: Path) -> None:
    came = [(t, c, 1.0) for t in range(60) for c in range(6) if t % 2 == 0 and (c != 3 or t < 20)]
    write_turnout(tmp_path / "log.csv", came)  # client 3 comes every other round, and then no more
    fleet = read_fleet(tmp_path / "log.csv")
    case = stand_ins(fleet, diagnose(fleet), tmp_path, rounds=30)[0].lasting(6)
    assert [(type(e).__name__, e.client, e.round) for e in case.experiment.world.events] == [("Leave", 5, 1)]
    assert measure(case.experiment).rounds[-1] == 6
    assert timed(case, rounds=1)[1] > 0
