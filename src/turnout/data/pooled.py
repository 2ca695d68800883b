"""`Pooled`: a federation with all samples in one pool of tensors, and a list of row numbers for each client.

Shape letters: N clients of the population, C clients of a cohort, S samples of a pool, R rows (samples listed client
after client).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from turnout.data.columns import Encoding
from turnout.data.federation import CentralSet, Device, digest
from turnout.data.labels import Public
from turnout.tasks import Standardised
from turnout.types import Samples
from turnout.world.members import Members


class LRUCache:
    """A least-recently-used cache of at most `limit` bytes, but always with the last entry; a copy sent to another
    process starts empty.

    >>> cache = LRUCache(limit=10)
    >>> for name in ("a", "b", "c"):
    ...     cache.put(name, name.upper(), size=5)
    >>> cache.get("a"), cache.get("b")
    (None, 'B')
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self.values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable) -> Any | None:
        if key not in self.values:
            return None
        self.values.move_to_end(key)
        return self.values[key][0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        self.held -= self.values.pop(key, (None, 0))[1]
        self.values[key] = (value, size)
        self.held += size
        while self.held > self.limit and len(self.values) > 1:
            self.held -= self.values.popitem(last=False)[1][1]

    def __reduce__(self) -> tuple[type[LRUCache], tuple[int]]:
        return LRUCache, (self.limit,)


@dataclass(frozen=True, eq=False)
class Rows:
    """Which rows of a pool each client owns.

    row_R     the row numbers of all clients, one client after another; on the pool's device
    count_N   how many entries of `row_R` each client has; on the CPU, where cohorts are drawn
    start_N   the first entry of each client; on the CPU
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

    x, y           samples and targets
    train_rows     each client's training rows
    test_rows      each client's test rows, of `test_x` and `test_y` if those are given, else of `x` and `y`
    classes        the number of outputs a model needs
    labels         the names of the classes; none for regression
    names          the clients' names, if the data has owners
    test_x, test_y an official test set that is divided among the clients
    central        the samples of global metrics: the official test set, or all clients' test samples one after another
                   (`pool_tests`)
    cluster_N      the cluster of each client, if the partition has clusters
    official       whether `central` is an official set that is not divided: the members' labels then select from it
    noisy_N        whether each client's training samples were disturbed
    public         samples that every client may see
    standardised   how targets were standardised, if they were
    encoding       how the rows of a table became inputs
    note           the same in a sentence
    words          a hash of the list that numbers words
    found          rows of `central` by members
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
    found: LRUCache = field(default_factory=lambda: LRUCache(64 * 2**20), init=False, repr=False)

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
        assert self.central is not None
        key = None if members is None or len(members) == self.clients else members
        row_R: Tensor | None = self.found.get(key)
        if row_R is not None:
            return row_R
        y, client_I = self.central[1], torch.arange(self.clients) if key is None else key.ids()
        all_R = torch.arange(len(y), device=y.device)
        if self.test_x is not None:  # an official set divided among the clients
            row_R = self.test_rows.take(client_I)[0].sort().values.to(y.device)
        elif not self.official:
            row_R = Rows(all_R, self.test_rows.count_N, self.test_rows.start_N).take(client_I)[0]
        elif y.ndim != 1 or y.is_floating_point():
            row_R = all_R
        else:
            train = self.train(client_I)
            row_R = torch.isin(y, train.y[train.row_R].unique()).nonzero().squeeze(1)
        self.found.put(key, row_R, row_R.numel() * row_R.element_size())
        return row_R

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
