"""What is known of the clients before the first round, and clients by name or by number.

A part that needs to know the clients has a method `tied_to_clients`.

Shape letters: C clients asked for, N all clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor

from turnout.errors import UserError, nearest
from turnout.tasks import Standardised

Part = TypeVar("Part")
METHOD = "tied_to_clients"
LISTED_NAMES = 200  # a hint with more names would not help


@dataclass(frozen=True)
class Enrolment:
    """What is known of the clients before the first round.

    clients       how many there are
    names         their names; None if the data has none
    input_shape   of one sample
    classes       how many classes there are
    labels        the names of the classes; none for numbers to be predicted
    sample        a few samples to try the model on
    groups        the cluster of each client [N], if the data has clusters
    fingerprint   of the data: a checkpoint of other data is refused
    examples      client_C -> how many training samples each of them has [C]
    standardised  how targets were standardised: metrics and models are in the targets' own unit
    encoding      how the columns of a table became samples (turnout.data.columns.Encoding)
    words         a hash of the list by which words became numbers
    note          how files became samples, in a sentence
    """

    clients: int
    names: tuple[str, ...] | None
    input_shape: tuple[int, ...]
    classes: int
    labels: tuple[str, ...]
    sample: tuple[Tensor, Tensor]
    groups: Tensor | None
    fingerprint: str
    examples: Callable[[Tensor], Tensor]
    standardised: Standardised | None = None
    encoding: Any = None  # its type is above this room
    words: str = ""
    note: str = ""


def tied(part: Part, enrolment: Enrolment, rounds: int, where: str) -> Part:
    """A part for these clients and this many rounds: the result of its `tied_to_clients`, or itself if it has none.

    The method returns a copy (`dataclasses.replace`), or raises a UserError if the part cannot serve them; a part that
    wraps another passes the enrolment on by this function.
    """
    tie = getattr(part, METHOD, None)
    if tie is None:
        return part
    result: Part = tie(enrolment, rounds)
    if not isinstance(result, type(part)):
        raise UserError(f"{where}: {METHOD} gave {result!r}: return the part, such as dataclasses.replace(self)")
    return result


@dataclass(frozen=True)
class ClientNames:
    """The clients of a data set.

    names    their names; None: the data has none
    clients  how many there are; None: not known yet
    """

    names: tuple[str, ...] | None
    clients: int | None = None

    def number(self, client: int | str) -> int | None:
        """The number of a client given by number or name; None if there is no such client.

        A text is a name if the data has names, else the digits of a number.

        >>> ClientNames(("ada", "bob")).number("bob"), ClientNames(None, 3).number("2"), ClientNames(None, 3).number(3)
        (1, 2, None)
        >>> ClientNames(None, 9).number("03"), ClientNames(None, 9).number("٣")
        (None, None)
        """
        if isinstance(client, str) and self.names is not None:
            return self._number_of.get(client)
        if isinstance(client, str) and not re.fullmatch("0|[1-9][0-9]{0,18}", client):  # "03" is not client 3
            return None
        limit = 2**62 if self.clients is None else self.clients
        return int(client) if 0 <= int(client) < limit else None

    def hint(self, name: str) -> str:
        """The names nearest to an unknown one; empty if there are no names, or too many to list."""
        return nearest(name, self.names) if self.names is not None and len(self.names) <= LISTED_NAMES else ""

    @cached_property
    def _number_of(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names or ())}
