"""Which client uses which of an experiment's models from which round on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from turnout.errors import UserError, nearest
from turnout.models import Model
from turnout.scores.settings import Uses
from turnout.world.client_names import ClientNames


@dataclass(frozen=True, eq=False)
class ModelPlan:
    """The models of an experiment by number (0 is that of clients of which nothing is said), and who changes to which.

    `changes` has, for a client, rounds and the number of the model it uses from then on, in the order of rounds.
    """

    models: Sequence[Model]
    changes: dict[int, list[tuple[int, int]]]

    @staticmethod
    def of(default: Model, uses: Sequence[Uses], known: ClientNames) -> ModelPlan:
        models, changes = [default], dict[int, list[tuple[int, int]]]()
        for entry in uses:
            client = _number(entry.client, known)
            changes.setdefault(client, []).append((entry.since, _place_among(models, entry.model)))
        for client, own in changes.items():
            own.sort(key=lambda change: change[0])
            if len({since for since, _ in own}) < len(own):
                raise UserError(f"algorithm.models: client {client} has two models from the same round on: keep one")
        return ModelPlan(models, changes)

    def number(self, client: int, t: int) -> int:
        """The number of the model that a client uses in a round."""
        found = 0
        for since, later in self.changes.get(client, ()):
            found = later if since <= t else found
        return found


def _place_among(models: list[Model], model: Model) -> int:
    """Where a model is in the list; an equal one counts as the same, a new one is added."""
    for number, known in enumerate(models):
        if known is model or (type(known) is type(model) and not isinstance(model, nn.Module) and known == model):
            return number
    models.append(model)
    return len(models) - 1


def _number(client: int | str, known: ClientNames) -> int:
    """A client's number; digits that are nobody's name are a number too."""
    digits = isinstance(client, str) and client.isdecimal() and client not in (known.names or ())
    found = known.number(int(client) if digits else client)
    if found is not None:
        return found
    if isinstance(client, str) and not digits:
        raise UserError(f"algorithm.models speaks of client {client!r}: {nearest(client, known.names or ())}")
    last = (known.clients or 0) - 1
    raise UserError(f"algorithm.models speaks of client {client}, and there is none: they are 0 to {last}")
