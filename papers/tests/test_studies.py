"""Studies: the rules that decide claims, and both studies end to end at smoke scale."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import turnout as to
from turnout.data import MNIST
from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.running.plan import RunPlan
from turnout.running.runs import Outcome
from turnout.statistics import difference, interval, mean_over
from turnout_papers.cli import app
from turnout_papers.studies import bias, elastic, participation
from turnout_papers.studies.claims import Claim, above, best_elsewhere, better, same, sooner, within
from turnout_papers.studies.drawing import draw, over_rounds
from turnout_papers.studies.running import Findings, Gathered, planned, run_study, studies
from turnout_papers.studies.study import (
    Chart,
    Curve,
    Curves,
    Part,
    ResultRow,
    Study,
    StudyPlan,
    last_fifth,
    last_tenth,
    row,
)
from turnout_papers.studies.tables import by_reason, cells, left_out, markdown, tally

FLEXIBLE = ("participation", "bias")  # other papers' studies have test files of their own

# -- claims


def test_interval_by_hand() -> None:
    # 3, 5, 10: mean 6, s² = (9 + 1 + 16) / 2 = 13, t(95 %, 2) = 2.91999
    found = interval({2: 3.0, 0: 5.0, 1: 10.0})
    assert found.mean == 6.0
    assert found.low == pytest.approx(6 - 2.91999 * math.sqrt(13 / 3), abs=1e-4)
    assert found.high == pytest.approx(6 + 2.91999 * math.sqrt(13 / 3), abs=1e-4)
    assert found.seeds == (0, 1, 2)


def test_better_is_paired_by_seed() -> None:
    # Unpaired these overlap completely; paired the difference is 1 ± a little, whatever the order of the seeds.
    theirs = {0: 10.0, 1: 50.0, 2: 90.0}
    ours = {2: 91.1, 0: 11.0, 1: 50.9}
    claim = better("ours is better", ours, theirs, "points")
    assert claim.holds
    assert claim.evidence == "mean +1 points, 90 % interval +0.831 to +1.17, 3 seeds (0 1 2)"
    assert not better("theirs is better", theirs, ours).holds


def test_a_mean_above_zero_is_not_enough() -> None:
    value = {0: 3.0, 1: -1.0, 2: 2.0}  # mean 1.33, s 2.08, t s / √3 = 3.51
    claim = above("above", value)
    assert not claim.holds
    assert "mean +1.33, 90 % interval -2.18 to +4.84" in claim.evidence


def test_no_worse_allows_a_margin() -> None:
    ours, theirs = {0: 9.0, 1: 10.0, 2: 11.0}, {0: 10.0, 1: 10.0, 2: 10.0}  # 0 ± 1.686
    assert better("no worse", ours, theirs, margin=1.7).holds
    assert not better("no worse", ours, theirs, margin=1.6).holds


def test_within_needs_both_bounds() -> None:
    level = {0: 0.0, 1: 0.0, 2: 0.0}
    assert within("close", {0: -1.0, 1: 0.0, 2: 1.0}, level, margin=2.0).holds  # ± 1.686
    assert not within("close", {0: -1.0, 1: 0.0, 2: 1.0}, level, margin=1.6).holds
    assert not within("shifted up", {0: 0.5, 1: 1.0, 2: 1.5}, level, margin=1.5).holds  # 1 + 0.843
    assert not within("shifted down", {0: -0.5, 1: -1.0, 2: -1.5}, level, margin=1.5).holds
    assert within("shifted", {0: 0.5, 1: 1.0, 2: 1.5}, level, margin=1.9).holds


@pytest.mark.parametrize("rule", [better, lambda c, a, b: within(c, a, b, margin=100.0)])
def test_one_seed_or_a_missing_number_decides_nothing(rule) -> None:  # type: ignore[no-untyped-def]
    alone = rule("a claim", {0: 5.0}, {0: 1.0})
    assert not alone.holds
    assert alone.evidence == "cannot decide with 1 seed (it gives +4): take --seeds 2 or more"
    holed = rule("a claim", {0: 5.0, 1: math.nan, 2: 5.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert not holed.holds
    assert holed.evidence == "cannot decide: no number for seed 1"
    assert not rule("a claim", {}, {}).holds


def test_differences_are_of_the_seeds_that_both_have() -> None:
    assert difference({0: 1.0, 1: 2.0}, {0: 3.0, 2: 2.0}) == {0: -2.0}
    assert mean_over([{0: 1.0, 1: 2.0}, {1: 4.0}]) == {1: 3.0}
    with pytest.raises(UserError, match="share their seeds"):
        difference({0: 1.0}, {2: 2.0})


def test_a_run_that_diverges_is_an_outcome(tmp_path: Path) -> None:
    good = Experiment(rounds=3).but(**{"world.data": to.data.Synthetic(clients=4), "model": to.models.Logistic()})
    wild = good.but(**{"algorithm.local.optimizer.lr": 1e38})
    part = Part("both", {"good": good, "wild": wild, "also good": good.but(title="also")}, seeds=2)
    study = Study(
        "diverging",
        "nothing",
        "global_accuracy",
        plan=lambda scale: StudyPlan([part]),
        rows=lambda scale, curves: [row(v, "mean", curves.each(v, Curve.mean)) for v in curves.curves],
        claims=lambda scale, curves: [curves.better("good is better than wild", "good", "wild", last_fifth)],
        figures=lambda scale: {"all.svg": [Chart("all", {v: v for v in part.variants})]},
    )
    found = run_study(study, "smoke", tmp_path / "out", jobs=1, quiet=True)
    assert {(r.case, r.repeats, r.diverged) for r in found.rows} == {
        ("good", 2, 0), ("wild", 2, 2), ("also good", 2, 0),
    }  # fmt: skip
    assert len(found.diverged) == 2
    assert not found.failed
    assert all("not finite" in words and words.startswith("wild seed") for words in found.diverged)
    assert found.claims[0].evidence.startswith(
        "above in 2 of 2 seeds (2 for a run that diverged), below in 0 (0); signed ranks"
    )
    assert "wild" not in (tmp_path / "out" / "all.svg").read_text("utf-8")
    again = Findings.from_json(found.to_json())
    assert (again.diverged, again.command) == (found.diverged, "turnout study run diverging --scale smoke")
    assert "- diverged, ranked last where it is compared: wild seed 0" in markdown(again)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9))
def test_a_claim_and_its_opposite_never_both_hold(values: list[float]) -> None:
    value = dict(enumerate(values))
    opposite = {seed: -v for seed, v in value.items()}
    assert not (above("up", value).holds and above("down", opposite).holds)


def test_same_is_the_largest_difference() -> None:
    a = {0: 80.0, 1: 70.0}
    close = same("agree", {"A": a, "B": {0: 80.05, 1: 70.0}}, tolerance=0.1, unit="points")
    assert close.holds
    assert close.evidence == "largest difference of A, B: 0.05 points in 2 seeds (allowed: 0.1)"
    assert not same("agree", {"A": a, "B": a, "C": {0: 80.0, 1: 70.2}}, tolerance=0.1).holds
    assert not same("agree", {"A": a, "B": {0: math.nan, 1: 70.0}}, tolerance=0.1).holds


def test_rounds_to_a_target_are_censored_at_the_last_round() -> None:
    ours = {0: 10, 1: 20, 2: 30, 3: 40, 4: 50, 5: None}
    theirs = {0: 15, 1: 60, 2: None, 3: None, 4: 51, 5: None}
    claim = sooner("faster", ours, theirs, last=100)  # 5 wins, 0 losses, one tie of two that never got there
    assert claim.holds
    assert claim.evidence.startswith("sooner in 5 of 6 seeds, later in 0, equal in 1 (sign test p = 0.031)")
    assert "never reached: ours 1, theirs 3, counted as round 100" in claim.evidence
    assert not sooner("faster", theirs, ours, last=100).holds
    assert not sooner(
        "four of four is not enough", dict(list(ours.items())[:4]), dict(list(theirs.items())[:4]), 100
    ).holds
    assert not sooner("nobody", {0: None}, {0: None}, last=100).holds


def test_settings_are_chosen_on_other_seeds() -> None:
    score = {"slow": {0: 99.0, 10: 50.0}, "fast": {0: 1.0, 10: 60.0}, "broken": {0: 100.0, 10: math.nan}}
    assert best_elsewhere(score, judged=[0]) == "fast"
    with pytest.raises(UserError, match="other seeds"):
        best_elsewhere(score, judged=[0, 10])


# -- rows


def test_rows_and_their_cells() -> None:
    several = row("case", "gain", {0: 2.0, 1: 4.0, 2: 6.0}, 3.5)
    assert (several.ours, several.spread, several.repeats, several.published) == (4.0, 2.0, 3, 3.5)
    alone = row("case", "other", {0: 2.0})
    assert (alone.spread, alone.repeats) == (None, 1)
    assert row("case", "gain", {0: math.nan, 1: 1.0}).ours is None
    head, lines = cells([several, alone, row("missing", "gain", {}, 1.5)])
    assert head == ["case", "gain", "other", "seeds"]
    assert lines == [["case", "4.0 ± 2.0 (3.5)", "2.0", "3"], ["missing", "not run (1.5)", "", "0"]]


# -- participation


def _flat(level: float, rounds: int = 30, swing: float = 0.0) -> Curve:
    round_T = np.arange(-1, rounds)
    return Curve(round_T, level + swing * np.where(round_T % 2, 1.0, -1.0))


def test_a_round_is_drawn_from_the_seeds_that_measured_it() -> None:
    first = Curve(np.array([-1, 0, 1, 2]), np.array([9.0, 1.0, 2.0, 3.0]))
    second = Curve(np.array([0, 2]), np.array([3.0, 5.0]))  # nothing to measure in round 1
    (line,) = over_rounds(Curves({"v": {0: first, 1: second}}), {"shown": "v"})
    assert line.x.tolist() == [1, 2, 3]
    assert line.y.tolist() == [2.0, 2.0, 4.0]


def test_claims_without_data_are_counted_apart() -> None:
    claims = [Claim("a", True, "mean +1"), Claim("b", False, "mean -1"), Claim("c", False, "not run: no files")]
    findings = Findings("s", "paper", [], claims, 1.0)
    assert tally(findings) == "1 of 2 claims hold, 1 undecided (1 not run)"
    assert left_out(findings) == {"no files": ["c"]}


def test_accuracy_and_unrest_of_a_curve() -> None:
    climbing = Curve(np.arange(-1, 20), np.arange(21) / 100)  # rounds 18 and 19 are the last tenth: 0.19, 0.20
    assert last_tenth(climbing) == pytest.approx(19.5)
    assert participation.unrest(climbing) == pytest.approx(1.0)
    assert participation.unrest(_flat(0.5, swing=0.02)) == pytest.approx(4.0)
    assert math.isnan(participation.unrest(_flat(0.5, rounds=1)))


def _table(levels: dict[str, float], seeds: int = 3) -> Curves:
    """Curves of the small scale: at |T| = 1 all the same, above it as told, C restless from |T| = 6 on."""
    curves = {}
    for part in participation.plan("small").parts:
        for name in part.variants:
            who, scheme = name.split()[2], name[-1]
            traces = int(who[2:]) if who.startswith("T=") else 1
            level = 0.7 if traces == 1 else levels[scheme] - (0.05 * traces if scheme == "A" else 0.0)
            swing = 0.01 if scheme == "C" and traces >= 6 else 0.001
            curves[name] = {
                seed: _flat(level + 0.01 * seed + 0.001 * (seed == 1), swing=swing) for seed in range(seeds)
            }
    return Curves(curves)


def test_the_paper_s_claims_hold_on_curves_as_in_the_paper() -> None:
    as_published = _table({"A": 0.6, "B": 0.70, "C": 0.72})
    claims = participation.STUDY.decide("small", as_published)
    assert [claim.holds for claim in claims] == [True] * 6
    rows = {(r.case, r.metric): r for r in participation.rows("small", as_published)}
    gain = rows["SYNTHETIC non-IID |T|=4", "B over A"]
    assert gain.ours == pytest.approx(70 - 40)
    assert (gain.repeats, gain.published) == (3, 38.2)
    assert rows["SYNTHETIC IID |T|=8", "C over B"].published == 2.8
    assert len({case for case, _ in rows}) == 17


def test_the_claims_fail_on_other_curves() -> None:
    reversed_order = participation.STUDY.decide("small", _table({"A": 1.0, "B": 0.5, "C": 0.45}))
    holds = {claim.claim.split(", ", 1)[-1][:24]: claim.holds for claim in reversed_order}
    assert holds["|T| >= 3: B > A (mean ov"] is False
    assert holds["|T| >= 3: C > B (mean ov"] is False
    one_seed = participation.STUDY.decide("small", _table({"A": 0.6, "B": 0.70, "C": 0.72}, seeds=1))
    assert [claim.holds for claim in one_seed] == [True, *[False] * 5]  # agreement to rounding needs no spread


def test_settings_of_the_published_experiment() -> None:
    size = participation.SIZES["paper"]
    assert (size.rounds, size.traces) == (200, tuple(range(1, 9)))
    assert size.data == ("SYNTHETIC", "MNIST", "EMNIST", "EMNIST short")
    caps = [
        participation.experiments(name, "non-IID", to.participation.Always(), size)["A"].world.data.sizes.cap
        for name in size.data
    ]
    assert caps == [2000, 6000, 6000, 6000]
    variants = {n: e for part in participation.plan("paper").parts for n, e in part.variants.items()}
    assert len(variants) == 9 * 24 + 4 * 2
    assert {e.rounds for n, e in variants.items() if n.startswith("EMNIST short")} == {25}
    local = {n.split()[0]: e.algorithm.local for n, e in variants.items()}
    rates = {n: (v.optimizer.lr, v.batch_size, v.full_work) for n, v in local.items()}
    assert rates == {"SYNTHETIC": (1.0, 20, 5), "MNIST": (2e-3, 10, 5), "EMNIST": (5e-4, 10, 5)}
    assert [variants[f"{n} IID T=1 A"].world.data.clients for n in size.data] == [50, 100, 62, 62]  # type: ignore[attr-defined]


# -- bias


def test_the_test_error_of_quadratics_is_the_distance_to_the_optimum() -> None:
    data = bias.Quadratics(clients=5).load(seed=3)
    x, y = data.train(torch.arange(5), 0).x.double(), data.train(torch.arange(5), 0).y.double()
    best_D = torch.linalg.lstsq(x, y.view(-1, 1)).solution[:, 0]
    inputs, target = (v.double() for v in data.central_test())
    torch.testing.assert_close(target.flatten(), best_D, atol=1e-5, rtol=0)
    w_D = torch.linspace(-1, 1, bias.DIMENSION, dtype=torch.float64)
    mse = float((inputs @ w_D - target.flatten()).square().mean())
    assert math.sqrt(bias.DIMENSION * mse) == pytest.approx(float((w_D - best_D).norm()), rel=1e-5)


def test_a_round_of_scheme_b_on_quadratics_is_the_formula(tmp_path: Path) -> None:
    """w + Σ p_k (w_k - w), each w_k after s_k full-batch steps of gradient descent from w, written out."""
    experiment = bias.experiment(bias.STRONG, bias.SCHEMES["B"], bias.BiasSize(clients=4, rounds=1, seeds=1))
    run = to.run(experiment.but(rounds=1), tmp_path / "run", quiet=True)
    with run.records() as records:
        work_C = (records.clients(0)["work"] * bias.FULL_WORK).round().astype(int)
    assert len(set(work_C)) > 1
    wanted = torch.zeros(bias.DIMENSION, dtype=torch.float64)
    for x, y, work in zip(*(v.double() for v in bias.Quadratics(clients=4).problems(0)), work_C, strict=True):
        w = torch.zeros_like(wanted)
        for _ in range(work):
            w = w - bias.RATE * 2 * x.T @ (x @ w - y) / len(y)
        wanted += w / 4
    found = run.model().weight[0].detach().double()  # type: ignore[union-attr]
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)


def test_claims_of_bias_on_made_up_distances() -> None:
    def curve(start: float, floor: float, T: int = bias.SIZES["small"].rounds) -> Curve:
        round_T = np.arange(-1, 4 * T)
        distance = floor + start / (round_T + 2.0)
        return Curve(round_T, distance**2 / bias.DIMENSION)

    floors = {bias.HOMOGENEOUS: 0.0, bias.MILD: 0.2, bias.STRONG: 0.4, bias.APART: 0.8}
    curves = {
        bias.variant(level, scheme): {seed: curve(1 + 0.1 * seed, 0.0 if scheme == "C" else floor) for seed in range(3)}
        for level, floor in floors.items()
        for scheme in bias.SCHEMES
    }
    assert all(claim.holds for claim in bias.STUDY.decide("small", Curves(curves)))
    swapped = {name[:-1] + {"A": "A", "B": "C", "C": "B"}[name[-1]]: value for name, value in curves.items()}
    assert [claim.holds for claim in bias.STUDY.decide("small", Curves(swapped))][:5] == [
        False,
        False,
        False,
        True,
        False,
    ]


# -- end to end


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The studies of flexible participation at smoke scale, through the command line."""
    folders = {}
    for name in FLEXIBLE:
        folders[name] = tmp_path_factory.mktemp(name) / "out"
        arguments = ["run", name, "--scale", "smoke", "--jobs", "1", "--quiet", "--out", str(folders[name])]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert "claims hold" in result.output
        assert "shrunk" in result.output
    return folders


