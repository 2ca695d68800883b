"""Values that cross borders between parts: small named records.

Shape letters, here and everywhere: C clients of a cohort (or replies), P shared parameters as flat columns,
S samples of a pool, R rows (samples listed client after client).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.inputs import Inputs, trimmed
from turnout.times import Times as Times

Tensors = dict[str, Tensor]
Extra = dict[str, float | str]  # numbers and words for the round's record


SILENTLY = "without a word"  # how the detail of a leave begins where the client has vanished


class Happened(NamedTuple):
    """Something that happened to a client's membership: kind is "join", "leave", "drop" or "return"."""

    client: int
    kind: str
    detail: str


@dataclass(frozen=True)
class Samples:
    """The samples of several clients, as rows of one pool of tensors.

    Client i of the list owns the next `count_C[i]` entries of `row_R`. The pool may hold more than these clients own
    (a whole data set, never copied) or just them (data generated for this cohort).
    """

    x: Tensor
    y: Tensor
    row_R: Tensor
    count_C: Tensor

    @property
    def start_C(self) -> Tensor:
        """Where each client's rows begin."""
        return self.count_C.cumsum(0) - self.count_C

    def of(self, i: int, most: int | None = None) -> tuple[Tensor, Tensor]:
        """The i-th client's own samples, or the first of them: a part of the result would keep all of it in memory."""
        start, count = int(self.start_C[i]), int(self.count_C[i])
        rows = self.row_R[start : start + (count if most is None else min(most, count))]
        return self.x[rows], self.y[rows]

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The samples of these rows, of several inputs without positions that none of them uses, and their targets."""
        x = self.x[rows]
        return trimmed(x) if isinstance(x, Inputs) else x, self.y[rows]

    def take(self, place_c: Tensor) -> Samples:
        """The samples of some of the clients, in the order named; the pool stays.

        >>> both = Samples(torch.zeros(9), torch.zeros(9), torch.tensor([4, 5, 8]), torch.tensor([2, 1]))
        >>> both.take(torch.tensor([1, 0])).row_R
        tensor([8, 4, 5])
        """
        count_c, start_c = self.count_C[place_c], self.start_C[place_c]
        shift_R = (start_c - (count_c.cumsum(0) - count_c)).repeat_interleave(count_c)
        row_R = self.row_R[(shift_R + torch.arange(len(shift_R), device=shift_R.device)).to(self.row_R.device)]
        return Samples(self.x, self.y, row_R, count_c)

    def to(self, device: torch.device) -> Samples:
        """The same samples on another device; who owns which rows stays in the processor's memory."""
        return Samples(self.x.to(device), self.y.to(device), self.row_R, self.count_C)


@dataclass(frozen=True)
class Turnout:
    """What happened when a cohort was asked: who answered, and with how much work.

    `work_C` is in units (steps or epochs, as the experiment says), 0 for the absent; `full_work` is what was asked.
    `progress_C` is the same in effective local steps (for plain SGD the steps themselves, for momentum the sum of
    the gradients' coefficients), `full_progress_C` what complete work would have been: scheme C's factor is their
    ratio, FedNova's normaliser is `progress_C`. `times` is what it took, where that is known.
    """

    client_C: Tensor
    work_C: Tensor
    full_work: float
    progress_C: Tensor
    full_progress_C: Tensor
    times: Times | None = None

    @cached_property
    def present_C(self) -> Tensor:
        return self.work_C > 0

    @property
    def complete_C(self) -> Tensor:
        return self.work_C >= self.full_work

    def mask(self, position_I: Tensor) -> Tensor:
        """Which clients of the cohort are at these positions [C]."""
        return torch.zeros_like(self.present_C).index_fill(0, position_I, True)

    def among(self, client_C: Tensor) -> Turnout:
        """The same record with absent rows for clients that were not even asked; both lists are sorted by id."""
        row_C = torch.searchsorted(client_C, self.client_C)
        zero_C = torch.zeros(len(client_C), dtype=torch.float64)
        work_C, progress_C, full_C = (
            zero_C.to(value.dtype).index_copy(0, row_C, value)
            for value in (self.work_C, self.progress_C, self.full_progress_C)
        )
        times = None if self.times is None else self.times.among(row_C, len(client_C))
        return replace(
            self, client_C=client_C, work_C=work_C, progress_C=progress_C, full_progress_C=full_C, times=times
        )

    def join(self, other: Turnout) -> Turnout:
        """These clients and others, none of whom are in both, sorted by id."""
        client_C = torch.cat([self.client_C, other.client_C])
        order_C = client_C.argsort()
        both: dict[str, Any] = {
            name: torch.cat([getattr(self, name), getattr(other, name).to(getattr(self, name))])[order_C]
            for name in ("client_C", "work_C", "progress_C", "full_progress_C")
        }
        times = None if self.times is None or other.times is None else self.times.join(other.times).take(order_C)
        return replace(self, **both, times=times)

    def claiming(self, client_C: Tensor, fraction: float) -> Turnout:
        """The same record with another fraction of the work for some of the cohort (booleans)."""
        work_C = torch.full_like(self.work_C, fraction * self.full_work)
        progress_C = (fraction * self.full_progress_C).to(self.progress_C.dtype)
        return replace(
            self,
            work_C=torch.where(client_C, work_C, self.work_C),
            progress_C=torch.where(client_C, progress_C, self.progress_C),
        )

    def take(self, rows: Tensor) -> Turnout:
        """The same record for some of the cohort."""
        return replace(
            self,
            times=None if self.times is None else self.times.take(rows),
            client_C=self.client_C[rows],
            work_C=self.work_C[rows],
            progress_C=self.progress_C[rows],
            full_progress_C=self.full_progress_C[rows],
        )


