"""Partitions by label: a matrix of weights, client by label, says who gets how much of each label.

Shape letters: S samples of the pool, C clients, L labels that occur, K classes of a client.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turnout.data.partition.label_quotas import (
    check_filled,
    check_labels_held,
    divide_pools,
    fill_wishes,
    label_pools,
    pick_rows,
)
from turnout.errors import UserError, nearest
from turnout.rng import key, rng, uniform


@dataclass(frozen=True)
class IID:
    """Every client has a random part of everything; `stratified` gives all the same share of every label (paper 004).

    >>> [sorted(rows.tolist()) for rows in IID().split(torch.zeros(4), None, clients=2, seed=0)]
    [[0, 2], [1, 3]]
    """

    stratified: bool = False

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        labels = label_S if self.stratified else torch.zeros(len(label_S), dtype=torch.int64)
        code_S, pool_L = label_pools(labels, "IID(stratified=True)")
        weight_CL = pool_L.expand(clients, -1)
        rows_C = pick_rows(code_S, _counts(weight_CL, pool_L, want_C), seed)
        return check_filled(rows_C, "IID")


@dataclass(frozen=True)
class OneLabel:
    """Each client has one label, chosen uniformly at random (paper 000); the clients of a label share its samples.

    A label that no client has drawn stays unused; `Classes(per_client=1)` spreads the labels evenly instead.
    """

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        code_S, pool_L = label_pools(label_S, "OneLabel")
        label_C = (uniform(seed, "partition", "label", ids=torch.arange(clients)) * len(pool_L)).long()
        weight_CL = torch.nn.functional.one_hot(label_C, len(pool_L))
        return _split(code_S, weight_CL, pool_L, seed, want_C, "OneLabel")


@dataclass(frozen=True)
class Classes:
    """Each client has exactly `per_client` classes, with equal numbers of each when sizes are given: non-IID(m).

    `pick="consecutive"`: a random first class and the ones that follow it, as in the origin of sparse ternary
    compression; first classes are dealt like cards, so that all classes have equally many holders, up to one.
    `pick="random"`: any classes, independently for each client (paper 004); a class may stay unused. Without sizes the
    holders of a class share all of its samples equally.
    """

    per_client: int = 2
    pick: str = "consecutive"

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise UserError(f"Classes(per_client={self.per_client}): a client has at least 1 class")
        if self.pick not in ("consecutive", "random"):
            raise UserError(f"Classes(pick={self.pick!r}): {nearest(self.pick, ['consecutive', 'random'])}")

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        code_S, pool_L = label_pools(label_S, "Classes")
        if self.per_client > len(pool_L):
            raise UserError(f"Classes(per_client={self.per_client}): the data has only {len(pool_L)} classes")
        weight_CL = torch.zeros(clients, len(pool_L)).scatter_(1, self._classes(clients, len(pool_L), seed), 1.0)
        return _split(code_S, weight_CL, pool_L, seed, want_C, f"Classes(per_client={self.per_client})")

    def _classes(self, clients: int, classes: int, seed: int) -> Tensor:
        """The classes of each client [C, per_client]."""
        g = rng(seed, "partition", "classes")
        if self.pick == "random":
            return torch.rand(clients, classes, generator=g).topk(self.per_client, dim=1).indices
        first_C = torch.randperm(classes, generator=g)[torch.randperm(clients, generator=g) % classes]
        return (first_C[:, None] + torch.arange(self.per_client)) % classes


@dataclass(frozen=True)
class Dirichlet:
    """Each label is divided among the clients by proportions p ~ Dirichlet(alpha): small alpha, few labels each.

    Drawn again until every client has `min_size` samples; with sizes, a client's mix of labels follows its p.
    """

    alpha: float = 0.5
    min_size: int = 1
    attempts: int = 100

    def __post_init__(self) -> None:
        if self.alpha <= 0 or self.min_size < 1 or self.attempts < 1:
            raise UserError("Dirichlet needs alpha > 0, min_size >= 1 and attempts >= 1")

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        code_S, pool_L = label_pools(label_S, "Dirichlet")
        for attempt in range(self.attempts):
            weight_CL = self._proportions(clients, len(pool_L), seed, attempt)
            count_CL = _counts(weight_CL, pool_L, want_C)
            if int(count_CL.sum(1).min()) >= self.min_size:
                return pick_rows(code_S, count_CL, seed)
        raise UserError(
            f"Dirichlet(alpha={self.alpha}): in {self.attempts} draws some of the {clients} clients always "
            f"had fewer than {self.min_size} of {len(label_S)} samples; raise alpha or use fewer clients"
        )

    def _proportions(self, clients: int, labels: int, seed: int, attempt: int) -> Tensor:
        """Columns ~ Dirichlet(alpha), computed in logarithms: for a small alpha the gamma draws underflow."""
        draws = np.random.default_rng(key(seed, "partition", "dirichlet", attempt) & (2**63 - 1))
        gamma = draws.standard_gamma(self.alpha + 1, (clients, labels))
        log = np.log(gamma) + np.log(1 - draws.random((clients, labels))) / self.alpha
        return torch.from_numpy(log).softmax(0)


@dataclass(frozen=True)
class Clustered:
    """Clients in equal clusters; each cluster has its own classes, drawn without replacement (paper 003).

    Clients 0, 1, ... are the first cluster, the next ones the second. Samples are given out without replacement too.
    """

    clusters: int = 5
    classes_per_cluster: int = 2

    def __post_init__(self) -> None:
        if self.clusters < 1 or self.classes_per_cluster < 1:
            raise UserError("Clustered needs at least 1 cluster and at least 1 class per cluster")

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        code_S, pool_L = label_pools(label_S, "Clustered")
        needed = self.clusters * self.classes_per_cluster
        if needed > len(pool_L):
            raise UserError(
                f"Clustered: {self.clusters} clusters of {self.classes_per_cluster} classes need {needed} "
                f"classes, and the data has {len(pool_L)}: use fewer clusters or fewer classes in each"
            )
        order_L = torch.randperm(len(pool_L), generator=rng(seed, "partition", "clusters"))[:needed]
        class_CK = order_L.view(self.clusters, -1)[self.clusters_of_clients(clients)]
        weight_CL = torch.zeros(clients, len(pool_L)).scatter_(1, class_CK, 1.0)
        return _split(code_S, weight_CL, pool_L, seed, want_C, "Clustered")

    def clusters_of_clients(self, clients: int) -> Tensor:
        """The cluster of each client.

        >>> Clustered(clusters=2).clusters_of_clients(4)
        tensor([0, 0, 1, 1])
        """
        if clients < self.clusters:
            raise UserError(f"Clustered: {self.clusters} clusters need at least as many clients, not {clients}")
        return torch.arange(clients) * self.clusters // clients


def _counts(weight_CL: Tensor, pool_L: Tensor, want_C: Tensor | None) -> Tensor:
    """How many samples of each label each client gets [C, L]."""
    return divide_pools(weight_CL, pool_L) if want_C is None else fill_wishes(weight_CL, pool_L, want_C)


def _split(
    code_S: Tensor, weight_CL: Tensor, pool_L: Tensor, seed: int, want_C: Tensor | None, name: str
) -> list[Tensor]:
    """The rows of each client; a mistake if a client gets no sample of a label it should have."""
    count_CL = _counts(weight_CL, pool_L, want_C)
    check_labels_held(count_CL, weight_CL, pool_L, name)
    return pick_rows(code_S, count_CL, seed)


KINDS = {"iid": IID, "one-label": OneLabel, "classes": Classes, "dirichlet": Dirichlet, "clustered": Clustered}
