"""Data sets that are divided among clients: from a pool of samples to a federation.

Shape letters: S samples of the pool, C clients, L labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.federation import Pooled, Rows, pool_tests
from turnout.data.partition import IID, Natural, Partition, divide_pools, pick_rows
from turnout.data.sizes import Equal, Sizes, check_test_share, train_count
from turnout.errors import UserError, check_settings
from turnout.rng import uniform

LOCAL_TESTS = ("holdout", "last", "official")


@dataclass(frozen=True, eq=False)
class Pool:
    """A data set in tensors.

    x, y      samples and targets
    classes   the number of outputs a model needs
    labels    the names of the classes; none for regression
    test      the official test set (x, y), if there is one
    owner_S   each sample's owner as an index of `owners`, if there are owners
    owners    their names
    words     a hash of the list that numbers words
    """

    x: Tensor
    y: Tensor
    classes: int
    labels: tuple[str, ...] = ()
    test: tuple[Tensor, Tensor] | None = None
    owner_S: Tensor | None = None
    owners: tuple[str, ...] = ()
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class Partitioned(ABC):
    """A data set that is divided among clients; the settings of all such data sets.

    clients     how many; None for one per owner in the data
    partition   who gets which samples; None for `Natural` where the data has owners, `IID` where not
    sizes       how many samples each client has (training and test together); None gives out all samples
    test_share  the share of its samples that a client keeps for testing
    local_test  which samples those are: "holdout", a random share; "last", the last ones in the partition's order, by
                label (paper 003's code); "official", a part of the official test set with the client's own mix of
                labels (paper 004), with all of its own samples used for training
    """

    clients: int | None = 100
    partition: Partition | None = field(default_factory=IID)
    sizes: Sizes | None = None
    test_share: float = 0.2
    local_test: str = "holdout"

    def __post_init__(self) -> None:
        if self.clients is not None:
            check_settings(self, clients="[1, inf)")
        check_settings(self, local_test=LOCAL_TESTS)
        check_test_share(self.test_share)

    @abstractmethod
    def read(self, data_dir: Path | None) -> Pool:
        """The data set's samples, from its files."""

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        """Read the data and divide it among clients; the seed decides who gets what."""
        return federate(self.read(data_dir), self, seed)


@dataclass(frozen=True, kw_only=True)
class MayHaveOwners(Partitioned):
    """A data set whose samples may have owners: by default each owner is a client."""

    clients: int | None = None
    partition: Partition | None = None


def federate(pool: Pool, spec: Partitioned, seed: int) -> Pooled:
    """Divide a pool among clients."""
    partition = spec.partition or (IID() if pool.owner_S is None else Natural())
    clients = spec.clients
    if clients is None:
        if not isinstance(partition, Natural) or pool.owner_S is None:
            raise UserError(
                f"{type(spec).__name__}: set the number of clients (clients=...), or who owns each sample (owner=...)"
            )
        clients = len(partition.owners(pool.owner_S))
        if not clients:
            raise UserError(f"no owner has {partition.min_size} samples or more: lower min_size")
    rows_C = _rows(pool, partition, spec.sizes, clients, seed)
    names = None
    if isinstance(partition, Natural) and pool.owner_S is not None and pool.owners:
        first_C = torch.stack([rows[0] for rows in rows_C])
        names = tuple(pool.owners[owner] for owner in pool.owner_S[first_C].tolist())
    official = spec.local_test == "official"
    label_S = pool.y if isinstance(partition, IID) and partition.stratified else None
    train, test = _official(pool, rows_C, seed) if official else _held_out(rows_C, label_S, spec, seed)
    clusters = getattr(partition, "clusters_of_clients", None)
    federation = Pooled(
        pool.x,
        pool.y,
        train,
        test,
        pool.classes,
        pool.labels,
        names=names,
        test_x=pool.test[0] if official and pool.test else None,
        test_y=pool.test[1] if official and pool.test else None,
        central=pool.test,
        official=pool.test is not None and not official,
        groups=None if clusters is None else clusters(clients),
        words=pool.words,
    )
    return federation if pool.test else pool_tests(federation)


def _rows(pool: Pool, partition: Partition, sizes: Sizes | None, clients: int, seed: int) -> list[Tensor]:
    """The rows of each client; refuses an `Equal` number that some client cannot have."""
    each = sizes.each or 0 if isinstance(sizes, Equal) else 0  # that all must have
    if isinstance(sizes, Equal) and not each:
        sizes = Equal(len(pool.y) // clients or 1)
    want_C = None if sizes is None else sizes.draw(torch.arange(clients), seed)
    rows_C = partition.split(pool.y, pool.owner_S, clients, seed, want_C)
    least, poorest = min((len(rows), c) for c, rows in enumerate(rows_C))
    if least < each:
        raise UserError(
            f"sizes=Equal(each={each}): {clients} clients x {each} are {clients * each} samples, and there are "
            f"{len(pool.y)}, of which {partition} can give client {poorest} only {least}: lower each, or use "
            "fewer clients"
        )
    return rows_C


def _held_out(rows_C: list[Tensor], label_S: Tensor | None, spec: Partitioned, seed: int) -> tuple[Rows, Rows]:
    """Keep a share of each client's rows for testing, at random; with labels, the same share of every label."""
    every = Rows.of(rows_C)
    owner_R = torch.repeat_interleave(torch.arange(len(rows_C)), every.count_N)
    row_R = every.row_R
    if spec.local_test == "holdout":
        mixed_R = uniform(seed, "holdout", ids=row_R).argsort()
        row_R = row_R[mixed_R[owner_R[mixed_R].argsort(stable=True)]]
    place_R = torch.arange(len(row_R)) - every.start_N[owner_R]
    kept_C = train_count(every.count_N, spec.test_share)
    train_R = place_R < kept_C[owner_R]
    if label_S is not None and spec.local_test == "holdout":
        train_R = _same_mix(label_S[row_R], owner_R, every.count_N, spec.test_share)
    test_C = every.count_N - kept_C
    return (
        Rows(row_R[train_R], kept_C, kept_C.cumsum(0) - kept_C),
        Rows(row_R[~train_R], test_C, test_C.cumsum(0) - test_C),
    )


def _same_mix(label_R: Tensor, owner_R: Tensor, count_C: Tensor, test_share: float) -> Tensor:
    """Which rows are for training, so that clients that hold the same of every label also train on the same.

    Where no two clients' counts n_cl of a label l differ by more than 1, m_l is the least of them, and every client
    trains on b_l, a proportional part of m_l. Clients that hold more and so train on more take one more of labels of
    which they hold one more. Else m_l is the client's own n_cl.
    """
    code_R = label_R.unique(return_inverse=True)[1]
    labels = int(code_R.max()) + 1
    cell_R = owner_R * labels + code_R
    held_CL = cell_R.bincount(minlength=len(count_C) * labels).view(-1, labels)
    alike = int((held_CL.max(0).values - held_CL.min(0).values).max()) <= 1
    least_CL = held_CL.min(0).values.expand_as(held_CL) if alike else held_CL
    least_C = least_CL.sum(1)
    base_C = train_count(least_C, test_share)
    end_CL = (least_CL.cumsum(1).double() * base_C[:, None] / least_C.clamp(min=1)[:, None]).round().long()
    base_CL = torch.diff(end_CL, dim=1, prepend=torch.zeros_like(end_CL[:, :1]))
    order_R = cell_R.argsort(stable=True)
    rank_R = torch.empty_like(order_R)  # among the client's rows of the label
    rank_R[order_R] = torch.arange(len(order_R)) - (held_CL.view(-1).cumsum(0) - held_CL.view(-1))[cell_R[order_R]]
    base_R = base_CL.reshape(-1)[cell_R]
    next_R = (rank_R == base_R) & (held_CL > least_CL).view(-1)[cell_R]
    nth_R = next_R.cumsum(0)
    before_C = torch.cat([nth_R.new_zeros(1), nth_R])[count_C.cumsum(0) - count_C]
    more_C = train_count(count_C, test_share) - base_C
    return (rank_R < base_R) | (next_R & (nth_R - before_C[owner_R] <= more_C[owner_R]))


def _official(pool: Pool, rows_C: list[Tensor], seed: int) -> tuple[Rows, Rows]:
    """All of each client's rows for training; the official test set, divided by each client's mix of labels."""
    if pool.test is None or pool.y.ndim != 1 or pool.y.is_floating_point():
        raise UserError('local_test="official" needs labelled data with a test set of its own: use "holdout"')
    train = Rows.of(rows_C)
    owner_R = torch.repeat_interleave(torch.arange(len(rows_C)), train.count_N)
    cell_R = owner_R * pool.classes + pool.y[train.row_R]
    weight_CL = cell_R.bincount(minlength=len(rows_C) * pool.classes).view(len(rows_C), pool.classes)
    test_y = pool.test[1]
    return train, Rows.of(pick_rows(test_y, divide_pools(weight_CL, test_y.bincount(minlength=pool.classes)), seed))
