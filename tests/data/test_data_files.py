"""Image files as their sites publish them, and the data folder: found, downloaded, checked, refused with advice."""

import gzip
import hashlib
import http.server
import io
import socket
import struct
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from turnout.data import CIFAR10, CIFAR100, EMNIST, MNIST, FashionMNIST, ImageFolder, find_data_dir
from turnout.data.files import PublicFile, PublicSet, fetch, find_path, obtain
from turnout.errors import UserError

PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def four(train: int, test: int, classes: int = 10, first: int = 0) -> list[bytes]:
    """A tiny set in MNIST's four files: pixel (i, j) of picture s is (s + 10 i + j) % 256."""
    files = []
    for n in (train, test):
        s, i, j = np.ogrid[:n, :28, :28]
        files += [idx((s + 10 * i + j) % 256), idx(np.arange(n) % classes + first)]
    return files


def write_mnist(folder: Path, zipped: bool = True, train: int = 60) -> None:
    folder.mkdir(parents=True)
    for name, raw in zip(PARTS, four(train, 20), strict=True):
        path = folder / (name + ".gz" if zipped else name)
        path.write_bytes(gzip.compress(raw) if zipped else raw)


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_from_idx(tmp_path, zipped):
    write_mnist(tmp_path / "mnist", zipped)
    data = MNIST(clients=4).load(seed=0, data_dir=tmp_path)
    assert (data.clients, data.input_shape, data.classes, len(data.x)) == (4, (1, 28, 28), 10, 60)
    assert data.x[7, 0, 2, 5].item() == pytest.approx((7 + 20 + 5) / 255)
    assert data.y.tolist() == [s % 10 for s in range(60)]
    assert len(data.central_test()[0]) == 20


def test_fashion_is_not_taken_from_mnists_folder(tmp_path):
    write_mnist(tmp_path / "FashionMNIST" / "raw")
    assert FashionMNIST(clients=2).load(0, tmp_path).labels[9] == "Ankle boot"


def test_normalisation(tmp_path):
    write_mnist(tmp_path / "mnist")
    plain, scaled = (MNIST(mean=mean, std=std).read(tmp_path).x for mean, std in ((None, None), ((0.5,), (0.25,))))
    assert torch.allclose(scaled, (plain - 0.5) / 0.25)
    with pytest.raises(UserError, match="1 number or 1"):
        MNIST(mean=(0.1, 0.2)).read(tmp_path)
    with pytest.raises(UserError, match="above 0"):
        MNIST(std=(0.0,))


@pytest.mark.parametrize(("kind", "classes", "first"), [("byclass", 62, 0), ("balanced", 47, 0), ("letters", 26, 1)])
def test_emnist_from_the_published_archive(tmp_path, kind, classes, first):
    (tmp_path / "emnist").mkdir()
    names = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    with zipfile.ZipFile(tmp_path / "emnist" / "gzip.zip", "w") as pack:
        for name, raw in zip(names, four(130, 62, classes, first), strict=True):
            pack.writestr(f"gzip/emnist-{kind}-{name}-ubyte.gz", gzip.compress(raw))
    for _ in range(2):  # from the archive, then from its files
        pool = EMNIST(split=kind).read(tmp_path)
        assert (pool.classes, int(pool.y.min()), int(pool.y.max())) == (classes, 0, classes - 1)
        assert pool.x[0, 0, 2, 5].item() == pytest.approx(25 / 255)
    with pytest.raises(UserError, match="did you mean 'byclass'"):
        EMNIST(split="byclas")


CUT_OFF = idx(np.zeros((3, 28, 28)))[:-1]
BAD_GZIP = gzip.compress(b"x" * 99, mtime=0)[:-9]


@pytest.mark.parametrize("damage", [b"", b"hello", CUT_OFF, BAD_GZIP], ids=["empty", "text", "cut off", "bad gzip"])
def test_a_damaged_idx_file_is_refused(tmp_path, damage):
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / (PARTS[0] + ".gz")).write_bytes(damage)
    with pytest.raises(UserError, match="not a whole IDX file"):
        MNIST().load(0, tmp_path)


def test_labels_that_do_not_fit_are_refused(tmp_path):
    write_mnist(tmp_path / "mnist")
    labels = tmp_path / "mnist" / (PARTS[1] + ".gz")
    labels.write_bytes(idx(np.full(60, 11)))
    with pytest.raises(UserError, match="label 11"):
        MNIST().load(0, tmp_path)
    labels.write_bytes(idx(np.zeros(59)))
    with pytest.raises(UserError, match="differ in number"):
        MNIST().load(0, tmp_path)


def cifar_record(heads: list[int], value: int) -> bytes:
    """Labels, then red, green and blue planes of one value each."""
    return bytes(heads) + bytes([value] * 1024 + [value + 1] * 1024 + [value + 2] * 1024)


CIFAR10_FILES = {f"data_batch_{i}.bin": cifar_record([i], 10 * i) + cifar_record([9], 0) for i in range(1, 6)} | {
    "test_batch.bin": cifar_record([3], 7)
}


