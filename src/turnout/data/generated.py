"""`Generated`: a federation whose data is made on demand, so that clients that are not asked cost nothing.

A function of (client, round) makes one client's data. Recent results are cached up to a number of bytes; the samples of
a cohort are joined into one pool.

Shape letters: C clients of a cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from turnout.data.federation import CentralSet, Device, check_clients, digest
from turnout.data.labels import Public
from turnout.data.lru_cache import LRUCache
from turnout.data.pooled import Pooled, Rows, pool_tests
from turnout.rng import rng
from turnout.types import Samples
from turnout.world.members import Members


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside the block: in many small operations more threads only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class ClientData(NamedTuple):
    """One client's samples: for training and for testing."""

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
    """A federation made on demand: `make(client, t)` gives one client's data, `count(client_C)` the training sizes.

    `cohort(clients, t)`, if given, makes the training and test samples of many clients at once, as rows of one pool. It
    is for data that is faster to make again than to cache: only the last cohort is kept. Without `count`, sizes are
    counted on the data itself, for a stream (`changes`) in round 0. `central_clients` is how many clients' test samples
    make up the central test set: all clients' if there are no more than that, else a fixed random sample's; 0 for none.
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
    recent: LRUCache = field(default_factory=lambda: LRUCache(256 * 2**20), repr=False)
    joined: LRUCache = field(default_factory=lambda: LRUCache(0), repr=False)
    central: LRUCache = field(default_factory=lambda: LRUCache(256 * 2**20), init=False, repr=False)

    def examples(self, client_C: Tensor) -> Tensor:
        check_clients(client_C, self.clients)
        if self.count is not None:
            return self.count(client_C)
        return torch.tensor([len(self.client(c, 0).x) for c in client_C.tolist()], device=client_C.device)

    def client(self, c: int, t: int) -> ClientData:
        """One client's data, from the cache or made now."""
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

    def central_set(self, members: Members | None = None) -> CentralSet | None:
        """Counted by clients: their samples need not be made for it."""
        ids = self._central_ids(members)
        return CentralSet(len(ids), "clients' samples", ids) if ids else None

    def _central_ids(self, members: Members | None) -> tuple[int, ...]:
        """Whose test samples are central: those of the fixed sample who are members. Others are not looked at."""
        if not self.central_clients:
            return ()
        sample_I = self._central_sample()
        return tuple((sample_I if members is None else sample_I[members.which(sample_I)]).tolist())

    def _central_sample(self) -> Tensor:
        if self.clients <= self.central_clients:
            return torch.arange(self.clients)
        # The sample belongs to the data, not to an experiment, so it does not depend on the seed.
        g = rng(0, "central test", self.clients)
        return torch.randint(self.clients, (self.central_clients,), generator=g).unique()

    def groups(self) -> Tensor | None:
        return None

    def noisy(self) -> Tensor | None:
        return None

    def to(self, device: Device) -> Generated:
        public = None if self.public is None else self.public.to(device)
        return replace(self, device=device, public=public, recent=LRUCache(self.recent.limit), joined=LRUCache(0))

    def fingerprint(self) -> str:
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
            check_clients(client_C, self.clients)
            self.joined.put("last", None, 0)  # free the old cohort's memory before the next one is made
            found = (address, *(samples.to(torch.device(self.device)) for samples in self._made(ids, t)))
            self.joined.put("last", found, 0)
        return found[1], found[2]

    def _made(self, ids: Sequence[int], t: int) -> tuple[Samples, Samples]:
        if self.cohort is not None:
            return self.cohort(ids, t)
        parts = [self.client(c, t) for c in ids]
        train, test = [(d.x, d.y) for d in parts], [(d.test_x, d.test_y) for d in parts]
        return _join(train), _join(test)


def _join(parts: list[tuple[Tensor, Tensor]]) -> Samples:
    """One pool with only these clients' samples."""
    x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    count_C = torch.tensor([len(own) for _, own in parts])
    return Samples(x, y, torch.arange(len(x)), count_C)
