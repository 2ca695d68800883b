"""Every part we ship keeps the promises that turnout.testing asks of anybody's, and a broken one is caught."""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import turnout as to
from turnout import testing
from turnout.errors import UserError
from turnout.fleet import Reading
from turnout.fleet.fleet_participation import AsFleetLog, FleetLog
from turnout.parts import selection
from turnout.running.config.hints import required
from turnout.running.config.kinds import KINDS, ROLE_NAMES
from turnout.types import Turnout
from turnout.world import participation

LOG = "round,client,work\n" + "".join(f"{t},{c},{c % 3 / 2}\n" for t in range(4) for c in range(40) if (c + t) % 5)
EVENTS = "round,client,event\n5,3,leave\n9,3,join\n7,39,join\n"

# Parts with other settings than their defaults, and one of every kind that needs settings; files are in FILES.
DEVICES = "client,tier,gflops,down_mbps,up_mbps,latency\n" + "".join(f"{c},t{c % 2},{c + 1},9,3,0\n" for c in range(40))
FILES = {"log.csv": LOG, "events.csv": EVENTS, "devices.csv": DEVICES}
EXAMPLES: list[Any] = [
    to.substitution.Stale("weights"),
    to.substitution.Friends(client_sketch=3),
    participation.Traces(first=8),
    participation.Homogeneous("T50"),
    participation.Dropout(0.4),
    participation.Stratified(0.5),
    participation.OnOff(4, 2),
    participation.TurnoutLog("log.csv"),
    FleetLog("log.csv"),
    FleetLog("log.csv", mode="blocks"),
    FleetLog("log.csv", mode="blocks", of="client", length=3),
    FleetLog("log.csv", mode="fitted"),
    selection.Fraction(0.3),
    selection.Count(7),
    selection.AsLogged("log.csv"),
    AsFleetLog("log.csv", reading=Reading(missing="absent")),
    to.devices.DeviceFile("devices.csv", noise=0.1),
    to.devices.DeviceFile("devices.csv", mode="resample"),
    to.devices.SpreadDevices(law="pareto", slow_chance=0.5),
    to.closing.Deadline(5, partial=False, late="use"),
    to.closing.FirstReplies(count=2, seconds=8),
    to.Join(3, 5),
    to.Leave(39, 0),
    to.events.EventLog("events.csv"),
    to.events.RandomEvents(0.5, 0.5, 0.2, waiting=4),
    to.terms.Proximal(0.5),
    to.terms.Scaffold(1),
    to.compression.SparseTernary(0.2),
    to.compression.SparseTernary(0.2, 0.5, "model", residual_decay=0.5, reset_after=2),
    to.compression.SparseTernary(0.2, directions="up"),
    to.compression.TopK(0.2),
    to.compression.TopK(0.2, feedback=False),
    to.compression.Quantise("nearest", feedback=True),
    to.SGD(momentum=0.9, weight_decay=0.1),
    to.Adam(moments="local", count="none"),
    to.AdamW(weight_decay=0.2),
    to.server.ServerSGD(0.5),
    to.schedules.TheoryRate(2.0, 4.0, 5, 100.0),
    to.schedules.Cosine(20, least=0.1),
    to.schedules.WarmUp(3),
    to.schedules.Custom(lambda lr, clock: lr / (1 + clock) ** 0.5),
    to.data.Equal(7),
    to.data.Pareto(floor=3),
]
# Roles whose kinds have tests of their own: data, models and tasks (test_data_*, test_models, test_task), and so on.
# Their checks need files, or to be told what samples look like: here they are tried on a few.
ELSEWHERE = {"data", "model", "task", "algorithm", "personal", "runtime"}
NOT_BY_DEFAULT = (to.data.Equal,)  # without settings it is no whole part