@pytest.mark.parametrize("name", FLEXIBLE)
def test_smoke_writes_exactly_the_fields(smoke: dict[str, Path], name: str) -> None:
    found = json.loads((smoke[name] / "study.json").read_text())
    fields = ["study", "scale", "rows", "claims", "seconds", "failed", "command", "machine", "stalled"]
    fields += ["diverged", "notes", "looks", "checksum"]
    assert list(found) == fields
    assert (found["study"], found["scale"]) == (name, "smoke")
    assert all(
        list(r) == ["case", "metric", "ours", "spread", "repeats", "published", "diverged"] for r in found["rows"]
    )
    assert all(list(c) == ["claim", "holds", "outcome", "evidence", "seeds_needed"] for c in found["claims"])
    assert all(isinstance(r["ours"], float) for r in found["rows"])
    assert found["seconds"] > 0


def test_smoke_draws_pictures(smoke: dict[str, Path]) -> None:
    for path in (
        smoke["participation"] / "figure3.svg",
        smoke["bias"] / "distance.svg",
    ):
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        assert root.tag.endswith("svg")
        assert "scheme C" in path.read_text(encoding="utf-8")


def test_smoke_schemes_agree_where_everybody_finishes(smoke: dict[str, Path]) -> None:
    found = json.loads((smoke["participation"] / "study.json").read_text())
    assert found["claims"][0]["holds"]
    assert found["claims"][0]["evidence"].startswith("largest difference of A, B, C: 0 points")


