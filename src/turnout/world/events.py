"""Who joins and leaves when: events from a list, from a CSV file, or drawn at random.

An entry of `World.events` gives events: `Join` and `Leave` one each, `EventLog` those of a file, `RandomEvents` as many
as its rates say. `calendar_of` puts them together and refuses impossible ones, before the first round.

A client whose first event is a Join is not a member before it. A client's events are listed in the order in which they
happen: `Leave(3, 20), Join(3, 40)` is a client that is there from the start, leaves and comes back, while
`Join(3, 40), Leave(3, 20)` leaves before it has joined, which is a mistake.

Shape letters: L clients that are not members at first.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from turnout.errors import Mistake
from turnout.world.client_names import ClientNames

HEADER = ["round", "client", "event"]


@dataclass(frozen=True)
class Setting:
    """What events need to know: how many clients, their names, how many rounds, the seed."""

    clients: int
    names: tuple[str, ...] | None
    rounds: int
    seed: int
    named: frozenset[int] = frozenset()  # clients that other entries name: random events do not concern them


class Events(Protocol):
    """An entry of `World.events`: some joins and leaves, with clients by number."""

    @property
    def drawn(self) -> bool:
        """Whether the clients are chosen at random, among those that no other entry names."""
        ...

    def events(self, setting: Setting) -> PlannedEvents:
        """The entry's events."""
        ...


@dataclass(frozen=True)
class Event:
    """One client joins or leaves at the beginning of a round; by number, or by name where the data has names."""

    client: int | str
    round: int

    @property
    def drawn(self) -> bool:
        return False

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    def events(self, setting: Setting) -> PlannedEvents:
        return PlannedEvents((replace(self, client=number_of(self.client, setting)),))


@dataclass(frozen=True)
class Join(Event):
    """A client joins at the beginning of a round; if that is its first event, it was no member before."""


@dataclass(frozen=True)
class Leave(Event):
    """A client leaves for good at the beginning of a round."""


@dataclass(frozen=True)
class PlannedEvents:
    """Planned events, and clients that are not members at first, whether they join later or not."""

    events: tuple[Event, ...] = ()
    outside: tuple[int, ...] = ()


@dataclass(frozen=True)
class EventLog:
    """Joins and leaves from a CSV file with the header `round,client,event`; an event is `join` or `leave`."""

    path: str

    @property
    def drawn(self) -> bool:
        return False

    def events(self, setting: Setting) -> PlannedEvents:
        return PlannedEvents(tuple(self._row(i, row, setting) for i, row in enumerate(self._rows()) if row))

    def _rows(self) -> list[list[str]]:
        try:
            with open(self.path, newline="", encoding="utf-8-sig") as file:
                rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
        except OSError as error:
            raise Mistake(f"cannot read the events {self.path}: {error.strerror}") from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise Mistake(f"{self.path} is not a CSV text of `round,client,event`: {error}") from error
        if not rows or rows[0] != HEADER:
            raise Mistake(f"{self.path}, line 1: the header must be `round,client,event`")
        return rows[1:]

    def _row(self, i: int, row: list[str], setting: Setting) -> Event:
        where = f"{self.path}, line {i + 2}"
        if len(row) != 3 or not row[0].isdecimal():
            raise Mistake(f"{where}: a row is a round, a client and join or leave, not {','.join(row)!r}")
        kinds = {"join": Join, "leave": Leave}
        if row[2] not in kinds:
            raise Mistake(f"{where}: an event is `join` or `leave`, not {row[2]!r}")
        return kinds[row[2]](number_of(row[1], setting, f"{where}: "), int(row[0]))


def number_of(client: int | str, setting: Setting, where: str = "") -> int:
    """The number of a client that an event names, or a mistake."""
    known = ClientNames(setting.names, setting.clients)
    number = known.number(client)
    if number is not None:
        return number
    if isinstance(client, str) and setting.names is not None:
        hint = known.hint(client) or "it is not in the data"
        raise Mistake(f"{where}world.events speaks of client {client!r}: {hint}")
    raise Mistake(
        f"{where}world.events speaks of client {client}, and there is none: they are 0 to {setting.clients - 1}"
    )


@dataclass(frozen=True, eq=False)
class Calendar:
    """All events of a simulated world: who is not a member at first, and what happens in each round."""

    outside_L: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    by_round: dict[int, tuple[Event, ...]] = field(default_factory=dict)

    def at(self, t: int) -> tuple[Event, ...]:
        """The events at the beginning of a round: first the leaves, then the joins."""
        return self.by_round.get(t, ())


def calendar_of(entries: Iterable[Events], setting: Setting) -> Calendar:
    """All entries as one checked calendar."""
    listed = sorted(entries, key=lambda entry: entry.drawn)  # a stable sort: random entries last
    events: list[Event] = []
    outside: set[int] = set()
    for entry in listed:
        named = frozenset(int(e.client) for e in events) | frozenset(outside)
        planned = entry.events(replace(setting, named=named))
        events += planned.events
        outside |= set(planned.outside)
    outside |= _check(events, setting)
    by_round: dict[int, list[Event]] = {}
    for event in events:
        by_round.setdefault(event.round, []).append(event)
    in_order = {t: tuple(sorted(found, key=lambda e: isinstance(e, Join))) for t, found in by_round.items()}
    if len(outside) >= setting.clients and not in_order.get(0):
        raise Mistake("world.events leaves nobody in the first round: let at least one client be there without a Join")
    return Calendar(torch.tensor(sorted(outside), dtype=torch.int64), in_order)


def _check(events: Sequence[Event], setting: Setting) -> set[int]:
    """Refuse impossible events; returns the clients whose first event is a Join."""
    own: dict[int, list[Event]] = {}
    for event in events:
        if event.round < 0:
            raise Mistake(f"client {event.client} cannot {event.kind} in round {event.round}: rounds start at 0")
        if event.round >= setting.rounds:
            raise Mistake(
                f"client {event.client} would {event.kind} in round {event.round}, but the last round is "
                f"{setting.rounds - 1}: give an earlier round, or more rounds"
            )
        own.setdefault(int(event.client), []).append(event)
    for found in own.values():
        for before, after in itertools.pairwise(found):
            _check_pair(before, after)
    return {client for client, found in own.items() if isinstance(found[0], Join)}


def _check_pair(before: Event, after: Event) -> None:
    """Check two events of one client, listed one after the other."""
    who = f"client {before.client}"
    if type(before) is type(after):
        twice = f"{before.kind}s in round {before.round} and again in round {after.round}"
        raise Mistake(f"{who} {twice}: it can {before.kind} only once before it {_other(before)}s")
    if after.round < before.round and isinstance(after, Leave):
        raise Mistake(
            f"{who} leaves in round {after.round} before it joins in round {before.round}; if it is there from the "
            "start and comes back, list its Leave first"
        )
    if after.round <= before.round:
        raise Mistake(
            f"{who} {before.kind}s in round {before.round} and {after.kind}s in round {after.round}: list a client's "
            "events in the order they happen, each in a later round"
        )


def _other(event: Event) -> str:
    return "leave" if isinstance(event, Join) else "join"


KINDS = {"join": Join, "leave": Leave, "event-log": EventLog}
