"""The models of several clients of one architecture, and the rows that a client keeps of its model between rounds.

Shape letters: C clients, c some of them, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.types import Tensors

MODEL, ROUND, STATE, SLOT, COUNT = "model", "round", "state/", "slot/", "count"  # names of rows


@dataclass
class ClientModels:
    """The models of some clients: parameters, buffers, and what their optimizer carries."""

    flat_CP: Tensor
    states: Tensors
    slots: Tensors
    count_C: Tensor

    def take(self, place_c: Tensor) -> ClientModels:
        """A copy of some of them."""
        at = place_c.to(self.flat_CP.device)
        return ClientModels(self.flat_CP[at], _rows(self.states, at), _rows(self.slots, at), self.count_C[at])

    def put(self, place_c: Tensor, other: ClientModels) -> None:
        """Write some of them over."""
        at = place_c.to(self.flat_CP.device)
        self.flat_CP[at] = other.flat_CP
        self.count_C[at] = other.count_C
        for name, value in other.states.items():
            self.states[name][at] = value
        for name, value in other.slots.items():
            self.slots[name][at] = value

    def clone(self) -> ClientModels:
        return self.take(torch.arange(len(self.flat_CP)))

    def to_rows(self, t: int, moments: bool) -> Tensors:
        """What each client keeps of a round; with moments, also what its optimizer carries."""
        rows = {MODEL: self.flat_CP, ROUND: torch.full((len(self.flat_CP),), t)}
        rows |= {STATE + name: value for name, value in self.states.items()}
        if moments:
            rows |= {SLOT + name: value for name, value in self.slots.items()} | {COUNT: self.count_C}
        return rows

    def with_rows(self, rows: Tensors, carries_count: bool) -> ClientModels:
        """The models that such rows hold; what they do not hold of the optimizer is as here."""
        states = {name: rows[STATE + name] for name in self.states}
        slots = {name: rows.get(SLOT + name, value) for name, value in self.slots.items()}
        count_C = rows[COUNT] if COUNT in rows and carries_count else self.count_C
        return ClientModels(rows[MODEL], states, slots, count_C)


def states_in(rows: Tensors) -> Tensors:
    """The buffers among a client's rows."""
    return {name.removeprefix(STATE): value for name, value in rows.items() if name.startswith(STATE)}


def _rows(tensors: Tensors, at: Tensor) -> Tensors:
    return {name: value[at] for name, value in tensors.items()}
