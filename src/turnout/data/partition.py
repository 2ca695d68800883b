"""Partitions: which samples of a pool belong to which client. Small frozen objects with a method `split`.

Most divide each label by a matrix of weights, client by label. Without wanted sizes all rows of a label are given out,
in proportion to its column; with them a client's mix of labels follows its row, as far as the samples suffice.

Shape letters: S samples of the pool, C clients, L labels that occur, K classes or shards of a client, O owners.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError, nearest
from turnout.rng import key, rng, uniform

ATTEMPTS = 100  # draws of proportions, until every client has enough samples


class Partition(Protocol):
    """A rule that gives the rows of a pool to clients.

    One whose clients are in clusters also has `clusters_of_clients(clients)`, which `Stratified` uses.
    """

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        """The row numbers of each client: disjoint, at least one each.

        `want_C` is how many samples each client should have (a data set's `sizes`); None gives out all of them.
        """
        ...


class _LabelShares(ABC):
    """A partition by weights, client by label; a client must get a sample of each label that it has weight for."""

    @abstractmethod
    def weights(self, clients: int, labels: int, seed: int) -> Tensor:
        """The weight of each label for each client [C, L]."""

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        code_S, pool_L = label_pools(label_S, type(self).__name__)
        weight_CL = self.weights(clients, len(pool_L), seed)
        count_CL = label_counts(weight_CL, pool_L, want_C)
        missing = ((weight_CL > 0) & (count_CL == 0)).nonzero()
        if len(missing):
            client, label = missing[0].tolist()
            holders = int((weight_CL[:, label] > 0).sum())
            raise UserError(
                f"{self}: client {client} gets no sample of label {label}, whose {int(pool_L[label])} samples are "
                f"shared by {holders} clients; use fewer clients, or larger sizes if they are tiny"
            )
        return pick_rows(code_S, count_CL, seed)


@dataclass(frozen=True)
class IID:
    """Every client has a random part of all samples.

    stratified   all clients have the same share of every label (paper 004)

    >>> [sorted(rows.tolist()) for rows in IID().split(torch.zeros(4), None, clients=2, seed=0)]
    [[0, 2], [1, 3]]
    """

    stratified: bool = False

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        labels = label_S if self.stratified else torch.zeros(len(label_S), dtype=torch.int64)
        code_S, pool_L = label_pools(labels, "IID(stratified=True)")
        return _given(pick_rows(code_S, label_counts(pool_L.expand(clients, -1), pool_L, want_C), seed), "IID")


@dataclass(frozen=True)
class OneLabel(_LabelShares):
    """Each client has one label, chosen uniformly at random (paper 000); the clients of a label share its samples.

    A label that no client has drawn stays unused; `Classes(per_client=1)` spreads the labels evenly instead.
    """

    def weights(self, clients: int, labels: int, seed: int) -> Tensor:
        label_C = (uniform(seed, "partition", "label", ids=torch.arange(clients)) * labels).long()
        return torch.nn.functional.one_hot(label_C, labels)


@dataclass(frozen=True)
class Classes(_LabelShares):
    """Each client has exactly `per_client` classes, with equal numbers of each when sizes are given: non-IID(m).

    Without sizes the holders of a class share all of its samples equally.

    per_client   how many classes
    pick         "consecutive": a random first class and the ones that follow it, as in the origin of sparse ternary
                 compression; first classes are dealt like cards, so that all classes have equally many holders, up to
                 one. "random": any classes, independently for each client (paper 004); a class may stay unused
    """

    per_client: int = 2
    pick: str = "consecutive"

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise UserError(f"Classes(per_client={self.per_client}): a client has at least 1 class")
        if self.pick not in ("consecutive", "random"):
            raise UserError(f"Classes(pick={self.pick!r}): {nearest(self.pick, ['consecutive', 'random'])}")

    def weights(self, clients: int, labels: int, seed: int) -> Tensor:
        if self.per_client > labels:
            raise UserError(f"Classes(per_client={self.per_client}): the data has only {labels} classes")
        g = rng(seed, "partition", "classes")
        if self.pick == "random":
            class_CK = torch.rand(clients, labels, generator=g).topk(self.per_client, dim=1).indices
        else:
            first_C = torch.randperm(labels, generator=g)[torch.randperm(clients, generator=g) % labels]
            class_CK = (first_C[:, None] + torch.arange(self.per_client)) % labels
        return torch.zeros(clients, labels).scatter_(1, class_CK, 1.0)


@dataclass(frozen=True)
class Dirichlet:
    """Each label is divided among the clients by proportions p ~ Dirichlet(alpha); with sizes, a client's mix of labels
    follows its p.

    alpha      the smaller, the fewer labels a client has
    min_size   proportions are drawn again until every client has so many samples
    """

    alpha: float = 0.5
    min_size: int = 1

    def __post_init__(self) -> None:
        if self.alpha <= 0 or self.min_size < 1:
            raise UserError("Dirichlet needs alpha > 0 and min_size >= 1")

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        code_S, pool_L = label_pools(label_S, "Dirichlet")
        for attempt in range(ATTEMPTS):
            # Columns ~ Dirichlet(alpha), computed in logarithms: for a small alpha the gamma draws underflow.
            draws = np.random.default_rng(key(seed, "partition", "dirichlet", attempt) & (2**63 - 1))
            gamma = draws.standard_gamma(self.alpha + 1, (clients, len(pool_L)))
            log = np.log(gamma) + np.log(1 - draws.random((clients, len(pool_L)))) / self.alpha
            count_CL = label_counts(torch.from_numpy(log).softmax(0), pool_L, want_C)
            if int(count_CL.sum(1).min()) >= self.min_size:
                return pick_rows(code_S, count_CL, seed)
        raise UserError(
            f"Dirichlet(alpha={self.alpha}): in {ATTEMPTS} draws some of the {clients} clients always "
            f"had fewer than {self.min_size} of {len(label_S)} samples; raise alpha or use fewer clients"
        )


@dataclass(frozen=True)
class Clustered(_LabelShares):
    """Clients in equal clusters; each cluster has its own classes, drawn without replacement (paper 003).

    Clients 0, 1, ... are the first cluster, the next ones the second. Samples are given out without replacement too.

    clusters              how many
    classes_per_cluster   how many classes each has
    """

    clusters: int = 5
    classes_per_cluster: int = 2

    def __post_init__(self) -> None:
        if self.clusters < 1 or self.classes_per_cluster < 1:
            raise UserError("Clustered needs at least 1 cluster and at least 1 class per cluster")

    def weights(self, clients: int, labels: int, seed: int) -> Tensor:
        needed = self.clusters * self.classes_per_cluster
        if needed > labels:
            raise UserError(
                f"Clustered: {self.clusters} clusters of {self.classes_per_cluster} classes need {needed} "
                f"classes, and the data has {labels}: use fewer clusters or fewer classes in each"
            )
        order_L = torch.randperm(labels, generator=rng(seed, "partition", "clusters"))[:needed]
        class_CK = order_L.view(self.clusters, -1)[self.clusters_of_clients(clients)]
        return torch.zeros(clients, labels).scatter_(1, class_CK, 1.0)

    def clusters_of_clients(self, clients: int) -> Tensor:
        """The cluster of each client.

        >>> Clustered(clusters=2).clusters_of_clients(4)
        tensor([0, 0, 1, 1])
        """
        if clients < self.clusters:
            raise UserError(f"Clustered: {self.clusters} clusters need at least as many clients, not {clients}")
        return torch.arange(clients) * self.clusters // clients


@dataclass(frozen=True)
class Shards:
    """The samples sorted by label and cut into equal shards, of which each client gets some at random.

    per_client   how many shards a client gets
    shards       how many are cut in all; None for per_client x clients. Paper 003 cuts 200 (of 250 CIFAR-10 images
                 each), of which 20 clients take 2 each
    """

    per_client: int = 2
    shards: int | None = None

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise UserError(f"Shards(per_client={self.per_client}): a client has at least 1 shard")

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        label_pools(label_S, "Shards")
        used = self.per_client * clients
        shards = used if self.shards is None else self.shards
        if not used <= shards <= len(label_S):
            raise UserError(
                f"Shards: {clients} clients of {self.per_client} shards need {used} shards, and {shards} "
                f"are to be cut from {len(label_S)} samples; use fewer clients or change the number of shards"
            )
        g = rng(seed, "partition", "shards")
        mixed_S = torch.randperm(len(label_S), generator=g)
        sorted_S = mixed_S[label_S[mixed_S].argsort(stable=True)]
        cut = divide_pools(torch.ones(shards, 1), torch.tensor([len(label_S)])).squeeze(1)
        piece = sorted_S.split(cut.tolist())
        given_CK = torch.randperm(shards, generator=g)[:used].view(clients, self.per_client).sort(1).values
        rows_C = [torch.cat([piece[s] for s in shards_K]) for shards_K in given_CK.tolist()]
        return _given(rows_C, "Shards", want_C, seed)


@dataclass(frozen=True)
class Natural:
    """Each owner in the data is a client; with fewer clients than owners, the clients are a random choice of owners.

    min_size   owners with fewer samples are left out
    """

    min_size: int = 1

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        if owner_S is None:
            raise UserError("Natural needs data with owners: name an owner column, or use another partition")
        owners_O = self.owners(owner_S)
        if clients > len(owners_O):
            raise UserError(
                f"Natural: {clients} clients are asked for, and {len(owners_O)} owners have "
                f"{self.min_size} or more samples: ask for fewer clients, or lower min_size"
            )
        chosen = torch.randperm(len(owners_O), generator=rng(seed, "partition", "owners"))[:clients].sort().values
        order_S = owner_S.argsort(stable=True)
        start_C = torch.searchsorted(owner_S[order_S], owners_O[chosen])
        end_C = torch.searchsorted(owner_S[order_S], owners_O[chosen], right=True)
        rows_C = [order_S[a:b] for a, b in zip(start_C.tolist(), end_C.tolist(), strict=True)]
        return _given(rows_C, "Natural", want_C, seed)

    def owners(self, owner_S: Tensor) -> Tensor:
        owner_O, count_O = owner_S.unique(return_counts=True)
        return owner_O[count_O >= self.min_size]


def label_pools(label_S: Tensor, partition: str) -> tuple[Tensor, Tensor]:
    """The labels that occur, renumbered 0 .. L - 1 for each sample, and how many samples each has."""
    if label_S.ndim != 1 or label_S.is_floating_point():
        raise UserError(f"{partition} divides by label, and the targets here are not labels: use IID or Natural")
    _, code_S, count_L = label_S.unique(return_inverse=True, return_counts=True)
    return code_S, count_L


def divide_pools(weight_CL: Tensor, pool_L: Tensor) -> Tensor:
    """Divide all samples of every label among the clients, in proportion to their weights.

    >>> divide_pools(torch.tensor([[1.0], [1.0], [2.0]]), torch.tensor([10]))
    tensor([[2],
            [3],
            [5]])
    """
    weight_CL = weight_CL.double()
    total_L = weight_CL.sum(0)
    # Multiply before dividing: equal weights then give exact multiples, and no share is rounded down to 0.
    end_CL = (weight_CL.cumsum(0) * pool_L / total_L.clamp(min=1e-300)).round()
    end_CL[-1] = torch.where(total_L > 0, pool_L.double(), 0.0)
    return torch.diff(end_CL, dim=0, prepend=end_CL.new_zeros(1, len(pool_L))).long()


def label_counts(weight_CL: Tensor, pool_L: Tensor, want_C: Tensor | None) -> Tensor:
    """How many samples of each label each client gets [C, L]."""
    return divide_pools(weight_CL, pool_L) if want_C is None else fill_wishes(weight_CL, pool_L, want_C)


def fill_wishes(weight_CL: Tensor, pool_L: Tensor, want_C: Tensor) -> Tensor:
    """Give each client as many samples as it wants, in the proportions of its row, while a label has samples.

    If a label has too few, the clients that want the most of it get less (all the same number), the others what they
    want.

    >>> fill_wishes(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([50, 30]), torch.tensor([20, 90]))
    tensor([[10, 10],
            [ 0, 20]])
    """
    weight_CL = weight_CL.double()
    end_CL = (weight_CL.cumsum(1) * want_C[:, None] / weight_CL.sum(1, keepdim=True).clamp(min=1e-300)).round()
    end_CL[:, -1] = want_C.double()
    wish_CL = torch.diff(end_CL, dim=1, prepend=end_CL.new_zeros(len(want_C), 1)).long()
    wish_CL = torch.where(weight_CL > 0, wish_CL, 0)
    return torch.stack([_level(wish_C, int(pool)) for wish_C, pool in zip(wish_CL.unbind(1), pool_L, strict=True)], 1)


def _level(wish_C: Tensor, pool: int) -> Tensor:
    """min(wish, v) with the largest whole number v for which the sum is at most `pool`."""
    if int(wish_C.sum()) <= pool:
        return wish_C
    low, high = 0, pool
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int(wish_C.clamp(max=middle).sum()) <= pool else (low, middle - 1)
    return wish_C.clamp(max=low)


def pick_rows(code_S: Tensor, count_CL: Tensor, seed: int) -> list[Tensor]:
    """Random rows for each client, as many of each label as `count_CL` says, each row at most once."""
    rows, owners = [], []
    for label, count_C in enumerate(count_CL.unbind(1)):
        row_S = (code_S == label).nonzero().squeeze(1)
        row_S = row_S[torch.randperm(len(row_S), generator=rng(seed, "partition", "rows", label))]
        rows.append(row_S[: int(count_C.sum())])
        owners.append(torch.repeat_interleave(torch.arange(len(count_C)), count_C))
    order_R = torch.cat(owners).argsort(stable=True)
    return list(torch.cat(rows)[order_R].split(count_CL.sum(1).tolist()))


def _given(rows_C: list[Tensor], partition: str, want_C: Tensor | None = None, seed: int = 0) -> list[Tensor]:
    """The clients' rows, at most the wanted number of each, chosen at random; a UserError if a client has none."""
    if want_C is not None:
        rows_C = [
            rows[torch.randperm(len(rows), generator=rng(seed, "partition", "trim", c))[:want].sort().values]
            for c, (rows, want) in enumerate(zip(rows_C, want_C.tolist(), strict=True))
        ]
    empty = [c for c, rows in enumerate(rows_C) if not len(rows)]
    if empty:
        raise UserError(
            f"{partition} leaves {len(empty)} of {len(rows_C)} clients without samples (client {empty[0]}): use fewer "
            "clients or another partition"
        )
    return rows_C


KINDS = {
    "iid": IID,
    "one-label": OneLabel,
    "classes": Classes,
    "dirichlet": Dirichlet,
    "clustered": Clustered,
    "shards": Shards,
    "natural": Natural,
}
