"""What is known of the clients before the first round, and how a part can ask for it.

Most parts need to know nothing of whom they will meet. One that does (a fleet's log with clients by name, a
participation by sample count) has a method `tied_to_clients`; it is called once, before the first round.

Shape letters: C clients that were asked for, N all clients.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from torch import Tensor

from turnout.errors import UserError
from turnout.tasks import Standardised

Part = TypeVar("Part")
METHOD = "tied_to_clients"


@dataclass(frozen=True)
class Enrolment:
    """What is known of the clients before the first round: how many, what they are called, what their data is like."""

    clients: int
    names: tuple[str, ...] | None
    input_shape: tuple[int, ...]
    classes: int
    labels: tuple[str, ...]  # what the classes are called; none for numbers to be predicted
    sample: tuple[Tensor, Tensor]  # a few samples to try the model on
    groups: Tensor | None  # the cluster of each client [N], where the data has clusters
    fingerprint: str  # of the data: a checkpoint of other data is refused
    examples: Callable[[Tensor], Tensor]  # client_C -> how many training samples each of them has [C]
    standardised: Standardised | None = None  # how targets were: metrics and models go back to their own unit
    encoding: Any = None  # how the columns of a table became samples (data.columns.Encoding), None for other data
    words: str = ""  # a hash of the list by which words became numbers
    note: str = ""  # how files became samples, in a sentence


class TiedToClients(Protocol):
    """What a participation or a selection may promise besides its role: to be told who the clients are."""

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> Self:
        """The same part for these clients and so many rounds, or a UserError where it cannot serve them.

        Give a copy back (`dataclasses.replace`); a part that wraps another passes it on (`tied`).
        """
        ...


def tied(part: Part, enrolment: Enrolment, rounds: int, where: str) -> Part:
    """A part for these clients: what its `tied_to_clients` gives, or the part itself where it has none."""
    tie = getattr(part, METHOD, None)
    if tie is None:
        return part
    kind = type(part).__name__
    try:
        inspect.signature(tie).bind(enrolment, rounds)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{where}: {kind}.{METHOD} is called with (enrolment, rounds) before the first round ({error}): let it "
            "take them, or give the method another name"
        ) from error
    result: Part = tie(enrolment, rounds)
    if not isinstance(result, type(part)):
        raise UserError(f"{where}: {kind}.{METHOD} gave {result!r}: return the part, such as dataclasses.replace(self)")
    return result
