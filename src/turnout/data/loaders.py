"""Data loaded on demand: by a function of the client (`Loader`) or of client and round (`Stream`), or from one file per
client (`ClientFiles`).
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from turnout.data.files import find_path
from turnout.data.generated import ClientData, Generated
from turnout.data.labels import LabelName, Public, Vocabulary, check_own_labels
from turnout.data.own import Array, as_samples, check_samples
from turnout.data.sizes import check_test_share, train_count
from turnout.errors import UserError
from turnout.machine.checksums import UNREADABLE
from turnout.machine.memory import free_bytes
from turnout.rng import rng

Arrays = tuple[Array, Any]  # inputs, and targets: numbers, or names if clients have labels of their own


@dataclass(frozen=True, kw_only=True)
class _OnDemand:
    """The settings of data that a function loads.

    clients           how many
    input_shape       the shape of one sample
    classes           the number of outputs a model needs
    labels            the names of the classes; None to name them by their numbers, () for regression
    names             the clients' names
    central_clients   how many clients' test samples are the central test set; 0 for none
    public            samples that every client may see: (x, y), or a function that gives them; y has names, or indices
                      of `labels`
    label_sets        which labels each client has, by name: a list, or a function of client and round; a client's
                      targets are then names too
    """

    clients: int
    input_shape: tuple[int, ...]
    classes: int
    labels: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    central_clients: int = 200
    public: Callable[[], Arrays] | Arrays | None = None
    label_sets: Callable[[int, int], Sequence[LabelName]] | tuple[tuple[LabelName, ...], ...] | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.clients < 1 or self.classes < 1:
            raise UserError(f"{name}: there must be at least 1 client and 1 class")
        if self.labels and len(self.labels) != self.classes:
            raise UserError(f"{name}: {self.classes} classes and {len(self.labels)} labels; give one for each class")
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
        assert self.label_sets is not None
        names = self.label_sets(client, t) if callable(self.label_sets) else self.label_sets[client]
        return self._vocabulary().label_set(names, client)

    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._label_names, self.names)

    def _federation(self, make: Callable[[int, int], ClientData], **more: Any) -> Generated:
        public = None
        if self.public is not None:
            x, y = self.public() if callable(self.public) else self.public
            if not isinstance(y, Tensor) and np.asarray(y).dtype.kind == "U":
                y = Vocabulary(self._label_names).numbers(y, 0)
            x, y = as_samples(x, torch.as_tensor(y), "public samples")
            check_samples(x, y, self.classes, lambda row: f"public sample {row}", self.input_shape)
            public = Public(x, y, self._set_of)
        return Generated(
            make=make,
            clients=self.clients,
            input_shape=tuple(self.input_shape),
            classes=self.classes,
            labels=self._label_names,
            names=self.names,
            central_clients=self.central_clients,
            public=public,
            **more,
        )

    def _checked(self, client: int, given: Arrays, t: int | None = None) -> tuple[Tensor, Tensor]:
        """A client's samples as checked tensors; `t` is the round, for streams."""
        place = f"client {client}" if t is None else f"client {client}, round {t}"
        x, y = given
        x, y = as_samples(x, y if self.label_sets is None else self._vocabulary().numbers(y, client), place)
        check_samples(x, y, self.classes, lambda row: f"{place}, row {row}", self.input_shape)
        if self.label_sets is not None:
            check_own_labels(y, self._set_of(client, t or 0), self._label_names, f"{place},")
        return x, y


@dataclass(frozen=True)
class Loader(_OnDemand):
    """A function of the client gives its samples: `function(client) -> (x, y)`, called when they are needed.

    function     client -> (x, y)
    test_share   the share of its samples that a client keeps for testing
    examples     clients -> their training sizes, if they are known beforehand; None to load the data and count it
    """

    function: Callable[[int], Arrays]
    test_share: float = 0.2
    examples: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_test_share(self.test_share)

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Generated:
        return self._federation(partial(self._split, seed), count=self.examples)

    def _split(self, seed: int, client: int, t: int) -> ClientData:
        x, y = self._checked(client, self.function(client))
        order = torch.randperm(len(y), generator=rng(seed, "holdout", client))
        kept = int(train_count(torch.tensor(len(y)), self.test_share))
        train, test = order[:kept].sort().values, order[kept:].sort().values
        return ClientData(x[train], y[train], x[test], y[test])


@dataclass(frozen=True)
class Stream(_OnDemand):
    """New samples in every round: `function(client, t) -> (x, y)` (paper 002); a client's share is counted in round 0.

    function   (client, round) -> (x, y), the client's samples in that round
    test       (client, round) -> (x, y), its test samples; None for none
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


@dataclass(frozen=True)
class ClientFiles:
    """One `.npz` or `.safetensors` file with arrays `x` and `y` per client, read when its client's data is needed.

    Clients are named by their files. For tables, a file per client is `Table("folder/*.csv", label)`.

    path         the folder
    pattern      which of its files are read
    classes      how many; needed for whole-number targets, others are regression
    labels       the names of the classes
    test_share   the share of its samples that a client keeps for testing
    """

    path: Path | str
    pattern: str = "*.npz"
    classes: int | None = None
    labels: tuple[str, ...] | None = None
    test_share: float = 0.2

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Generated:
        folder = find_path(self.path, data_dir)
        paths = tuple(sorted(folder.glob(self.pattern)))
        if not paths:
            raise UserError(f"{folder} has no files {self.pattern!r}: one file per client is expected there")
        x, y = as_samples(*_arrays(paths, 0), str(paths[0]))
        if self.classes is None and not y.is_floating_point():
            raise UserError("ClientFiles: set the number of classes (classes=...)")
        loader = Loader(
            partial(_arrays, paths),
            clients=len(paths),
            input_shape=tuple(x.shape[1:]),
            classes=y.shape[1] if self.classes is None else self.classes,
            labels=() if y.is_floating_point() else self.labels,
            names=tuple(path.stem for path in paths),
            test_share=self.test_share,
        )
        return loader.load(seed)


def _arrays(paths: tuple[Path, ...], client: int) -> Arrays:
    """x and y of a client's file, without unpickling."""
    path = paths[client]
    try:
        if path.suffix == ".safetensors":
            held = load_file(path)
            return held["x"], held["y"]
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            size, free = sum(packed.file_size for packed in arrays.zip.infolist()), free_bytes(torch.device("cpu"))
            if free is not None and size > free:
                raise UserError(f"{path} is {size:,} bytes when it is unpacked, and {free:,} bytes of memory are free")
            return arrays["x"], arrays["y"]
    except UserError:
        raise
    # zipfile raises NotImplementedError for an archive that is packed in an unknown way, or damaged to look so
    except (*UNREADABLE, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{path} is not a file with arrays x and y ({error}): write it again (CSV files are read by Table)"
        ) from error


KINDS = {"loader": Loader, "stream": Stream, "client-files": ClientFiles}
