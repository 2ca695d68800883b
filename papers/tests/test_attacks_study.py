"""Study `attacks`: what it reads from its runs, and the claims it makes of made-up curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import turnout as to
from turnout.world.attacks import hostile_clients
from turnout_papers.studies import attacks
from turnout_papers.studies.attacks import BY_SHARE, KINDS_OF_ATTACK, METHODS, SIZES, STUDY, by_kind, by_share
from turnout_papers.studies.drawing import draw
from turnout_papers.studies.running import run_study
from turnout_papers.studies.study import Curve, Curves


def curve(values: list[float]) -> Curve:
    return Curve(np.arange(-1, len(values) - 1), np.array(values))


def made_up(accuracy: float = 0.8) -> Curves:
    """Every variant of the smoke scale: the mean fails under attack, and a hostile majority costs ten points."""
    size = SIZES["smoke"]
    names = [by_share(s, q, m) for s in size.shares for q in size.turnouts for m in BY_SHARE]
    names += [by_kind(k, m) for k in KINDS_OF_ATTACK for m in METHODS] + [
        by_kind("many samples, flipped", attacks.UNIFORM)
    ]
    curves, looks = {}, {}
    for name in names:
        hostile = np.array([0.6, 0.2, 0.6, 0.2, 0.2]) if "30 % there" in name else np.full(5, 0.4)
        fails = name.endswith("mean") and "trimmed" not in name and not name.startswith(("0 %", "nobody", "free"))
        final = 0.1 if fails else accuracy - 0.1 * name.startswith("40 % hostile, 30")
        steps = [0.1, 0.15, 0.5, 0.45, final, final]
        curves[name] = {seed: curve([v + 0.001 * seed for v in steps]) for seed in range(3)}
        looks[name] = {seed: {"hostile": hostile, "backdoor": np.array([90.0 - seed])} for seed in range(3)}
    return Curves(curves, looks=looks)


def test_every_claim_is_decided_by_numbers_and_every_attack_has_a_row():
    found = STUDY.decide("smoke", made_up())
    outcome = {claim.claim: claim.outcome for claim in found}
    assert outcome["with 40 % hostile and everybody there median beats the mean"] == "holds"
    assert outcome["RFA loses more to 40 % hostile with 30 % there than with everybody there"] == "holds"
    assert outcome["free rider: the mean loses at most 3 points"] == "holds"
    assert outcome["ALIE: the mean beats the median"] == "refuted"
    assert all("cannot decide" not in claim.evidence for claim in found)
    cases = {row.case for row in STUDY.rows("smoke", made_up())}
    assert set(KINDS_OF_ATTACK) <= cases
    assert set(draw(STUDY, "smoke", made_up())) == {"attacks.svg"}


def test_a_step_in_a_round_with_a_hostile_majority_is_set_against_the_others():
    """Steps of +5, +35, -5, +35 and 0 points; majorities in the first and the third."""
    name = by_share(0.4, 0.3, "median")
    steps = [0.1, 0.15, 0.5, 0.45, 0.8, 0.8]
    curves = Curves({name: {0: curve(steps)}}, looks={name: {0: {"hostile": np.array([0.6, 0.2, 0.5, 0.2, 0.2])}}})
    assert attacks.step_lost(curves, name)[0] == pytest.approx((35 + 35 + 0) / 3 - (5 - 5) / 2)
    assert attacks.majority_rounds(curves.looks[name][0]) == 40.0


def test_runs_that_are_missing_are_said_so():
    nothing = Curves({}, missing={by_share(0.0, 1.0, "mean"): "no data"})
    assert {claim.evidence for claim in STUDY.decide("smoke", nothing)} == {"not run: no data"}
    assert draw(STUDY, "smoke", nothing) == {}


def test_claims_by_share_need_only_their_own_runs():
    """None of attacks by kind, and of the shares none but no attackers and the 40 % that the claims are about."""
    whole, few = made_up(), {"0 % hostile", "40 % hostile"}
    kept = {name: curve for name, curve in whole.curves.items() if name.split(",")[0] in few}
    some = STUDY.decide("smoke", Curves(kept, looks={name: whole.looks[name] for name in kept}))
    assert [claim for claim in some if claim.ran] == [
        claim for claim in STUDY.decide("smoke", whole) if "there" in claim.claim or "3 points below" in claim.claim
    ]


def test_what_is_read_from_a_run(tmp_path: Path):
    """The hostile part of the weight by round, from records and seed; the share of marked samples that are mistaken."""
    size = SIZES["smoke"]
    experiment = attacks.experiment(size, "mean", 0.3, attack=(attacks.FLIP,), attackers=0.4).but(seed=1)
    run = to.run(experiment, tmp_path / "flipped", quiet=True)
    hostile = set(hostile_clients(0.4, 10, seed=1).tolist())
    with run.records() as records:
        columns = records.clients()
    for t, part in enumerate(attacks.look(run)["hostile"]):
        came = [(c, s) for r, c, s, w in zip(*(columns[n] for n in ("round", "client", "share", "work")), strict=True)
                if r == t and w > 0]  # fmt: skip
        total = sum(s for _, s in came)
        assert part == pytest.approx(sum(s for c, s in came if c in hostile) / total if total else 0.0)
    backdoor = to.run(attacks.of_kind(size, "backdoor", "mean"), tmp_path / "backdoor", quiet=True)
    assert 0 <= attacks.look(backdoor)["backdoor"][0] <= 100


@pytest.mark.slow
def test_smoke(tmp_path: Path):
    found = run_study(STUDY, "smoke", tmp_path / "out", quiet=True)
    assert not found.failed
    assert len(found.claims) > 20
