"""Personal parameters and buffers: predicates for `Algorithm(personal=...)`."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from torch import nn


def batch_norm(name: str, module: nn.Module) -> bool:
    """Everything that belongs to a BatchNorm layer: scale, shift, running statistics."""
    owner = module.get_submodule(name.rpartition(".")[0])
    return isinstance(owner, nn.modules.batchnorm._BatchNorm)


usyb = batch_norm  # its name in the authors' code of paper 004: μ, σ², γ, β


def yb(name: str, module: nn.Module) -> bool:
    """Only BatchNorm's scale γ and shift β; its running statistics are averaged (`yb` in paper 004's code)."""
    return batch_norm(name, module) and name.rpartition(".")[2] in ("weight", "bias")


def us(name: str, module: nn.Module) -> bool:
    """Only BatchNorm's running mean μ and variance σ²; scale and shift are averaged (`us` in paper 004's code)."""
    return batch_norm(name, module) and not yb(name, module)


def everything(name: str, module: nn.Module) -> bool:
    """The whole model: clients train independently, and nothing is sent."""
    return True


def lora_b(name: str, module: nn.Module) -> bool:
    """The factor B of adapters: only A is shared (FedSA-LoRA, Guo et al., 2025)."""
    return ".lora_B." in f".{name}"


@dataclass(frozen=True)
class Named:
    """Everything whose name matches `pattern`, such as "head.*".

    >>> Named("1.*")("1.weight", nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)))
    True
    """

    pattern: str

    def __call__(self, name: str, module: nn.Module) -> bool:
        return fnmatch.fnmatchcase(name, self.pattern)


KINDS = {"batch-norm": batch_norm, "usyb": usyb, "yb": yb, "us": us, "everything": everything, "lora-b": lora_b,
         "named": Named}  # fmt: skip
