"""A model before the first round: names, shapes and hashes of all its values, and the values that no checkpoint has.

Checkpoints hold trained, shared values. Frozen parameters, buffers that are not states (a table of sines) and the
initial values of personal parameters come from the function that builds the model, which may change. So a run writes
those values once, to `untrained.safetensors`; only their hashes if they take more than `LIMIT` bytes. The hashes of all
values are part of the run's fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnout.errors import UserError
from turnout.layout import Layout
from turnout.machine.checksums import UNREADABLE, Damaged, content, digest, load_tensors, save_tensors
from turnout.types import Tensors

FILE = "untrained.safetensors"
LIMIT = 64 << 20  # bytes of values that a run folder keeps beside its checkpoints
THEN = "delete it and run again with --resume, which writes it again"
SHARED, PERSONAL, FROZEN, CONSTANT = "shared", "personal", "frozen", "constant"
SHOWN = 5  # names in a message


@dataclass(frozen=True)
class FirstValue:
    """A parameter or buffer before the first round.

    name       its name in the module
    group      "shared" and "personal" are trained, or states; "frozen" parameters and "constant" buffers never change
    is_buffer  whether it is a buffer
    dtype      such as "float32"
    shape      its shape
    hash       of its type, shape and values
    same_as    the earlier name of the same tensor, if weights are tied
    """

    name: str
    group: str
    is_buffer: bool
    dtype: str
    shape: tuple[int, ...]
    hash: str
    same_as: str | None = None


@dataclass(frozen=True)
class FirstValues:
    """All parameters and buffers before the first round.

    tensors   their names, shapes and hashes
    norms     BatchNorm layers and the number of features of each
    values    those that no checkpoint has
    complete  whether `values` are all that a model needs beside a checkpoint
    """

    tensors: tuple[FirstValue, ...]
    norms: dict[str, int]
    values: Tensors
    complete: bool

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> FirstValues:
        """Those of a model whose layout groups its parameters."""
        tensors = tuple(_looked_at(module, layout))
        needed = {tensor.name for tensor in tensors if tensor.group != SHARED and tensor.same_as is None}
        values = {name: value for name, value in _named(module) if name in needed}
        complete = sum(value.nbytes for value in values.values()) <= LIMIT
        norms = {n: m.num_features for n, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
        copies = {name: value.detach().cpu().clone().contiguous() for name, value in values.items()}
        return cls(tensors, norms, copies if complete else {}, complete)

    @classmethod
    def of_several(cls, modules: Sequence[nn.Module]) -> FirstValues:
        """Only the hashes, for models that each belong to one client."""
        tensors = []
        for i, module in enumerate(modules):
            prefix = f"model {i}: " if len(modules) > 1 else ""
            for name, value in _named(module):
                is_buffer = not isinstance(value, nn.Parameter)
                tensors.append(_described(prefix + name, PERSONAL, is_buffer, value))
        return cls(tuple(tensors), {}, {}, complete=False)

    @property
    def mark(self) -> str:
        """A hash of all values: the second part of a run's fingerprint."""
        return digest(repr([(tensor.name, tensor.hash) for tensor in self.tensors]).encode())[:16]

    def marks(self) -> dict[str, str]:
        """Eight letters for each parameter and buffer, to compare a device's model with the server's.

        They identify the values; for shared ones, which come with every download, only type and shape: another
        processor may round initial values differently.
        """
        checksums = {}
        for tensor in self.tensors:
            values = "" if tensor.group == SHARED else tensor.hash
            about = repr((tensor.name, tensor.group, tensor.dtype, tensor.shape, values))
            checksums[tensor.name] = digest(about.encode())[:8]
        return checksums

    def write(self, folder: Path) -> None:
        about = {"tensors": [asdict(tensor) for tensor in self.tensors], "norms": self.norms, "complete": self.complete}
        save_tensors(folder / FILE, self.values, about)

    def refuse_other(self, now: FirstValues, folder: Path) -> None:
        """Refuse a model that is not the one a run began with."""
        ours, theirs = ({tensor.name: tensor for tensor in first.tensors} for first in (self, now))
        names = [n for n in {**ours, **theirs} if n not in ours or n not in theirs or ours[n].hash != theirs[n].hash]
        names.sort(key=lambda n: n in ours and ours[n].group in (SHARED, PERSONAL))  # untrained ones first
        if not names:
            return
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        kept = f"; {folder / FILE} has the untrained ones" if self.values else ""
        raise UserError(
            f"the model that is built now has other initial values ({', '.join(names[:SHOWN])}{more}) than the run in "
            f"{folder} began with, so it would resume with another model: build it with the same values{kept}, or "
            "begin a new run in another folder"
        )

    def check_names(self, module: nn.Module, folder: Path) -> None:
        """Refuse a module with other parameters and buffers than the trained one."""
        ours = {t.name: t.shape for t in self.tensors if t.group != CONSTANT}
        theirs = {n: tuple(value.shape) for n, value in module.state_dict().items() if isinstance(value, Tensor)}
        wrong = [f"{n} is missing" for n in ours if n not in theirs] + [f"{n} is new" for n in theirs if n not in ours]
        wrong += [f"{n} is {theirs[n]} and was {ours[n]}" for n in ours if n in theirs and theirs[n] != ours[n]]
        if wrong:
            more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
            raise UserError(f"{folder} holds another model than this one: {', '.join(wrong[:SHOWN])}{more}")

    def stays_home(self, name: str, module: nn.Module) -> bool:
        """The predicate for `algorithm.personal` that gives the same groups again."""
        return any(tensor.name == name and tensor.group == PERSONAL for tensor in self.tensors)


