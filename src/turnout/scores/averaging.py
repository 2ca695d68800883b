"""Weights averaged among clients of one architecture (start = "averaged"), beside the scores.

Labels are names, so an output layer means something only together with them: the layers whose shape depends on the
number of labels (the head) are averaged among clients with the same labels, all others (the body) among everybody with
the same model.

Shape letters: C clients, P parameters, l labels of one client.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from turnout.scores.architectures import Architecture
from turnout.scores.client_models import ClientModels
from turnout.scores.exchange import Averages


def body_key(model: int) -> str:
    return f"body {model}"


def head_key(model: int, set_l: Tensor) -> str:
    """
    >>> head_key(1, torch.tensor([0, 3]))
    'head 1 of 0 3'
    """
    return f"head {model} of {' '.join(map(str, set_l.tolist()))}"


def begin(averages: Averages, architecture: Architecture, sets: Sequence[Tensor], models: ClientModels) -> None:
    """Write the averages into fresh models, as far as there are any."""
    named = {**architecture.layout.views(models.flat_CP), **models.states}
    for i, set_l in enumerate(sets):
        for where in (body_key(architecture.number), head_key(architecture.number, set_l)):
            for name, value in averages.get(where, {}).items():
                named[name][i] = value.to(named[name])


def sent_by(architecture: Architecture, sets: Sequence[Tensor], models: ClientModels) -> list[Averages]:
    """What each client sends of its model: body and head, by what they are averaged with."""
    named = {**architecture.layout.views(models.flat_CP), **models.states}
    floats = {name: value for name, value in named.items() if value.is_floating_point()}
    found = []
    for i, set_l in enumerate(sets):
        parts: Averages = {}
        for name, value in floats.items():
            in_head, number = name in architecture.head, architecture.number
            where = head_key(number, set_l) if in_head else body_key(number)
            parts.setdefault(where, {})[name] = value[i]
        found.append(parts)
    return found


def averaged(before: Averages, sent: Sequence[tuple[float, Averages]]) -> Averages:
    """The means after a round over what clients have sent, each weighed by its samples; other means stay as they were.

    >>> one, two = ({"body 0": {"w": torch.tensor([value])}} for value in (1.0, 4.0))
    >>> averaged({"body 1": {}}, [(1.0, one), (2.0, two)])
    {'body 1': {}, 'body 0': {'w': tensor([3.])}}
    """
    sums: dict[str, dict[str, tuple[Tensor, float]]] = {}
    for weight, parts in sent:
        for where, named in parts.items():
            for name, value in named.items():
                total, whole = sums.setdefault(where, {}).get(name, (torch.zeros_like(value), 0.0))
                sums[where][name] = (total + weight * value, whole + weight)
    return before | {where: {n: total / whole for n, (total, whole) in found.items()} for where, found in sums.items()}