@pytest.mark.parametrize("packed", [True, False])
def test_cifar10_from_its_binary_version(tmp_path, packed):
    if packed:
        with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as pack:
            for name, raw in CIFAR10_FILES.items():
                member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                member.size = len(raw)
                pack.addfile(member, io.BytesIO(raw))
    else:
        (tmp_path / "cifar-10-batches-bin").mkdir()
        for name, raw in CIFAR10_FILES.items():
            (tmp_path / "cifar-10-batches-bin" / name).write_bytes(raw)
    pool = CIFAR10().read(tmp_path)
    assert pool.y.tolist() == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert pool.x.shape == (10, 3, 32, 32)
    assert (pool.x[2, :, 31, 0] * 255).round().tolist() == [20, 21, 22]
    assert pool.test[1].tolist() == [3]
    assert pool.labels[9] == "truck"


def test_cifar100_from_its_binary_version(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(cifar_record([4, 99], 1) + cifar_record([19, 5], 2))
    (folder / "test.bin").write_bytes(cifar_record([0, 42], 3))
    assert CIFAR100().read(tmp_path).y.tolist() == [99, 5]
    (folder / "train.bin").write_bytes(b"short")
    with pytest.raises(UserError, match="not whole"):
        CIFAR100().read(tmp_path)


def picture(path: Path, size: tuple[int, int], colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def test_a_folder_of_pictures(tmp_path):
    for part in ("train", "test"):
        for i in range(3):
            picture(tmp_path / "own" / part / "cat" / f"{i}.png", (20, 10), (255, 0, 0))
            picture(tmp_path / "own" / part / "dog" / f"{i}.png", (8, 8), (0, 0, 255))
    data = ImageFolder("own", size=6, clients=2, test_share=0).load(0, tmp_path)
    assert (data.labels, data.input_shape) == (("cat", "dog"), (3, 6, 6))
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.x[0, :, 0, 0].tolist() == [1, 0, 0]
    assert len(data.central_test()[0]) == 6
    assert ImageFolder("own", size=6, colour=False, clients=2).read(tmp_path).x.shape == (6, 1, 6, 6)


def test_a_folder_without_pictures_is_refused(tmp_path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(UserError, match="no pictures"):
        ImageFolder(tmp_path).read()
    (tmp_path / "cat" / "1.png").write_bytes(b"not a picture")
    with pytest.raises(UserError, match="cannot be read as a picture"):
        ImageFolder(tmp_path).read()


def test_a_file_in_place_of_a_folder_of_pictures_is_refused(tmp_path):
    picture(tmp_path / "cat.png", (8, 8), (0, 0, 255))
    with pytest.raises(UserError, match=r"cat.png has no pictures"):
        ImageFolder(tmp_path / "cat.png").read()


@pytest.mark.parametrize("size", [0, -4])
def test_pictures_of_no_size_are_refused(tmp_path, size):
    with pytest.raises(UserError, match=rf"size={size}"):
        ImageFolder(tmp_path, size=size)


def test_pictures_without_pillow_name_the_extra(tmp_path, monkeypatch):
    picture(tmp_path / "cat" / "1.png", (8, 8), (0, 0, 255))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"turnout\[images\]"):
        ImageFolder(tmp_path).read()


def test_where_the_data_folder_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TURNOUT_DATA", raising=False)
    assert find_data_dir() == tmp_path / "cache" / "turnout"
    monkeypatch.setenv("TURNOUT_DATA", str(tmp_path / "data"))
    assert find_data_dir() == tmp_path / "data"
    assert find_data_dir(tmp_path / "given") == tmp_path / "given"
    with pytest.raises(UserError, match="there is no"):
        find_path("nothing.csv", tmp_path)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A web server on this machine, with one file."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    served = tmp_path / "site"
    served.mkdir()
    (served / "a.bin").write_bytes(b"federated" * 50_000)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: Quiet(*args, directory=str(served)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_a_download_is_checked_and_kept(tmp_path, site, algorithm):
    raw = b"federated" * 50_000
    wanted = PublicSet(
        "A set", ("aset",), (PublicFile("a.bin", site + "/a.bin", hashlib.new(algorithm, raw).hexdigest()),)
    )
    (path,) = obtain(wanted, tmp_path)
    assert path == tmp_path / "aset" / "a.bin"
    assert path.read_bytes() == raw
    assert [p.name for p in path.parent.iterdir()] == ["a.bin"]
    nowhere = PublicSet("A set", ("aset",), (PublicFile("a.bin", "http://127.0.0.1:1/a.bin", ""),))
    assert obtain(nowhere, tmp_path) == [path]  # there already: not asked for again


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path, site):
    with pytest.raises(UserError, match="damaged or changed"):
        fetch(PublicFile("a.bin", site + "/a.bin", "0" * 32), tmp_path / "aset")
    assert not list((tmp_path / "aset").iterdir())


def test_a_mirror_with_the_wrong_file_says_what_to_put_where(tmp_path, site):
    (tmp_path / "site" / "train-images-idx3-ubyte.gz").write_bytes(b"something else")
    with pytest.raises(UserError, match=r"damaged or changed.*Put train-images-idx3-ubyte.gz, .* into .*mnist"):
        MNIST(mirror=site).load(0, tmp_path / "data")


def test_a_missing_page_and_an_unreachable_host_say_what_to_put_where(tmp_path, site):
    with pytest.raises(UserError, match=r"404.*Put cifar-10-binary.tar.gz into"):
        CIFAR10(mirror=site).load(0, tmp_path)
    with socket.socket() as probe:  # a port that nobody listens on
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(UserError, match=r"could not be downloaded: .*refused.*TURNOUT_DATA"):
        EMNIST(mirror=f"http://127.0.0.1:{port}/").load(0, tmp_path)
