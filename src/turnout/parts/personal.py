"""Which parameters and buffers stay home: predicates for `Algorithm(personal=...)`."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from torch import nn

from turnout.errors import Mistake


def batch_norm(name: str, module: nn.Module) -> bool:
    """Everything that belongs to a BatchNorm layer: scale, shift, running statistics."""
    owner = module.get_submodule(name.rpartition(".")[0])
    return isinstance(owner, nn.modules.batchnorm._BatchNorm)


def everything(name: str, module: nn.Module) -> bool:
    """The whole model: clients train independently, and nothing is sent."""
    return True


@dataclass(frozen=True)
class Named:
    """Everything whose name fits a pattern, such as "head.*".

    >>> Named("1.*")("1.weight", nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)))
    True
    """

    pattern: str

    def __post_init__(self) -> None:
        if not self.pattern:
            raise Mistake('personal = Named("") fits nothing: give a pattern such as "head.*"')

    def __call__(self, name: str, module: nn.Module) -> bool:
        return fnmatch.fnmatchcase(name, self.pattern)


KINDS = {"batch-norm": batch_norm, "everything": everything, "named": Named}
