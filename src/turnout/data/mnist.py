"""MNIST, Fashion-MNIST and EMNIST, from the IDX files their sites publish (plain or .gz).

Shape letters: S samples.
"""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
import torch
from torch import Tensor

from turnout.data.files import PublicFile, PublicSet, find_data_dir, locate, obtain
from turnout.data.images import Images
from turnout.data.partitioned import Pool
from turnout.errors import UserError, nearest
from turnout.machine.files import replacing

FOUR_FILES = tuple(f"{of}-{part}-ubyte.gz" for of in ("train", "t10k") for part in ("images-idx3", "labels-idx1"))


def _published(title: str, folders: tuple[str, ...], address: str, *checksums: str) -> PublicSet:
    pairs = zip(FOUR_FILES, checksums, strict=True)
    return PublicSet(title, folders, tuple(PublicFile(name, address + name, checksum) for name, checksum in pairs))


MNIST_FILES = _published(
    "MNIST",
    ("mnist", "MNIST/raw"),
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_FILES = _published(
    "Fashion-MNIST",
    ("fashion-mnist", "FashionMNIST/raw", "dataset-fashion-mnist"),
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
EMNIST_FILE = PublicFile(
    "gzip.zip", "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"
)
EMNIST_ARCHIVE = PublicSet("EMNIST", ("emnist", "EMNIST/raw", "emnist/gzip"), (EMNIST_FILE,))
MERGED = digits + ascii_uppercase + "abdefghnqrt"  # lower-case letters that differ from their capital
EMNIST_LABELS = {
    "byclass": digits + ascii_uppercase + ascii_lowercase,
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": ascii_uppercase,
    "digits": digits,
    "mnist": digits,
}
FASHION_LABELS = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
                  "Ankle boot")  # fmt: skip


def read_idx(path: Path) -> np.ndarray:
    """An IDX file of bytes: two zeros, type 8, the number of dimensions, their sizes (big-endian), the data."""
    raw = path.read_bytes()
    try:
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        zero, kind, dimensions = struct.unpack(">HBB", raw[:4])
        shape = struct.unpack(f">{dimensions}I", raw[4 : 4 + 4 * dimensions])
    except (OSError, EOFError, struct.error, zlib.error) as error:
        raise UserError(f"{path} is not a whole IDX file ({error}): delete it and download it again") from error
    if (zero, kind) != (0, 8) or len(raw) - 4 - 4 * dimensions != math.prod(shape):
        raise UserError(f"{path} is not a whole IDX file of bytes: delete it and download it again")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


@dataclass(frozen=True, kw_only=True)
class MNIST(Images):
    """60,000 + 10,000 handwritten digits, 28 x 28; the official test set is the central one.

    mirror   another address that serves the files under their usual names
    """

    mirror: str | None = None

    def read(self, data_dir: Path | None = None) -> Pool:
        return _pool(self, obtain(MNIST_FILES, data_dir, self.mirror), tuple(digits))


@dataclass(frozen=True, kw_only=True)
class FashionMNIST(Images):
    """60,000 + 10,000 pieces of clothing, 28 x 28, in MNIST's format.

    mirror   another address that serves the files under their usual names
    """

    mirror: str | None = None

    def read(self, data_dir: Path | None = None) -> Pool:
        return _pool(self, obtain(FASHION_FILES, data_dir, self.mirror), FASHION_LABELS)


@dataclass(frozen=True, kw_only=True)
class EMNIST(Images):
    """Handwritten characters, 28 x 28, in one of the published splits.

    split        one of the published splits: byclass (62 classes), bymerge or balanced (47), letters (26), digits or
                 mnist (10)
    transposed   whether pictures are turned upright: the published files store every picture transposed
    mirror       another address that serves the files under their usual names
    """

    split: str = "byclass"
    transposed: bool = False
    mirror: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split not in EMNIST_LABELS:
            raise UserError(f"EMNIST(split={self.split!r}): {nearest(self.split, EMNIST_LABELS)}")

    def read(self, data_dir: Path | None = None) -> Pool:
        parts = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
        names = [f"emnist-{self.split}-{part}-ubyte.gz" for part in parts]
        folders = [find_data_dir(data_dir) / folder for folder in EMNIST_ARCHIVE.folders]
        paths = [path for name in names if (path := locate(name, folders))]
        if len(paths) < len(names):  # extract them from the published archive
            (archive,) = obtain(EMNIST_ARCHIVE, data_dir, self.mirror)
            paths = [folders[0] / name for name in names]
            folders[0].mkdir(parents=True, exist_ok=True)
            try:
                with zipfile.ZipFile(archive) as pack:
                    for path in paths:
                        with replacing(path, shared=True) as temporary:
                            temporary.write_bytes(pack.read(f"gzip/{path.name}"))
            except (zipfile.BadZipFile, KeyError) as error:
                raise UserError(f"{archive} does not hold {', '.join(names)} ({error}): download it again") from error
        first = 1 if self.split == "letters" else 0  # the letters are numbered from 1 in their file, others from 0
        return _pool(self, paths, tuple(EMNIST_LABELS[self.split]), first, self.transposed)


def _pool(spec: Images, paths: list[Path], labels: tuple[str, ...], first: int = 0, transposed: bool = False) -> Pool:

    def pictures(images: Path, targets: Path) -> tuple[Tensor, Tensor]:
        bytes_S, label_S = read_idx(images), read_idx(targets).astype(np.int64) - first
        if bytes_S.ndim != 3 or label_S.shape != bytes_S.shape[:1]:
            raise UserError(f"{images} and {targets} do not belong together: they differ in number")
        if len(label_S) and not 0 <= label_S.min() <= label_S.max() < len(labels):
            raise UserError(f"{targets} has a label {label_S.max() + first}, above the {len(labels)} classes")
        x = spec.pixels(bytes_S[:, None])
        return (x.mT.contiguous() if transposed else x), torch.from_numpy(label_S)

    x, y = pictures(*paths[:2])
    return Pool(x, y, len(labels), labels, test=pictures(*paths[2:]))


KINDS = {"mnist": MNIST, "fashion-mnist": FashionMNIST, "emnist": EMNIST}
