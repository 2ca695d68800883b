"""`Pooled`: a federation with all samples in one pool of tensors, and a list of row numbers for each client.

Shape letters: N clients of the population, C clients of a cohort, S samples of a pool, R rows (samples listed client
after client).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from turnout.data.columns import Encoding
from turnout.data.federation import CentralSet, Device, digest
from turnout.data.labels import Public
from turnout.data.lru_cache import LRUCache
from turnout.tasks import Standardised
from turnout.types import Samples
from turnout.world.members import Members


@dataclass(frozen=True, eq=False)
class Rows:
    """Which rows of a pool each client owns: client c has `count_N[c]` entries of `row_R`, from `start_N[c]` on.

    Counts and starts stay on the CPU, where cohorts are drawn; `row_R` is on the pool's device.
    """

    row_R: Tensor
    count_N: Tensor
    start_N: Tensor

    @staticmethod
    def of(rows_N: Sequence[Tensor]) -> Rows:
        """Join one list of row numbers per client.

        >>> Rows.of([torch.tensor([4, 2]), torch.tensor([7])]).take(torch.tensor([1, 0]))
        (tensor([7, 4, 2]), tensor([1, 2]))
        """
        count_N = torch.tensor([len(rows) for rows in rows_N], dtype=torch.int64)
        row_R = torch.cat([rows.to(torch.int64) for rows in rows_N]) if len(rows_N) else count_N
        return Rows(row_R, count_N, count_N.cumsum(0) - count_N)

    def take(self, client_C: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of some clients, one after the other, and how many each has."""
        client_C, device = client_C.cpu(), self.row_R.device
        if len(client_C) == len(self.count_N) and torch.equal(client_C, torch.arange(len(client_C))):
            return self.row_R, self.count_N.to(device)  # all clients in order: nothing to gather
        count_C, from_C = self.count_N[client_C], self.start_N[client_C]
        total = int(count_C.sum())
        # Row r of the result is entry r + shift of row_R, with one shift per client.
        shift_C = (from_C - (count_C.cumsum(0) - count_C)).to(device)
        count_C = count_C.to(device)
        shift_R = torch.repeat_interleave(shift_C, count_C, output_size=total)
        return self.row_R[shift_R + torch.arange(total, device=device)], count_C


@dataclass(frozen=True, eq=False)
class Pooled:
    """A federation with all samples in one pool of tensors; a round only lists row numbers and copies no samples.

    `test_rows` are rows of `test_x` and `test_y` if those are given (an official test set divided among the clients),
    else of the training pool. `central` is what global metrics can be measured on: the official test set, or all
    clients' test samples one after another (`pool_tests`). `official` says that it is not divided among the clients:
    then the members' labels say which of it is used. `standardised` says how targets were, where they were; `encoding`
    how the rows of a table became inputs, and `note` the same in a sentence; `words` is a hash of the list by which
    words were numbered.
    """

    x: Tensor
    y: Tensor
    train_rows: Rows
    test_rows: Rows
    classes: int
    labels: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    test_x: Tensor | None = None
    test_y: Tensor | None = None
    central: tuple[Tensor, Tensor] | None = None
    cluster_N: Tensor | None = None
    official: bool = False
    noisy_N: Tensor | None = None
    public: Public | None = None
    standardised: Standardised | None = None
    encoding: Encoding | None = None
    note: str = ""
    words: str = ""
    found: LRUCache = field(default_factory=lambda: LRUCache(64 * 2**20), init=False, repr=False)  # rows by members

    @property
    def clients(self) -> int:
        return len(self.train_rows.count_N)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def examples(self, client_C: Tensor) -> Tensor:
        return self.train_rows.count_N[client_C.cpu()].to(client_C.device)

    def train(self, client_C: Tensor, t: int = 0) -> Samples:
        return Samples(self.x, self.y, *self.train_rows.take(client_C))

    def test(self, client_C: Tensor, t: int = 0) -> Samples:
        x = self.x if self.test_x is None else self.test_x
        y = self.y if self.test_y is None else self.test_y
        return Samples(x, y, *self.test_rows.take(client_C))

    def central_test(self, members: Members | None = None) -> tuple[Tensor, Tensor] | None:
        if self.central is None:
            return None
        x, y = self.central
        row_R = self.central_rows(members)
        return (x, y) if len(row_R) == len(y) else (x[row_R], y[row_R])

    def central_set(self, members: Members | None = None) -> CentralSet | None:
        if self.central is None:
            return None
        row_R = self.central_rows(members)
        return CentralSet(len(row_R), "samples", digest(row_R))

    def central_rows(self, members: Members | None = None) -> Tensor:
        """Which rows of `central` these members are tested on, sorted where the set is an official one."""
        key = None if members is None or len(members) == self.clients else members
        row_R: Tensor | None = self.found.get(key)
        if row_R is None:
            row_R = self._central_rows(torch.arange(self.clients) if key is None else key.ids())
            self.found.put(key, row_R, row_R.numel() * row_R.element_size())
        return row_R

    def _central_rows(self, client_I: Tensor) -> Tensor:
        assert self.central is not None
        y = self.central[1]
        if self.test_x is not None:  # an official set divided among the clients
            return self.test_rows.take(client_I)[0].sort().values.to(y.device)
        if not self.official:
            place = Rows(torch.arange(len(y), device=y.device), self.test_rows.count_N, self.test_rows.start_N)
            return place.take(client_I)[0]
        if y.ndim != 1 or y.is_floating_point():
            return torch.arange(len(y), device=y.device)
        train = self.train(client_I)
        return torch.isin(y, train.y[train.row_R].unique()).nonzero().squeeze(1)

    def groups(self) -> Tensor | None:
        return self.cluster_N

    def noisy(self) -> Tensor | None:
        return self.noisy_N

    def to(self, device: Device) -> Pooled:
        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        return replace(
            self,
            x=self.x.to(device),
            y=self.y.to(device),
            test_x=moved(self.test_x),
            test_y=moved(self.test_y),
            central=None if self.central is None else (self.central[0].to(device), self.central[1].to(device)),
            public=None if self.public is None else self.public.to(device),
        )

    def fingerprint(self) -> str:
        sampled = torch.linspace(0, max(len(self.x) - 1, 0), min(len(self.x), 256)).long().to(self.x.device)
        return digest(
            repr((self.clients, tuple(self.x.shape), self.classes)),
            self.train_rows.count_N,
            self.train_rows.row_R,
            self.test_rows.row_R,
            self.x[sampled],
            self.y[sampled],
        )


def pool_tests(federation: Pooled) -> Pooled:
    """The same federation with all clients' test samples together as the central test set."""
    everyone = federation.test(torch.arange(federation.clients))
    if not len(everyone.row_R):
        return federation
    return replace(federation, central=(everyone.x[everyone.row_R], everyone.y[everyone.row_R]))
