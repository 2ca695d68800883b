"""The set that global metrics are measured on: the members' labels define it, and a shift of it is marked."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

import turnout as to
from same_rows import same
from turnout.data import Digits, Loader
from turnout.data.partition import OneLabel
from turnout.running import loop
from turnout.running.loop import begin, rounds_of
from turnout.running.records.records import Records
from turnout.server.state import Server
from turnout.view.report.page import write_picture, write_report
from turnout.world.members import Members
from worlds import EXACT, play, ready

ONE_LABEL = Digits(clients=10, partition=OneLabel(), test_share=0.0)


def held(data: to.data.Federation, clients: list[int]) -> set[int]:
    train = data.train(torch.tensor(clients), 0)
    return set(train.y[train.row_R].tolist())


def labels_of(data: to.data.Federation, members: Members | None = None) -> list[int]:
    """The labels of the central test set, sorted."""
    return data.central_test(members)[1].sort().values.tolist()


# -- which samples


@pytest.mark.parametrize("local_test", ["holdout", "official"])
@pytest.mark.parametrize("seed", range(3))
def test_labels_that_nobody_holds_are_not_tested(local_test: str, seed: int) -> None:
    data = dataclasses.replace(ONE_LABEL, local_test=local_test).load(seed)
    official = ONE_LABEL.read(None).test[1]
    everyone = held(data, list(range(10)))
    assert len(everyone) < 10  # ten draws with replacement: some label is nobody's
    expected = sorted(y for y in official.tolist() if y in everyone)
    assert labels_of(data) == labels_of(data, Members(10)) == expected
    without = Members(10).leave(9)
    fewer = labels_of(data, without)
    if local_test == "holdout":
        assert fewer == sorted(y for y in official.tolist() if y in held(data, list(range(9))))
    else:
        own = data.test(torch.arange(9), 0)
        assert fewer == own.y[own.row_R].sort().values.tolist()
    assert labels_of(data, without.join(9)) == expected


def test_targets_that_are_no_labels_are_all_tested() -> None:
    x = torch.randn(6, 2)
    data = to.data.Own(x, x[:, 0], [0, 0, 1, 1, 2, 2], test=(x, x[:, 0]), test_share=0.0).load(0)
    assert len(data.central_test()[1]) == len(data.central_test(Members(3).leave(1))[1]) == 6


def test_the_last_client_to_join_does_not_bring_labels_that_nobody_holds() -> None:
    """The Digits federation of one label a client: what is measured is what somebody has, before and after the join."""
    experiment = to.Experiment(
        to.World(ONE_LABEL, events=(to.Join(9, 2),)), to.models.Logistic(), rounds=4, runtime=EXACT
    )
    prepared = ready(experiment)
    server, data = prepared.begin(), prepared.runtime.clients.federation
    for t, clients in enumerate([9, 9, 10, 10]):
        server, _ = prepared.round(server, t)
        found = prepared.evaluate(server, t).values["global_accuracy"]
        assert found == pytest.approx(accuracy_on(held(data, list(range(clients))), prepared, server))


def accuracy_on(labels: set[int], prepared, server: Server) -> float:
    x, y = ONE_LABEL.read(None).test
    kept = torch.tensor([label in labels for label in y.tolist()])
    guess = prepared.module(server, None).double()(x[kept].double()).argmax(1)
    return float((guess == y[kept]).double().mean())


# -- what it costs


def test_labels_are_looked_up_once_for_the_same_members() -> None:
    data = ONE_LABEL.load(0)
    members = Members(10).leave(3)
    first = data.central_test(members)
    (rows,) = (row_R for row_R, _ in data.found.values.values())
    assert data.central_test(Members(10).leave(3)) is not None
    assert [row_R is rows for row_R, _ in data.found.values.values()] == [True]
    data.central_test(Members(10).leave(4))
    assert len(data.found.values) == 2
    assert torch.equal(data.to("cpu").central_test(members)[0], first[0])


def test_a_million_made_clients_are_not_enumerated() -> None:
    """Only the sample's clients are made, and once: churn outside the sample changes nothing."""
    made: Counter[int] = Counter()

    def make(client: int) -> tuple[Tensor, Tensor]:
        made[client] += 1
        return torch.full((4, 2), float(client)), torch.zeros(4).long()

    spec = Loader(make, clients=1_000_000, input_shape=(2,), classes=2, test_share=0.5, central_clients=20)
    data = spec.load(0)
    whole = data.central_test()
    sample = whole[0][:, 0].unique().long().tolist()
    made.clear()
    members = Members(1_000_000)
    for client in range(1000, 1040):
        members = members.leave(client)
        assert client not in sample
        assert data.central_test(members)[0] is whole[0]
    assert not made
    fewer = data.central_test(members.leave(sample[0]))[0]
    assert fewer[:, 0].unique().long().tolist() == sample[1:]


# -- marks


