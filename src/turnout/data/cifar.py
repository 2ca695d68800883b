"""CIFAR-10 and CIFAR-100, from the published binary version: the unpacked folder or its .tar.gz.

Shape letters: S samples.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from turnout.data.files import PublicFile, PublicSet, find_data_dir, obtain
from turnout.data.images import Images
from turnout.data.partitioned import Pool
from turnout.errors import UserError

SITE = "https://www.cs.toronto.edu/~kriz/"
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class BinaryFiles:
    """The files of one of the two sets. A record is its label bytes, then 3,072 pixels, channels first.

    title     of the set
    folder    of its unpacked files
    archive   the published file
    train     the names of the training files
    test      the names of the test files
    heads     how many label bytes a record has
    """

    title: str
    folder: str
    archive: PublicFile
    train: tuple[str, ...]
    test: tuple[str, ...]
    heads: int

    def read(self, names: Sequence[str], data_dir: Path | None, mirror: str | None) -> np.ndarray:
        """The records of some of the set's files, one row each."""
        root = find_data_dir(data_dir)
        size = self.heads + PIXELS
        for folder in (root / self.folder, root / self.archive.name.split("-binary")[0] / self.folder):
            if all((folder / name).is_file() for name in names):
                blobs = [(folder / name).read_bytes() for name in names]
                break
        else:
            wanted = PublicSet(self.title, (".", "cifar", "cifar10", "cifar100"), (self.archive,))
            blobs = _members(obtain(wanted, data_dir, mirror)[0], [f"{self.folder}/{name}" for name in names])
        for name, blob in zip(names, blobs, strict=True):
            if not blob or len(blob) % size:
                raise UserError(f"{name} of {self.title} is not whole ({len(blob)} bytes, records of {size})")
        return np.frombuffer(b"".join(blobs), np.uint8).reshape(-1, size)


CIFAR10_FILES = BinaryFiles(
    "CIFAR-10",
    "cifar-10-batches-bin",
    PublicFile("cifar-10-binary.tar.gz", SITE + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    ("test_batch.bin",),
    heads=1,
)
CIFAR100_FILES = BinaryFiles(
    "CIFAR-100",
    "cifar-100-binary",
    PublicFile("cifar-100-binary.tar.gz", SITE + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    ("train.bin",),
    ("test.bin",),
    heads=2,
)


@dataclass(frozen=True, kw_only=True)
class CIFAR10(Images):
    """50,000 + 10,000 colour pictures of 10 classes, 32 x 32; the official test set is the central one.

    mirror   another address that serves the files under their usual names
    """

    mirror: str | None = None

    def read(self, data_dir: Path | None = None) -> Pool:
        return _pool(self, CIFAR10_FILES, CIFAR10_NAMES, 0, data_dir, self.mirror)


@dataclass(frozen=True, kw_only=True)
class CIFAR100(Images):
    """50,000 + 10,000 colour pictures of 100 classes, 32 x 32; the official test set is the central one.

    coarse   20 classes instead
    mirror   another address that serves the files under their usual names
    """

    coarse: bool = False
    mirror: str | None = None

    def read(self, data_dir: Path | None = None) -> Pool:
        names = tuple(str(label) for label in range(20 if self.coarse else 100))
        return _pool(self, CIFAR100_FILES, names, 0 if self.coarse else 1, data_dir, self.mirror)


def _pool(
    spec: Images, source: BinaryFiles, names: tuple[str, ...], head: int, data_dir: Path | None, mirror: str | None
) -> Pool:
    def pictures(files: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        record_S = source.read(files, data_dir, mirror)
        label_S = record_S[:, head].astype(np.int64)
        if label_S.max() >= len(names):
            raise UserError(f"{source.title} has a label {label_S.max()}: there are {len(names)} classes")
        return spec.pixels(record_S[:, source.heads :].reshape(-1, 3, 32, 32)), torch.from_numpy(label_S)

    x, y = pictures(source.train)
    return Pool(x, y, len(names), names, test=pictures(source.test))


def _members(archive: Path, names: Sequence[str]) -> list[bytes]:
    """The contents of some files of an archive, without unpacking it."""
    wanted = set(names)
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as pack:
            for member in pack:
                if member.name in wanted and (file := pack.extractfile(member)):
                    found[member.name] = file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{archive} cannot be read ({error}): delete it and download it again") from error
    if missing := wanted - set(found):
        raise UserError(f"{archive} does not hold {', '.join(sorted(missing))}: delete it and download it again")
    return [found[name] for name in names]


KINDS = {"cifar10": CIFAR10, "cifar100": CIFAR100}