def test_a_killed_study_goes_on(smoke: dict[str, Path], tmp_path: Path) -> None:
    """A run that lost its checkpoint and its last rounds is completed by --resume, to the same findings."""
    folder = smoke["bias"]
    before = (folder / "study.json").read_text()
    victim = sorted(folder.glob("quadratics/*/seed-1"))[3]
    for name in ("checkpoint.safetensors", "records.sqlite"):
        (victim / name).unlink()
    refused = CliRunner().invoke(app, ["run", "bias", "--scale", "smoke", "--out", str(folder)])
    assert isinstance(refused.exception, UserError)
    assert "--resume" in str(refused.exception)
    after = run_study(bias.STUDY, "smoke", folder, resume=True, quiet=True, jobs=1)
    assert replace(after, seconds=0.0) == replace(Findings.from_json(before), seconds=0.0)


def test_a_study_that_was_cut_off_says_what_it_has(smoke: dict[str, Path], tmp_path: Path) -> None:
    """Nothing is trained: runs that ended count, one that was killed and one that never began are named."""
    folder = tmp_path / "cut"
    shutil.copytree(smoke["bias"], folder)
    killed, waiting = sorted(folder.glob("quadratics/*/seed-1"))[:2]
    for gone in ("state.json", "checkpoint.safetensors"):
        (killed / gone).unlink()
    with sqlite3.connect(killed / "records.sqlite") as db:
        last = db.execute("SELECT max(round) FROM rounds").fetchone()[0]
        db.execute("DELETE FROM rounds WHERE round = ?", (last,))
    shutil.rmtree(waiting)
    before = {file: file.read_bytes() for file in folder.rglob("records.sqlite")}
    options = ["run", "bias", "--scale", "smoke", "--so-far", "--quiet", "--out", str(folder)]
    shown = CliRunner().invoke(app, options)
    assert "left out where it would be compared" in shown.output
    found = json.loads((folder / "study.json").read_text())
    names = {line.split(": ")[0]: line.split(": ")[1] for line in found["failed"]}
    assert sorted(names.values()) == sorted([f"{last} of its {last + 1} rounds were done", "it had not begun"])
    assert found["command"].endswith("--so-far")
    assert found["seconds"] > 0
    whole = json.loads((smoke["bias"] / "study.json").read_text())
    alike = [row for row in found["rows"] if row in whole["rows"]]
    assert 0 < len(alike) < len(whole["rows"])  # those of the two runs have a seed less
    assert before == {file: file.read_bytes() for file in folder.rglob("records.sqlite")}
    with pytest.raises(UserError, match="no run has ended"):
        run_study(bias.STUDY, "smoke", tmp_path / "nothing", so_far=True)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            ["UPDATE rounds SET skipped = 'no update is a number' WHERE round > 0"],
            "every round from 1 to 3 was skipped (no update is a number)",
        ),
        (
            [
                "UPDATE evaluations SET value = (SELECT value FROM evaluations first WHERE round = -1 AND "
                "first.name = evaluations.name) WHERE round > 0",
                "UPDATE evaluations SET value = 0.01 WHERE round = 0 AND name = 'global_loss'",
            ],
            ", and was 0.01 after round 0 and ",
        ),
    ],
    ids=["its last rounds were skipped", "it lost what it had learned"],
)
def test_a_run_that_ends_badly_is_named(changes: list[str], why: str, smoke: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    shutil.copytree(smoke["participation"], folder)
    victim = next(folder.glob("SYNTHETIC-IID/*/seed-0"))
    with sqlite3.connect(victim / "records.sqlite") as db:
        for change in changes:
            db.execute(change)
    found = run_study(participation.STUDY, "smoke", folder, so_far=True, quiet=True)
    (words,) = found.stalled
    assert why in words
    assert Findings.from_json(found.to_json()).stalled == tuple(found.stalled)
    assert words in markdown(found)


def test_seconds_are_those_of_the_runs_that_were_asked_for(smoke: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "some"
    shutil.copytree(smoke["participation"], folder)
    whole = run_study(participation.STUDY, "smoke", folder, so_far=True, quiet=True)
    some = run_study(participation.STUDY, "smoke", folder, so_far=True, quiet=True, only=["SYNTHETIC IID T=1 *"])
    assert 0 <= some.seconds < whole.seconds


def test_a_study_that_is_gone_on_with_names_the_machine_of_its_runs(smoke: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    shutil.copytree(smoke["bias"], folder)
    here = run_study(bias.STUDY, "smoke", folder, resume=True, quiet=True).machine
    assert here.endswith("cores")
    machines = []
    for file in folder.rglob("environment.json"):
        said = json.loads(file.read_text())
        said.pop("checksum")
        file.write_text(json.dumps(said | {"device": "cuda", "device_name": "NVIDIA H200"}))
        machines.append(run_study(bias.STUDY, "smoke", folder, so_far=True, quiet=True).machine)
    assert {*machines[:-1]} == {f"NVIDIA H200, {here}"}  # some on one machine, some on the other
    assert machines[-1] == "NVIDIA H200"


def test_runs_that_are_missing_for_one_reason_are_named_together() -> None:
    failed = [f"FedAvg seed {seed}: it had not begun" for seed in range(16)] + ["EFL seed 2: it is not finite"]
    assert [words.rpartition(": ")[2] for words in by_reason(failed)] == ["it had not begun", "it is not finite"]


def test_what_ran_elsewhere_is_not_read_as_if_it_had_run_here() -> None:
    def elsewhere(plan: RunPlan, *, jobs: int | None, quiet: bool, data_dir: Path | None) -> Outcome:
        raise AssertionError("nothing is to be run")

    part = Part("devices", {"one": Experiment()}, 1, play=elsewhere)
    with pytest.raises(UserError, match="are deployments: --resume"):
        Gathered(bias.STUDY, Path("nowhere"), partial(elsewhere), so_far=True).add(
            part, RunPlan("testbed: devices", [], Path("nowhere"))
        )


def test_saved_findings_are_shown_again(smoke: dict[str, Path]) -> None:
    shown = CliRunner().invoke(app, ["show", str(smoke["participation"] / "study.json"), "--markdown"])
    assert shown.exit_code == 0
    assert "| SYNTHETIC non-IID \\|T\\|=4 |" in shown.output
    assert "## `participation`, smoke scale" in shown.output
    plain = CliRunner().invoke(app, ["show", str(smoke["bias"] / "study.json")])
    assert "distance at 4T" in plain.output


def test_list_names_every_study() -> None:
    output = CliRunner().invoke(app, ["list"]).output
    assert all(name in output for name in studies())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "particpation"], "participation"),
        (["run", "bias", "--scale", "huge"], "there is no scale 'huge'"),
        (["run", "bias", "--seeds", "0"], "at least 1 seed"),
        (["run", "participation", "--scale", "smoke", "--only", "SYNTHETC *"], "did you mean 'SYNTHETIC"),
        (["show", "nowhere.json"], "there is no file nowhere.json"),
        (["show", __file__], "is not the study.json"),
    ],
)
def test_mistakes_are_sentences(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, UserError)
    assert words in str(result.exception)


