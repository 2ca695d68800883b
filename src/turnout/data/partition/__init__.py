"""Partitions: which samples of a pool belong to which client. Small frozen objects with a method `split`.

by_label.py       IID, OneLabel, Classes, Dirichlet, Clustered: each label divided by quotas
by_rows.py        Shards, Natural: shards of the sorted samples, owners in the data
label_quotas.py   the arithmetic: how many of each label for each client, then which rows

May import the root's values only.

Shape letters: S samples of the pool, C clients.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from turnout.data.partition.by_label import IID, Classes, Clustered, Dirichlet, OneLabel
from turnout.data.partition.by_rows import Natural, Shards
from turnout.suggestions import kinds_in

__all__ = ["IID", "Classes", "Clustered", "Dirichlet", "Natural", "OneLabel", "Partition", "Shards", "WithClusters"]


class Partition(Protocol):
    """A rule that gives the rows of a pool to clients."""

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        """The row numbers of each client: disjoint, at least one each.

        `want_C` is how many samples each client should have (a data set's `sizes`); None gives out all of them.
        """
        ...


@runtime_checkable
class WithClusters(Protocol):
    """What a partition may promise besides: to say who is like whom. Reports and `Stratified` use it."""

    def clusters_of_clients(self, clients: int) -> Tensor:
        """The cluster of each client, by number from 0."""
        ...


# Kinds of modules that are not listed above, so that a new partition is one file.
globals().update({kind.__name__: kind for kind in kinds_in(__name__).values()})
