"""A client that vanishes: it says no farewell, and a log of what happened gives the same run again."""

from __future__ import annotations

import torch

import turnout as to
from same_rows import same
from turnout.round_record import RoundRecord
from turnout.running.records.records import Records
from turnout.running.tracks.prepare import prepare


def world(*events: to.world.events.Events) -> to.Experiment:
    return to.Experiment(
        world=to.World(to.data.Digits(clients=5), events=events),
        model=to.models.Logistic(),
        algorithm=to.Algorithm(to.Local(to.SGD(0.1), steps=3), terms=[to.terms.Scaffold()]),
        rounds=4,
        runtime=to.runtime.InProcess(device="cpu", threads=1),
    )


def shared_after(experiment: to.Experiment, rounds: int) -> tuple[to.types.Tensors, RoundRecord]:
    """The server's control variate after some rounds, and the record of the last of them."""
    track = prepare(experiment)
    state = track.begin()
    for t in range(rounds):
        state, record = track.round(state, t)
    return next(iter(state.term_states.values())), record


def test_who_vanishes_says_nothing():
    said, loud = shared_after(world(to.Leave(2, 2)), 3)
    unsaid, silent = shared_after(world(to.Leave(2, 2, silent=True)), 3)
    assert any(not torch.equal(said[name], unsaid[name]) for name in said)  # its part of the sum stays in
    assert loud.bytes_up - silent.bytes_up == 4 * 650  # one control variate of 64 x 10 + 10 numbers
    assert [e.detail.startswith("without a word") for e in (*loud.events, *silent.events)] == [False, True]


def test_who_stays_in_the_objective_sends_what_it_is_remembered_by():
    """u and v of each parameter and their z, not the control variate that nobody is to forget."""
    terms, include = [to.terms.Scaffold(), to.terms.Elastic(memory=True)], to.Membership(leave="include")
    settings = {"algorithm.terms": terms, "algorithm.membership": include}
    _, loud = shared_after(world(to.Leave(2, 2)).but(**settings), 3)
    _, silent = shared_after(world(to.Leave(2, 2, silent=True)).but(**settings), 3)
    assert loud.bytes_up - silent.bytes_up == 4 * (2 * 650 + 1)


def test_events_are_exported_and_replayed(tmp_path):
    first = world(to.Join(0, 0), to.Join(4, 1), to.Leave(2, 1, silent=True), to.Leave(1, 2), to.Join(2, 3))
    to.run(first, tmp_path / "first", quiet=True)
    log = tmp_path / "first" / "events.csv"
    assert log.read_text().split() == [
        "round,client,event", "0,0,join", "1,2,vanish", "1,4,join", "2,1,leave", "3,2,join",
    ]  # fmt: skip
    to.run(world(to.events.EventLog(str(log))), tmp_path / "again", quiet=True)
    assert same(tmp_path / "first" / "records.sqlite", tmp_path / "again" / "records.sqlite") == []
    with Records.read(tmp_path / "again" / "records.sqlite") as records:
        assert len(records.events()) == 5