def test_fewer_seeds_than_two_decide_nothing_but_run() -> None:
    plan = planned(participation.STUDY, "small", seeds=1)
    assert {part.seeds for part in plan.parts} == {1}


def test_settings_are_chosen_on_as_many_seeds_as_planned() -> None:
    """So that a study goes on with more seeds and what was chosen stays."""
    (tuning,) = planned(elastic.STUDY, "small", seeds=1).parts
    assert (tuning.seeds, tuning.first_seed) == (2, 100)


def test_what_is_judged_follows_from_the_part_that_was_tuned(tmp_path: Path) -> None:
    """The pattern names runs that a setting is chosen on, none of those that are judged: all that follow are run."""
    found = run_study(
        elastic.STUDY, "smoke", tmp_path, jobs=1, quiet=True, seeds=1, only=["* lambda=0.03"], resume=True
    )
    assert {row.metric: row.ours for row in found.rows}["chosen λ"] == "0.03"
    assert all(claim.ran for claim in found.claims)


def test_a_pattern_can_name_the_runs_that_judge(tmp_path: Path) -> None:
    """Only those named are run; a name that a later part does not have is an error before any of its runs."""
    first, second = ["* lambda=0.03"], ["digits E=2 lambda=0"]
    found = run_study(elastic.STUDY, "smoke", tmp_path / "out", jobs=1, quiet=True, seeds=1, only=first + second)
    ran = {row.metric for row in found.rows}
    assert "accuracy λ = 0" in ran
    assert "accuracy best λ" not in ran
    with pytest.raises(UserError, match=r"--only 'digits E=2 lambda=1' matches no run .* did you mean"):
        run_study(elastic.STUDY, "smoke", tmp_path / "new", quiet=True, seeds=1, only=[*first, "digits E=2 lambda=1"])
    assert not (tmp_path / "new" / "judged").exists()
    with pytest.raises(UserError, match=r"--only 'digits E=2 lambda=0' .* named beside these, not alone"):
        run_study(elastic.STUDY, "smoke", tmp_path / "none", quiet=True, only=second)


