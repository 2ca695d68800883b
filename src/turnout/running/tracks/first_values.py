"""A model before the first round: names, shapes and hashes of all its values, and the values that no checkpoint has.

Checkpoints hold trained, shared values. Frozen parameters, buffers that are not states (a table of sines) and the
initial values of personal parameters come from the function that builds the model, which may change. So a run writes
those values once, to `untrained.safetensors`; only their hashes if they take more than `LIMIT` bytes. The hashes of all
values are part of the run's fingerprint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor, nn

from turnout.errors import UserError
from turnout.layout import Layout
from turnout.machine.checksums import UNREADABLE, Damaged, content, digest, load_tensors, save_tensors
from turnout.types import Tensors

FILE = "untrained.safetensors"
LIMIT = 64 << 20  # bytes of values that a run folder keeps beside its checkpoints
THEN = "delete it and run again with --resume, which writes it again"
SHARED, PERSONAL, UNTRAINED = "shared", "personal", "untrained"
SHOWN = 5  # names in a message


@dataclass(frozen=True)
class FirstValue:
    """A parameter or buffer before the first round.

    name   its name in the module
    group  "shared" and "personal" are trained, or states; "untrained" ones never change
    dtype  such as "float32"
    shape  its shape
    hash   of its type, shape and values
    """

    name: str
    group: str
    dtype: str
    shape: tuple[int, ...]
    hash: str


@dataclass(frozen=True)
class FirstValues:
    """All parameters and buffers before the first round.

    tensors   their names, shapes and hashes
    values    those that no checkpoint has
    complete  whether `values` are all that a model needs beside a checkpoint
    """

    tensors: tuple[FirstValue, ...]
    values: Tensors
    complete: bool

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> FirstValues:
        """Those of a model whose layout groups its parameters."""
        groups = {slot.name: SHARED if slot.start < layout.shared else PERSONAL for slot in layout.slots}
        groups |= dict.fromkeys(layout.shared_states, SHARED) | dict.fromkeys(layout.personal_states, PERSONAL)
        named = _named(module)
        tensors = tuple(_described(name, groups.get(name, UNTRAINED), value) for name, value in named.items())
        needed = {name: value for name, value in named.items() if groups.get(name) != SHARED}
        complete = sum(value.nbytes for value in needed.values()) <= LIMIT
        copies = {name: value.detach().cpu().clone().contiguous() for name, value in needed.items() if complete}
        return cls(tensors, copies, complete)

    @classmethod
    def of_several(cls, modules: Sequence[nn.Module]) -> FirstValues:
        """Only the hashes, for models that each belong to one client."""
        tensors = []
        for i, module in enumerate(modules):
            prefix = f"model {i}: " if len(modules) > 1 else ""
            tensors += [_described(prefix + name, PERSONAL, value) for name, value in _named(module).items()]
        return cls(tuple(tensors), {}, complete=False)

    @property
    def mark(self) -> str:
        """A hash of all values: the second part of a run's fingerprint."""
        return digest(repr([(tensor.name, tensor.hash) for tensor in self.tensors]).encode())[:16]

    def marks(self) -> dict[str, str]:
        """Eight letters for each parameter and buffer, to compare a device's model with the server's.

        They identify the values; for shared ones, which come with every download, only type and shape: another
        processor may round initial values differently.
        """
        found = {}
        for tensor in self.tensors:
            values = "" if tensor.group == SHARED else tensor.hash
            about = repr((tensor.name, tensor.group, tensor.dtype, tensor.shape, values))
            found[tensor.name] = digest(about.encode())[:8]
        return found

    def write(self, folder: Path) -> None:
        about = {"tensors": [asdict(tensor) for tensor in self.tensors], "complete": self.complete}
        save_tensors(folder / FILE, self.values, about)

    def refuse_other(self, now: FirstValues, folder: Path, values: bool = True) -> None:
        """Refuse a model that is not the one a run began with; without `values`, only if names or shapes differ."""
        ours, theirs = ({t.name: t.hash if values else t.shape for t in first.tensors} for first in (self, now))
        names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        untrained = {tensor.name for tensor in self.tensors if tensor.group == UNTRAINED}
        names.sort(key=lambda name: name not in untrained)
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            what = "other initial values" if values else "other parameters"
            raise UserError(
                f"the model that is built now has {what} ({', '.join(names[:SHOWN])}{more}) than the run in {folder} "
                "began with: build it as it was, or begin a new run in another folder"
            )

    def fill(self, module: nn.Module) -> None:
        """Give a module the values that were written."""
        named = _named(module)
        for name, value in self.values.items():
            named[name].data = value.to(named[name])


def kept_values(folder: Path, fingerprint: str | None = None) -> FirstValues:
    """The initial values in a run folder, which must be those of the run with this fingerprint."""
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{path} is missing: run again with --resume, which writes it again")
    values, about = load_tensors(path, THEN)
    try:
        entries = [(e["name"], e["group"], e["dtype"], tuple(e["shape"]), e["hash"]) for e in about["tensors"]]
        found = FirstValues(tuple(FirstValue(*entry) for entry in entries), values, bool(about["complete"]))
    except UNREADABLE as error:
        raise Damaged(path, repr(error), THEN) from error
    if fingerprint is not None and found.mark != fingerprint.partition("-")[2]:
        raise UserError(f"{path} belongs to another run: {THEN}")
    return found


def _named(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _described(name: str, group: str, value: Tensor) -> FirstValue:
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    kind = repr({"dtype": dtype, "shape": shape})
    return FirstValue(name, group, dtype, shape, digest(kind.encode(), content(value)))
