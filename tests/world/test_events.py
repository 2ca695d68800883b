"""Events of the world: from a list, a file or rates; and what cannot be is refused before the first round."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turnout as to
from turnout.errors import UserError
from turnout.running.config import read as config
from turnout.world.events import Calendar, EventSetting, calendar_of, poisson
from worlds import blobs, ready, world

SETTING = EventSetting(clients=10, names=None, rounds=100, seed=0)


def calendar(*entries: object, setting: EventSetting = SETTING) -> Calendar:
    return calendar_of(entries, setting)  # type: ignore[arg-type]


def test_who_joins_is_outside_before_and_who_leaves_goes_first():
    found = calendar(to.Join(9, 50), to.Leave(3, 50), to.Leave(9, 60), to.Join(3, 70))
    assert found.outside_L.tolist() == [9]
    assert found.by_round.get(50, ()) == (to.Leave(3, 50), to.Join(9, 50))
    assert found.by_round.get(60, ()) == (to.Leave(9, 60),)
    assert found.by_round.get(51, ()) == ()


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([to.Join(3, 5), to.Join(3, 8)], "joins in round 5 and joins in round 8.*alternate"),
        ([to.Join(3, 5), to.Leave(3, 2)], "client 3 joins in round 5 and leaves in round 2"),
        ([to.Leave(3, 5), to.Leave(3, 6)], "leaves in round 5 and leaves in round 6"),
        ([to.Leave(3, 5), to.Join(3, 5)], "each in a later round"),
        ([to.Leave(3, 5), to.Join(3, 4)], "in the order they happen"),
        ([to.Join(3, 100)], "rounds are 0 to 99"),
        ([to.Leave(3, -1)], "rounds are 0 to 99"),
        ([to.Join(10, 5)], "0 to 9"),
        ([to.Leave("ann", 5)], "0 to 9"),
        ([to.Join(c, 5) for c in range(10)], "no member in the first round"),
        ([to.events.RandomEvents(waiting=10)], "at least one must be a member"),
    ],
)
def test_what_cannot_be_is_refused(entries: list[object], says: str):
    with pytest.raises(UserError, match=says):
        calendar(*entries)


def test_it_is_refused_before_the_first_round():
    experiment = world([4, 4, 4]).but(**{"world.events": (to.Leave(1, 3),)})
    with pytest.raises(UserError, match="rounds are 0 to 2"):
        ready(experiment)
    with pytest.raises(UserError, match="list of Join"):
        to.World(events=(3,))  # type: ignore[arg-type]


def test_clients_by_name(tmp_path: Path):
    data = to.data.Own(torch.zeros(6, 2), torch.tensor([0, 1] * 3), owner=["ann", "ann", "bob", "bob", "eve", "eve"])
    names = data.load(0).names
    setting = EventSetting(3, names, 10, 0)
    assert calendar(to.Leave("bob", 3), setting=setting).by_round.get(3, ()) == (to.Leave(1, 3),)
    with pytest.raises(UserError, match=r"'eva'.*eve"):
        calendar(to.Leave("eva", 3), setting=setting)


def test_a_file_of_events(tmp_path: Path):
    path = tmp_path / "events.csv"
    path.write_text("round,client,event\n50,9,join\n20,3,leave\n40,3,join\n")
    found = calendar(to.events.EventLog(str(path)))
    assert found.outside_L.tolist() == [9]
    assert found.by_round.get(40, ()) == (to.Join(3, 40),)
    for text, says in [
        ("round,client\n", "line 1: the header"),
        ("round,client,event\n5,9,jion\n", "line 2: an event is .*not .jion."),
        ("round,client,event\n\n5,99,join\n", "line 3: .*client 99"),
        ("round,client,event\nx,9,join\n", "line 2: round must be a whole number"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=says):
            calendar(to.events.EventLog(str(path)))
    with pytest.raises(UserError, match=r"cannot read .*none\.csv"):
        calendar(to.events.EventLog(str(tmp_path / "none.csv")))


@given(
    seed=st.integers(0, 1000), joins=st.floats(0, 2), leaves=st.floats(0, 2), returns=st.floats(0, 2),
    waiting=st.integers(0, 5), more=st.integers(0, 30),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_random_events_can_happen_and_do_not_depend_on_the_rounds_that_follow(
    seed, joins, leaves, returns, waiting, more
):
    entry = to.events.RandomEvents(joins if waiting else 0.0, leaves, returns, waiting)
    entries = (to.Leave(2, 4), to.Join(7, 9), entry)
    short = calendar(*entries, setting=EventSetting(12, None, 20, seed))
    long = calendar(*entries, setting=EventSetting(12, None, 20 + more, seed))  # checked: nobody joins or leaves twice
    assert {t: short.by_round.get(t, ()) for t in range(20)} == {t: long.by_round.get(t, ()) for t in range(20)}
    assert len(short.outside_L) == waiting + 1
    members = set(range(12)) - set(long.outside_L.tolist())
    for t in range(20 + more):
        for event in long.by_round.get(t, ()):
            (members.add if isinstance(event, to.Join) else members.remove)(event.client)
        assert members


def test_rates_are_expected_numbers():
    entry = to.events.RandomEvents(joins=0.5, leaves=0.7, returns=0.4, waiting=5000)
    found = calendar(entry, setting=EventSetting(1_000_000, None, 2000, 3))
    events = [event for t in range(2000) for event in found.by_round.get(t, ())]
    joins = sum(isinstance(e, to.Join) and e.client in set(found.outside_L.tolist()) for e in events)
    leaves = sum(isinstance(e, to.Leave) for e in events)
    assert joins == pytest.approx(1000, abs=100)
    assert leaves == pytest.approx(1400, abs=120)
    assert len(events) - joins - leaves == pytest.approx(800, abs=90)


@given(st.floats(0, 3))
def test_poisson_has_its_mean(rate: float):
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    assert sum(poisson(float(v), rate) for v in u) / 4000 == pytest.approx(rate, abs=0.01)


def test_the_population_bounds_the_events_of_a_round():
    many = to.events.RandomEvents(leaves=600.0)
    assert len(calendar(many, setting=EventSetting(5000, None, 3, 0)).by_round.get(1, ())) == pytest.approx(
        600, abs=120
    )
    assert len(calendar(many, setting=EventSetting(100, None, 3, 0)).by_round.get(1, ())) == 99


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), 701.0, -1.0])
def test_a_rate_that_is_no_number_is_refused(rate: float):
    with pytest.raises(UserError, match="from 0 to 700"):
        to.events.RandomEvents(leaves=rate)


def test_events_in_an_experiment_file():
    table = {
        "rounds": 60,
        "world": {"events": [
            {"kind": "join", "client": 49, "round": 50}, {"kind": "leave", "client": 3, "round": 20},
            {"kind": "random-events", "leaves": 0.1}, {"kind": "event-log", "path": "x.csv"},
        ]},
        "algorithm": {
            "membership": {"leave": "decide", "constants": {"D": 1, "V": 2.0, "gamma": 3.0}, "drop": {"J": 2}},
        },
    }  # fmt: skip
    experiment = config.from_table(table)
    assert experiment.world.events[:2] == (to.Join(49, 50), to.Leave(3, 20))
    assert experiment.algorithm.membership.constants == to.membership.Constants(1.0, 2.0, 3.0)
    assert experiment.algorithm.membership.drop == to.membership.DropInactive(J=2.0)
    import tomllib

    again = config.from_table(tomllib.loads(config.to_toml(experiment)))
    assert again == experiment
    table["world"]["events"][0]["kind"] = "jion"  # type: ignore[index]
    with pytest.raises(UserError, match="join"):
        config.from_table(table)


def test_one_entry_needs_no_list():
    assert to.World(blobs([4]), events=to.Leave(0, 1)).events == (to.Leave(0, 1),)