BYTE = "byte"  # the name of encoded rows in a message: row i is its first `bytes_C[i]` bytes, and padding


@dataclass(frozen=True)
class Message:
    """Encoded updates of several clients, one row each in every tensor, and the exact bytes of each.

    `decoded` is what a decoder makes of them, where the encoder is in the same process and knows; it never travels.
    """

    tensors: Tensors
    bytes_C: Tensor
    decoded: Tensor | None = None

    def counted(self) -> Message:
        """The same with the bytes on the CPU, and rows of bytes no wider than the longest: they travel whole.

        >>> Message({BYTE: torch.zeros(2, 9, dtype=torch.uint8)}, torch.tensor([3, 5])).counted().tensors[BYTE].shape
        torch.Size([2, 5])
        """
        bytes_C, tensors = self.bytes_C.cpu(), self.tensors
        if BYTE in tensors and len(bytes_C):
            tensors = tensors | {BYTE: tensors[BYTE][:, : int(bytes_C.max())]}
        return Message(tensors, bytes_C, self.decoded)

    def take(self, rows: Tensor) -> Message:
        decoded = None if self.decoded is None else self.decoded[rows.to(self.decoded.device)]
        return Message(_rows(self.tensors, rows), self.bytes_C[rows], decoded)

    @staticmethod
    def join(messages: Sequence[Message]) -> Message:
        """Messages of several groups of clients, one after another; rows of bytes are padded to the longest."""
        tensors = _joined([m.tensors for m in messages])
        return Message(tensors, torch.cat([m.bytes_C for m in messages]))


SQUARED = "squared"  # of a report: the squared length of a dense update, where local training has measured it


@dataclass(frozen=True)
class Replies:
    """What the participants sent, one row each.

    client_R  the clients
    message   update of the shared parameters (trained - start, scaled by work: to be *added*), encoded
    states    BatchNorm statistics, federated moments: name -> [R, ...], combined by `weighted_mean`
    uploads   uploads of terms (Fisher u and v, control variates): term -> name -> [R, ...]
    report    numbers: "loss", "finite" (all that was sent and kept is finite), "bytes_up", "bytes_down" (of terms),
              ...: name -> [R]
    hints     uploads for the substitution (a sketch of the update): name -> [R, ...]
    """

    client_R: Tensor
    message: Message
    states: Tensors = field(default_factory=dict)
    uploads: dict[str, Tensors] = field(default_factory=dict)
    report: Tensors = field(default_factory=dict)
    hints: Tensors = field(default_factory=dict)

    def reported(self) -> Replies:
        """The same with the report in this computer's memory: where a GPU still trains, this waits for it."""
        return replace(self, report={name: value.cpu() for name, value in self.report.items()})

    def take(self, rows: Tensor) -> Replies:
        """The same for some of the replies."""
        return Replies(
            self.client_R[rows],
            self.message.take(rows),
            _rows(self.states, rows),
            {term: _rows(tensors, rows) for term, tensors in self.uploads.items()},
            _rows(self.report, rows),
            _rows(self.hints, rows),
        )

    @staticmethod
    def join(replies: Sequence[Replies]) -> Replies:
        """The replies of several groups of clients, one after another. What some of them do not report is left out."""
        terms, reported = replies[0].uploads.keys(), set.intersection(*(set(r.report) for r in replies))
        return Replies(
            torch.cat([r.client_R for r in replies]),
            Message.join([r.message for r in replies]),
            _joined([r.states for r in replies]),
            {term: _joined([r.uploads[term] for r in replies]) for term in terms},
            _joined([{name: r.report[name] for name in r.report if name in reported} for r in replies]),
            _joined([r.hints for r in replies]),
        )


