"""What is known of the clients before the first round; a part that needs it has a method `tied_to_clients`.

Shape letters: C clients asked for, N all clients.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from turnout.errors import UserError
from turnout.tasks import Standardised

Part = TypeVar("Part")
METHOD = "tied_to_clients"


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
