"""What a client keeps between rounds: personal parameters and statistics, moments, residuals, its terms' own state.

`ClientState` is how the round sees it; the client store (store.py) sees one flat set of named rows. What travels of it
beside the update is named among the states: federated moments, and the personal layers where they are shared.

Shape letters: C clients, P shared and Q personal parameters, A all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from turnout.engine.job import Trained
from turnout.exchange import OWN, Outbox
from turnout.experiment import Algorithm
from turnout.layout import Layout
from turnout.parts.optimizers import Optimizer
from turnout.parts.terms.base import Notifies, Term
from turnout.types import Tensors, flatten, storable

MOMENT = "moment/"  # how federated moments are named among the states
PARAMETERS = "parameters"
COUNT = "count"


@dataclass(frozen=True)
class ClientState:
    """The rows of some clients.

    `slots` are the optimizer's moments that stay home: all columns [C, A] where moments are local, the personal ones
    [C, Q] where they are federated; `count` the steps they have seen, where moments are local.
    """

    personal_CQ: Tensor
    states: Tensors = field(default_factory=dict)  # personal BatchNorm statistics and the like
    slots: Tensors = field(default_factory=dict)
    residuals: Tensors = field(default_factory=dict)
    term_states: dict[str, Tensors] = field(default_factory=dict)  # term -> name -> rows
    seen: Tensors = field(default_factory=dict)  # its own activations after training (clients/activations.py)

    def start(self, shared: Tensor) -> Tensor:
        """The weights that training starts from: one row [P] for all clients, or a row each if they differ."""
        if not self.personal_CQ.shape[1]:
            return shared
        rows = shared.expand(self.personal_CQ.shape[0], -1)
        return torch.cat([rows, self.personal_CQ.to(shared)], 1)

    def moments(self, states: Tensors, layout: Layout) -> tuple[Tensors, Tensor | None]:
        """The optimizer's state to begin with: what was kept, joined to what was downloaded; and the steps so far."""
        clients = len(self.personal_CQ)
        names = {name.removeprefix(MOMENT) for name in states if name.startswith(MOMENT)}
        if not names:
            slots = {name: value.clone() for name, value in self.slots.items() if name != COUNT}
            return slots, self.slots.get(COUNT)
        down = {name: states[MOMENT + name].expand(clients, -1) for name in names - {COUNT}}
        own = {name: torch.cat([value, self.slots[name]], 1) if layout.width > layout.shared else value.clone()
               for name, value in down.items()}  # fmt: skip
        return own, states[MOMENT + COUNT].expand(clients) if COUNT in names else None

    def rows_after(
        self, trained: Trained, layout: Layout, optimizer: Optimizer, residuals: Tensors, seen: Tensors
    ) -> Tensors:
        """The rows after training."""
        slots: Tensors = {}
        if optimizer.moments == "local":
            slots = trained.slots | ({COUNT: trained.count_C} if optimizer.carries_count else {})
        elif optimizer.moments == "federated" and layout.width > layout.shared:
            slots = {name: value[:, layout.shared :] for name, value in trained.slots.items()}
        states = {name: trained.states[name] for name in layout.personal_states}
        return ClientState(
            trained.flat_CP[:, layout.shared :], states, slots, residuals, trained.term_states, seen
        ).to_rows()

    def welcome(self, which_are_new: Callable[[], Tensor], states: Tensors) -> ClientState:
        """The same, but new clients start from the average of the personal layers, if it was downloaded."""
        average = {n.removeprefix(OWN): value for n, value in states.items() if n.startswith(OWN)}
        if not average:
            return self
        new_C = which_are_new().to(self.personal_CQ.device)

        def mixed(rows: Tensor, name: str) -> Tensor:
            at_C = new_C.view(-1, *(1 for _ in rows.shape[1:]))
            return torch.where(at_C, average[name].to(rows), rows)

        if not bool(new_C.any()):
            return self
        personal_CQ = mixed(self.personal_CQ, PARAMETERS) if PARAMETERS in average else self.personal_CQ
        return replace(self, personal_CQ=personal_CQ, states={n: mixed(v, n) for n, v in self.states.items()})

    def with_statistics(self, place_I: Tensor, statistics: Tensors) -> ClientState:
        """The same with other statistics for the clients at some places."""
        states = {n: v.index_copy(0, place_I.to(v.device), statistics[n].to(v)) for n, v in self.states.items()}
        return replace(self, states=states)

    def notified(self, client_C: Tensor, outbox: Outbox, terms: Sequence[Term]) -> ClientState:
        """The same after clients received the messages that terms wrote when their last reply was used."""
        states = self.term_states
        for t, message in outbox.messages.items():
            place = torch.isin(client_C, outbox.client_U[outbox.round_U == t]).nonzero().squeeze(1)
            for term in (term for term in terms if term.name in message and term.name in states):
                states = states | {term.name: _deliver(term, message[term.name], states[term.name], place)}
        return self if states is self.term_states else replace(self, term_states=states)

    def to_rows(self) -> Tensors:
        """As named rows for the store ("state/...", "term/<term>/..."); an empty personal matrix is left out."""
        rows = {f"{mark}/{name}": row for mark, group in _GROUPS.items() for name, row in getattr(self, group).items()}
        for term, own in self.term_states.items():
            rows |= {f"term/{term}/{name}": row for name, row in own.items()}
        return rows | ({"personal": self.personal_CQ} if self.personal_CQ.shape[1] else {})


