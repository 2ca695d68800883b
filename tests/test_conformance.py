"""Every part we ship keeps the promises that turnout.testing asks of anybody's, and a broken one is caught."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import turnout as to
from turnout import testing
from turnout.errors import Mistake
from turnout.parts import selection
from turnout.types import Turnout
from turnout.world import participation


@pytest.mark.parametrize("weighting", [to.CompleteOnly(), to.ByShare(), to.ByWork(), to.FedNova()])
def test_weightings(weighting):
    testing.check_weighting(weighting)


@pytest.mark.parametrize(
    "substitution",
    [
        to.Unused(),
        to.Spread(),
        to.Stale(),
        to.Stale("weights"),
        to.Friends(),
        to.Friends("distance"),
        to.Friends(client_sketch=3),
    ],
)
def test_substitutions(substitution):
    testing.check_substitution(substitution)


@pytest.mark.parametrize(
    "kind",
    [
        participation.Always(), participation.Traces(first=8), participation.Homogeneous("T50"),
        participation.Dropout(0.4), participation.Stratified(0.5), participation.OnOff(4, 2),
    ],
)  # fmt: skip
def test_participations(kind):
    testing.check_participation(kind)


@pytest.mark.parametrize("kind", [selection.Everyone(), selection.Fraction(0.3), selection.Count(7)])
def test_selections(kind):
    testing.check_selection(kind)


@pytest.mark.parametrize("entry", [to.Join(3, 5), to.Leave(39, 0), to.RandomEvents(0.5, 0.5, 0.2, waiting=4)])
def test_events(entry):
    testing.check_events(entry)


@dataclass(frozen=True)
class DependsOnTheEnd:
    drawn: bool = True

    def events(self, setting):
        return to.Leave(3, setting.rounds // 3).events(setting)


def test_events_that_depend_on_what_follows_are_caught():
    with pytest.raises(AssertionError, match="how many rounds follow"):
        testing.check_events(DependsOnTheEnd())


@pytest.mark.parametrize(
    "term", [to.Proximal(0.5), to.Scaffold(), to.Scaffold(1), to.FedGATE(), to.VRLSGD(), to.APFL(), to.MimeLite()]
)
def test_terms(term):
    testing.check_term(term)


@dataclass(frozen=True)
class Forgetful(to.Scaffold):
    def reform(self, down, said, reform):
        return {}


def test_a_term_that_loses_what_it_holds_is_caught():
    with pytest.raises(AssertionError, match="reform"):
        testing.check_term(Forgetful())


class TheLast:
    linear = False

    def combine(self, arrived, weight_R):
        return arrived.update_RP[-1]


def test_aggregations():
    testing.check_aggregation(to.WeightedSum())
    with pytest.raises(AssertionError, match="order"):
        testing.check_aggregation(TheLast())


def test_old_updates_can_only_be_added_to_a_sum():
    with pytest.raises(Mistake, match=r"Stale adds old updates to a sum.*use Friends or Spread"):
        to.Algorithm(substitution=to.Stale(), aggregation=TheLast())


@pytest.mark.parametrize(
    "kind",
    [
        to.Dense(), to.SparseTernary(0.2), to.SparseTernary(0.2, 0.5, "model", residual_decay=0.5, reset_after=2),
        to.SparseTernary(0.2, directions="up"), to.TopK(0.2), to.TopK(0.2, feedback=False), to.Quantise(),
        to.Quantise("nearest", feedback=True), to.LiteralTernary(0.2),
    ],
    ids=str,
)  # fmt: skip
def test_compressions(kind):
    testing.check_compression(kind)


@dataclass(frozen=True)
class ScalesByTheCohort(to.Dense):
    def encode(self, update_CP, kept, sending):
        return super().encode(update_CP / update_CP.abs().max(), kept, sending)


@dataclass(frozen=True)
class WritesOnItsState(to.SparseTernary):
    def broadcast(self, change_P, state, sending):
        state["left_P"].add_(change_P)
        return super().broadcast(change_P, state, sending)


@pytest.mark.parametrize(("broken", "promise"), [(ScalesByTheCohort(), "company"), (WritesOnItsState(0.2), "state")])
def test_a_broken_compression_is_caught(broken, promise):
    with pytest.raises(AssertionError, match=promise):
        testing.check_compression(broken)


@dataclass(frozen=True)
class CountsTheAbsent(to.Weighting):
    def counts(self, turnout: Turnout) -> torch.Tensor:
        return torch.ones_like(turnout.present_C)


@dataclass(frozen=True)
class DividesByZero(to.Weighting):
    def client_scale(self, turnout: Turnout) -> torch.Tensor:
        return turnout.full_work / turnout.work_C


@pytest.mark.parametrize(("broken", "promise"), [(CountsTheAbsent(), "absent"), (DividesByZero(), "finite")])
def test_a_broken_weighting_is_caught(broken, promise):
    with pytest.raises(AssertionError, match=promise):
        testing.check_weighting(broken)


@pytest.mark.parametrize("example", sorted(Path(__file__).parent.parent.glob("examples/*.py")), ids=lambda p: p.stem)
def test_examples_run(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
