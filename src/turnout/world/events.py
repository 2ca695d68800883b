"""Clients that join and leave: Join and Leave (one event each), EventLog (a CSV file), RandomEvents (from rates); and
all of them as one calendar, checked before the first round.

A client whose first event is a Join is not a member before it. A client's events are listed in the order in which they
happen: `Leave(3, 20), Join(3, 40)` leaves and comes back, `Join(3, 40), Leave(3, 20)` is an error.

Shape letters: L clients that are not members at first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.machine.table_files import open_table
from turnout.rng import draw, rng
from turnout.world.enrolment import ClientNames

EVENT_COLUMNS = ["round", "client", "event"]
HIGHEST_RATE = 700.0  # a Poisson draw sums up from exp(-rate), which is 0 for much higher rates


@dataclass(frozen=True)
class EventSetting:
    """What events need to know of the experiment.

    clients  how many there are
    names    their names; None if the data has none
    rounds   how many rounds the experiment has
    seed     of the experiment
    named    clients that other entries name: random events do not concern them
    """

    clients: int
    names: tuple[str, ...] | None
    rounds: int
    seed: int
    named: frozenset[int] = frozenset()


class Events(Protocol):
    """An entry of `World.events`: some joins and leaves, with clients by number."""

    @property
    def drawn(self) -> bool:
        """Whether the clients are chosen at random, among those that no other entry names."""
        ...

    def events(self, setting: EventSetting) -> PlannedEvents:
        """The entry's events."""
        ...


@dataclass(frozen=True)
class Event:
    """One client joins or leaves at the beginning of a round.

    client  its number, or its name if the data has names
    round   the round
    """

    client: int | str
    round: int
    drawn: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    def events(self, setting: EventSetting) -> PlannedEvents:
        return PlannedEvents((replace(self, client=number_of(self.client, setting)),))


@dataclass(frozen=True)
class Join(Event):
    """A client joins at the beginning of a round; if that is its first event, it was not a member before.

    client  its number, or its name if the data has names
    round   the round
    """


@dataclass(frozen=True)
class Leave(Event):
    """A client leaves for good at the beginning of a round.

    client  its number, or its name if the data has names
    round   the round
    silent  it sends no leave message, so terms get nothing from it
    """

    silent: bool = False


@dataclass(frozen=True)
class PlannedEvents:
    """The events of an entry.

    events   joins and leaves
    outside  clients that are not members at first, whether they join later or not
    """

    events: tuple[Event, ...] = ()
    outside: tuple[int, ...] = ()


def number_of(client: int | str, setting: EventSetting, where: str = "") -> int:
    """The number of a client that an event names, or a UserError."""
    known = ClientNames(setting.names, setting.clients)
    number = known.number(client)
    if number is not None:
        return number
    if isinstance(client, str) and setting.names is not None:
        hint = known.hint(client) or "it is not in the data"
        raise UserError(f"{where}world.events names client {client!r}: {hint}")
    raise UserError(f"{where}world.events names client {client}, which does not exist: use 0 to {setting.clients - 1}")


@dataclass(frozen=True)
class EventLog:
    """Joins and leaves from a CSV file with the header `round,client,event`. An event is `join`, `leave`, `vanish` for
    a leave without a message, or `outside` for a client that is not a member at first and may never be.

    path  the file
    """

    path: str
    drawn: ClassVar[bool] = False

    def events(self, setting: EventSetting) -> PlannedEvents:
        table = open_table(Path(self.path), separator=",")
        if table.header != EVENT_COLUMNS:
            raise UserError(f"{self.path}, line 1: the header must be `round,client,event`")
        block = table.read()
        events: list[Event] = []
        outside: list[int] = []
        for t, name, event, line in zip(*(block.cells[c] for c in EVENT_COLUMNS), block.line_B, strict=True):
            where = table.place(line)
            if event not in ("join", "leave", "vanish", "outside"):
                raise UserError(f"{where}: an event is `join`, `leave`, `vanish` or `outside`, not {event!r}")
            client = number_of(name, setting, f"{where}: ")
            if event == "outside":
                outside.append(client)
            elif not t.isdecimal() or len(t) > 18:
                raise UserError(f"{where}: round must be a whole number from 0, got {t!r}")
            else:
                events.append(Join(client, int(t)) if event == "join" else Leave(client, int(t), event == "vanish"))
        return PlannedEvents(tuple(events), tuple(outside))