def test_a_part_of_a_study_has_its_rows_and_the_claims_that_it_can_decide(tmp_path: Path) -> None:
    part = ["SYNTHETIC non-IID T=[24] *", "SYNTHETIC non-IID all *"]
    found = run_study(participation.STUDY, "smoke", tmp_path / "out", jobs=1, quiet=True, only=part)
    assert {row.case for row in found.rows} == {f"SYNTHETIC non-IID {c}" for c in ("|T|=2", "|T|=4", "all T50")}
    assert [claim.claim.split(", ")[-1].split(": ")[0] for claim in found.claims][:1] == ["everybody on T50"]
    assert len(found.claims) == 4
    assert all(claim.ran for claim in found.claims)
    one = ["SYNTHETIC non-IID T=1 *"]
    more = run_study(participation.STUDY, "smoke", tmp_path / "out", jobs=1, quiet=True, resume=True, only=one)
    assert [row for row in more.rows if row in found.rows] == list(found.rows)  # another pattern adds to the folder
    assert {row.case for row in more.rows} - {row.case for row in found.rows} == {"SYNTHETIC non-IID |T|=1"}
    whole = run_study(participation.STUDY, "smoke", tmp_path / "out", jobs=1, quiet=True, resume=True)
    same = [row for row in whole.rows if row in found.rows]
    assert same == list(found.rows)
    assert len(whole.claims) == 6
    with pytest.raises(UserError, match="is of participation at smoke scale, and this is bias at smoke scale"):
        run_study(bias.STUDY, "smoke", tmp_path / "out", quiet=True, resume=True)
    found = run_study(bias.STUDY, "smoke", tmp_path / "bias", quiet=True, only=["everybody on T30 A"])
    assert {claim.evidence for claim in found.claims} == {"not run: left out by --only"}


