"""Data loaded on demand: by a function of the client, or by a function of client and round.

Shape letters: C clients that were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnout.data.check import Array, as_samples, check_samples
from turnout.data.generated import ClientData, Generated
from turnout.data.labels import Means, Public, Said, Vocabulary, as_mapping, check_own_labels
from turnout.data.sizes import check_test_share, train_count
from turnout.errors import UserError
from turnout.rng import rng

Arrays = tuple[Array, Any]  # inputs, and targets: numbers, or names if clients have labels of their own


@dataclass(frozen=True, kw_only=True)
class _OnDemand:
    """The settings they share; `labels=()` for regression, None to name the classes by their numbers.

    public      samples that every client may see: (x, y), or a function that gives them; y has names, or indices of
                `labels`
    label_sets  which labels each client has, by name: a list, or a function of client and round; a client's targets
                are then names too, or numbers that the mapping translates
    mapping     clients' other names for labels: {"Dog": "dog"}, or a list of `Means`
    """

    clients: int
    input_shape: tuple[int, ...]
    classes: int
    labels: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    central_clients: int = 200
    public: Callable[[], Arrays] | Arrays | None = None
    label_sets: Callable[[int, int], Sequence[Said]] | tuple[tuple[Said, ...], ...] | None = None
    mapping: tuple[Means, ...] | dict[str, str] = ()

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.clients < 1 or self.classes < 1:
            raise UserError(f"{name}: there must be at least 1 client and 1 class")
        check_labels(name, self.classes, self.labels)
        if self.names is not None and len(self.names) != self.clients:
            raise UserError(f"{name}: {self.clients} clients and {len(self.names)} names; give one name each")
        if (self.public is None) != (self.label_sets is None):
            raise UserError(f"{name}: public samples and each client's labels go together: give public and label_sets")
        if self.label_sets is not None and not callable(self.label_sets) and len(self.label_sets) != self.clients:
            raise UserError(f"{name}: {self.clients} clients and {len(self.label_sets)} label sets; give one each")

    @property
    def _label_names(self) -> tuple[str, ...]:
        return tuple(str(i) for i in range(self.classes)) if self.labels is None else tuple(self.labels)

    def _set_of(self, client: int, t: int) -> Tensor:
        """A client's labels as numbers."""
        assert self.label_sets is not None
        said = self.label_sets(client, t) if callable(self.label_sets) else self.label_sets[client]
        return self._vocabulary().label_set(said, client)

    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._label_names, as_mapping(self.mapping), self.names)

    def _public(self) -> Public | None:
        if self.public is None:
            return None
        x, said = self.public() if callable(self.public) else self.public
        y = Vocabulary(self._label_names).numbers(said, 0) if _are_names(said) else torch.as_tensor(said)
        x, y = as_samples(x, y, "public samples")
        check_samples(x, y, self.classes, lambda row: f"public sample {row}", self.input_shape)
        return Public(x, y, self._set_of)

    def _federation(self, make: Callable[[int, int], ClientData], **more: Any) -> Generated:
        return Generated(
            make=make,
            clients=self.clients,
            input_shape=tuple(self.input_shape),
            classes=self.classes,
            labels=self._label_names,
            names=self.names,
            central_clients=self.central_clients,
            public=self._public(),
            **more,
        )

    def _checked(self, client: int, given: Arrays, t: int | None = None) -> tuple[Tensor, Tensor]:
        """A client's samples as checked tensors; `t` is the round, for streams."""
        place = f"client {client}" if t is None else f"client {client}, round {t}"
        x, said = given
        x, y = as_samples(x, said if self.label_sets is None else self._vocabulary().numbers(said, client), place)
        check_samples(x, y, self.classes, lambda row: f"{place}, row {row}", self.input_shape)
        if self.label_sets is not None:
            check_own_labels(y, self._set_of(client, t or 0), self._label_names, f"{place},")
        return x, y


def check_labels(name: str, classes: int, labels: Sequence[str] | None) -> None:
    """Refuse names of labels that are not one for each class."""
    if labels and len(labels) != classes:
        raise UserError(f"{name}: {classes} classes and {len(labels)} labels; give one label for each class")


def _are_names(said: Any) -> bool:
    return not isinstance(said, Tensor) and np.asarray(said).dtype.kind == "U"


@dataclass(frozen=True)
class Loader(_OnDemand):
    """A function of the client gives its samples: `function(client) -> (x, y)`, called when they are needed.

    `examples(client_C)` gives the clients' training sizes if they are known beforehand; without it a client's data is
    loaded to count it.
    """

    function: Callable[[int], Arrays]
    test_share: float = 0.2
    examples: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_test_share(self.test_share)

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Generated:
        return self._federation(_Load(self, seed), count=self.examples)


@dataclass(frozen=True)
class _Load:
    """One client's data from a loader, in a training and a test part. (An object, to be sent to other processes.)"""

    spec: Loader
    seed: int

    def __call__(self, client: int, t: int) -> ClientData:
        x, y = self.spec._checked(client, self.spec.function(client))
        order = torch.randperm(len(y), generator=rng(self.seed, "holdout", client))
        kept = int(train_count(torch.tensor(len(y)), self.spec.test_share))
        train, test = order[:kept].sort().values, order[kept:].sort().values
        return ClientData(x[train], y[train], x[test], y[test])


@dataclass(frozen=True)
class Stream(_OnDemand):
    """Data that arrives: `function(client, t) -> (x, y)` are client c's samples at round t (paper 002).

    `test(client, t)` gives its test samples; without it a client has none. A client's share is counted in round 0.
    """

    function: Callable[[int, int], Arrays]
    test: Callable[[int, int], Arrays] | None = None

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Generated:
        return self._federation(self._at, changes=True)

    def _at(self, client: int, t: int) -> ClientData:
        x, y = self._checked(client, self.function(client, t), t)
        if self.test is None:
            return ClientData(x, y, x[:0], y[:0])
        return ClientData(x, y, *self._checked(client, self.test(client, t), t))


KINDS = {"loader": Loader, "stream": Stream}
