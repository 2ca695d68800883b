"""Adapters: a frozen base and small trainable matrices beside its linear layers (LoRA, Hu et al., 2021).

Only the adapter is trained, sent and kept by clients; the base is held once. Names are those of peft, without the name
of the adapter: `layers.0.q_proj.base_layer.weight`, `layers.0.q_proj.lora_A.weight`, `layers.0.q_proj.lora_B.weight`.
A `PeftModel` has the same structure and needs nothing of this but `lora_of`.
"""

from __future__ import annotations

import copy
import fnmatch
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from turnout.data.files import PublicFile, PublicSet, find_path, obtain
from turnout.errors import UserError, check_settings
from turnout.layout import Slot
from turnout.models.layers import Model
from turnout.models.quantized import PackedLinear, is_transposed


class LoRALinear(nn.Module):
    """A frozen linear layer W and a low-rank change of it: y = W x + b + s B A x, with s = alpha / rank.

    A is random and B is 0, so that training begins with the base itself.
    """

    def __init__(self, base: Any, rank: int, alpha: float, dropout: float, frozen_a: bool):
        super().__init__()
        self.base_layer, self.scaling = base, alpha / rank
        self.lora_dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        made: dict[str, Any] = {"device": base.weight.device, "dtype": base.weight.dtype, "bias": False}
        inputs, outputs = _sizes(base) or (0, 0)
        self.lora_A = nn.utils.skip_init(nn.Linear, inputs, rank, **made)
        self.lora_B = nn.utils.skip_init(nn.Linear, rank, outputs, **made)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)
        self.lora_A.weight.requires_grad_(not frozen_a)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.lora_B(self.lora_A(self.lora_dropout(x)))
        base: Tensor = self.base_layer(x)
        return base + self.scaling * change


@dataclass(frozen=True)
class LowRankParts:
    """The parts of a layer that has a low-rank change.

    base    the frozen layer
    A, B    the factors
    scale   of their product
    plain   whether the whole layer is base(x) + scale B A x, with a linear base
    """

    base: Any
    A: Any
    B: Any
    scale: float
    plain: bool


def lora_of(layer: nn.Module) -> LowRankParts | None:
    """The parts of a low-rank layer of ours or of peft's; None for any other layer, and with several adapters."""
    if isinstance(layer, LoRALinear):
        plain = isinstance(layer.lora_dropout, nn.Identity) and _frozen_linear(layer.base_layer)
        return LowRankParts(layer.base_layer, layer.lora_A, layer.lora_B, layer.scaling, plain)
    A, B, scaling = (getattr(layer, name, None) for name in ("lora_A", "lora_B", "scaling"))
    if not isinstance(A, nn.ModuleDict) or not isinstance(B, nn.ModuleDict) or not isinstance(scaling, Mapping):
        return None
    active: list[str] = list(layer.active_adapters)  # type: ignore[arg-type]
    if len(active) != 1 or active[0] not in A or type(A[active[0]]) is not nn.Linear:
        return None
    base, name = layer.base_layer, active[0]
    variant = getattr(layer, "lora_variant", {}) or getattr(layer, "use_dora", {}).get(name)
    dropout = getattr(layer, "lora_dropout", {})
    quiet = name not in dropout or isinstance(dropout[name], nn.Identity)
    settled = not (getattr(layer, "merged", False) or getattr(layer, "disable_adapters", False) or variant)
    plain = settled and quiet and _frozen_linear(base) and type(layer).__name__ == "Linear"
    return LowRankParts(base, A[name], B[name], float(scaling[name]), plain and B[name].bias is None)


def _frozen_linear(base: Any) -> bool:
    return type(base) in (nn.Linear, PackedLinear) and not any(p.requires_grad for p in base.parameters())


@dataclass(frozen=True)
class LoRA:
    """Which linear layers have an adapter, and how large it is.

    rank      of the change B A of a layer
    targets   patterns of the layers' names, separated by "|"; "*" stands for any letters
    alpha     the change is scaled by alpha / rank (default: 2 rank, which is a scale of 2)
    dropout   share of a layer's inputs that the adapter does not see in a step
    frozen_a  train only B, so that the mean of the clients' B A is exact and half is sent (FFA-LoRA, Sun et al., 2024)
    train     patterns of parameters of the base that are trained as well, such as "classifier.*"; none by default
    ranks     ranks of clients that have less than `rank`, dealt out in turn: client i has ranks[i % len(ranks)]. Such a
              client has the first rows of A and columns of B; the others are 0 to it, and its update there is 0, so
              that its share keeps what the server has (HetLoRA, Cho et al., 2024, pads with zeros as well)
    """

    rank: int = 8
    targets: str = "*.q_proj|*.v_proj"
    alpha: float | None = None
    dropout: float = 0.0
    frozen_a: bool = False
    train: str = ""
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_settings(self, rank="[1, 65536]", dropout="[0, 1)")
        object.__setattr__(self, "ranks", tuple(self.ranks))
        if wrong := [own for own in self.ranks if not 1 <= own <= self.rank]:
            raise UserError(f"LoRA.ranks has {wrong[0]}, and rank is {self.rank}: give ranks from 1 to that")

    def held(self, slots: Sequence[Slot], client_C: Tensor) -> Tensor | None:
        """Which columns each of these clients has [C, P]; None: all have all."""
        if not self.ranks:
            return None
        rank_C = torch.tensor(self.ranks)[client_C % len(self.ranks)]
        has_CR, clients = torch.arange(self.rank) < rank_C[:, None], len(client_C)
        found = []
        for slot in slots:
            held = torch.ones(clients, *slot.shape, dtype=torch.bool)
            if ".lora_A." in f".{slot.name}":
                held &= has_CR[:, :, None]
            elif ".lora_B." in f".{slot.name}":
                held &= has_CR[:, None, :]
            found.append(held.flatten(1))
        return torch.cat(found, 1)

    def add_to(self, base: nn.Module) -> nn.Module:
        """Freeze a model and put an adapter beside each target, in place; returns the model."""
        for name, parameter in base.named_parameters():
            parameter.requires_grad_(_matches(name, self.train))
        linear = {path: layer for path, layer in base.named_modules() if _sizes(layer) is not None}
        found = [path for path in linear if _matches(path, self.targets)]
        if not found:
            some = ", ".join(list(linear)[:8]) or "none"
            raise UserError(
                f"LoRA.targets = {self.targets!r} matches no linear layer of the base: its linear layers are {some}"
            )
        alpha = 2.0 * self.rank if self.alpha is None else self.alpha
        for path in found:
            adapted = LoRALinear(linear[path], self.rank, alpha, self.dropout, self.frozen_a)
            parent, _, leaf = path.rpartition(".")
            if not path:
                return adapted
            setattr(base.get_submodule(parent), leaf, adapted)
        return base


