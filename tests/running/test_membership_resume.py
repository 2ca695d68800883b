"""Membership survives a kill: a resumed run equals an uninterrupted one, alone and with every other part."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

import turnout as to
from killing import killed_and_resumed
from same_rows import same
from turnout.running import loop
from turnout.running.loop import begin, rounds_of
from turnout.running.records.records import Records
from worlds import EXACT, Control

EVENTS = (to.events.RandomEvents(joins=0.3, leaves=0.25, returns=0.15, waiting=12), to.Leave(0, 8), to.Join(1, 12))


def busy_world(rounds: int = 60, **algorithm) -> to.Experiment:
    """30 clients of five kinds that come and go, with personal BatchNorm layers and residual state at home."""
    local = to.Local(to.SGD(lr=0.2), epochs=2, batch_size=5, schedule=to.InverseClock())
    return to.Experiment(
        to.World(to.data.Synthetic(clients=30, sizes=to.data.Equal(15)), to.participation.Traces(first=8), EVENTS),
        to.models.MLP(6, batch_norm=True),
        to.Algorithm(local, personal=to.personal.batch_norm, **algorithm),
        rounds=rounds,
        runtime=EXACT,
    )


def test_twenty_joins_and_leaves_killed_and_resumed(tmp_path: Path):
    """`kill -9` in the middle, `--resume`, and every record is as in a run that was never interrupted."""
    drop = to.membership.DropInactive(J=1.0, C=20.0, rarely=math.inf, least=6.0)
    experiment = busy_world(90, membership=to.Membership(leave="decide", drop=drop))
    killed, whole = killed_and_resumed(experiment, tmp_path, after=30)
    with Records.read(whole / "records.sqlite") as records:
        kinds = [kind for _, _, kind, _ in records.events()]
    assert kinds.count("join") >= 10
    assert kinds.count("leave") >= 10
    assert "drop" in kinds
    first, second = (to.open_run(folder).model().state_dict() for folder in (killed, whole))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"membership": to.Membership(leave="include", stand_in=True), "substitution": to.substitution.Spread()},
        {"membership": to.Membership(join="vanilla"), "terms": (Control(),), "weighting": to.weighting.FedNova()},
        {
            "membership": to.Membership(
                leave="decide", rule="sqrt", drop=to.membership.DropInactive(C=10.0, rarely=math.inf)
            ),
            "shares": to.weighting.Shares(over="unbiased"),
            "selection": to.selection.Fraction(0.5),
            "weighting": to.weighting.CompleteOnly(),
        },
    ],
    ids=["include-friend", "control", "decide-unbiased"],
)
def test_an_interrupted_run_goes_on_to_the_same_records(algorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    experiment = busy_world(26, **algorithm)
    for name, stops in (("whole", []), ("cut", [6, 16])):
        for stop in [*stops, 26]:
            track = begin(experiment, tmp_path / name, resume=True)
            running = rounds_of(track, tmp_path / name)
            for step in running:
                if step.record.round == stop - 1:
                    break
            running.close()
    assert same(tmp_path / "whole" / "records.sqlite", tmp_path / "cut" / "records.sqlite") == []


def test_other_events_are_other_settings(tmp_path: Path):
    experiment = busy_world(5).but(**{"world.events": (to.Leave(0, 2),)})
    to.run(experiment, tmp_path / "run", quiet=True)
    changed = dataclasses.replace(experiment.world, events=(to.Leave(1, 2),))
    with pytest.raises(to.UserError, match=r"world\.events"):
        to.run(dataclasses.replace(experiment, world=changed), tmp_path / "run", resume=True, quiet=True)