def _deliver(term: Term, message: Tensors, rows: Tensors, place: Tensor) -> Tensors:
    """A term's rows after the clients at some places received a message; it may give one row for all of them."""
    first = next(iter(rows.values()))
    all_of_them = len(place) == len(first)  # then nothing is copied
    chosen = rows if all_of_them else {name: value[place.to(value.device)] for name, value in rows.items()}
    placed = {name: value.to(first.device) for name, value in message.items()}
    new = term.on_notify(placed, chosen) if isinstance(term, Notifies) else {}
    new = {name: new[name].to(value).expand_as(value) for name, value in chosen.items() if name in new}
    if not all_of_them:
        new = {name: rows[name].index_copy(0, place.to(value.device), value) for name, value in new.items()}
    return rows | new


_GROUPS = {"state": "states", "slot": "slots", "residual": "residuals", "seen": "seen"}  # in the store


def state_from(rows: Tensors, clients: int, device: torch.device) -> ClientState:
    """The store's rows as the round sees them."""
    personal_CQ = rows["personal"].to(device) if "personal" in rows else torch.empty(clients, 0, device=device)
    groups: dict[str, Tensors] = {mark: {} for mark in _GROUPS}
    terms: dict[str, Tensors] = {}
    for name, row in rows.items():
        mark, _, rest = name.partition("/")
        if mark in groups:
            groups[mark][rest] = row.to(device)
        elif mark == "term":
            term, _, rest = rest.partition("/")
            terms.setdefault(term, {})[rest] = row.to(device)
    return ClientState(personal_CQ, **{_GROUPS[mark]: own for mark, own in groups.items()}, term_states=terms)


def sent_states(trained: Trained, layout: Layout, algorithm: Algorithm) -> Tensors:
    """The states that travel beside the update: statistics, federated moments, personal layers where shared (their
    values, not their moments)."""
    states, optimizer = {name: trained.states[name] for name in layout.shared_states}, algorithm.local.optimizer
    if optimizer.moments == "federated":
        states |= {MOMENT + name: value[:, : layout.shared] for name, value in trained.slots.items()}
        if optimizer.carries_count:
            states[MOMENT + COUNT] = trained.count_C.to(trained.flat_CP.dtype)
    if algorithm.share_personal:
        if layout.width > layout.shared:
            states[OWN + PARAMETERS] = trained.flat_CP[:, layout.shared :]
        states |= {OWN + name: trained.states[name] for name in layout.personal_states}
    return states


def initial_rows(layout: Layout, flat_A: Tensor, states: Tensors, algorithm: Algorithm) -> Tensors:
    """One client's rows before its first round, floats in the precision of the parameters."""
    optimizer, shared_P = algorithm.local.optimizer, flat_A[: layout.shared]
    home = {"local": layout.width, "federated": layout.width - layout.shared}.get(optimizer.moments, 0)
    slots = {name: flat_A.new_zeros(home) for name in optimizer.slots if home}
    if optimizer.moments == "local" and optimizer.carries_count:
        slots[COUNT] = torch.zeros((), dtype=torch.int64)
    tree = {
        "state": {name: states[name] for name in layout.personal_states},
        "slot": slots,
        "residual": storable(algorithm.compression.residuals(layout.shared_slots), "algorithm.compression"),
        "term": storable({term.name: term.client_state(shared_P) for term in algorithm.terms}, "algorithm.terms"),
    }
    rows = flatten(tree)[0]
    if layout.width > layout.shared:
        rows["personal"] = flat_A[layout.shared :]
    return {n: v.to(flat_A.dtype) if v.is_floating_point() else v for n, v in rows.items()}


def initial_moments(layout: Layout, shared_P: Tensor, algorithm: Algorithm) -> Tensors:
    """The server's moments before the first round, where they are federated."""
    optimizer = algorithm.local.optimizer
    if optimizer.moments != "federated":
        return {}
    zeros = {MOMENT + name: torch.zeros_like(shared_P) for name in optimizer.slots}
    return zeros | ({MOMENT + COUNT: shared_P.new_zeros(())} if optimizer.carries_count else {})


def initial_shared(layout: Layout, flat_A: Tensor, states: Tensors, algorithm: Algorithm) -> Tensors:
    """The average of the personal layers before the first round: the model's initial values."""
    if not algorithm.share_personal:
        return {}
    first = {name: states[name] for name in layout.personal_states}
    first |= {PARAMETERS: flat_A[layout.shared :]} if layout.width > layout.shared else {}
    return {OWN + name: value for name, value in first.items()}


def central_model(layout: Layout, shared_P: Tensor, states: Tensors) -> tuple[Tensor, Tensors] | None:
    """One model of what is shared and the averages of what is personal; None where these are not sent."""
    own = [*(OWN + name for name in layout.personal_states), *([OWN + PARAMETERS] * (layout.width > layout.shared))]
    if any(name not in states for name in own):
        return None
    flat_A = torch.cat([shared_P, states[OWN + PARAMETERS]]) if layout.width > layout.shared else shared_P
    inside = {name: states[OWN + name] for name in layout.personal_states}
    return flat_A, inside | {name: states[name] for name in layout.shared_states}
