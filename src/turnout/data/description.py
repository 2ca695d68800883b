"""The description of a run's data (`data.json`), by which its model is built and tables are read without the data.

Shape letters: C clients asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.data.columns import Encoding
from turnout.data.federation import Federation
from turnout.data.generated import ClientData, Generated
from turnout.data.labels import Public
from turnout.errors import UserError
from turnout.inputs import MASK, Inputs
from turnout.machine.checksums import UNREADABLE, Damaged, json_text, table_of
from turnout.machine.files import write_whole
from turnout.tasks import Standardised
from turnout.world.enrolment import ClientNames, Enrolment

FILE = "data.json"
THEN = "run again with --resume, which writes it anew"


@dataclass(frozen=True)
class Description:
    """The shape of a federation without its samples.

    clients       how many
    input_shape   of one sample
    input_type    of a sample's numbers: "float32", or "int64" for texts
    target_shape  of one target: () for a label or a number
    target_type   "int64" for labels, "float32" for numbers to be predicted
    classes       the number of outputs a model needs
    labels        the names of the classes; none for numbers to be predicted
    names         of the clients, if the data has owners
    mark          the fingerprint of data, model and settings in the run's checkpoints
    standardised  how targets were standardised, if they were: the trained model predicts in their own unit
    encoding      how the columns of a table became samples
    words         a hash of the list that numbers words
    inputs        the shape and type of each input by name, if samples have several; the first is `input_shape`
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
    inputs: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    def load(self, seed: int = 0, data_dir: Path | None = None, samples: int = 1) -> Generated:
        """A federation like it, in which each client has some samples of zeros."""
        x, y = self.sample(samples), torch.zeros(samples, *self.target_shape, dtype=getattr(torch, self.target_type))
        public = Public(
            self.sample(), torch.zeros(1, dtype=torch.int64), partial(_same_for_all, torch.arange(min(2, self.classes)))
        )
        return Generated(
            make=partial(_same_for_all, ClientData(x, y, x, y)), count=partial(torch.full_like, fill_value=samples),
            clients=self.clients, input_shape=self.input_shape, classes=self.classes, labels=self.labels,
            names=self.names, central_clients=0, public=public, standardised=self.standardised, mark=self.mark,
        )  # fmt: skip

    def sample(self, count: int = 1) -> Tensor:
        """Samples of zeros; an attention mask of ones, without which nothing would be seen."""
        if not self.inputs:
            return torch.zeros(count, *self.input_shape, dtype=getattr(torch, self.input_type))
        fill = {MASK: 1}
        return Inputs(
            {
                name: torch.full((count, *shape), fill.get(name, 0), dtype=getattr(torch, kind))
                for name, (shape, kind) in self.inputs.items()
            }
        )

    def client(self, wanted: int | str) -> int:
        known = ClientNames(self.names, self.clients)
        number = known.number(wanted)
        if number is None and isinstance(wanted, str):  # the data has names, but this may be a number
            number = ClientNames(None, self.clients).number(wanted)
        if number is None:
            hint = f" ({known.hint(wanted)})" if isinstance(wanted, str) and known.hint(wanted) else ""
            shown = wanted if isinstance(wanted, int) or wanted.isdecimal() else repr(wanted)
            raise UserError(f"there is no client {shown}: they are 0 to {self.clients - 1}{hint}")
        return number

    def write(self, folder: Path) -> None:
        write_whole(folder / FILE, self.text())

    def text(self) -> str:
        return json_text(asdict(self))


def read_description(folder: Path) -> Description | None:
    """The description in a run folder; None for a folder of an older version."""
    path = folder / FILE
    return read_text(path.read_bytes(), str(path)) if path.is_file() else None


def read_text(text: str | bytes, where: str) -> Description:
    """A description from what `Description.text` wrote."""
    try:
        found = {"words": "", "inputs": {}, **table_of(text)}  # older versions do not write them
        kept = {f.name: found[f.name] for f in fields(Description)}
        kept |= {name: tuple(value) for name, value in kept.items() if isinstance(value, list)}
        unit, encoding = kept.pop("standardised"), kept.pop("encoding")
        kept["inputs"] = {name: (tuple(shape), str(kind)) for name, (shape, kind) in kept["inputs"].items()}
        return Description(
            **kept,
            standardised=None if unit is None else Standardised(**unit),
            encoding=None if encoding is None else Encoding.from_plain(encoding),
        )
    except UNREADABLE as error:
        raise Damaged(where, repr(error), THEN) from error


def enrolment_of(federation: Federation) -> Enrolment:
    """The enrolment of simulated clients."""
    ids = torch.arange(min(federation.clients, 64))
    with_data = ids[federation.examples(ids).cpu() > 0]
    if len(with_data) == 0:
        raise UserError("the first clients hold no training samples: check world.data and its sizes")
    return Enrolment(
        clients=federation.clients,
        names=federation.names,
        input_shape=federation.input_shape,
        classes=federation.classes,
        labels=tuple(map(str, federation.labels)),
        sample=federation.train(with_data[:1], 0).of(0, most=8),
        groups=getattr(federation, "groups", None),
        fingerprint=federation.fingerprint(),
        standardised=getattr(federation, "standardised", None),  # tables have it
        encoding=getattr(federation, "encoding", None),
        words=getattr(federation, "words", ""),  # sentences have it
        note=getattr(federation, "note", ""),
        examples=lambda client_C: federation.examples(client_C).cpu(),
    )


def described(enrolment: Enrolment, mark: str) -> Description:
    """The description that a run keeps of its data, and that a device sends of its own."""
    x, y = enrolment.sample
    input_type, target_type = (_type(x.first if isinstance(x, Inputs) else x), _type(y))
    several = x.tensors if isinstance(x, Inputs) else {}
    common = {f.name: getattr(enrolment, f.name) for f in fields(Description) if hasattr(enrolment, f.name)}
    return Description(
        **common | {"input_shape": tuple(enrolment.input_shape)},
        input_type=input_type,
        target_shape=tuple(y.shape[1:]),
        target_type=target_type,
        mark=mark,
        inputs={name: (tuple(value.shape[1:]), _type(value)) for name, value in several.items()},
    )


def _type(value: Tensor) -> str:
    return "float32" if value.is_floating_point() else "int64"


def _same_for_all(value: Any, client: int, t: int) -> Any:
    return value