def _joined(groups: Sequence[Tensors]) -> Tensors:
    """Rows of several groups under each name; rows of bytes may differ in length, the shorter are padded with zeros."""
    return {name: torch.cat(_padded([group[name] for group in groups])) for name in groups[0]}


def _padded(values: Sequence[Tensor]) -> list[Tensor]:
    if values[0].dtype != torch.uint8 or values[0].dim() != 2:
        return list(values)
    longest = max(value.shape[1] for value in values)
    return [torch.nn.functional.pad(value, (0, longest - value.shape[1])) for value in values]


def _rows(tensors: Tensors, rows: Tensor) -> Tensors:
    return {name: value[rows.to(value.device)] for name, value in tensors.items()}


State = dict[str, Any]  # a tree of dicts whose leaves are tensors, numbers, strings or None: what a checkpoint holds


def storable(tree: State, whose: str) -> State:
    """The state of a part as it is; refused where a checkpoint could not hold it, or would give back something else.

    >>> storable({"rows/old": torch.zeros(2)}, "begin")
    Traceback (most recent call last):
    turnout.errors.UserError: begin: a state calls something 'rows/old', and / divides names in a checkpoint: rename it
    """
    for name, value in tree.items():
        if not isinstance(name, str):
            raise UserError(f"{whose}: a state has the name {name!r}, and names are texts: write {str(name)!r}")
        if "/" in name:
            raise UserError(
                f"{whose}: a state calls something {name!r}, and / divides names in a checkpoint: rename it"
            )
        if isinstance(value, dict):
            storable(value, whose)
        elif not isinstance(value, Tensor) and not _survives(value):
            raise UserError(
                f"{whose}: a state has a {type(value).__name__} under {name!r}, which a checkpoint cannot hold: "
                "give tensors, numbers, texts or None, in dictionaries by name"
            )
    return tree


def _survives(value: Any) -> bool:
    """Whether a plain value is the same after it was written as JSON."""
    try:
        return repr(json.loads(json.dumps(value))) == repr(value)
    except (TypeError, ValueError):
        return False


def flatten(tree: Mapping[str, Any], prefix: str = "") -> tuple[Tensors, dict[str, Any]]:
    """Split a state tree into named tensors and named plain values.

    >>> flatten({"a": {"b": torch.zeros(2), "c": 3}})
    ({'a/b': tensor([0., 0.])}, {'a/c': 3})
    """
    tensors: Tensors = {}
    plain: dict[str, Any] = {}
    for name, value in tree.items():
        path = prefix + name
        if isinstance(value, Tensor):
            tensors[path] = value
        elif isinstance(value, Mapping):
            inner = flatten(value, path + "/")
            tensors.update(inner[0])
            plain.update(inner[1])
            if not value:
                plain[path] = {}
        else:
            plain[path] = value
    return tensors, plain


def unflatten(tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> State:
    """The tree that `flatten` took apart."""
    tree: State = {}
    for path, value in {**plain, **tensors}.items():
        *parents, leaf = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


def wire_bytes(tensors: Tensors) -> int:
    """What named tensors take when sent as they are: floats travel as four bytes, whatever they are computed in."""
    return sum(v.numel() * (4 if v.is_floating_point() else v.element_size()) for v in tensors.values())


def row_bytes(rows: Tensors) -> int:
    """The same for one client's row of each."""
    return wire_bytes({name: value[0] for name, value in rows.items()})
