"""What there is to know of a run's data once the data is gone: enough to build its model, and to read a table like it.

A run keeps it in its folder (`data.json`), so that the trained model can be used anywhere. Loaded like a data set it
is a federation of zeros.

Shape letters: C clients asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.columns import Encoding
from turnout.data.federation import CentralSet, Device, Federation
from turnout.data.labels import Public
from turnout.errors import UserError
from turnout.machine.checksums import UNREADABLE, Damaged, json_text, table_of
from turnout.machine.files import write_whole
from turnout.tasks import Standardised
from turnout.types import Samples
from turnout.world.client_names import ClientNames
from turnout.world.enrolment import Enrolment
from turnout.world.members import Members

FILE = "data.json"
THEN = "run again with --resume, which writes it anew"


@dataclass(frozen=True)
class Description:
    """The shape of a federation without its samples.

    input_type   of a sample's numbers: "float32", or "int64" for texts
    target_shape of one target: () for a label or a number
    target_type  "int64" for labels, "float32" for numbers to be predicted
    labels       what each output stands for; none for numbers to be predicted
    names        of the clients, where the data has owners
    mark         the fingerprint of data, model and settings that the run's checkpoints carry
    standardised how targets were, where they were: the trained model gives them in their own unit
    encoding     how the columns of a table became samples, where the data was one
    words        a hash of the list by which words became numbers, where the data was sentences
    """

    clients: int
    input_shape: tuple[int, ...]
    input_type: str
    target_shape: tuple[int, ...]
    target_type: str
    classes: int
    labels: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    mark: str = ""
    standardised: Standardised | None = None
    encoding: Encoding | None = None
    words: str = ""

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Zeros:
        """A federation like it, with one sample of zeros each."""
        return Zeros(self)

    def sample(self, count: int = 1) -> Tensor:
        """Samples of zeros."""
        return torch.zeros(count, *self.input_shape, dtype=getattr(torch, self.input_type))

    def client(self, said: int | str) -> int:
        """A client by number or by name."""
        known = ClientNames(self.names, self.clients)
        number = known.number(said)
        if number is None and isinstance(said, str) and said.isdecimal():
            number = known.number(int(said))  # the data has names, but this is none of them
        if number is None:
            hint = f" ({known.hint(said)})" if isinstance(said, str) and known.hint(said) else ""
            shown = said if isinstance(said, int) or said.isdecimal() else repr(said)
            raise UserError(f"there is no client {shown}: they are 0 to {self.clients - 1}{hint}")
        return number

    def write(self, folder: Path) -> None:
        write_whole(folder / FILE, self.text())

    def text(self) -> str:
        return json_text(asdict(self))


def read_description(folder: Path) -> Description | None:
    """What a run folder keeps of its data; None for a folder of an older version."""
    path = folder / FILE
    return read_text(path.read_bytes(), str(path)) if path.is_file() else None


def read_text(text: str | bytes, where: str) -> Description:
    """A description from what `Description.text` wrote."""
    try:
        found = {"words": "", **table_of(text)}  # older versions do not write it
        kept = {f.name: found[f.name] for f in fields(Description)}
        kept |= {name: tuple(value) for name, value in kept.items() if isinstance(value, list)}
        unit, encoding = kept.pop("standardised"), kept.pop("encoding")
        return Description(
            **kept,
            standardised=None if unit is None else Standardised(**unit),
            encoding=None if encoding is None else Encoding.from_plain(encoding),
        )
    except UNREADABLE as error:
        raise Damaged(where, repr(error), THEN) from error


def enrolment_of(federation: Federation) -> Enrolment:
    """What is known of simulated clients before the first round."""
    return Enrolment(
        clients=federation.clients,
        names=federation.names,
        input_shape=federation.input_shape,
        classes=federation.classes,
        labels=tuple(map(str, federation.labels)),
        sample=_a_few_samples(federation),
        groups=federation.groups(),
        fingerprint=federation.fingerprint(),
        standardised=getattr(federation, "standardised", None),  # tables have it
        encoding=getattr(federation, "encoding", None),
        words=getattr(federation, "words", ""),  # sentences have it
        note=getattr(federation, "note", ""),
        examples=lambda client_C: federation.examples(client_C).cpu(),
    )


def described(enrolment: Enrolment, mark: str) -> Description:
    """What a run keeps of its data, and a device says of its own."""
    input_type, target_type = ("float32" if v.is_floating_point() else "int64" for v in enrolment.sample)
    return Description(
        clients=enrolment.clients,
        input_shape=tuple(enrolment.input_shape),
        input_type=input_type,
        target_shape=tuple(enrolment.sample[1].shape[1:]),
        target_type=target_type,
        classes=enrolment.classes,
        labels=enrolment.labels,
        names=enrolment.names,
        mark=mark,
        standardised=enrolment.standardised,
        encoding=enrolment.encoding,
        words=enrolment.words,
    )


def _a_few_samples(federation: Federation) -> tuple[Tensor, Tensor]:
    """Samples to try the model on."""
    ids = torch.arange(min(federation.clients, 64))
    with_data = ids[federation.examples(ids).cpu() > 0]
    if len(with_data) == 0:
        raise UserError("the first clients hold no training samples: look at world.data and its sizes")
    return federation.train(with_data[:1], 0).of(0, most=8)


@dataclass(frozen=True, eq=False)
class Zeros:
    """A federation with one sample of zeros for each client: for building what depends on shapes only."""

    like: Description

    @property
    def clients(self) -> int:
        return self.like.clients

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.like.input_shape

    @property
    def classes(self) -> int:
        return self.like.classes

    @property
    def labels(self) -> tuple[str, ...]:
        return self.like.labels

    @property
    def names(self) -> tuple[str, ...] | None:
        return self.like.names

    @property
    def standardised(self) -> Standardised | None:
        return self.like.standardised

    @property
    def public(self) -> Public:
        y_R = torch.zeros(1, dtype=torch.int64)
        return Public(self.like.sample(), y_R, lambda client, t: torch.arange(min(2, self.classes)))

    def examples(self, client_C: Tensor) -> Tensor:
        return torch.ones_like(client_C)

    def train(self, client_C: Tensor, t: int) -> Samples:
        y = torch.zeros(1, dtype=torch.int64)
        return Samples(self.like.sample(), y, torch.zeros_like(client_C), torch.ones_like(client_C))

    def test(self, client_C: Tensor, t: int) -> Samples:
        return self.train(client_C, t)

    def central_test(self, members: Members | None = None) -> tuple[Tensor, Tensor] | None:
        return None

    def central_set(self, members: Members | None = None) -> CentralSet | None:
        return None

    def to(self, device: Device) -> Zeros:
        return self

    def groups(self) -> Tensor | None:
        return None

    def noisy(self) -> Tensor | None:
        return None

    def fingerprint(self) -> str:
        return self.like.mark
