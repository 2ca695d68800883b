"""Who holds which data: the promises of a `Federation` and of a data set.

Shape letters: N clients of the population, C clients of a cohort.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from turnout.data.labels import Public
from turnout.errors import UserError
from turnout.machine.checksums import content
from turnout.types import Samples
from turnout.world.members import Members

Device = torch.device | str


@dataclass(frozen=True)
class CentralSet:
    """The test set of global metrics without its samples.

    count   how many samples; for data that is made on demand, how many clients
    unit    the word for what is counted: "samples" or "clients' samples"
    key     differs where the samples do
    """

    count: int
    unit: str
    key: Hashable

    @staticmethod
    def change(before: CentralSet | None, after: CentralSet | None) -> str | None:
        """The change in words; None where there is none.

        >>> CentralSet.change(CentralSet(900, "samples", "a"), CentralSet(1000, "samples", "b"))
        '900 -> 1,000 samples'
        """
        old, new = before or CentralSet(0, "samples", None), after or CentralSet(0, "samples", None)
        if old == new:
            return None
        unit = new.unit if after else old.unit
        return f"{old.count:,} -> {new.count:,} {'other ' if old.count == new.count else ''}{unit}"


class Federation(Protocol):
    """Who holds which data.

    clients       how many; they are 0 .. clients - 1
    input_shape   the shape of one sample
    classes       the number of outputs a model needs
    labels        the names of the classes; none for regression
    names         the clients' names, if the data has owners
    public        samples that every client may see, and each client's own labels, for the exchange of scores

    A federation may also have `standardised` (how its targets were standardised), `encoding` (of a table's columns),
    `words` (a hash of the list that numbers words) and `note` (a sentence about how files became samples, shown when a
    run begins).
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

    def central_set(self, members: Members | None = None) -> CentralSet | None:
        """The set of `central_test` without its samples, to see whether it has changed."""
        ...

    def to(self, device: Device) -> Federation:
        """The same federation with its data on a device."""
        ...

    def groups(self) -> Tensor | None:
        """The cluster of each client [N], if the partition has clusters."""
        ...

    def noisy(self) -> Tensor | None:
        """Whether noise was added to each client's training samples [N], if the data knows (`Noisy`)."""
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
        hasher.update(part.encode() if isinstance(part, str) else content(part))
    return hasher.hexdigest()


def check_clients(client_C: Tensor, clients: int) -> None:
    """Refuse client numbers outside the population."""
    outside = client_C[(client_C < 0) | (client_C >= clients)]
    if len(outside):
        raise UserError(f"there is no client {int(outside[0])}: the data has clients 0 to {clients - 1}")
