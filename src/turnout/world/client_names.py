"""How clients are written in files and settings: by name if the data has names, else by number from 0."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from turnout.errors import nearest

LISTED_NAMES = 200  # a hint with more names would not help


@dataclass(frozen=True)
class ClientNames:
    """The clients of a data set: their names (None: it has no names) and their number (None: not known yet)."""

    names: tuple[str, ...] | None
    clients: int | None = None

    def number(self, client: int | str) -> int | None:
        """The number of a client given by number or name; None if there is no such client.

        A text is a name if the data has names, else the digits of a number.

        >>> ClientNames(("ada", "bob")).number("bob"), ClientNames(None, 3).number("2"), ClientNames(None, 3).number(3)
        (1, 2, None)
        """
        if isinstance(client, str) and self.names is not None:
            return self._number_of.get(client)
        if isinstance(client, str) and not client.isdecimal():
            return None
        limit = 2**62 if self.clients is None else self.clients
        return int(client) if 0 <= int(client) < limit else None

    def hint(self, name: str) -> str:
        """The names nearest to an unknown one; empty if there are no names, or too many to list."""
        return nearest(name, self.names) if self.names is not None and len(self.names) <= LISTED_NAMES else ""

    @cached_property
    def _number_of(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names or ())}
