"""Published image sets: MNIST, Fashion-MNIST and EMNIST (IDX files, plain or .gz), CIFAR-10 and CIFAR-100 (the binary
version, unpacked or its .tar.gz), and the small digits in the package, so that a first run needs no download.

Shape letters: S samples.
"""

from __future__ import annotations

import gzip
import math
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
import torch
from torch import Tensor

from turnout.data.files import PublicFile, PublicSet, find_data_dir, locate, obtain
from turnout.data.images import Images
from turnout.data.partitioned import Partitioned, Pool
from turnout.errors import UserError, nearest
from turnout.machine.files import replacing
from turnout.rng import rng

TEST_DIGITS = 359  # a fifth
FOUR_FILES = tuple(f"{of}-{part}-ubyte.gz" for of in ("train", "t10k") for part in ("images-idx3", "labels-idx1"))
PIXELS = 3 * 32 * 32
AGAIN = "delete it and download it again"


@dataclass(frozen=True, kw_only=True)
class Digits(Partitioned):
    """The embedded digits, pixels in [0, 1]: 1,797 handwritten digits of 8 x 8 pixels (UCI). A fixed fifth, the same
    for every seed, is the central test set.

    clients   how many

    >>> data = Digits(clients=10).load(seed=0)
    >>> data.clients, data.input_shape, len(data.central_test()[0])
    (10, (1, 8, 8), 359)
    """

    clients: int | None = 50

    def read(self, data_dir: Path | None = None) -> Pool:
        with (files("turnout.data") / "digits.npz").open("rb") as file, np.load(file) as arrays:
            x = torch.from_numpy(arrays["x"]).float().div_(16).unsqueeze(1)
            y = torch.from_numpy(arrays["y"]).long()
        order = torch.randperm(len(y), generator=rng(0, "digits", "test"))
        test, train = order[:TEST_DIGITS].sort().values, order[TEST_DIGITS:].sort().values
        return Pool(x[train], y[train], 10, tuple(digits), test=(x[test], y[test]))


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
CIFAR10_LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True, kw_only=True)
class PublishedImages(Images):
    """An image set that is downloaded; its official test set is the central one.

    mirror   another address that serves the files under their usual names
    """

    mirror: str | None = None

    def pool(self, labels: Sequence[str], part: Callable[[int], tuple[np.ndarray, np.ndarray, Path | str]]) -> Pool:
        """The two parts, training and test, each as bytes [S, channels, height, width], labels [S], and its name."""

        def pictures(which: int) -> tuple[Tensor, Tensor]:
            bytes_S, label_S, name = part(which)
            if bytes_S.ndim != 4 or label_S.shape != bytes_S.shape[:1]:
                raise UserError(f"{name} and its pictures do not belong together: they differ in number")
            label_S = label_S.astype(np.int64)
            if len(label_S) and not 0 <= label_S.min() <= label_S.max() < len(labels):
                raise UserError(f"{name} has a label {label_S.max()}, and there are {len(labels)} classes")
            return self.pixels(bytes_S), torch.from_numpy(label_S)

        return Pool(*pictures(0), len(labels), tuple(labels), test=pictures(1))

    def idx_pool(self, paths: Sequence[Path], labels: Sequence[str], first: int = 0) -> Pool:
        """From images and labels of the training and of the test part, labels counted from `first`."""

        def part(which: int) -> tuple[np.ndarray, np.ndarray, Path]:
            images, targets = paths[2 * which : 2 * which + 2]
            return read_idx(images)[:, None], read_idx(targets).astype(np.int64) - first, targets

        return self.pool(labels, part)


def read_idx(path: Path) -> np.ndarray:
    """An IDX file of bytes: two zeros, type 8, the number of dimensions, their sizes (big-endian), the data."""
    raw = path.read_bytes()
    try:
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        zero, kind, dimensions = struct.unpack(">HBB", raw[:4])
        shape = struct.unpack(f">{dimensions}I", raw[4 : 4 + 4 * dimensions])
    except (OSError, EOFError, struct.error, zlib.error) as error:
        raise UserError(f"{path} is not a whole IDX file ({error}): {AGAIN}") from error
    if (zero, kind) != (0, 8) or len(raw) - 4 - 4 * dimensions != math.prod(shape):
        raise UserError(f"{path} is not a whole IDX file of bytes: {AGAIN}")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


