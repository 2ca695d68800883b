"""Parts that ask who the clients are: by one documented method, with names, number, sample counts and clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import turnout as to
from turnout.errors import UserError
from turnout.running.tracks.prepare import prepare
from turnout.world.enrolment import ClientNames
from worlds import blobs, play, ready, world


def test_the_number_of_a_client_fits_int64_with_room_to_spare():
    """Where no data set bounds them, numbers are below 2^62."""
    anyone, three = ClientNames(None), ClientNames(None, 3)
    assert anyone.number(2**62 - 1) == anyone.number(str(2**62 - 1)) == 2**62 - 1
    assert [anyone.number(client) for client in (2**62, str(2**62), -1, "-1", "ada", "")] == [None] * 6
    assert [three.number(client) for client in (0, 2, 3, "3")] == [0, 2, None, None]


@dataclass(frozen=True)
class EnoughData:
    least: int = 10
    examples: Callable | None = None

    def tied_to_clients(self, enrolment, rounds):
        return replace(self, examples=enrolment.examples)

    def fraction(self, client_C, t, full_work, seed, groups=None):
        return (self.examples(client_C) >= self.least).double()


@pytest.mark.parametrize("inside", [False, True])
def test_a_participation_can_see_sample_counts(inside: bool):
    participation = to.participation.Dropout(0.0, when_up=EnoughData()) if inside else EnoughData()
    prepared = ready(world([4, 16, 8, 12]).but(**{"world.participation": participation}))
    _, (record,) = play(prepared)
    assert record.clients["work"].tolist() == [0.0, 1.0, 0.0, 1.0]


@dataclass(frozen=True)
class Unrelated:
    """Methods and fields of one's own that only sound like ours."""

    groups: int = 3
    check: str = "no"

    def bound(self):
        return 7

    def check_rounds(self):
        return 8

    def fraction(self, client_C, t, full_work, seed, groups=None):
        return torch.ones(len(client_C), dtype=torch.float64)

    def begin(self):
        return {}

    def observe(self, state, applied):
        return state

    def choose(self, members, t, seed, state):
        return members.ids()

    def split(self, label_S, owner_S, clients, seed, want_C=None):
        return list(torch.arange(len(label_S)).chunk(clients))


def test_methods_of_ones_own_are_left_alone():
    own = {"world.participation": Unrelated(), "algorithm.selection": Unrelated()}
    data = to.data.Digits(clients=5, partition=Unrelated())
    play(ready(world([4, 4, 4]).but(**own, **{"world.data": data, "model": to.models.Logistic()})))


@dataclass(frozen=True)
class Forgets(Unrelated):
    def tied_to_clients(self, enrolment, rounds):
        pass


def test_a_part_that_is_not_returned_is_an_error():
    for path in ("world.participation", "algorithm.selection"):
        with pytest.raises(UserError, match=rf"{path}: tied_to_clients gave None: return the part"):
            ready(world([4, 4, 4]).but(**{path: Forgets()}))


def test_a_log_by_name_inside_another_participation(tmp_path: Path):
    (tmp_path / "log.csv").write_text("round,client,work\n0,ada,1\n1,bob,1\n2,ada,1\n")
    owner = ["ada"] * 6 + ["bob"] * 6
    data = replace(blobs([6, 6]), owner=owner)
    log = to.participation.FleetLog(str(tmp_path / "log.csv"))
    for outer in (to.participation.Dropout(0.0, when_up=log), to.participation.OnOff(5, 5, when_up=log)):
        experiment = world([6, 6]).but(**{"world.data": data, "world.participation": outer})
        ready(experiment)
        with pytest.raises(UserError, match="ends with round 2, and 9 rounds are asked for"):  # before the first round
            prepare(experiment.but(rounds=9))
