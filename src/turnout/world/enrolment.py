"""What is known of the clients before the first round, and how a part can ask for it.

Most parts need to know nothing of whom they will meet. One that does (a fleet's log with clients by name, a
participation by sample count) has a method `tied_to_clients`; it is called once, before the first round.

Shape letters: C clients that were asked for, N all clients.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from turnout.data.columns import Encoding
from turnout.data.description import Description
from turnout.data.federation import Federation
from turnout.errors import UserError
from turnout.task import Standardised

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
    encoding: Encoding | None = None  # how the columns of a table became samples
    words: str = ""  # a hash of the list by which words became numbers
    note: str = ""  # how files became samples, in a sentence


def enrolment_of(federation: Federation) -> Enrolment:
    """What is known of simulated clients before the first round."""
    return Enrolment(
        clients=federation.clients,
        names=federation.names,
        input_shape=federation.input_shape,
        classes=federation.classes,
        labels=tuple(map(str, federation.labels)),
        sample=_a_few_samples(federation),
        groups=federation.groups(),
        fingerprint=federation.fingerprint(),
        standardised=getattr(federation, "standardised", None),  # tables have it
        encoding=getattr(federation, "encoding", None),
        words=getattr(federation, "words", ""),  # sentences have it
        note=getattr(federation, "note", ""),
        examples=lambda client_C: federation.examples(client_C).cpu(),
    )


def described(enrolment: Enrolment, mark: str) -> Description:
    """What a run keeps of its data, and a device says of its own."""
    input_type, target_type = ("float32" if v.is_floating_point() else "int64" for v in enrolment.sample)
    return Description(
        clients=enrolment.clients,
        input_shape=tuple(enrolment.input_shape),
        input_type=input_type,
        target_shape=tuple(enrolment.sample[1].shape[1:]),
        target_type=target_type,
        classes=enrolment.classes,
        labels=enrolment.labels,
        names=enrolment.names,
        mark=mark,
        standardised=enrolment.standardised,
        encoding=enrolment.encoding,
        words=enrolment.words,
    )


def _a_few_samples(federation: Federation) -> tuple[Tensor, Tensor]:
    """Samples to try the model on."""
    ids = torch.arange(min(federation.clients, 64))
    with_data = ids[federation.examples(ids).cpu() > 0]
    if len(with_data) == 0:
        raise UserError("the first clients hold no training samples: look at world.data and its sizes")
    return federation.train(with_data[:1], 0).of(0, most=8)


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
