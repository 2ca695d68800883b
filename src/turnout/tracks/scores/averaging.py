"""Weights averaged among clients of one architecture (start = "averaged"), beside the scores.

Labels are names, so an output layer means something only together with them: the layers whose shape depends on the
number of labels are averaged among clients with the same labels, all others among everybody with the same model.

Shape letters: C clients, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.tracks.building import build_model
from turnout.tracks.scores.architectures import Architecture
from turnout.tracks.scores.training import Models
from turnout.types import Tensors

Averages = dict[str, Tensors]  # of which model (and labels) -> parameter or buffer -> mean


@dataclass(frozen=True, eq=False)
class Trained:
    """Models of one architecture after a round, with what each weighs (its samples) and its labels."""

    architecture: Architecture
    models: Models
    weight_C: Tensor
    sets: Sequence[Tensor]


def head_of(architecture: Architecture) -> frozenset[str]:
    """The parameters and buffers whose shape depends on the number of labels; all, where that cannot be changed."""
    own = {name: value.shape for name, value in architecture.template.state_dict().items()}
    shape, more = tuple(architecture.shop.x.shape[1:]), architecture.classes + 1
    other = build_model(architecture.model, shape, more, architecture.shop.seed).state_dict()
    differ = frozenset(name for name, size in own.items() if name not in other or other[name].shape != size)
    return differ or frozenset(own)


def body_key(architecture: Architecture) -> str:
    return f"body {architecture.spec}"


def head_key(architecture: Architecture, set_l: Tensor) -> str:
    """
    >>> head_key(type("A", (), {"spec": 1}), torch.tensor([0, 3]))
    'head 1 of 0 3'
    """
    return f"head {architecture.spec} of {' '.join(map(str, set_l.tolist()))}"


def averaged(before: Averages, trained: Sequence[Trained]) -> Averages:
    """The means after a round, by samples, over those who took part; what nobody trained stays as it was."""
    sums: dict[str, dict[str, tuple[Tensor, float]]] = {}
    for group in trained:
        head = head_of(group.architecture)
        named = {**group.architecture.layout.views(group.models.flat_CP), **group.models.states}
        for i, set_l in enumerate(group.sets):
            weight = float(group.weight_C[i])
            for name, value in named.items():
                if not value.is_floating_point():
                    continue
                where = head_key(group.architecture, set_l) if name in head else body_key(group.architecture)
                total, whole = sums.setdefault(where, {}).get(name, (torch.zeros_like(value[i]), 0.0))
                sums[where][name] = (total + weight * value[i], whole + weight)
    return before | {where: {n: total / whole for n, (total, whole) in found.items()} for where, found in sums.items()}


def begin(averages: Averages, architecture: Architecture, sets: Sequence[Tensor], models: Models) -> Models:
    """Fresh models with the averages in their place, as far as there are any."""
    named = {**architecture.layout.views(models.flat_CP), **models.states}
    for i, set_l in enumerate(sets):
        for where in (body_key(architecture), head_key(architecture, set_l)):
            for name, value in averages.get(where, {}).items():
                named[name][i] = value.to(named[name])
    return models
