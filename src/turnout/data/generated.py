"""`Generated`: a federation whose data is made on demand, so that clients that are not asked cost nothing.

Shape letters: C clients of a cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from turnout.data.federation import Device, LRUCache, Pooled, Rows, digest, pool_tests
from turnout.data.labels import Public
from turnout.errors import UserError
from turnout.rng import rng
from turnout.tasks import Standardised
from turnout.types import Samples
from turnout.world.members import Members


class ClientData(NamedTuple):
    """One client's samples.

    x, y             for training
    test_x, test_y   for testing
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    def to(self, device: Device) -> ClientData:
        return ClientData(*(part.to(device) for part in self))

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self)


@dataclass(frozen=True, eq=False)
class Generated:
    """A federation whose data is made on demand.

    make              (client, round) -> one client's data
    clients           how many
    input_shape       the shape of one sample
    classes           the number of outputs a model needs
    labels            the names of the classes; none for regression
    names             the clients' names
    count             clients -> their training sizes; None to count the data itself, of a stream that of round 0
    cohort            (clients, round) -> training and test samples of many clients at once, as rows of one pool: for
                      data that is faster to make again than to cache, only the last cohort is kept
    changes           whether the data is a stream, other samples in every round
    central_clients   how many clients' test samples make up the central test set: those of all clients if there are no
                      more than that, else of a fixed random sample; 0 for none
    device            where samples are
    public            samples that every client may see
    standardised      how targets were standardised, if they were
    mark              the fingerprint; None for a hash of the first and last client's data
    recent            clients' data that was made last
    joined            the last cohort's samples
    central           central test sets by their clients
    """

    make: Callable[[int, int], ClientData]
    clients: int
    input_shape: tuple[int, ...]
    classes: int
    labels: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    count: Callable[[Tensor], Tensor] | None = None
    cohort: Callable[[Sequence[int], int], tuple[Samples, Samples]] | None = None
    changes: bool = False
    central_clients: int = 200
    device: Device = "cpu"
    public: Public | None = None
    standardised: Standardised | None = None
    mark: str | None = None
    recent: LRUCache = field(default_factory=lambda: LRUCache(256 * 2**20), repr=False)
    joined: LRUCache = field(default_factory=lambda: LRUCache(0), repr=False)
    central: LRUCache = field(default_factory=lambda: LRUCache(256 * 2**20), init=False, repr=False)

    def examples(self, client_C: Tensor) -> Tensor:
        self._check(client_C)
        if self.count is not None:
            return self.count(client_C)
        return torch.tensor([len(self.client(c, 0).x) for c in client_C.tolist()], device=client_C.device)

    def _check(self, client_C: Tensor) -> None:
        outside = client_C[(client_C < 0) | (client_C >= self.clients)]
        if len(outside):
            raise UserError(f"there is no client {int(outside[0])}: the data has clients 0 to {self.clients - 1}")

    def client(self, c: int, t: int) -> ClientData:
        """One client's data, cached or made now."""
        address = (c, t if self.changes else 0)
        data = self.recent.get(address)
        if data is None:
            data = self.make(*address).to(self.device)
            self.recent.put(address, data, data.bytes)
        return data

    def train(self, client_C: Tensor, t: int = 0) -> Samples:
        return self._joined(client_C, t)[0]

    def test(self, client_C: Tensor, t: int = 0) -> Samples:
        return self._joined(client_C, t)[1]

    def central_test(self, members: Members | None = None) -> tuple[Tensor, Tensor] | None:
        ids = self._central_ids(members)
        if not ids:
            return None
        pool = self.central.get(ids)
        if pool is None:
            parts = [self.client(c, 0) for c in ids]
            pool = torch.cat([d.test_x for d in parts]), torch.cat([d.test_y for d in parts])
            self.central.put(ids, pool, sum(part.numel() * part.element_size() for part in pool))
        return pool if len(pool[0]) else None

    def _central_ids(self, members: Members | None) -> tuple[int, ...]:
        """The members among the fixed sample of clients whose test samples are central."""
        if not self.central_clients:
            return ()
        if self.clients <= self.central_clients:
            sample_I = torch.arange(self.clients)
        else:  # the sample belongs to the data, not to an experiment, so it does not depend on the seed
            g = rng(0, "central test", self.clients)
            sample_I = torch.randint(self.clients, (self.central_clients,), generator=g).unique()
        return tuple((sample_I if members is None else sample_I[members.which(sample_I)]).tolist())

    def to(self, device: Device) -> Generated:
        public = None if self.public is None else self.public.to(device)
        return replace(self, device=device, public=public, recent=LRUCache(self.recent.limit), joined=LRUCache(0))

    def fingerprint(self) -> str:
        if self.mark is not None:
            return self.mark
        first, last = self.client(0, 0), self.client(self.clients - 1, 0)
        return digest(repr((self.clients, self.input_shape, self.classes)), *first, *last)

    def pooled(self) -> Pooled:
        """The same data in one pool: better for a small population, because rounds then copy no samples."""
        parts = [self.client(c, 0) for c in range(self.clients)]
        x = torch.cat([part for d in parts for part in (d.x, d.test_x)])
        y = torch.cat([part for d in parts for part in (d.y, d.test_y)])
        cuts = [n for d in parts for n in (len(d.x), len(d.test_x))]
        pieces = torch.arange(len(x), device=x.device).split(cuts)
        train, test = Rows.of(pieces[0::2]), Rows.of(pieces[1::2])
        return pool_tests(Pooled(x, y, train, test, self.classes, self.labels, self.names))

    def _joined(self, client_C: Tensor, t: int) -> tuple[Samples, Samples]:
        """A cohort's training and test samples; the last cohort is cached, because a round often needs it twice."""
        ids = tuple(client_C.tolist())
        address = (ids, t if self.changes else 0)
        found = self.joined.get("last")
        if found is None or found[0] != address:
            self._check(client_C)
            self.joined.put("last", None, 0)  # free the old cohort's memory before the next one is made
            if self.cohort is not None:
                made = self.cohort(ids, t)
            else:
                parts = [self.client(c, t) for c in ids]
                made = _join([(d.x, d.y) for d in parts]), _join([(d.test_x, d.test_y) for d in parts])
            found = (address, *(samples.to(torch.device(self.device)) for samples in made))
            self.joined.put("last", found, 0)
        return found[1], found[2]


def _join(parts: list[tuple[Tensor, Tensor]]) -> Samples:
    """One pool with only these clients' samples."""
    x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    count_C = torch.tensor([len(own) for _, own in parts])
    return Samples(x, y, torch.arange(len(x)), count_C)
