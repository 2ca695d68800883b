"""Study `together`: its numbers by hand, its claims on made-up curves, and end to end at smoke scale."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import turnout as to
from turnout_papers.recipes.together import ALL, PAPERS, PIECES, PLAIN, all_but, together
from turnout_papers.studies import together as study
from turnout_papers.studies.drawing import WAYS, reached, within
from turnout_papers.studies.running import run_study
from turnout_papers.studies.study import Curve, Curves, last_fifth

CASE = study.SIZES["small"][0]


def made_up(better: dict[str, float], size: dict[str, float]) -> Curves:
    """Flat curves: 50 points everywhere, more or less by name; bytes a round likewise. Seeds differ a little."""
    rounds = np.arange(-1, CASE.rounds)

    def curve(name: str, seed: int) -> Curve:
        return Curve(rounds, np.full(len(rounds), 0.5 + 0.001 * seed + better.get(name, 0.0) / 100))

    def sent(name: str) -> Curve:
        return Curve(rounds[1:], np.full(CASE.rounds, size.get(name, 1e5) / 2))

    names = {CASE.variant(name): name for name in together()}
    curves = {v: {seed: curve(n, seed) for seed in range(5)} for v, n in names.items()}
    way = Curves({v: {seed: sent(n) for seed in range(5)} for v, n in names.items()})
    own = Curves(curves)
    return Curves(curves, more={study.PERSONAL: own, study.WORST: own} | dict.fromkeys(WAYS, way))


def test_variants_are_choices_of_pieces():
    made = together()
    assert {piece for pieces in PAPERS.values() for piece in pieces} == {*PIECES, "B"}
    assert len(made) == 2 + 4 + 6 + 1 + len(PIECES) + 1
    everything, plain = made[ALL].algorithm, made[PLAIN].algorithm
    assert plain.weighting == to.weighting.CompleteOnly()
    assert (plain.compression, plain.substitution, plain.terms) == (
        to.compression.Dense(),
        to.substitution.NoSubstitution(),
        (),
    )
    assert plain.membership.join == "vanilla"
    assert everything.weighting == to.weighting.ByWork()
    assert everything.membership.join == "fast-reboot"
    assert isinstance(everything.compression, to.compression.SparseTernary)
    assert everything.substitution == to.substitution.Friends()
    assert everything.personal is to.personal.batch_norm
    assert [term.name for term in everything.terms] == ["elastic"]
    assert made[all_but("C")].algorithm.weighting == to.weighting.ByShare()
    assert made["FDMS"].algorithm.weighting == to.weighting.ByShare()
    assert made["flexible+FDMS"].algorithm.weighting == to.weighting.ByWork()
    assert all(e.world == made[PLAIN].world for e in made.values())


def test_numbers_by_hand():
    measured, spent_T = Curve(np.array([-1, 0, 2, 4]), np.array([0.7, 0.2, 0.6, 0.9])), np.arange(1.0, 7.0)
    assert reached(measured, spent_T, 0.6) == (3.0, 3.0), "what was there before training does not count"
    assert math.isnan(reached(measured, spent_T, 0.95)[0])
    assert within(measured, spent_T, 4.5) == pytest.approx(0.6)
    assert within(measured, spent_T, 0.5) == 0.0
    curve = Curve(np.arange(-1, 10), np.linspace(0, 1, 11))
    assert last_fifth(curve) == pytest.approx(95.0)  # rounds 8 and 9
    assert 100 * curve.mean(after=2, upto=4) == pytest.approx(45.0)  # rounds 3 and 4


def test_claims_follow_the_numbers():
    worth = {ALL: 5.0, all_but("elastic"): 5.0} | {all_but(p): 3.0 for p in PIECES if p not in ("elastic", "ternary")}
    dense = {all_but("ternary"): 6.0, all_but("elastic", "ternary"): 6.0}
    size = {ALL: 1e4, all_but("elastic"): 4e3}
    found = study.STUDY.decide("small", made_up(worth | dense, size))
    held = {claim.claim: claim.holds for claim in found}
    assert len(found) == 10
    assert [claim for claim, holds in held.items() if not holds] == [
        "Digits, all: with them at least 20 times fewer bytes travel"  # ten times
    ]
    found = study.STUDY.decide("small", made_up({"EFL": 9.0, ALL: 5.0, all_but("friends"): 5.0}, size))
    failed = [claim.claim for claim in found if not claim.holds]
    assert "Digits: friends improves all the others together, in accuracy" in failed
    assert "Digits: all together are at least as good as the best single paper (EFL), in accuracy" in failed


def test_without_its_data_a_claim_is_not_decided():
    claims = study.STUDY.decide("small", Curves({}))
    assert len(claims) == 10
    assert not any(claim.ran for claim in claims)


def test_small_enough_and_the_paper_s_data_at_paper_scale():
    assert [part.name for part in study.plan("paper").parts] == ["MNIST", "CIFAR-10"]
    assert sum(len(part.variants) * part.seeds for part in study.plan("small").parts) == 100
    for experiment in study.plan("paper").parts[0].variants.values():
        assert experiment.world.data.clients == 100


def test_smoke_end_to_end(tmp_path: Path):
    findings = run_study(study.STUDY, "smoke", tmp_path, seeds=1, jobs=1, quiet=True)
    cases = {row.case for row in findings.rows}
    assert cases == {f"Digits: {name}" for name in together()}
    assert len(findings.claims) == 10
    assert all("cannot decide with 1 seed" in claim.evidence for claim in findings.claims)
    plain, everything = (
        {row.metric: row.ours for row in findings.rows if row.case == f"Digits: {name}"} for name in (PLAIN, ALL)
    )
    assert plain.keys() == everything.keys()
    assert "<svg" in (tmp_path / "together.svg").read_text()