@dataclass(frozen=True)
class RandomEvents:
    """Joins, leaves and returns at random; their number in a round is a Poisson draw with these rates.

    joins    expected number of joins in a round; they take from `waiting` until none is left
    leaves   expected number of leaves in a round; the last member never leaves
    returns  expected number of returns in a round; they take from the clients that have left
    waiting  how many clients, chosen at random, are not members at first
    first    the first round in which something may happen

    Events are drawn before the first round, with an address for each round, so they do not depend on how many rounds
    follow. The cost grows with the clients that move, not with the population.
    """

    joins: float = 0.0
    leaves: float = 0.0
    returns: float = 0.0
    waiting: int = 0
    first: int = 1
    drawn: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not all(0 <= rate <= HIGHEST_RATE for rate in (self.joins, self.leaves, self.returns)):
            raise UserError(
                f"RandomEvents: joins, leaves and returns are expected numbers a round, from 0 to {HIGHEST_RATE:.0f}"
            )
        if self.waiting < 0 or self.first < 0:
            raise UserError("RandomEvents: waiting and first must not be negative")
        if self.joins and not self.waiting:
            raise UserError("RandomEvents: joins need clients that can join: set waiting to how many are outside")

    def events(self, setting: EventSetting) -> PlannedEvents:
        free = setting.clients - len(setting.named)
        if self.waiting >= free:
            raise UserError(
                f"RandomEvents(waiting={self.waiting}): of {free} clients at least one must be a member at first"
            )
        drawn = []
        if self.waiting:
            drawn = draw(self.waiting + len(setting.named), setting.clients, 0, setting.seed, "waiting").tolist()
        mixed = torch.randperm(len(drawn), generator=rng(setting.seed, "waiting order")).tolist()
        waiting = [drawn[i] for i in mixed if drawn[i] not in setting.named][: self.waiting]
        outside = tuple(sorted(waiting))
        population = _Population(setting.clients, waiting, set(waiting) | set(setting.named))
        events: list[Event] = []
        for t in range(self.first, setting.rounds):
            counts = {}
            for name in ("joins", "leaves", "returns"):
                u = float(torch.rand((), generator=rng(setting.seed, "events", name, t), dtype=torch.float64))
                counts[name] = poisson(u, getattr(self, name), most=setting.clients)
            events += population.move(t, rng(setting.seed, "events", "who", t), **counts)
        return PlannedEvents(tuple(events), outside)


@dataclass
class _Population:
    """The clients while events are drawn: how many there are, and short lists of those that are not members."""

    clients: int
    waiting: list[int]
    moved: set[int]
    away: list[int] = field(default_factory=list)

    def move(self, t: int, g: torch.Generator, joins: int, leaves: int, returns: int) -> list[Event]:
        """The events of a round with this many joins, leaves and returns, as far as there are clients for them."""
        leaving: list[int] = []
        while len(leaving) < leaves and self.clients - len(self.moved) > 1:  # the last member never leaves
            while (client := _below(self.clients, g)) in self.moved:
                pass
            self.moved.add(client)
            leaving.append(client)
        returning = [self.away.pop(_below(len(self.away), g)) for _ in range(min(returns, len(self.away)))]
        joining = [self.waiting.pop() for _ in range(min(joins, len(self.waiting)))]
        self.moved -= {*joining, *returning}
        self.away += leaving
        return [*(Leave(c, t) for c in leaving), *(Join(c, t) for c in (*joining, *returning))]


def _below(n: int, g: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=g))


def poisson(u: float, rate: float, most: int = 2**62) -> int:
    """A Poisson draw by inversion of a uniform u in [0, 1), at most `most`.

    >>> poisson(0.5, 0.0), poisson(0.3, 1.0), poisson(0.5, 1.0), poisson(0.999, 1.0)
    (0, 0, 1, 5)
    """
    count, chance = 0, math.exp(-rate)
    while u >= chance and chance > 0:
        u -= chance
        count += 1
        chance *= rate / count
    return min(count, most)


@dataclass(frozen=True, eq=False)
class Calendar:
    """All events of a simulated world.

    outside_L  the clients that are not members at first
    by_round   the events at the beginning of each round that has any: first the leaves, then the joins
    """

    outside_L: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    by_round: dict[int, tuple[Event, ...]] = field(default_factory=dict)


def calendar_of(entries: Iterable[Events], setting: EventSetting) -> Calendar:
    events: list[Event] = []
    outside: set[int] = set()
    for entry in sorted(entries, key=lambda entry: entry.drawn):  # a stable sort: random entries last
        named = frozenset(int(e.client) for e in events) | frozenset(outside)
        planned = entry.events(replace(setting, named=named))
        events += planned.events
        outside |= set(planned.outside)
    own: dict[int, list[Event]] = {}
    by_round: dict[int, list[Event]] = {}
    for event in events:
        if not 0 <= event.round < setting.rounds:
            raise UserError(
                f"client {event.client} would {event.kind} in round {event.round}, but rounds are 0 to "
                f"{setting.rounds - 1}: give another round, or more rounds"
            )
        own.setdefault(int(event.client), []).append(event)
        by_round.setdefault(event.round, []).append(event)
    for found in own.values():
        for before, after in itertools.pairwise(found):
            if type(before) is type(after) or after.round <= before.round:
                raise UserError(
                    f"client {before.client} {before.kind}s in round {before.round} and {after.kind}s in round "
                    f"{after.round}: joins and leaves alternate; list a client's events in the order they happen, each "
                    "in a later round"
                )
    outside |= {client for client, found in own.items() if isinstance(found[0], Join)}
    if len(outside) >= setting.clients and 0 not in by_round:
        raise UserError("world.events leaves no member in the first round: let one client start without a Join")
    in_order = {t: tuple(sorted(found, key=lambda e: isinstance(e, Join))) for t, found in by_round.items()}
    return Calendar(torch.tensor(sorted(outside), dtype=torch.int64), in_order)


KINDS = {"join": Join, "leave": Leave, "event-log": EventLog, "random-events": RandomEvents}
