"""The clients of a federation under other numbers: in the order of a list of names, or a single one on a device.

Draws are addressed by a client's number, so a deployment is replayed with the numbers that its devices were given.

Shape letters: C clients asked for, N clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from turnout.data.federation import DataSpec, Device, Federation
from turnout.data.labels import Public
from turnout.errors import UserError
from turnout.machine.table_files import open_table
from turnout.types import Samples
from turnout.world.enrolment import ClientNames
from turnout.world.members import Members


@dataclass(frozen=True, eq=False)
class Renumbered:
    """A federation whose clients have other numbers; shapes, labels and notes are those of the federation.

    federation   the data under its own numbers
    inside       client numbers -> their numbers in `federation`
    clients      how many there are under the new numbers
    names        their names
    """

    federation: Federation
    inside: Callable[[Tensor], Tensor]
    clients: int
    names: tuple[str, ...] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "federation":
            raise AttributeError(name)
        return getattr(self.federation, name)

    @property
    def public(self) -> Public | None:
        public = self.federation.public
        if public is None:
            return None
        return replace(public, label_set=lambda client, t: public.label_set(int(self.inside(torch.tensor(client))), t))

    def examples(self, client_C: Tensor) -> Tensor:
        return self.federation.examples(self.inside(client_C))

    def train(self, client_C: Tensor, t: int) -> Samples:
        return self.federation.train(self.inside(client_C), t)

    def test(self, client_C: Tensor, t: int) -> Samples:
        return self.federation.test(self.inside(client_C), t)

    def _members(self, members: Members | None) -> Members:
        ids = torch.arange(self.clients) if members is None else members.ids()
        here = torch.zeros(self.federation.clients, dtype=torch.bool)
        here[self.inside(ids[ids < self.clients])] = True
        return Members(self.federation.clients, (~here).nonzero().squeeze(1))

    def central_test(self, members: Members | None = None) -> tuple[Tensor, Tensor] | None:
        return self.federation.central_test(self._members(members))

    def to(self, device: Device) -> Renumbered:
        return replace(self, federation=self.federation.to(device))

    @property
    def groups(self) -> Tensor | None:
        return self._of_clients("groups")

    @property
    def noisy(self) -> Tensor | None:
        return self._of_clients("noisy")

    def _of_clients(self, name: str) -> Tensor | None:
        found_N = getattr(self.federation, name, None)
        return None if found_N is None else found_N[self.inside(torch.arange(self.clients))]


def alone(federation: Federation, client: int | str) -> Federation:
    """One client of a federation, under any number."""
    number = ClientNames(federation.names, federation.clients).number(client)
    if number is None and federation.clients == 1:
        number = 0  # data of a single client is that client's
    if number is None:
        known = f"clients 0 to {federation.clients - 1}" if federation.names is None else "other names"
        raise UserError(
            f"world.data has no client {client!r}, it has {known}: name one of them, or give the device its own data"
        )
    return cast(Federation, Renumbered(federation, lambda client_C: torch.full_like(client_C, number), 1))


@dataclass(frozen=True)
class InOrder:
    """Data whose clients are numbered by a list of names, as the devices of a deployment were.

    data   the data set
    path   a CSV of `client,name`
    """

    data: DataSpec
    path: str

    def load(self, seed: int, data_dir: Path | None) -> Federation:
        federation, table = self.data.load(seed, data_dir), open_table(Path(self.path))
        rows = table.read(strip=False).cells
        if table.header != ["client", "name"] or rows["client"] != [str(i) for i in range(len(rows["client"]))]:
            raise UserError(
                f"{self.path}: a list of names has the header `client,name` and the numbers 0, 1, 2 in order"
            )
        names = rows["name"]
        known = ClientNames(federation.names, federation.clients)
        numbers = [known.number(name) for name in names]
        for name, number in zip(names, numbers, strict=True):
            if number is None:
                raise UserError(f"{self.path} names {name!r}, and the data has no such client")
        inside_N = torch.tensor(numbers, dtype=torch.int64)
        return cast(Federation, Renumbered(federation, lambda client_C: inside_N[client_C], len(names), tuple(names)))


KINDS = {"in-order": InOrder}