def _sizes(layer: Any) -> tuple[int, int] | None:
    """Inputs and outputs of a linear layer; None for another one."""
    if is_transposed(layer):
        return layer.weight.shape[0], layer.weight.shape[1]
    return (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else None


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern.strip()) for pattern in patterns.split("|") if pattern.strip())


@dataclass(frozen=True)
class Adapted:
    """A model of any kind, frozen, with an adapter that is trained instead.

    base        the model: a spec, a module, or a function that makes one
    adapter     which layers have an adapter
    weights     the base's values: a safetensors file, or the address of one (https), which every device fetches once
                and keeps in its data folder; by default those the base is made with
    checksum    its SHA-256 (of an address always)
    checkpoint  patterns of blocks whose activations are computed again in the backward pass instead of being kept, such
                as "layers.*" for layers.0, layers.1, ...; none by default

    >>> model = Adapted(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), LoRA(rank=2, targets="0"))
    >>> [name for name, p in model.around(model.base).named_parameters() if p.requires_grad]
    ['0.lora_A.weight', '0.lora_B.weight']
    """

    base: Model
    adapter: LoRA = LoRA()
    weights: str = ""
    checksum: str = ""
    checkpoint: str = ""

    def __post_init__(self) -> None:
        if self.is_address and len(self.checksum) != 64:
            raise UserError(
                f"Adapted.weights = {self.weights!r} is fetched from elsewhere: give its SHA-256 as checksum, 64 "
                "digits that sha256sum FILE prints"
            )

    @property
    def is_address(self) -> bool:
        return self.weights.startswith(("https://", "http://"))

    def base_file(self) -> Path | None:
        """The file of the base's values, fetched if it is not here yet; None without one."""
        if not self.weights:
            return None
        if self.is_address:
            name = f"base-{self.checksum[:16]}.safetensors"
            found = obtain(PublicSet("the base", ("models",), (PublicFile(name, self.weights, self.checksum),)), None)[
                0
            ]
        else:
            found = find_path(self.weights, None)
        if self.checksum:
            with found.open("rb") as file:
                made = hashlib.file_digest(file, "sha256").hexdigest()
            if made != self.checksum:
                raise UserError(f"{found} has SHA-256 {made}, not {self.checksum}: delete it, or give the right file")
        return found

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """The base with the adapter; an experiment also builds a base that is a function (tracks/building.py)."""
        if isinstance(self.base, nn.Module):
            return self.around(copy.deepcopy(self.base))
        build = getattr(self.base, "build", None)
        if callable(build):
            return self.around(build(input_shape, classes))
        raise UserError(f"the base {self.base!r} is no spec and no module: use it in an experiment, or build it first")

    def around(self, base: nn.Module) -> nn.Module:
        """The base with the adapter in it, in place."""
        adapted = self.adapter.add_to(base)
        blocks = [path for path, _ in adapted.named_modules() if _matches(path, self.checkpoint)]
        if self.checkpoint and not blocks:
            raise UserError(f"Adapted.checkpoint = {self.checkpoint!r} matches no block: its blocks are "
                            f"{', '.join([path for path, _ in adapted.named_modules() if path][:8])}")  # fmt: skip
        for path in blocks:
            if not any(path.startswith(f"{outer}.") for outer in blocks):  # not inside another one
                block = adapted.get_submodule(path)
                block.forward = MethodType(_checkpointed, block)
        return adapted


def _checkpointed(block: nn.Module, *args: Any, **named: Any) -> Any:
    """The forward pass of a block whose activations are computed again in the backward pass."""
    forward = MethodType(type(block).forward, block)
    if not torch.is_grad_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:  # under vmap
        return forward(*args, **named)
    return checkpoint(forward, *args, use_reentrant=False, **named)


def is_checkpointed(model: nn.Module) -> bool:
    """Whether blocks of a model are computed again in the backward pass, by `Adapted` or by transformers."""
    ours = (getattr(layer.forward, "__func__", None) is _checkpointed for layer in model.modules())
    return any(ours) or any(getattr(layer, "gradient_checkpointing", False) is True for layer in model.modules())


KINDS = {"adapted": Adapted}
