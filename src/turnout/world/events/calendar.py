"""All entries of `World.events` as one calendar, checked before the first round.

A client whose first event is a Join is not a member before it. A client's events are listed in the order in which they
happen: `Leave(3, 20), Join(3, 40)` leaves and comes back, `Join(3, 40), Leave(3, 20)` is an error.

Shape letters: L clients that are not members at first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.world.events.entries import Event, Events, EventSetting, Join, Leave


@dataclass(frozen=True, eq=False)
class Calendar:
    """All events of a simulated world.

    outside_L  the clients that are not members at first
    by_round   the events at the beginning of each round that has any: first the leaves, then the joins
    """

    outside_L: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    by_round: dict[int, tuple[Event, ...]] = field(default_factory=dict)


def calendar_of(entries: Iterable[Events], setting: EventSetting) -> Calendar:
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
        raise UserError("world.events leaves no member in the first round: let one client start without a Join")
    return Calendar(torch.tensor(sorted(outside), dtype=torch.int64), in_order)


def _check(events: Sequence[Event], setting: EventSetting) -> set[int]:
    """Refuse impossible events; returns the clients whose first event is a Join."""
    own: dict[int, list[Event]] = {}
    for event in events:
        if event.round < 0:
            raise UserError(f"client {event.client} cannot {event.kind} in round {event.round}: rounds start at 0")
        if event.round >= setting.rounds:
            raise UserError(
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
        other = "leave" if isinstance(before, Join) else "join"
        raise UserError(
            f"{who} {before.kind}s in round {before.round} and again in round {after.round}: it can {before.kind} only "
            f"once before it {other}s"
        )
    if after.round < before.round and isinstance(after, Leave):
        raise UserError(
            f"{who} leaves in round {after.round} before it joins in round {before.round}; if it is a member from the "
            "start and comes back, list its Leave first"
        )
    if after.round <= before.round:
        raise UserError(
            f"{who} {before.kind}s in round {before.round} and {after.kind}s in round {after.round}: list a client's "
            "events in the order they happen, each in a later round"
        )
