"""Study `privacy`: its claims on numbers made up to bear them out, and that it runs."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pages import ROOT
from turnout_papers.studies import privacy
from turnout_papers.studies.running import Findings, run_study
from turnout_papers.studies.study import Curve, Curves, ResultRow


def all_as_claimed(factor: float = 1.0) -> Curves:
    """Correlated noise and separation help; three quarters of what is predicted arrive."""
    values = {privacy.plain("digits"): 0.9}
    for name, epsilon, b in privacy.cases("small"):
        for noise, bonus in zip(privacy.NOISES, (0.0, 0.15, 0.15, 0.2), strict=True):
            values[privacy.variant(name, epsilon, b, noise)] = 0.5 + factor * (0.01 * b + bonus)
    rounds = np.arange(5)
    noise = np.array([0.0, 1e-3, 2e-3])
    return Curves({v: {s: Curve(rounds, np.full(5, x + noise[s])) for s in range(3)} for v, x in values.items()})


def test_the_claims_hold_for_numbers_that_bear_them_out():
    assert {claim.outcome for claim in privacy.STUDY.decide("small", all_as_claimed())} == {"holds"}
    assert "holds" not in {claim.outcome for claim in privacy.STUDY.decide("small", all_as_claimed(-1.0))}


def test_what_arrives_of_the_predicted_gain():
    found = privacy.arrived(all_as_claimed(), "digits", 4.0, 10, privacy.BLT)
    assert list(found.values()) == pytest.approx([75.0] * 3)
    assert privacy.arrived(Curves({}), "digits", 4.0, 10, privacy.BLT) == {}


def test_noise_divided_by_the_gain_has_a_larger_epsilon():
    size = privacy.SIZES["small"]
    full, less = (privacy.private(size, 1.0, 10, noise) for noise in (privacy.INDEPENDENT, privacy.LESS))
    states = [setting.tied(size.rounds).begin() for setting in (full, less)]
    ratio = states[0]["multiplier"] / states[1]["multiplier"]
    assert ratio == pytest.approx(privacy.gain(privacy.BANDED, size, 10))
    assert ratio > 1.5
    assert less.epsilon_after(states[1], size.rounds) > 1.5


def test_the_study_runs(tmp_path):
    found = run_study(privacy.STUDY, "smoke", tmp_path / "study", quiet=True, jobs=1)
    assert not [row for row in found.rows if row.ours == "not run"]


def stored(page: str) -> dict[tuple[str, str], ResultRow]:
    """The rows of a page at paper scale, by case and metric."""
    findings = Findings.from_json((ROOT / "papers" / "docs" / "studies" / "paper" / f"{page}.json").read_bytes())
    return {(row.case, row.metric): row for row in findings.rows}


def lines_of_documentation(pattern: str) -> list[tuple[str, str, float, str]]:
    """Of each line of a table in docs/privacy.md: the two names in it, an ε and its cell."""
    text = (ROOT / "docs" / "privacy.md").read_text("utf-8")
    lines = re.findall(rf"^\| {pattern} \| (.+) \|$", text, re.MULTILINE)
    return [
        (first, second, epsilon, cell)
        for first, second, cells in lines
        for epsilon, cell in zip((1, 2, 4, 8), cells.split(" | "), strict=True)
    ]


def cell_of(row: ResultRow) -> str:
    return row.ours if isinstance(row.ours, str) else f"{row.ours:.1f} ± {row.spread:.1f}"


def test_the_documentation_says_what_was_stored():
    found = stored("privacy")
    lines = lines_of_documentation(r"(\S*MNIST, b = \d+): (.+?)")
    assert len(lines) == 18 * 4
    for place, what, epsilon, cell in lines:
        case = place.replace(", b = ", f" ε={epsilon} b=")
        if what.startswith("arrives"):
            arrived = [found[case, f"predicted gain that arrives, {n}, %"] for n in (privacy.BANDED, privacy.BLT)]
            assert cell == ", ".join(f"{row.ours:.0f} %" for row in arrived), case
        else:
            assert cell == cell_of(found[case, f"accuracy, {what}"]), (case, what)


def test_the_documentation_says_what_pfl_reached():
    ours, theirs = stored("privacy"), stored("privacy-pfl")
    lines = lines_of_documentation(r"(\S*MNIST), (pfl: \w+|Turnout: BLT, b = 50)")
    assert len(lines) == 10 * 4
    for name, what, epsilon, cell in lines:
        if what.startswith("pfl"):
            row = theirs[f"{name} ε={epsilon}", what.replace("pfl: ", "accuracy, ")]
        else:
            row = ours[f"{name} ε={epsilon} b=50", "accuracy, BLT"]
        assert cell == cell_of(row), (name, what, epsilon)
    for _, kind, epsilon, cell in lines_of_documentation(r"(ε of pfl's noise without sampling): (\w+)"):
        row = theirs[f"MNIST ε={epsilon}", f"ε of pfl's noise without sampling, {kind}"]
        assert cell == (row.ours if isinstance(row.ours, str) else f"{row.ours:.1f}"), (kind, epsilon)