@dataclass(frozen=True, kw_only=True)
class MNIST(PublishedImages):
    """60,000 + 10,000 handwritten digits, 28 x 28."""

    def read(self, data_dir: Path | None = None) -> Pool:
        return self.idx_pool(obtain(MNIST_FILES, data_dir, self.mirror), digits)


@dataclass(frozen=True, kw_only=True)
class FashionMNIST(PublishedImages):
    """60,000 + 10,000 pieces of clothing, 28 x 28, in MNIST's format."""

    def read(self, data_dir: Path | None = None) -> Pool:
        return self.idx_pool(obtain(FASHION_FILES, data_dir, self.mirror), FASHION_LABELS)


@dataclass(frozen=True, kw_only=True)
class EMNIST(PublishedImages):
    """Handwritten characters, 28 x 28, in one of the published splits; the files store every picture transposed.

    split   one of the published splits: byclass (62 classes), bymerge or balanced (47), letters (26), digits or
            mnist (10)
    """

    split: str = "byclass"

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
                raise UserError(f"{archive} does not hold {', '.join(names)} ({error}): {AGAIN}") from error
        first = 1 if self.split == "letters" else 0  # the letters are numbered from 1 in their file, others from 0
        return self.idx_pool(paths, EMNIST_LABELS[self.split], first)


@dataclass(frozen=True)
class BinaryFiles:
    """The files of CIFAR-10 or CIFAR-100. A record is its label bytes, the last of which is its class, then 3,072
    pixels, channels first.

    title     of the set
    folder    of its unpacked files
    archive   the published file
    parts     the names of the training files, and of the test files
    heads     how many label bytes a record has
    """

    title: str
    folder: str
    archive: PublicFile
    parts: tuple[tuple[str, ...], tuple[str, ...]]
    heads: int

    def read(self, which: int, data_dir: Path | None, mirror: str | None) -> tuple[np.ndarray, np.ndarray, str]:
        """The pictures and the labels of a part, and its name."""
        names, root, size = self.parts[which], find_data_dir(data_dir), self.heads + PIXELS
        for folder in (root / self.folder, root / self.archive.name.split("-binary")[0] / self.folder):
            if all((folder / name).is_file() for name in names):
                blobs = [(folder / name).read_bytes() for name in names]
                break
        else:
            wanted = PublicSet(self.title, (".", "cifar", "cifar10", "cifar100"), (self.archive,))
            archive = obtain(wanted, data_dir, mirror)[0]
            try:
                with tarfile.open(archive) as pack:
                    blobs = [pack.extractfile(f"{self.folder}/{name}").read() for name in names]  # type: ignore[union-attr]
            except (tarfile.TarError, EOFError, OSError, KeyError) as error:
                raise UserError(f"{archive} cannot be read ({error}): {AGAIN}") from error
        for name, blob in zip(names, blobs, strict=True):
            if not blob or len(blob) % size:
                raise UserError(f"{name} of {self.title} is not whole ({len(blob)} bytes, records of {size})")
        record_S = np.frombuffer(b"".join(blobs), np.uint8).reshape(-1, size)
        return record_S[:, self.heads :].reshape(-1, 3, 32, 32), record_S[:, self.heads - 1], self.title


SITE = "https://www.cs.toronto.edu/~kriz/"
CIFAR10_FILES = BinaryFiles(
    "CIFAR-10", "cifar-10-batches-bin",
    PublicFile("cifar-10-binary.tar.gz", SITE + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    (tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",)), heads=1,
)  # fmt: skip
CIFAR100_FILES = BinaryFiles(
    "CIFAR-100", "cifar-100-binary",
    PublicFile("cifar-100-binary.tar.gz", SITE + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    (("train.bin",), ("test.bin",)), heads=2,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CIFAR10(PublishedImages):
    """50,000 + 10,000 colour pictures of 10 classes, 32 x 32."""

    def read(self, data_dir: Path | None = None) -> Pool:
        return self.pool(CIFAR10_LABELS, lambda which: CIFAR10_FILES.read(which, data_dir, self.mirror))


@dataclass(frozen=True, kw_only=True)
class CIFAR100(PublishedImages):
    """50,000 + 10,000 colour pictures of 100 classes, 32 x 32."""

    def read(self, data_dir: Path | None = None) -> Pool:
        labels = [str(label) for label in range(100)]
        return self.pool(labels, lambda which: CIFAR100_FILES.read(which, data_dir, self.mirror))


KINDS = {
    "digits": Digits,
    "mnist": MNIST,
    "fashion-mnist": FashionMNIST,
    "emnist": EMNIST,
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
}