class StandIn(nn.Module):
    """The parameters and buffers of a model under their own names, without its computation."""

    def __init__(self, first: FirstValues) -> None:
        super().__init__()
        made: Tensors = {}
        for tensor in first.tensors:
            path, _, leaf = tensor.name.rpartition(".")
            owner = self._inside(path, first.norms)
            if tensor.same_as is not None:
                value = made[tensor.same_as]
            else:
                zeros = torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype))
                value = first.values.get(tensor.name, zeros).clone()
            if tensor.is_buffer:
                owner.register_buffer(leaf, value, persistent=tensor.group != CONSTANT)
            else:
                trained = tensor.group != FROZEN and value.is_floating_point()
                value = value if isinstance(value, nn.Parameter) else nn.Parameter(value, requires_grad=trained)
                owner.register_parameter(leaf, value)
            made[tensor.name] = value

    def _inside(self, path: str, norms: dict[str, int]) -> nn.Module:
        owner: nn.Module = self
        parts = path.split(".") if path else []
        for i, part in enumerate(parts):
            here = ".".join(parts[: i + 1])
            if part not in owner._modules:
                bare = {"affine": False, "track_running_stats": False}
                owner.add_module(part, nn.BatchNorm1d(norms[here], **bare) if here in norms else nn.Module())
            owner = owner.get_submodule(part)
        return owner

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        return torch.zeros(len(next(iter((*given, *named.values())))), 1)


def fill(module: nn.Module, trained: nn.Module) -> nn.Module:
    """Copy the values of a module with the same names, constant buffers included; returns the module in eval mode."""
    module.load_state_dict(trained.state_dict(), strict=False)
    buffers = dict(module.named_buffers())
    for name, value in trained.named_buffers():
        if name in buffers and buffers[name].shape == value.shape:
            buffers[name].data = value.to(buffers[name])
    return module.eval()


def read_first_values(folder: Path) -> FirstValues | None:
    """The initial values in a run folder; None without such a file."""
    path = folder / FILE
    if not path.is_file():
        return None
    values, about = load_tensors(path, THEN)
    try:
        tensors = tuple(FirstValue(**entry | {"shape": tuple(entry["shape"])}) for entry in about["tensors"])
        return FirstValues(tensors, dict(about["norms"]), values, bool(about["complete"]))
    except UNREADABLE as error:
        raise Damaged(path, repr(error), THEN) from error


def kept_values(folder: Path, fingerprint: str) -> FirstValues | None:
    """The initial values, if the file belongs to the run with this fingerprint; None for a run of an older version."""
    found, mark = read_first_values(folder), fingerprint.partition("-")[2]
    if mark and found is None:
        raise UserError(f"{folder / FILE} is missing: run again with --resume, which writes it again")
    if mark and found is not None and found.mark != mark:
        raise UserError(f"{folder / FILE} belongs to another run: {THEN}")
    return found


def _looked_at(module: nn.Module, layout: Layout) -> Iterator[FirstValue]:
    groups = {slot.name: SHARED if slot.start < layout.shared else PERSONAL for slot in layout.slots}
    groups |= dict.fromkeys(layout.shared_states, SHARED) | dict.fromkeys(layout.personal_states, PERSONAL)
    first: dict[int, str] = {}
    for name, value in [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]:
        is_buffer, before = not isinstance(value, nn.Parameter), first.setdefault(id(value), name)
        group = groups.get(before, CONSTANT if is_buffer else FROZEN)
        yield _described(name, group, is_buffer, value, None if before == name else before)


def _named(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _described(name: str, group: str, is_buffer: bool, value: Tensor, same_as: str | None = None) -> FirstValue:
    kind: dict[str, Any] = {"dtype": str(value.dtype).removeprefix("torch."), "shape": tuple(value.shape)}
    return FirstValue(name, group, is_buffer, **kind, hash=digest(repr(kind).encode(), content(value)), same_as=same_as)