def without_addresses(part: Any) -> str:
    """Tests have the same names in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(part))


def cases() -> list[Any]:
    """Every kind of every role that turnout.testing can check, as it is by default, and the examples."""
    found = []
    for role, check in testing.CHECKS.items():
        if ROLE_NAMES[role] in ELSEWHERE:
            continue
        makers = list(dict.fromkeys(KINDS[role].values()))
        parts = [maker() for maker in makers if not required(maker) and maker not in NOT_BY_DEFAULT]
        parts += [part for part in EXAMPLES if type(part) in makers]
        found += [pytest.param(check, part, id=f"{ROLE_NAMES[role]} {without_addresses(part)}") for part in parts]
    return found


@pytest.mark.parametrize(("check", "part"), cases())
def test_every_kind_keeps_its_promises(check, part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    whole = isinstance(part, participation.Stratified)  # exactly so many of those asked: no client is alone in that
    check(part, alone=False) if whole else check(part)


SCORES, LABELS = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1)), torch.arange(15).view(5, 3) % 4


@pytest.mark.parametrize(
    ("check", "arguments"),
    [
        (testing.check_data, [to.data.Digits(clients=8)]),
        (testing.check_data, [to.data.Synthetic(clients=6)]),
        (testing.check_model, [to.models.Logistic()]),
        (testing.check_model, [to.models.MLP(8, batch_norm=True), (5,), 3]),
        (testing.check_model, [to.models.digits_cnn(), (1, 8, 8)]),
        (testing.check_task, [to.tasks.Classification()]),
        (testing.check_task, [to.tasks.NextCharacter(), SCORES, LABELS]),
        (testing.check_task, [to.tasks.NextToken(), SCORES, LABELS]),
        (testing.check_task, [to.tasks.ModelLoss(to.tasks.NextToken()), SCORES, LABELS]),
        (testing.check_task, [to.tasks.Regression(), SCORES[:, 0], SCORES[:, 1]]),
    ],
)
def test_data_models_and_tasks_keep_their_promises(check, arguments):
    check(*arguments)


def test_no_kind_is_left_out():
    assert {ROLE_NAMES[role] for role in testing.CHECKS} | ELSEWHERE == set(ROLE_NAMES.values()), (
        "a role has neither a check in turnout.testing.CHECKS nor tests elsewhere"
    )
    for role in (role for role in testing.CHECKS if ROLE_NAMES[role] not in ELSEWHERE):
        for kind, maker in KINDS[role].items():
            assert not required(maker) or maker in map(type, EXAMPLES), (
                f"{ROLE_NAMES[role]} {kind!r} cannot be made without settings: give one to EXAMPLES"
            )


@dataclass(frozen=True)
class DependsOnTheEnd:
    drawn: bool = True

    def events(self, setting):
        return to.Leave(3, setting.rounds // 3).events(setting)


def test_events_that_depend_on_what_follows_are_caught():
    with pytest.raises(AssertionError, match="how many rounds follow"):
        testing.check_events(DependsOnTheEnd())


@dataclass(frozen=True)
class Forgetful(to.terms.Scaffold):
    def on_objective_change(self, server_state, left, change):
        return {}


def test_a_term_that_loses_what_it_holds_is_caught():
    with pytest.raises(AssertionError, match="on_objective_change"):
        testing.check_term(Forgetful())


class TheLast:
    linear = False

    def combine(self, updates, weight_R):
        return updates.update_RP[-1]


def test_an_aggregation_that_depends_on_the_order_is_caught():
    with pytest.raises(AssertionError, match="order"):
        testing.check_aggregation(TheLast())


def test_old_updates_can_only_be_added_to_a_sum():
    with pytest.raises(UserError, match=r"Stale adds old updates to a sum.*use Friends or Spread"):
        to.Algorithm(substitution=to.substitution.Stale(), aggregation=TheLast())


@dataclass(frozen=True)
class ScalesByTheCohort(to.compression.Dense):
    def encode(self, update_CP, kept, sending):
        return super().encode(update_CP / update_CP.abs().max(), kept, sending)


@dataclass(frozen=True)
class WritesOnItsState(to.compression.SparseTernary):
    def broadcast(self, change_P, state, sending):
        state["left_P"].add_(change_P)
        return super().broadcast(change_P, state, sending)


@pytest.mark.parametrize(("broken", "promise"), [(ScalesByTheCohort(), "other"), (WritesOnItsState(0.2), "state")])
def test_a_broken_compression_is_caught(broken, promise):
    with pytest.raises(AssertionError, match=promise):
        testing.check_compression(broken)


@dataclass(frozen=True)
class CountsTheAbsent(to.weighting.Weighting):
    def counts(self, turnout: Turnout) -> torch.Tensor:
        return torch.ones_like(turnout.present_C)


@dataclass(frozen=True)
class DividesByZero(to.weighting.Weighting):
    def client_scale(self, turnout: Turnout) -> torch.Tensor:
        return turnout.full_work / turnout.work_C


@pytest.mark.parametrize(("broken", "promise"), [(CountsTheAbsent(), "absent"), (DividesByZero(), "finite")])
def test_a_broken_weighting_is_caught(broken, promise):
    with pytest.raises(AssertionError, match=promise):
        testing.check_weighting(broken)


@pytest.mark.parametrize("example", sorted(Path(__file__).parents[2].glob("examples/*.py")), ids=lambda p: p.stem)
def test_examples_run(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
