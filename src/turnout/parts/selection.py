"""Selections: the cohort of a round, drawn from the members.

Drawing 100 of 1,000,000 touches about 100 numbers, never the population. The draw of round t is addressed by
(seed, "cohort", t), so any round's cohort can be drawn without the rounds before it.

Shape letters: C clients of the cohort, D draws, I positions, R replies.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError, check_settings
from turnout.parts.updates import Applied
from turnout.rng import draw
from turnout.types import State
from turnout.world.enrolment import Enrolment, tied
from turnout.world.members import Members
from turnout.world.turnout_log import TurnoutLog

NOTHING: State = {}  # the state of a selection without memory


class Selection(Protocol):
    """The clients to ask in round t; `begin` and `observe` have the defaults of a selection without state.

    A selection that needs names or sample counts also has `tied_to_clients(enrolment, rounds)` (world/enrolment.py).
    """

    def begin(self) -> State:
        """The state before the first round."""
        return {}

    @abstractmethod
    def choose(self, members: Members, t: int, seed: int, state: State = NOTHING) -> Tensor:
        """Sorted ids of clients of the objective (members, and clients that have left but stay in it)."""

    def observe(self, state: State, applied: Applied) -> State:
        """The state after a round: `applied` has the replies, their losses and the absences."""
        return state


def chosen(selection: Selection, members: Members, t: int, seed: int, state: State = NOTHING) -> Tensor:
    """The cohort; a selection that breaks its promise raises UserError."""
    client_C = selection.choose(members, t, seed, state)
    rising = bool((client_C[1:] > client_C[:-1]).all())
    if client_C.dtype != torch.int64 or not rising or not bool(members.which(client_C).all()):
        raise UserError(
            f"{type(selection).__name__}.choose returned {client_C.tolist()[:5]} in round {t}: a cohort is a tensor "
            "of different members' numbers, rising (check yours with turnout.testing.check_selection)"
        )
    return client_C


@dataclass(frozen=True)
class Everyone(Selection):
    """Ask every member, every round."""

    def choose(self, members: Members, t: int, seed: int, state: State = NOTHING) -> Tensor:
        return members.ids()


@dataclass(frozen=True)
class Fraction(Selection):
    """Ask max(1, round(`share` * N)) of the N members.

    >>> Fraction(0.1).choose(Members(20), t=0, seed=0).shape
    torch.Size([2])
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        check_settings(self, share="(0, 1]")

    def choose(self, members: Members, t: int, seed: int, state: State = NOTHING) -> Tensor:
        count = min(len(members), max(1, round(self.share * len(members))))
        return members.at(draw(count, len(members), t, seed))


@dataclass(frozen=True)
class Count(Selection):
    """Ask `clients` members, or all of them once fewer remain.

    More than the population is an error; more than the remaining members is not, because leaving must not stop a run.
    """

    clients: int = 10

    def __post_init__(self) -> None:
        check_settings(self, clients="[1, inf)")

    def choose(self, members: Members, t: int, seed: int, state: State = NOTHING) -> Tensor:
        self.check(members.population + len(members.added_J))
        count = min(self.clients, len(members))
        return members.at(draw(count, len(members), t, seed))

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> Count:
        self.check(enrolment.clients)
        return self

    def check(self, clients: int) -> None:
        """Refuse a cohort larger than a population of this many clients."""
        if self.clients > clients:
            raise UserError(
                f"selection Count(clients={self.clients}) asks for more than the {clients} clients there are; "
                f"use {clients} or fewer, or Everyone()"
            )


@dataclass(frozen=True)
class AsLogged(Selection):
    """Ask the clients that the log of a run asked: members with a row in round t.

    path   a CSV file of round,client,work, or a run's folder (other logs: selection "as-fleet-log")
    names  the names of the data's clients; set when the experiment is prepared
    """

    path: str
    names: tuple[str, ...] | None = None

    @cached_property
    def log(self) -> TurnoutLog:
        return TurnoutLog(self.path, names=self.names)

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> Self:
        """The same for these clients and this many rounds, checked."""
        selection = replace(self, names=enrolment.names)
        selection.__dict__["log"] = self.log.tied_to_clients(enrolment, rounds)
        return selection

    def choose(self, members: Members, t: int, seed: int, state: State = NOTHING) -> Tensor:
        asked_I = self.log.asked(t)
        return asked_I[members.which(asked_I)]


@dataclass(frozen=True)
class MinSeparation(Selection):
    """Ask as another selection does, but no client that took part in the last rounds, or often enough already.

    Taking part is having one's reply used. A client that took part in round t is asked again in round t + b or later.

    separation  b
    most        k: how often a client takes part; None: any number of times
    of          the selection, which draws from the clients that may be asked

    >>> selection = MinSeparation(3, most=2)
    >>> state = selection.begin() | {"client": torch.tensor([1, 2]), "last": torch.tensor([4, 0])}
    >>> selection.choose(Members(4), 5, 0, state | {"count": torch.tensor([1, 2])})  # 1 was there in round 4, 2 twice
    tensor([0, 3])
    """

    separation: int = 1
    most: int | None = None
    of: Selection = field(default_factory=Everyone)

    def __post_init__(self) -> None:
        check_settings(self, separation="[1, inf)", most="[1, inf)")

    @property
    def log(self) -> Any:
        """The log that the selection follows, if it does."""
        return getattr(self.of, "log", None)

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> Self:
        return replace(self, of=tied(self.of, enrolment, rounds, "algorithm.selection.of"))

    def begin(self) -> State:
        none = torch.empty(0, dtype=torch.int64)
        return {"of": self.of.begin(), "client": none, "last": none, "count": none}

    def choose(self, members: Members, t: int, seed: int, state: State = NOTHING) -> Tensor:
        state = state or self.begin()
        resting_I = state["last"] > t - self.separation
        if self.most is not None:
            resting_I = resting_I | (state["count"] >= self.most)
        ready = members.minus(state["client"][resting_I])
        return self.of.choose(ready, t, seed, state["of"]) if len(ready) else torch.empty(0, dtype=torch.int64)

    def observe(self, state: State, applied: Applied) -> State:
        state = state | {"of": self.of.observe(state["of"], applied)}
        return self.took_part(state, applied.client_R, applied.t)

    def took_part(self, state: State, client_R: Tensor, t: int) -> State:
        """The state after these clients took part in round t."""
        client_I, last_I, count_I = (state[name].numpy().copy() for name in ("client", "last", "count"))
        now_R = client_R.numpy()
        place_R = client_I.searchsorted(now_R)
        new_R = np.append(client_I, -1)[place_R] != now_R
        if new_R.any():
            client_N = np.unique(now_R[new_R])
            place_N = client_I.searchsorted(client_N)
            client_I, last_I, count_I = (
                np.insert(old_I, place_N, value) for old_I, value in ((client_I, client_N), (last_I, 0), (count_I, 0))
            )
            place_R = client_I.searchsorted(now_R)
        last_I[place_R] = t
        count_I[place_R] += 1  # two replies of a client are one participation
        found = {"client": client_I, "last": last_I, "count": count_I}
        return {"of": state["of"], **{name: torch.from_numpy(value_I) for name, value_I in found.items()}}


KINDS = {
    "everyone": Everyone,
    "fraction": Fraction,
    "count": Count,
    "as-logged": AsLogged,
    "min-separation": MinSeparation,
}
