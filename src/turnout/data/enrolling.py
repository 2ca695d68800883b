"""From a federation to what is known of its clients before the first round, and from there to a description."""

from __future__ import annotations

import torch

from turnout.data.description import Description
from turnout.data.federation import Federation
from turnout.errors import UserError
from turnout.world.enrolment import Enrolment


def enrolment_of(federation: Federation) -> Enrolment:
    """The enrolment of simulated clients."""
    ids = torch.arange(min(federation.clients, 64))
    with_data = ids[federation.examples(ids).cpu() > 0]
    if len(with_data) == 0:
        raise UserError("the first clients hold no training samples: look at world.data and its sizes")
    return Enrolment(
        clients=federation.clients,
        names=federation.names,
        input_shape=federation.input_shape,
        classes=federation.classes,
        labels=tuple(map(str, federation.labels)),
        sample=federation.train(with_data[:1], 0).of(0, most=8),
        groups=federation.groups(),
        fingerprint=federation.fingerprint(),
        standardised=getattr(federation, "standardised", None),  # tables have it
        encoding=getattr(federation, "encoding", None),
        words=getattr(federation, "words", ""),  # sentences have it
        note=getattr(federation, "note", ""),
        examples=lambda client_C: federation.examples(client_C).cpu(),
    )


def described(enrolment: Enrolment, mark: str) -> Description:
    """The description that a run keeps of its data, and that a device sends of its own."""
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
