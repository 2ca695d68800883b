"""Operations that know the client dimension: how they behave under `vmap`.

Such an operation is an `autograd.Function` whose forward takes the tensors of one client, or of c clients with one more
dimension in front. Under `vmap` it is called once, with all clients' tensors; what every client has in common is
repeated. Its backward is made of ordinary operations and others of this kind, so it can be vectorised too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor


class Stacked(torch.autograd.Function):
    """The rule for `vmap`, shared by all operations of this kind."""

    dims: ClassVar[int]  # dimensions of the first tensor for one client

    @classmethod
    def vmap(cls, info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        lead = next(a.dim() for a in args if isinstance(a, Tensor)) - cls.dims
        lead -= next(d is not None for a, d in zip(args, in_dims, strict=True) if isinstance(a, Tensor))
        given = [_in_front(a, d, info.batch_size) for a, d in zip(args, in_dims, strict=True)]
        if lead:  # clients outside, samples inside: one flat dimension of both
            clients = next(a.shape[1] for a in given if isinstance(a, Tensor))
            given = [a.flatten(0, 1) if isinstance(a, Tensor) else a for a in given]
        found = cls.apply(*given)
        several = isinstance(found, tuple)
        outs = found if several else (found,)
        if lead:
            outs = tuple(o.unflatten(0, (info.batch_size, clients)) for o in outs)
        return (outs, (0,) * len(outs)) if several else (outs[0], 0)


def _in_front(value: Any, dim: int | None, size: int) -> Any:
    """A tensor with its batch dimension in front; without one it is repeated."""
    if not isinstance(value, Tensor):
        return value
    return value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
