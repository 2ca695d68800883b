"""The set of enrolled clients, stored as the size of the population and short lists of the differences from it.

Shape letters: I any list of ids or positions, L ids of the population that are not members, J members from outside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.types import State


def _sorted_ids(ids: Tensor) -> Tensor:
    return torch.unique(torch.as_tensor(ids, dtype=torch.int64))


def _is_in(client_I: Tensor, sorted_L: Tensor) -> Tensor:
    if len(sorted_L) == 0:
        return torch.zeros(client_I.shape, dtype=torch.bool)
    place_I = torch.searchsorted(sorted_L, client_I).clamp(max=len(sorted_L) - 1)
    return sorted_L[place_I] == client_I


@dataclass(frozen=True, eq=False)
class Members:
    """The members: a total over them (of samples, say) is the population's total minus the removed plus the added.

    population  clients 0 .. population - 1 are members unless removed
    removed_L   ids of the population that are not members, sorted
    added_J     members from outside (ids from `population` on), sorted

    >>> members = Members(5).leave(1).join(9)
    >>> members.ids()
    tensor([0, 2, 3, 4, 9])
    >>> len(members), 1 in members, members.at(torch.tensor([1, 4]))
    (5, False, tensor([2, 9]))
    """

    population: int
    removed_L: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    added_J: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def __post_init__(self) -> None:
        object.__setattr__(self, "removed_L", _sorted_ids(self.removed_L))
        object.__setattr__(self, "added_J", _sorted_ids(self.added_J))

    def to_state(self) -> State:
        return {"population": self.population, "removed": self.removed_L, "added": self.added_J}

    @classmethod
    def from_state(cls, state: State) -> Members:
        return cls(state["population"], state["removed"], state["added"])

    def __len__(self) -> int:
        return self.population - len(self.removed_L) + len(self.added_J)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Members):
            return NotImplemented
        same = torch.equal(self.removed_L, other.removed_L) and torch.equal(self.added_J, other.added_J)
        return self.population == other.population and same

    def __hash__(self) -> int:
        return hash((self.population, tuple(self.removed_L.tolist()), tuple(self.added_J.tolist())))

    def __contains__(self, client: int) -> bool:
        return bool(self.which(torch.tensor([client]))[0])

    def which(self, client_I: Tensor) -> Tensor:
        """Which of these clients are members, as booleans."""
        client_I = client_I.to(torch.int64)
        of_population_I = (client_I >= 0) & (client_I < self.population)
        if not len(self.removed_L) and not len(self.added_J):
            return of_population_I
        return (of_population_I & ~_is_in(client_I, self.removed_L)) | _is_in(client_I, self.added_J)

    def at(self, index_I: Tensor) -> Tensor:
        """The members at these positions of the sorted list of members, without making that list."""
        if len(index_I) and not 0 <= int(index_I.min()) <= int(index_I.max()) < len(self):
            raise IndexError(f"positions must be in 0..{len(self) - 1}")
        # Positions from removed_L[j] - j on come after the j-th removed id and are shifted by it.
        first_after_L = self.removed_L - torch.arange(len(self.removed_L))
        inside_I = index_I + torch.searchsorted(first_after_L, index_I, right=True)
        if len(self.added_J) == 0:
            return inside_I
        stayed = self.population - len(self.removed_L)
        outside_I = self.added_J[(index_I - stayed).clamp(min=0)]
        return torch.where(index_I < stayed, inside_I, outside_I)

    def ids(self) -> Tensor:
        """All members, sorted. Its cost grows with the number of members: for rounds that ask all of them."""
        every_I = torch.arange(len(self))
        return self.at(every_I) if len(self.removed_L) or len(self.added_J) else every_I

    def join(self, client: int) -> Members:
        if client < 0:
            raise UserError(f"client {client} cannot join: ids start at 0")
        if client in self:
            raise UserError(f"client {client} cannot join: it is a member already")
        return self.plus(torch.tensor([client]))

    def leave(self, client: int) -> Members:
        if client not in self:
            raise UserError(f"client {client} cannot leave: it is not a member (the population has {self.population})")
        return self.minus(torch.tensor([client]))

    def plus(self, client_I: Tensor) -> Members:
        """With these clients added, whether they are members already or not.

        >>> Members(4).minus(torch.tensor([0, 2])).plus(torch.tensor([2, 3, 7])).ids()
        tensor([1, 2, 3, 7])
        """
        back_L = _is_in(self.removed_L, _sorted_ids(client_I))
        return Members(
            self.population, self.removed_L[~back_L], torch.cat([self.added_J, client_I[client_I >= self.population]])
        )

    def minus(self, client_I: Tensor) -> Members:
        """Without these clients, whether they are members or not."""
        gone_J = _is_in(self.added_J, _sorted_ids(client_I))
        return Members(
            self.population, torch.cat([self.removed_L, client_I[client_I < self.population]]), self.added_J[~gone_J]
        )
