"""Study `labels`: its plan is Tables 1 to 3, its claims are decided as written, and it runs from plan to pictures."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from turnout_papers.recipes.labels import USERS
from turnout_papers.studies import labels
from turnout_papers.studies.running import run_study
from turnout_papers.studies.study import Curve, Curves

SEEDS = range(4)


def look(seed: int, local: float, shared: tuple[float, ...], taught: float = 0.0, dip: dict | None = None):
    """Accuracies that do not move, but for a dip in one round; a little noise that seeds share."""
    noise, rounds = 0.001 * seed, 15
    found = {}
    for i, user in enumerate(USERS):
        found[f"{labels.LOCAL} {user}"] = np.full(rounds, local + noise)
        found[f"{labels.GLOBAL} {user}"] = np.full(rounds, shared[i] + 2 * noise)
        found[f"{labels.TAUGHT} {user}"] = np.full(rounds, taught + 2 * noise)
    for (name, user, t), value in (dip or {}).items():
        found[f"{name} {user}"][t] = value + 3 * noise
    cost = {name: np.ones(rounds) for name in ("bytes", "weight_bytes", "epoch_seconds", "inference_seconds")}
    return found | cost


def curves(**changes) -> Curves:
    honest = (0.75, 0.85, 0.76)
    dip = {(labels.LOCAL, "User_2", 9): 0.5, (labels.GLOBAL, "User_2", 9): 0.84}
    made = {
        "average": lambda s: look(s, 0.65, honest),
        "sum": lambda s: look(s, 0.65, honest),
        "labelled average": lambda s: look(s, 0.65, honest),
        "literal": lambda s: look(s, 0.65, (0.9, 0.97, 0.9)),
        labels.PERMUTED: lambda s: look(s, 0.65, (0.6, 0.6, 0.6)),
        labels.DISTILLED: lambda s: look(s, 0.65, honest, taught=0.7),
        "dip of User_2": lambda s: look(s, 0.65, honest, dip=dip),
        "dip of User_1": lambda s: look(s, 0.65, honest),
        **{f"{user} alone": lambda s: look(s, 0.65, (0.7, 0.7, 0.7)) for user in USERS},
    } | changes
    flat = Curve(np.arange(15), np.full(15, 0.7))
    looks = {name: {seed: make(seed) for seed in SEEDS} for name, make in made.items()}
    return Curves({name: dict.fromkeys(SEEDS, flat) for name in made}, looks=looks)


def test_claims_are_decided_by_the_numbers():
    found = labels.STUDY.decide("small", curves())
    assert len(found) == 3 + 1 + 1 + 2 + 1
    assert all(claim.holds for claim in found)
    worse = curves(
        average=lambda s: look(s, 0.65, (0.75, 0.70, 0.64)),
        literal=lambda s: look(s, 0.65, (0.6, 0.6, 0.6)),
        distilled=lambda s: look(s, 0.65, (0.7, 0.7, 0.7), taught=0.6),
        **{"dip of User_2": lambda s: look(s, 0.65, (0.7, 0.2, 0.7), dip={(labels.LOCAL, "User_2", 9): 0.5})},
    )
    assert [claim.holds for claim in labels.STUDY.decide("small", worse)] == [
        True, True, False, False, False, False, False, False,
    ]  # fmt: skip


def test_rows_stand_beside_the_published_numbers():
    found = {(r.case, r.metric): r for r in labels.rows("small", curves())}
    assert found["average, User_2", "global"].published == 97.47
    assert found["literal, User_1", "increase"].published == 17.36
    assert found["average, User_2", "increase"].published == 23.17
    assert found["cost", "s an epoch"].published == 1.8
    assert round(found["User_3 alone", "increase"].ours) == 5
    assert round(found["dip of User_2", "local falls by"].ours) == 15
    assert round(found["dip of User_2", "global falls by"].ours) == 1


def test_the_plan_is_the_papers():
    plan = labels.plan("paper")
    variants = {name: e for part in plan.parts for name, e in part.variants.items()}
    assert len(variants) == 11
    assert [e.client for e in variants["User_2 alone"].world.events] == ["User_1", "User_3"]
    dip = variants["dip of User_2"].world.data.dips
    assert [(d.client, d.round, d.share) for d in dip] == [(1, 9, 0.05)]
    assert variants[labels.PERMUTED].algorithm.permuted
    assert all(e.algorithm.held_out == 0.5 for e in variants.values())
    assert all(e.rounds == 15 for e in variants.values())


@pytest.mark.slow
def test_smoke(tmp_path: Path):
    found = run_study(labels.STUDY, "smoke", tmp_path / "out", quiet=True, jobs=1)
    assert not any("not run" in claim.evidence for claim in found.claims)
    assert not any(row.ours == "not run" for row in found.rows)
    json.loads(found.to_json())
    drawn = sorted(path.name for path in (tmp_path / "out").glob("*.svg"))
    assert drawn == ["dips.svg", "figure2.svg", "figure3.svg"]
    for name in drawn:
        assert ElementTree.fromstring((tmp_path / "out" / name).read_text(encoding="utf-8")).tag.endswith("svg")


def test_without_its_pictures_the_study_says_so():
    missing = dict.fromkeys(labels.plan("paper").parts[0].variants, "there is no animals")
    nothing = Curves({}, missing)
    assert all(row.ours == "not run" for row in labels.rows("paper", nothing))
    assert all(claim.evidence.startswith("not run") for claim in labels.STUDY.decide("paper", nothing))
    assert labels.pictures("paper", nothing) == {}
