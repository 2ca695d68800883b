"""Who holds which data: the promises of a `Federation` and of a data set; and `Pooled`, a federation with all samples
in one pool of tensors and a list of row numbers for each client.

Shape letters: N clients of the population, C clients of a cohort, S samples of a pool, R rows (samples listed client
after client).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from turnout.data.columns import Encoding
from turnout.data.labels import Public
from turnout.inputs import tensors_of
from turnout.machine.checksums import content
from turnout.tasks import Standardised
from turnout.types import Samples
from turnout.world.members import Members

Device = torch.device | str


class Federation(Protocol):
    """Who holds which data.

    clients       how many; they are 0 .. clients - 1
    input_shape   the shape of one sample; of its first input, if it has several
    classes       the number of outputs a model needs
    labels        the names of the classes; none for regression
    names         the clients' names, if the data has owners
    public        samples that every client may see, and each client's own labels, for the exchange of scores

    A federation may also have `groups` (the cluster of each client [N]), `noisy` (whether noise was added to each
    client's training samples [N]), `standardised` (how its targets were standardised), `encoding` (of a table's
    columns), `words` (a hash of the list that numbers words) and `note` (a sentence about how files became samples).
    """

    @property
    def clients(self) -> int: ...
    @property
    def input_shape(self) -> tuple[int, ...]: ...
    @property
    def classes(self) -> int: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def names(self) -> tuple[str, ...] | None: ...
    @property
    def public(self) -> Public | None: ...

    def examples(self, client_C: Tensor) -> Tensor:
        """How many training samples each of these clients has (int64); must not touch other clients."""
        ...

    def train(self, client_C: Tensor, t: int) -> Samples:
        """The clients' training samples in round t; only streams change with t."""
        ...

    def test(self, client_C: Tensor, t: int) -> Samples:
        """Each client's own held-out samples (a client may have none)."""
        ...

    def central_test(self, members: Members | None = None) -> tuple[Tensor, Tensor] | None:
        """The test set for global metrics if the objective is over these members (None: all clients); None without one.

        It is the members' own test samples together. If the data has an official test set, it is those of its samples
        whose label a member holds (all of them if targets are not labels): a label that no client holds is never
        tested, even if all clients are members.
        """
        ...

    def to(self, device: Device) -> Federation:
        """The same federation with its data on a device."""
        ...

    def fingerprint(self) -> str:
        """A short hash that changes when the data does."""
        ...


class DataSpec(Protocol):
    """A data set in an experiment's settings: a frozen object that loads a federation."""

    def load(self, seed: int, data_dir: Path | None) -> Federation: ...


def digest(*parts: str | Tensor) -> str:
    """A hash of texts and tensors, the same on every device.

    >>> digest("a", torch.zeros(2)) == digest("a", torch.zeros(3))
    False
    """
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        for value in [part] if isinstance(part, str) else tensors_of(part):
            hasher.update(value.encode() if isinstance(value, str) else content(value))
    return hasher.hexdigest()


def central_change(federation: Federation, before: Members, after: Members) -> str | None:
    """In words, how the central test set changes with the members; None where it stays."""
    old, new = federation.central_test(before), federation.central_test(after)
    counts = [0 if found is None else len(found[1]) for found in (old, new)]
    if old is new or (old and new and counts[0] == counts[1] and digest(old[0]) == digest(new[0])):
        return None
    return f"{counts[0]:,} -> {counts[1]:,} {'other ' if counts[0] == counts[1] else ''}samples"


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
    groups         the cluster of each client [N], if the partition has clusters
    official       whether `central` is an official set that is not divided: the members' labels then select from it
    noisy          whether each client's training samples were disturbed [N]
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
    groups: Tensor | None = None
    official: bool = False
    noisy: Tensor | None = None
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
        row_R = self._central_rows(y, members)
        return self.central if len(row_R) == len(y) else (x[row_R], y[row_R])

    def _central_rows(self, y: Tensor, members: Members | None) -> Tensor:
        """Which rows of `central` these members are tested on, sorted where the set is an official one."""
        key = None if members is None or len(members) == self.clients else members
        row_R: Tensor | None = self.found.get(key)
        if row_R is not None:
            return row_R
        client_I = torch.arange(self.clients) if key is None else key.ids()
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

    def to(self, device: Device) -> Pooled:
        moved: dict[str, Any] = {
            name: value.to(device)
            for name in ("x", "y", "test_x", "test_y", "public")
            if (value := getattr(self, name)) is not None
        }
        if self.central is not None:
            moved["central"] = (self.central[0].to(device), self.central[1].to(device))
        return replace(self, **moved)

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
