"""Study `bytes`: claims on curves made up here, what the plan runs, and the smoke scale end to end."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

import turnout as to
from turnout.recipes import cook
from turnout_papers.studies import bytes as study
from turnout_papers.studies.drawing import WAYS
from turnout_papers.studies.running import run_study
from turnout_papers.studies.study import Curve, Curves

CASE = study.SIZES["smoke"][0]
PLAIN, TERNARY, LITERAL = (CASE.variant(way) for way in ("dense", CASE.ternary, study.PRINTED))


def made_up(lost: float, times: float, literal: float) -> Curves:
    """Three seeds of dense and ternary, two as printed."""
    curves: dict = {PLAIN: {}, TERNARY: {}, LITERAL: {}}
    bytes_: dict = {PLAIN: {}, TERNARY: {}, LITERAL: {}}
    for seed in range(3):
        values = {PLAIN: 0.9, TERNARY: 0.9 - lost + 0.0001 * seed, LITERAL: literal + 0.0001 * seed}
        for name, value in values.items():
            if name == LITERAL and seed == 2:
                continue
            curves[name][seed] = Curve(np.arange(5), np.array([0.0] * 4 + [value]))
            bytes_T = np.full(5, 100.0 / (times + 0.01 * seed if name == TERNARY else 1))
            bytes_[name][seed] = Curve(np.arange(5), bytes_T)
    return Curves(curves, more=dict.fromkeys(WAYS, Curves(bytes_)))


@pytest.mark.parametrize(
    ("lost", "times", "literal", "holds"),
    [
        (0.015, 21.0, 0.1, [True, True, True]),
        (0.025, 19.0, 0.9, [False, False, False]),
        (-0.01, 30.0, float("nan"), [True, True, True]),  # no number any more: nothing right
    ],
)
def test_two_points_and_twenty_times(lost, times, literal, holds):
    assert [c.holds for c in study.STUDY.decide("smoke", made_up(lost, times, literal))] == holds


def test_the_published_scale_and_missing_data():
    plan = study.plan("paper")
    variants = {name: e for part in plan.parts for name, e in part.variants.items()}
    assert variants["MNIST: ternary 1%"].algorithm.compression == to.compression.SparseTernary(0.01)
    assert variants["CIFAR-10: ternary 0.1%"].algorithm.compression == to.compression.SparseTernary(0.001)
    assert variants["MNIST: dense"].algorithm.compression == to.compression.Dense()
    nothing = Curves({}, dict.fromkeys(variants, "MNIST is not there"))
    claims = study.STUDY.decide("paper", nothing)
    assert {c.evidence for c in claims} == {"not run: MNIST is not there"}


def test_it_runs_end_to_end(tmp_path):
    findings = run_study(study.STUDY, "smoke", tmp_path / "study", quiet=True, jobs=1)
    ours = {(r.case, r.metric): r.ours for r in findings.rows}
    assert all(isinstance(value, float) for value in ours.values())
    assert ours[TERNARY, "MB up"] < ours[PLAIN, "MB up"] / 50
    assert ours[CASE.variant("8 bits"), "MB up"] == pytest.approx(ours[PLAIN, "MB up"] / 4, rel=0.02)
    with_u_v, with_few = (CASE.variant(way) for way in study.elastic(CASE))
    assert ours[with_u_v, "MB up"] > 2 * ours[PLAIN, "MB up"]  # two vectors as long as the model, beside the messages
    assert ours[TERNARY, "MB up"] < ours[with_few, "MB up"] < ours[with_u_v, "MB up"] / 5
    assert ours["constant update, 20 rounds, 10% sent, as printed", "times as far"] > 5
    ElementTree.parse(tmp_path / "study" / "bytes.svg")


def test_the_recipe_has_the_four_ways():
    made = cook("compression")
    assert list(made) == ["dense", "8 bits", "top-k", "ternary"]
    assert made["ternary"].algorithm.compression == to.compression.SparseTernary(0.05)
    assert cook("mnist-compression")["ternary"].world.data.clients == 100


def test_algorithm_1_as_printed_overshoots_and_the_resolved_one_does_not():
    """In 400 rounds 21 times too far at q = 0.1, and the more the less is sent."""
    assert 15 < study.overshoot(study.LiteralTernary(0.1), 400) < 30
    assert study.overshoot(study.LiteralTernary(0.01), 100) > 200
    assert 0.9 < study.overshoot(to.compression.SparseTernary(0.1), 100) <= 1.01
    assert 0.5 < study.overshoot(to.compression.SparseTernary(0.01), 100) <= 1.01