def arriving(*events: object, data=ONE_LABEL, rounds: int = 5, **changes) -> to.Experiment:
    experiment = to.Experiment(to.World(data, events=events), to.models.Logistic(), rounds=rounds, runtime=EXACT)
    return experiment.but(**changes)


def test_a_shift_of_the_objective_and_of_the_test_set_is_in_the_record() -> None:
    """Client 9 alone holds the nines, client 0 the sevens: 33 and 35 of the test samples."""
    data = ONE_LABEL.load(0)
    official = ONE_LABEL.read(None).test[1].bincount()
    here = held(data, list(range(10)))
    count = sum(int(official[label]) for label in here)
    assert (held(data, [9]), held(data, [0])) == ({9}, {7})
    _, records = play(ready(arriving(to.Join(9, 2), to.Leave(0, 4))), 5)
    marked = [(r.extra.get("objective"), r.extra.get("test_set")) for r in records]
    none = (None, None)
    joins = ("9 -> 10 clients", f"{count - int(official[9])} -> {count} samples")
    leaves = ("10 -> 9 clients", f"{count} -> {count - int(official[7])} samples")
    assert marked == [none, none, joins, none, leaves]


def test_a_set_of_the_same_size_with_other_samples_is_marked_too() -> None:
    x, y = torch.randn(12, 2), torch.tensor([0, 1, 2] * 4)
    own = to.data.Own(x, y, y, test=(x, y), test_share=0.0)
    _, records = play(ready(arriving(to.Join(2, 1), to.Leave(0, 1), data=own)), 2)
    assert records[1].extra["test_set"] == "8 -> 8 other samples"
    assert records[1].extra["objective"] == "2 -> 2 other clients"


def test_whoever_brings_nothing_new_shifts_the_objective_alone() -> None:
    _, records = play(ready(arriving(to.Join(1, 1), data=Digits(clients=4))), 2)
    assert records[1].extra["objective"] == "3 -> 4 clients"
    assert "test_set" not in records[1].extra
    stays = arriving(to.Leave(1, 1), data=Digits(clients=4)).but(
        **{"algorithm.membership": to.Membership(leave="include")}
    )
    _, records = play(ready(stays), 2)
    assert "objective" not in records[1].extra  # it has left, and the objective keeps it


def test_a_shift_of_made_data_is_in_the_record() -> None:
    data = Loader(
        lambda c: (torch.ones(4, 2) * c, torch.arange(4) % 2), clients=6, input_shape=(2,), classes=2, test_share=0.5
    )
    _, records = play(ready(arriving(to.Leave(2, 1), data=data)), 2)
    assert records[1].extra["test_set"] == "12 -> 10 samples"


def test_marks_survive_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    experiment = arriving(to.Leave(0, 2), to.Leave(1, 3), rounds=6, **{"evaluate.every": 3})
    for name, stops in (("whole", [6]), ("cut", [3, 6])):
        for stop in stops:
            running = rounds_of(begin(experiment, tmp_path / name, resume=True), tmp_path / name)
            for step in running:
                if step.record.round == stop - 1:
                    break
            running.close()
    assert same(tmp_path / "whole" / "records.sqlite", tmp_path / "cut" / "records.sqlite") == []
    with Records.read(tmp_path / "cut" / "records.sqlite") as records:
        assert records.column("objective").tolist() == [None, None, "10 -> 9 clients", "9 -> 8 clients", None, None]


def test_curves_have_a_line_where_the_set_shifts(tmp_path: Path) -> None:
    to.run(arriving(to.Leave(0, 2), to.Leave(1, 2), rounds=4), tmp_path / "run", quiet=True)
    picture = write_picture(tmp_path / "run").read_text()
    lines = re.findall(r'<g class="mark"><line x1="([\d.]+)"[^>]*/><title>([^<]*)</title>', picture)
    assert len(lines) == 3  # accuracy, loss and training loss
    assert {words for _, words in lines} == {lines[0][1]}
    assert lines[0][1].startswith("round 2: objective 10 → 8 clients; test set ")
    # Between the second and the third of five points (0 to 4 rounds trained), and of the rounds 0 to 3.
    left, right = 58, 520 - 20
    assert [float(x) for x, _ in lines] == pytest.approx(
        [left + (right - left) * at for at in (2.5 / 4, 2.5 / 4, 1.5 / 3)], abs=0.1
    )
    page = write_report(tmp_path / "run").read_text()
    assert "A thin line marks a round in which the objective shifted" in page


def test_where_it_shifts_all_the_time_no_line_is_drawn(tmp_path: Path) -> None:
    data = Digits(clients=60, test_share=0.0)
    events = tuple(to.Leave(c, c + 1) for c in range(50))
    to.run(arriving(*events, data=data, rounds=52), tmp_path / "run", quiet=True)
    assert 'class="mark"' not in write_picture(tmp_path / "run").read_text()
    assert "The objective shifted 50 times" in write_report(tmp_path / "run").read_text()
