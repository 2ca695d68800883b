"""Members: the set and its positions, against plain Python sets."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnout.errors import UserError
from turnout.world.members import Members

some_ids = st.sets(st.integers(0, 29), max_size=12)


@given(population=st.integers(0, 30), gone=some_ids, joined=some_ids)
def test_members_are_population_less_removed_plus_added(population: int, gone: set[int], joined: set[int]) -> None:
    gone = {c for c in gone if c < population}
    joined = {c + population for c in joined}
    in_any_order = (torch.tensor(sorted(clients, reverse=True)) for clients in (gone, joined))
    members = Members(population, *in_any_order)
    want = sorted((set(range(population)) - gone) | joined)
    assert members.ids().tolist() == want
    assert len(members) == len(want)
    everyone = torch.arange(-2, population + 32)
    assert everyone[members.which(everyone)].tolist() == want
    assert all((c in members) == (c in want) for c in range(-2, population + 32))


@given(st.lists(st.integers(0, 11), max_size=30))
def test_joining_and_leaving_follow_a_set(clients: list[int]) -> None:
    members, want = Members(8), set(range(8))
    for c in clients:
        members = members.leave(c) if c in want else members.join(c)
        want ^= {c}
        assert members.ids().tolist() == sorted(want)


def test_leaving_and_coming_back_is_the_same_membership() -> None:
    members = Members(10)
    assert members.leave(3).join(3) == members
    assert hash(members.leave(3).leave(7)) == hash(members.leave(7).leave(3))
    assert members.leave(3) != members


def test_a_million_members_cost_nothing() -> None:
    members = Members(1_000_000, torch.arange(0, 2000, 2))
    begin = time.perf_counter()
    for _ in range(100):
        ids = members.at(torch.tensor([0, 999, 1000, 998_999]))
    assert time.perf_counter() - begin < 1.0
    assert ids.tolist() == [1, 1999, 2000, 999_999]
    assert len(members) == 999_000


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Members(5).join(2), "client 2 cannot join: it is a member already"),
        (lambda: Members(5).join(-2), "ids start at 0"),
        (lambda: Members(5).leave(7), "client 7 cannot leave"),
        (lambda: Members(5).leave(2).leave(2), "client 2 cannot leave"),
    ],
)
def test_mistakes_are_named(make: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()  # type: ignore[operator]


def test_a_position_outside_is_an_error() -> None:
    with pytest.raises(IndexError, match=r"0\.\.4"):
        Members(5).at(torch.tensor([5]))
