"""Whom the server asks: the cohort of a round, drawn from the members.

Drawing 100 of 1,000,000 touches about 100 numbers, never the population. The draw of round t is addressed by
(seed, "cohort", t), so any round's cohort can be had without the rounds before it.

Shape letters: C clients of the cohort, D draws, I positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from turnout.errors import Mistake
from turnout.fitting import is_ours
from turnout.fleet import FleetLog
from turnout.members import Members
from turnout.rng import uniform


class Selection(Protocol):
    """Whom to ask in round t: sorted ids of members."""

    def choose(self, members: Members, t: int, seed: int) -> Tensor: ...


def chosen(selection: Selection, members: Members, t: int, seed: int) -> Tensor:
    """The cohort; somebody's own selection is held to what it promises."""
    client_C = selection.choose(members, t, seed)
    if not is_ours(selection):
        rising = bool((client_C[1:] > client_C[:-1]).all())
        if client_C.dtype != torch.int64 or not rising or not bool(members.which(client_C).all()):
            raise Mistake(
                f"{type(selection).__name__}.choose gave {client_C.tolist()[:5]} in round {t}: a cohort is a tensor "
                "of different members' numbers, rising (turnout.testing.check_selection tries yours)"
            )
    return client_C


def _first_distinct(value_D: Tensor, count: int) -> Tensor:
    """The first `count` different values in order of appearance (fewer if there are fewer)."""
    sorted_D, place_D = value_D.sort(stable=True)
    new_D = torch.ones_like(sorted_D, dtype=torch.bool)
    new_D[1:] = sorted_D[1:] != sorted_D[:-1]
    return value_D[place_D[new_D].sort().values[:count]]


def draw(count: int, among: int, t: int, seed: int, purpose: str = "cohort") -> Tensor:
    """`count` of the positions 0..among-1, uniformly without replacement, sorted.

    Positions are drawn one after another and repeats are thrown away, which is sampling without replacement.
    When more than half are wanted, those to leave out are drawn instead, so about 1.4 draws per position are
    the most needed.

    >>> draw(3, among=1_000_000, t=0, seed=0).unique().shape, draw(4, among=4, t=0, seed=0)
    (torch.Size([3]), tensor([0, 1, 2, 3]))
    """
    if count > among // 2:
        keep_I = torch.ones(among, dtype=torch.bool)
        if count < among:
            keep_I[draw(among - count, among, t, seed, purpose)] = False
        return keep_I.nonzero().squeeze(1)
    chosen_C, draws = torch.empty(0, dtype=torch.int64), 2 * count + 16
    while len(chosen_C) < count:
        u_D = uniform(seed, purpose, t, ids=torch.arange(draws))
        chosen_C = _first_distinct((u_D * among).to(torch.int64), count)
        draws *= 2
    return chosen_C.sort().values


@dataclass(frozen=True)
class Everyone:
    """Ask every member, every round."""

    def choose(self, members: Members, t: int, seed: int) -> Tensor:
        return members.ids()


@dataclass(frozen=True)
class Fraction:
    """Ask max(1, round(share * N)) of the N members.

    >>> Fraction(0.1).choose(Members(20), t=0, seed=0).shape
    torch.Size([2])
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise Mistake(f"selection Fraction(share={self.share}): the share must be above 0 and at most 1")

    def choose(self, members: Members, t: int, seed: int) -> Tensor:
        count = min(len(members), max(1, round(self.share * len(members))))
        return members.at(draw(count, len(members), t, seed))


@dataclass(frozen=True)
class Count:
    """Ask this many members; all of them once so many have left that fewer remain.

    More than there ever were is a mistake, more than are left is not: leaving must not stop a run.
    """

    clients: int = 10

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise Mistake(f"selection Count(clients={self.clients}): ask at least 1 client a round")

    def choose(self, members: Members, t: int, seed: int) -> Tensor:
        self.check(members.population + len(members.added_J))
        count = min(self.clients, len(members))
        return members.at(draw(count, len(members), t, seed))

    def check(self, clients: int) -> None:
        """Refuse a cohort larger than a population of this many clients."""
        if self.clients > clients:
            raise Mistake(
                f"selection Count(clients={self.clients}) wants more than the {clients} clients there are; "
                f"use {clients} or fewer, or Everyone()"
            )


@dataclass(frozen=True)
class AsLogged:
    """Ask those whom a fleet's log (`round,client,work`) asked: members with a row in round t."""

    path: str
    names: tuple[str, ...] | None = None

    @cached_property
    def log(self) -> FleetLog:
        return FleetLog(self.path, names=self.names)

    def bound(self, names: tuple[str, ...] | None, clients: int) -> AsLogged:
        """The same for data with these client names (None: numbered) and this many clients, checked."""
        selection = AsLogged(self.path, names)
        selection.__dict__["log"] = self.log.bound(names, clients)
        return selection

    def check_rounds(self, rounds: int) -> None:
        self.log.check_rounds(rounds)

    def choose(self, members: Members, t: int, seed: int) -> Tensor:
        asked_I = self.log.asked(t)
        return asked_I[members.which(asked_I)]
