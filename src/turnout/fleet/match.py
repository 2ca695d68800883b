"""Which clients of a log are which clients of a data set: every place that brings the two together asks here.

Data with names is matched by name. Clients without names are numbered from 0, and a log means these numbers where it
has no others, or has all of them. Any other log (names; numbers such as 1 to 40 for clients 0 to 39) is about other
clients: it cannot be replayed, and is dealt to them at random otherwise.

Shape letters: M clients of the log, K clients in both, C clients of the cohort.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from turnout.errors import UserError
from turnout.fleet.fleet import Fleet
from turnout.world.client_names import ClientNames

LISTED = 3  # names of each side, in an error


@dataclass(frozen=True, eq=False)
class Match:
    """The clients that are in both a log and a data set.

    client_M   the number in the data of every client of the log, -1 for one that owns no data
    clients    how many clients the data has; None where that is not known
    unmatched  the first client of the log that owns no data, and its line; empty where all own data
    hint       the names nearest to it, in words; empty where there are none
    dealt      whether clients of the data that are not in the log take after one of its clients, at random
    """

    client_M: np.ndarray
    clients: int | None
    unmatched: str
    hint: str
    dealt: bool

    def places(self, client_C: np.ndarray) -> np.ndarray:
        """Where in the log each of these clients of the data is; -1 for one that the log does not have [C]."""
        client_K, place_K = self._by_client
        if not len(client_K):
            return np.full(len(client_C), -1)
        at_C = np.searchsorted(client_K, client_C).clip(max=len(client_K) - 1)
        return np.where(client_K[at_C] == client_C, place_K[at_C], -1)

    @cached_property
    def _by_client(self) -> tuple[np.ndarray, np.ndarray]:
        place_K = np.flatnonzero(self.client_M >= 0)
        place_K = place_K[np.argsort(self.client_M[place_K])]
        return self.client_M[place_K], place_K

    @property
    def matched(self) -> int:
        return int((self.client_M >= 0).sum())

    @property
    def is_partial(self) -> bool:
        """Whether some clients were not matched, so that a user must know; in a replay no row means not asked."""
        return self.matched < len(self.client_M) or (self.dealt and self._outside > 0)

    @property
    def _outside(self) -> int:
        return 0 if self.clients is None else self.clients - self.matched

    def sentence(self) -> str:
        """How many clients match, and what becomes of the others."""
        logged = len(self.client_M)
        if not self.matched:
            return (
                f"the data's {self.clients:,} clients have no names and are not the {logged:,} clients in the log "
                f"({self.unmatched}, ...): each takes after one of them at random (reading.owners names a file that "
                "says which is which)"
            )
        words = f"{self.matched:,} of {logged:,} clients in the log own data"
        if more := logged - self.matched:
            words += f": {self.unmatched} " + (f"and {more - 1:,} more do not" if more > 1 else "does not")
            words += f" ({self.hint})" if self.hint else ""
        if self._outside:
            then = "each takes after one of its clients at random" if self.dealt else "they stay absent"
            words += f"; {self._outside:,} of the data's {self.clients:,} clients are not in the log: {then}"
        return words


def match_clients(log: Fleet, names: tuple[str, ...] | None, clients: int | None, replay: bool) -> Match:
    """Match a log with the clients of a data set; a UserError where no name matches, or a replay has no match."""
    known = ClientNames(names, clients)
    number_M = [known.number(label) for label in log.names]
    client_M = np.array([-1 if number is None else number for number in number_M], dtype=np.int64)
    client_K = client_M[client_M >= 0]
    if names is None and len(client_K) < len(client_M) and len(np.unique(client_K)) != clients:
        if replay:
            raise _unknown(log, int((client_M < 0).argmax()), clients)
        client_M[:] = -1  # numbers of something else
    elif len(np.unique(client_K)) < len(client_K):
        raise UserError(f"{log.path}: a client is written in two ways (such as 7 and 07); use one")
    elif not len(client_K):
        raise UserError(
            f"{log.path}: none of the {log.clients:,} clients in the log owns data: the log has {_some(log.names)}, "
            f"the data {_some(names or ())}; if they are the same clients under other names, give reading.owners "
            "(--owners) a CSV file of client,owner: each client of the log, and whose data that is"
        )
    if (client_M >= 0).all():
        return Match(client_M, clients, "", "", dealt=not replay)
    first = int((client_M < 0).argmax())
    line = "" if log.line_M is None else f" (line {log.line_M[first]})"
    hint = known.hint(log.names[first])
    return Match(client_M, clients, f"{log.names[first]!r}{line}", hint, dealt=not replay)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:LISTED])) + (", ..." if len(names) > LISTED else "")


def _unknown(log: Fleet, logged: int, clients: int | None) -> UserError:
    label, where = log.names[logged], "" if log.line_M is None else f", line {log.line_M[logged]}"
    hint = "; the clients of this data have no names, so give their numbers, from 0"
    if label.isdecimal():
        hint = f"; the data has clients 0..{(clients or 0) - 1}"
    return UserError(
        f"{log.path}{where}: unknown client {label!r}{hint}, or reading.owners, a CSV file of client,owner"
    )
