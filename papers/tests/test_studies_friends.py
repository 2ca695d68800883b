"""The studies of FDMS: their rules on made-up curves, and end to end at smoke scale."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import turnout as to
from turnout.recipes import cook
from turnout_papers.recipes.friends import data_of
from turnout_papers.studies import friend_cost, friend_discovery, friends
from turnout_papers.studies.claims import Claim
from turnout_papers.studies.running import Findings, run_study
from turnout_papers.studies.study import Curve, Curves, last_fifth


def curve(*values: float) -> Curve:
    return Curve(np.arange(len(values)), np.array(values))


def made_up(scale: str = "smoke", **level: float) -> Curves:
    """Every case of a scale: each method at a level of its own, a little different from seed to seed."""
    base = {"Full": 0.9, "Dropout": 0.7, "Stale": 0.8, "Stale weights": 0.8, "FDMS": 0.89} | level
    found = {}
    for setting, alpha in friends.cases(scale):
        for method in setting.methods:
            lift = 0.1 * alpha * (method == "FDMS") * (setting.split == "clustered") * (setting.clients / 20)
            found[friends.variant(setting, alpha, method)] = {
                seed: curve(*[0.1] * 8, *[base[method] + lift + 0.001 * seed * (method == "FDMS")] * 2)
                for seed in range(3)
            }
    return Curves(found)


def test_accuracy_is_of_the_last_fifth_of_the_rounds() -> None:
    assert last_fifth(curve(*[0.0] * 8, 0.5, 0.7)) == pytest.approx(60.0)


def test_claims_are_one_a_case_and_decided_by_seed() -> None:
    claims = {c.claim: c.holds for c in friends.STUDY.decide("smoke", made_up())}
    cases = [f"Digits clustered alpha={a}" for a in (0.3, 0.5, 0.7)] + ["Digits clustered K=40 alpha=0.5"]
    for case in cases:
        for words in ("FDMS > Dropout", "FDMS > Stale", "|Full - FDMS| < |Full - Dropout|"):
            assert claims.pop(f"{case}: {words}")
        if "K=40" not in case:
            assert claims.pop(f"{case}: FDMS > Stale as in the authors' code (the last weights)")
            assert not claims.pop(f"{case}: FDMS changes less from round to round than Dropout")  # both jump once
    assert claims.pop("Digits clustered: Stale loses more than FDMS from alpha = 0.3 to 0.7")
    assert not claims.pop("Digits clustered: Stale loses more than Dropout from alpha = 0.3 to 0.7")
    assert claims == {
        "Digits: FDMS's gain over Dropout is larger at alpha = 0.7 than at 0.3": True,
        "Digits: FDMS's gain over Dropout is larger at K = 40 than at 20 (alpha = 0.5)": True,
        "Digits: FDMS's gain over Dropout is smaller in the general setting (alpha = 0.5)": True,
    }
    worse = {c.claim: c.holds for c in friends.STUDY.decide("smoke", made_up(Stale=0.99, Full=0.6))}
    assert not worse["Digits clustered alpha=0.3: FDMS > Stale"]
    assert not worse["Digits clustered alpha=0.3: |Full - FDMS| < |Full - Dropout|"]
    assert worse["Digits clustered alpha=0.3: FDMS > Dropout"]


def test_nearer_to_full_is_decided_by_the_seeds_in_which_full_did_not_diverge() -> None:
    curves, name = made_up(), "Digits clustered alpha=0.3: |Full - FDMS| < |Full - Dropout|"
    lost = Curve.diverged(-np.inf)

    def decided(diverged: range) -> Claim:
        full = curves.curves["Digits clustered Full"]
        changed = curves.curves | {"Digits clustered Full": full | dict.fromkeys(diverged, lost)}
        return next(c for c in friends.STUDY.decide("smoke", Curves(changed)) if c.claim == name)

    whole, part, none = decided(range(0)), decided(range(1)), decided(range(3))
    assert "3 seeds (0 1 2)" in whole.evidence
    assert "2 seeds (1 2)" in part.evidence
    assert (none.outcome, none.evidence) == ("untested", "Full diverges in all 3 seeds")


def test_the_paper_s_cases_and_settings() -> None:
    """SPEC §5.7; data sets that are missing leave claims undecided."""
    plan = friends.plan("paper")
    variants = {name: e for part in plan.parts for name, e in part.variants.items()}
    cifar = variants["CIFAR-10 clustered alpha=0.5 FDMS"]
    assert (cifar.rounds, cifar.algorithm.local.batch_size, cifar.algorithm.local.epochs) == (500, 20, 2)
    assert cifar.world.data.sizes == to.data.Equal(1000)
    assert cifar.world.participation == to.participation.Stratified(0.5, full_first_round=True)
    assert cifar.algorithm.shares == to.weighting.Shares(by="uniform")
    assert cifar.algorithm.server.lr == 1.0
    assert variants["MNIST clustered K=40 alpha=0.5 Stale"].world.data.sizes == to.data.Equal(100)
    assert variants["CIFAR-10 general high alpha=0.5 Dropout"].world.data.partition == to.partition.Shards(1, 100)
    assert variants["CIFAR-10 clustered FedProx alpha=0.5 FDMS"].algorithm.terms == (to.terms.Proximal(0.2),)
    assert variants["FMNIST clustered alpha=0.7 FDMS"].rounds == 300
    assert {p.seeds for p in plan.parts} == {10}
    nothing = Curves({}, dict.fromkeys(variants, "MNIST is not there"))
    claims = friends.STUDY.decide("paper", nothing)
    assert len(claims) > 40
    assert {c.evidence for c in claims} == {"not run: MNIST is not there"}
    for study in (friend_discovery, friend_cost):
        assert not any(c.holds for c in study.STUDY.decide("paper", nothing))
        assert all(r.ours == "not run" for r in study.rows("paper", nothing))


def test_paper_scale_follows_the_authors_setting() -> None:
    """SPEC 1.3, FDMS items 8 and 11: the first 80 % of a sorted list, CIFAR normalised by (0.5, 0.5), MNIST dropout."""
    settings = {setting for setting, _ in friends.cases("paper")}
    for setting in settings:
        data, model, _ = data_of(setting)
        assert (data.local_test, data.test_share) == (("last", 0.2) if setting.samples == "code" else ("holdout", 0.0))
        if setting.data == "CIFAR-10":
            assert (data.mean, data.std) == ((0.5,), (0.5,))
        else:
            assert (data.mean, data.std) == (None, None)
            assert model == to.models.fdms_mnist_cnn(dropout=0.5)
    variants = {name: e for part in friends.plan("paper").parts for name, e in part.variants.items()}
    rates = [variants[f"MNIST clustered {words}alpha=0.5 FDMS"].algorithm.server.lr for words in ("", "rate=0.1 ")]
    assert rates == [1.0, 0.1]
    printed = variants["CIFAR-10 clustered rate=0.1 all samples alpha=0.5 FDMS"]  # as the text says
    assert (printed.algorithm.server.lr, printed.world.data.test_share) == (0.1, 0.0)
    recipe = cook("mnist-friends")
    assert {e.world.data.local_test for e in recipe.values()} == {"last"}
    assert {e.model for e in recipe.values()} == {to.models.fdms_mnist_cnn(dropout=0.5)}
    assert any("first 80 %" in note for note in friends.plan("paper").notes)


def test_within_and_between_clusters() -> None:
    similarity_KK = np.kron(np.eye(2), np.full((4, 4), 0.5)) + 0.25
    np.fill_diagonal(similarity_KK, np.nan)
    assert friend_discovery.mean_similarity({"similarity": similarity_KK}, within=True) == 0.75
    assert friend_discovery.mean_similarity({"similarity": similarity_KK}, within=False) == 0.25


def test_fewer_comparisons_and_an_accuracy_within_a_point() -> None:
    compared = friend_cost.SIZES["smoke"][0]
    plain, reduced = compared.variant(None), compared.variant(0.1)

    def claims(lost: float, pairs: float) -> list[bool]:
        curves = {plain: {}, reduced: {}}
        compared_T: dict = {plain: {}, reduced: {}}
        for seed in range(3):
            curves[plain][seed] = curve(*[0.9 + 0.01 * seed] * 5)
            curves[reduced][seed] = curve(*[0.9 + 0.01 * seed - lost + 0.0001 * seed] * 5)
            compared_T[plain][seed] = curve(*[100.0] * 5)
            compared_T[reduced][seed] = curve(*[100.0] * 4, pairs)
        found = Curves(curves, more={friend_cost.PAIRS: Curves(compared_T)})
        return [c.holds for c in friend_cost.STUDY.decide("smoke", found)]

    assert claims(lost=0.005, pairs=60.0) == [True, True]
    assert claims(lost=0.02, pairs=100.0) == [False, False]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Findings, Path]]:
    found = {}
    for study in (friends.STUDY, friend_discovery.STUDY, friend_cost.STUDY):
        folder = tmp_path_factory.mktemp(study.name) / "study"
        found[study.name] = run_study(study, "smoke", folder, quiet=True, jobs=1), folder
    return found


def test_all_three_run_end_to_end(smoke: dict[str, tuple[Findings, Path]]) -> None:
    claims = {name: len(findings.claims) for name, (findings, _) in smoke.items()}
    assert claims == {"friends": 4 * 3 + 3 + 3 + 3 + 2, "friend-discovery": 4, "friend-cost": 2}
    for findings, folder in smoke.values():
        assert all(isinstance(r.ours, float) for r in findings.rows)
        assert not any(c.evidence.startswith("cannot") for c in findings.claims)
        for picture in folder.glob("*.svg"):
            ElementTree.parse(picture)
    pictures = {p.name for _, folder in smoke.values() for p in folder.glob("*.svg")}
    assert pictures == {"Digits.svg", "similarity.svg", "substitution-error.svg", "figure4.svg"}


def test_discovery_finds_the_clusters(smoke: dict[str, tuple[Findings, Path]]) -> None:
    findings, _ = smoke["friend-discovery"]
    ours = {(r.case, r.metric): r.ours for r in findings.rows}
    case = "Digits clustered alpha=0.5"
    assert ours[f"{case} FDMS", "similarity within clusters"] > ours[f"{case} FDMS", "between clusters"] + 0.1
    assert ours[f"{case} FDMS", "stand-ins from the own cluster"] > 0.9
    assert ours[f"{case} Stale", "stand-ins from the own cluster"] == 1.0
    assert ours[f"{case} Dropout", "stand-ins from the own cluster"] < 0.3


def test_similarities_that_were_not_kept_are_asked_for(smoke: dict[str, tuple[Findings, Path]], tmp_path: Path) -> None:
    folder = tmp_path / "records"
    shutil.copytree(smoke["friend-discovery"][1], folder, ignore=shutil.ignore_patterns("checkpoint.safetensors"))
    with pytest.raises(to.UserError, match="is missing, and has the similarities: copy it there"):
        run_study(friend_discovery.STUDY, "smoke", folder, resume=True, quiet=True)


def test_costs_are_counted(smoke: dict[str, tuple[Findings, Path]]) -> None:
    findings, _ = smoke["friend-cost"]
    counted = {r.case: r.ours for r in findings.rows if r.metric == "comparisons a round"}
    assert counted["Digits clustered alpha=0.5, 4 rounds without reduction"] == 10 * 9 / 2


def test_the_recipe_has_the_four_methods() -> None:
    made = cook("friends")
    assert list(made) == ["Full", "Dropout", "Stale", "Friends"]
    assert made["Friends"].algorithm.substitution == to.substitution.Friends()
    assert cook("mnist-friends")["Friends"].world.data.sizes == to.data.Equal(200)
