"""What an entry of `World.events` promises, and the plainest entries: `Join` and `Leave`, one event each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from turnout.errors import UserError
from turnout.world.client_names import ClientNames


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
    """A client leaves for good at the beginning of a round; a `silent` one has vanished and tells terms nothing."""

    silent: bool = False


@dataclass(frozen=True)
class PlannedEvents:
    """Planned events, and clients that are not members at first, whether they join later or not."""

    events: tuple[Event, ...] = ()
    outside: tuple[int, ...] = ()


def number_of(client: int | str, setting: Setting, where: str = "") -> int:
    """The number of a client that an event names, or a mistake."""
    known = ClientNames(setting.names, setting.clients)
    number = known.number(client)
    if number is not None:
        return number
    if isinstance(client, str) and setting.names is not None:
        hint = known.hint(client) or "it is not in the data"
        raise UserError(f"{where}world.events speaks of client {client!r}: {hint}")
    raise UserError(
        f"{where}world.events speaks of client {client}, and there is none: they are 0 to {setting.clients - 1}"
    )


KINDS = {"join": Join, "leave": Leave}
