"""What a client keeps between rounds, by name: personal parameters and statistics, residuals, its terms' own state.

`Kept` is how the round sees it; the client store (store.py) sees one flat set of named rows.

Shape letters: C clients, P shared and Q personal parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.engine.layout import Layout
from turnout.settings import Algorithm
from turnout.types import Tensors, flatten, unflatten


@dataclass(frozen=True)
class Kept:
    """The rows of some clients."""

    personal_CQ: Tensor
    states: Tensors  # personal BatchNorm statistics and the like
    residuals: Tensors
    mine: dict[str, Tensors]  # term -> name -> rows

    def start(self, shared_P: Tensor) -> Tensor:
        """Where training begins: one row for everybody, or a row each where something is personal."""
        if self.personal_CQ.shape[1] == 0:
            return shared_P
        rows = shared_P.expand(self.personal_CQ.shape[0], -1)
        return torch.cat([rows, self.personal_CQ.to(shared_P)], 1)

    def to_rows(self) -> Tensors:
        """As named rows for the store; an empty personal matrix is left out."""
        tree = {"state": self.states, "residual": self.residuals, "mine": self.mine}
        rows = flatten(tree)[0]
        return rows | ({"personal": self.personal_CQ} if self.personal_CQ.shape[1] else {})


def kept_from(rows: Tensors, clients: int, device: torch.device) -> Kept:
    """The store's rows as the round sees them."""
    moved = {name: value.to(device) for name, value in rows.items()}
    personal_CQ = moved.pop("personal", torch.empty(clients, 0, device=device))
    tree = unflatten(moved, {})
    return Kept(personal_CQ, tree.get("state", {}), tree.get("residual", {}), tree.get("mine", {}))


def initial_rows(layout: Layout, flat_P: Tensor, states: Tensors, algorithm: Algorithm) -> Tensors:
    """One client's rows before its first round."""
    one = Kept(
        personal_CQ=flat_P[None, layout.shared :],
        states={name: states[name] for name in layout.personal_states},
        residuals=algorithm.compression.residuals(layout.shared),
        mine={term.name: term.mine(layout.shared) for term in algorithm.terms},
    ).to_rows()
    return {name: value[0] if name == "personal" else value for name, value in one.items()}