def test_missing_data_marks_rows_as_not_run(tmp_path: Path) -> None:
    """Beside a case that runs, one whose files are nowhere: its mirror is an empty folder, so no network is asked."""
    runs = bias.experiment(bias.MILD, bias.SCHEMES["C"], bias.BiasSize(3, 1, 1))
    mnist = MNIST(clients=2, mirror=(tmp_path / "empty").as_uri())
    nowhere = Experiment().but(rounds=1, **{"world.data": mnist})

    def rows(scale: str, curves: Curves) -> list[ResultRow]:
        assert "MNIST is not in" in curves.missing["gone"]
        assert curves.has("there")
        assert not curves.has("there", "gone")
        return [
            row("gone", "accuracy", {}, 97.0),
            row("there", "mse", curves.each("there", lambda c: c.mean(after=-1))),
        ]

    study = Study(
        name="half",
        about="nothing",
        metric="global_mse",
        plan=lambda scale: StudyPlan([Part("all", {"there": runs, "gone": nowhere}, seeds=2)]),
        rows=rows,
        claims=lambda scale, curves: [],
    )
    found = json.loads(run_study(study, "smoke", tmp_path / "out", quiet=True, jobs=1, data_dir=tmp_path).to_json())
    assert found["rows"][0] == {
        "case": "gone", "metric": "accuracy", "ours": "not run", "spread": None, "repeats": 0, "published": 97.0,
        "diverged": 0,
    }  # fmt: skip
    assert found["rows"][1]["repeats"] == 2
    with pytest.raises(UserError, match=r"--only 'g.*' names no run whose data can be read: MNIST is not in"):
        run_study(study, "smoke", tmp_path / "none", quiet=True, data_dir=tmp_path, only=["there", "g*"])
    assert not (tmp_path / "none").exists()
    alone = replace(study, plan=lambda scale: StudyPlan([Part("all", {"gone": nowhere}, seeds=2)]))
    with pytest.raises(UserError, match="half has no run at smoke scale whose data can be read: MNIST is not in"):
        run_study(alone, "smoke", tmp_path / "none", quiet=True, data_dir=tmp_path)


def test_participation_without_its_files_says_so() -> None:
    small = _table({"A": 0.6, "B": 0.7, "C": 0.72}).curves
    names = [n for part in participation.plan("paper").parts for n in part.variants if not n.startswith("SYNTHETIC")]
    curves = Curves(small, dict.fromkeys(names, "MNIST is not in the data folder"))
    rows = {(r.case, r.metric): r for r in participation.rows("paper", curves)}
    assert rows["MNIST non-IID |T|=8", "B over A"].ours == "not run"
    assert rows["MNIST non-IID |T|=8", "B over A"].published == 43.4
    claims = {c.claim: c for c in participation.STUDY.decide("paper", curves)}
    missing = claims["MNIST non-IID, |T| = 1: A, B and C agree to rounding"]
    assert not missing.holds
    assert missing.evidence == "not run: MNIST is not in the data folder"
    assert "SYNTHETIC" in draw(participation.STUDY, "paper", curves)["figure3.svg"]
