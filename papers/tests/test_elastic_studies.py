"""The studies of EFL: their rules on made-up curves, and end to end at smoke scale."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import turnout as to
from turnout.recipes import cook
from turnout_papers.studies import bmta, efl, elastic, low_participation, noniid
from turnout_papers.studies.claims import Claim, either
from turnout_papers.studies.drawing import draw
from turnout_papers.studies.running import Findings, run_study
from turnout_papers.studies.study import Curve, Curves, last_fifth

STUDIES = (elastic, noniid, low_participation, bmta)


def curve(*values: float) -> Curve:
    return Curve(np.arange(-1, len(values) - 1), np.array(values))


def level(value: float, seed: int = 0, unrest: float = 0.0) -> Curve:
    """Ten rounds, the last two at a level and a little around it."""
    return curve(*[0.1] * 9, value + unrest + 0.001 * seed, value - unrest + 0.001 * seed)


def test_numbers_of_a_curve() -> None:
    found = curve(*[0.9] * 9, 0.5, 0.7)
    assert last_fifth(found) == pytest.approx(60)
    assert efl.spread(found) == pytest.approx(100 * np.std([0.5, 0.7], ddof=1))
    assert efl.best(curve(0.99, 0.2, 0.6, 0.4)) == pytest.approx(60)  # before training does not count


def test_either_of_two() -> None:
    yes, no = Claim("a", True, "so"), Claim("b", False, "not so", refuted=True)
    assert either("one", [yes, no]) == Claim("one", True, "a: holds (so); b: refuted (not so)")
    assert not either("none", [no, no]).holds


def test_the_strength_is_chosen_on_other_seeds() -> None:
    """The tuning seeds prefer 0.03; the judged ones, which would prefer 0.01, are not asked."""
    names = {strength: elastic.variant(efl.SMALL, 2, strength) for strength in (0.01, 0.03)}
    runs = {names[0.01]: {100: level(0.6), 0: level(0.9)}, names[0.03]: {100: level(0.7), 0: level(0.2)}}
    assert elastic.chosen("smoke", efl.SMALL, 2, Curves(runs)) == 0.03
    (part,) = elastic.judged("smoke", Curves(runs))
    assert {name: e.algorithm.terms[0].strength for name, e in part.variants.items()} == {
        "digits E=2 lambda=0": 0.0,
        "digits E=2 lambda=best": 0.03,
    }
    assert set(part.seed_range).isdisjoint(range(100, 200))
    assert elastic.judged("smoke", Curves({})) == []


@pytest.mark.parametrize(("gain", "calmer", "holds"), [(0.1, 0.0, True), (-0.1, 0.04, True), (-0.1, 0.0, False)])
def test_the_elastic_claim_is_about_accuracy_or_spread(gain: float, calmer: float, holds: bool) -> None:
    zero, best = elastic.pair(efl.SMALL, 2).values()
    runs = {
        zero: {seed: level(0.6, seed, 0.05 + 0.002 * seed) for seed in range(3)},
        best: {seed: level(0.6 + gain, -seed, 0.05 - calmer) for seed in range(3)},
    }
    claim, loss, rescue = elastic.STUDY.decide("smoke", Curves(runs))
    assert claim.holds == holds
    assert (loss.outcome, rescue.outcome) == ("not run", "untested")


def test_the_elastic_term_may_lower_the_loss_and_keep_runs_from_diverging() -> None:
    zero, best = elastic.pair(efl.SMALL, 2).values()
    gone = Curve.diverged(-math.inf)
    runs = {zero: dict.fromkeys(range(5), gone), best: {seed: level(0.6, seed) for seed in range(5)}}
    losses = {zero: {s: level(0.5) for s in range(3)}, best: {s: level(0.4, s) for s in range(3)}}
    _, loss, rescue = elastic.STUDY.decide("smoke", Curves(runs, more={"train_loss": Curves(losses)}))
    assert (loss.outcome, rescue.outcome) == ("holds", "holds")
    assert rescue.evidence.startswith("only λ = 0 diverges in 5 of 5 seeds, only the best λ in 0 (sign test p = 0.031)")
    _, _, worse = elastic.STUDY.decide("smoke", Curves({zero: runs[best], best: runs[zero]}))
    assert worse.outcome == "refuted"


def test_unfinished_work_must_gain_at_every_level_and_most_at_the_lowest() -> None:
    def decided(gains: dict[float, float]) -> dict[str, bool]:
        runs = {}
        for setting, share in low_participation.cases("smoke"):
            for method in low_participation.METHODS:
                more = 0.0 if method == "FedAvg" else gains[share]
                unlike = 0.0 if method == "FedAvg" else 0.001
                runs[low_participation.variant(setting, share, method)] = {
                    s: level(0.5 + more, round(s * unlike * 1000)) for s in range(3)
                }
        return {claim.claim: claim.holds for claim in low_participation.STUDY.decide("smoke", Curves(runs))}

    larger = "digits: the gain of unfinished work is larger with 20 % asked than with 100 %"
    assert all(decided({1.0: 0.1, 0.2: 0.2}).values())
    assert not decided({1.0: 0.2, 0.2: 0.1})[larger]
    assert not decided({1.0: 0.2, 0.2: -0.1})["digits 20 % asked: using unfinished work beats dropping it"]


def test_what_a_method_loses_is_from_iid_to_the_fewest_classes() -> None:
    runs = {}
    for method in noniid.METHODS:
        for split, value in (("IID", 0.9), ("m=2", 0.8 if method == "EFL" else 0.85 if method == "FedProx" else 0.6)):
            unlike = 1 if method == "EFL" and split == "IID" else 0
            runs[noniid.SIZES["smoke"][0].variant(split, method)] = {s: level(value, s * unlike) for s in range(3)}
    curves = Curves(runs, more={"personal_accuracy": Curves(runs)})
    holds = {claim.claim.split()[-1]: claim.holds for claim in noniid.STUDY.decide("smoke", curves)}
    assert holds == {"FedAvg": True, "FedProx": False, "SCAFFOLD": True, "APFL": True}
    lost = {row.case: row.ours for row in noniid.rows("smoke", curves) if row.metric == "lost"}
    assert lost["digits SCAFFOLD"] == pytest.approx(30)


def test_bmta_is_of_the_best_round_beside_the_published_number() -> None:
    runs = {bmta.variant(efl.SMALL, m): {s: curve(0, 0.1, 0.7 + 0.01 * s, 0.5) for s in range(2)} for m in bmta.METHODS}
    rows = {row.metric: (row.ours, row.published) for row in bmta.rows("smoke", Curves(runs))}
    assert rows["EFL"] == (pytest.approx(70.5), 99.10)
    assert rows["EFL ternary"][1] is None
    (claim,) = bmta.STUDY.decide("smoke", Curves(runs))
    assert not claim.holds


def test_the_paper_s_settings() -> None:
    """SPEC §3.7; a data set that is missing leaves its claims undecided, and the others run."""
    for study in STUDIES:
        plan = study.plan("paper")
        variants = {name: e for part in plan.parts for name, e in part.variants.items()}
        nothing = Curves({}, dict.fromkeys(variants, "CIFAR-100 is not there"))
        claims = study.STUDY.decide("paper", nothing)
        assert claims
        assert {c.evidence for c in claims} == {"not run: CIFAR-100 is not there"}
        assert all(r.ours == "not run" for r in study.rows("paper", nothing))
        assert draw(study.STUDY, "paper", nothing) == {}
    variants = {name: e for part in bmta.plan("paper").parts for name, e in part.variants.items()}
    assert {e.world.data.clients for e in variants.values()} == {100}
    assert variants["Shakespeare EFL"].task == to.tasks.NextCharacter()
    ternary = variants["MNIST EFL ternary"].algorithm
    assert (ternary.compression, ternary.weighting) == (to.compression.SparseTernary(0.01), to.weighting.ByWork())
    assert variants["CIFAR-10 EFL"].world.data.partition == to.partition.Classes(4)
    assert (ternary.local.steps, ternary.selection) == (20, to.selection.Fraction(0.2))


def test_figure_1_has_resnet50_and_the_synthetic_task() -> None:
    variants = {name: e for part in noniid.plan("paper").parts for name, e in part.variants.items()}
    assert variants["EMNIST ResNet50 m=6 EFL"].model == to.models.resnet50("large")
    assert variants["EMNIST ResNet50 m=6 EFL"].world.data.partition == to.partition.Classes(6)
    assert variants["SYNTHETIC IID EFL"].world.data.iid
    assert not variants["SYNTHETIC (1,1) EFL"].world.data.iid


def test_a_part_of_figure_1_is_shown() -> None:
    """Two methods on two splits are compared though the others were left out."""
    names = [noniid.SIZES["smoke"][0].variant(split, m) for split in ("IID", "m=2") for m in ("FedAvg", "EFL")]
    curves = Curves({name: {s: level(0.5, s * i) for s in range(2)} for i, name in enumerate(names)})
    claims = noniid.STUDY.decide("smoke", curves)
    assert [claim.ran for claim in claims] == [True, False, False, False]
    assert {row.case for row in noniid.rows("smoke", curves) if row.metric == "lost" and row.repeats} == {
        "digits FedAvg",
        "digits EFL",
    }


def test_a_part_of_figure_3_is_shown() -> None:
    names = [low_participation.variant(efl.SMALL, 0.2, method) for method in ("FedAvg", "FedAvg + C")]
    curves = Curves({name: {s: level(0.5, s * i) for s in range(2)} for i, name in enumerate(names)})
    ran = [claim.claim for claim in low_participation.STUDY.decide("smoke", curves) if claim.ran]
    assert ran == ["digits 20 % asked: using unfinished work beats dropping it"]
    assert [row.metric for row in low_participation.rows("smoke", curves) if row.repeats][-1] == "gain of C"


def test_fedavg_of_low_participation_averages_the_complete() -> None:
    size = low_participation.SIZES["smoke"]
    made = low_participation.experiment(efl.SMALL, 0.2, "FedAvg", size)
    assert (made.algorithm.weighting, made.algorithm.substitution) == (
        to.weighting.CompleteOnly(),
        to.substitution.Spread(),
    )
    assert made.algorithm.selection == to.selection.Fraction(0.2)
    uses = low_participation.experiment(efl.SMALL, 1.0, "FedAvg + C", size).algorithm
    assert (uses.weighting, uses.terms, uses.selection) == (to.weighting.ByWork(), (), to.selection.Everyone())


@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.STUDY.name)
def test_from_end_to_end_at_smoke_scale(study, tmp_path: Path) -> None:
    findings = run_study(study.STUDY, "smoke", tmp_path / "out", seeds=1, quiet=True)
    assert Findings.from_json((tmp_path / "out" / "study.json").read_text()) == findings
    assert findings.claims
    assert all("with 1 seed" in c.evidence or c.outcome == "untested" for c in findings.claims)
    pictures = list((tmp_path / "out").glob("*.svg"))
    assert pictures
    for picture in pictures:
        ElementTree.parse(picture)


def test_recipes() -> None:
    made = cook("elastic")
    assert list(made) == ["FedAvg", "scheme C", "elastic", "EFL"]
    assert made["EFL"].algorithm.terms == (to.terms.Elastic(0.03),)
    assert cook("mnist-elastic")["EFL"].algorithm.compression == to.compression.SparseTernary(0.01)
