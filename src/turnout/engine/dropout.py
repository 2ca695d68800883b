"""Dropout with addressed masks, so that results do not depend on chunk size, order or runtime.

Every `nn.Dropout` is replaced by a layer whose mask is a hash of (seed, round, client, step, layer, position). Draws
inside a user's `forward` cannot be replaced: such a model is trained by the plain loop, with torch's own generator
seeded by (seed, round, client, step) for each step. But in one pass over a frozen base (joined.py), and in its loop,
calls of torch's dropout and attention get such masks as well (`AddressedCalls`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from turnout.inputs import call
from turnout.layout import copied
from turnout.machine.compiler import NUMBERS, at, function, pointer, real, whole
from turnout.rng import key, keys

_BITS = 31
SOURCE = Path(__file__).parent / "kernels" / "c" / "dropout.c"
ARGUMENTS = (pointer, whole, whole, whole, real, pointer)
_GENERATOR = Lock()  # torch's own generator belongs to the whole process: one thread at a time


class AddressedDropout(nn.Module):
    """nn.Dropout (or the channel-wise nn.Dropout2d) with the mask of `self.key`, one key per client and step."""

    key: Tensor

    def __init__(self, p: float, whole_channels: bool):
        super().__init__()
        self.p, self.whole_channels = p, whole_channels
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * keep_mask(self.key, x.shape, self.p, self.whole_channels, x.dtype, x.device)


def keep_mask(
    key: Tensor, shape: torch.Size, p: float, whole_channels: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """0 or 1/(1 - p) for each position of a client's activations [B, ...]; `key` may have leading client dimensions."""
    drawn = shape[:2] + (1,) * (len(shape) - 2) if whole_channels else shape
    count = math.prod(drawn)
    mask = mask_in_c(key, count, p, dtype, device)
    if mask is not None:
        return mask.view(key.shape + drawn)
    position = torch.arange(count, device=device).view(drawn)
    bits = (keys(key.to(device).reshape(key.shape + (1,) * len(drawn)), position) >> 20) & (2**_BITS - 1)
    least, gain = hashed(p)
    return (bits >= least).to(dtype) * gain


def mask_in_c(key: Tensor, count: int, p: float, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """The same in C, on a CPU; None without a compiler, or under `vmap`."""
    plain = device.type == "cpu" and dtype in NUMBERS and not torch._C._functorch.is_functorch_wrapped_tensor(key)
    write = function(SOURCE, "mask", ARGUMENTS, NUMBERS[dtype]) if plain else None
    if write is None:
        return None
    key_c, found = key.reshape(-1).contiguous(), torch.empty(key.numel(), count, dtype=dtype)
    write(at(key_c), len(key_c), count, *hashed(p), at(found))
    return found


def hashed(p: float) -> tuple[int, float]:
    """The least hash of an entry that is kept, and its factor (p = 1: never kept, no division by 0)."""
    return int(p * 2**_BITS), 1 / max(1 - p, 2.0**-_BITS)


def with_addressed_dropout(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Replace the dropout layers of a model in place; returns the model and the names of the key buffers."""
    names = []
    for path, child in list(module.named_modules()):
        if isinstance(child, nn.Dropout | nn.Dropout2d):
            addressed = AddressedDropout(child.p, isinstance(child, nn.Dropout2d))
            parent, _, leaf = path.rpartition(".")
            if not path:
                module = addressed
            else:
                setattr(module.get_submodule(parent), leaf, addressed)
            names.append(f"{path}.key" if path else "key")
    return module, tuple(names)


def dropout_keys(seed: int, t: int, client_c: Tensor, steps: int, layers: int) -> Tensor:
    """Keys [c, steps, layers] for the local steps of a round."""
    per_client = keys(key(seed, "dropout", t), client_c)
    number = torch.arange(steps * layers, device=client_c.device).view(steps, layers)
    return keys(per_client[:, None, None], number[None])


class AddressedCalls(TorchFunctionMode):
    """Inside, dropout that is called as a function, also within attention, has addressed masks: by client and call.

    The samples of several clients lie one after another in the first dimension, of each client as many.
    """

    def __init__(self, key_c: Tensor):
        super().__init__()
        self.key_c, self.calls = key_c, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.dropout:
            return self.dropout(*args, **(kwargs or {}))
        if func is functional.scaled_dot_product_attention:
            return self.attention(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        clients, self.calls = len(self.key_c), self.calls + 1
        own = x.unflatten(0, (clients, len(x) // clients))
        key_c = keys(self.key_c, torch.full((), self.calls, device=self.key_c.device))
        return (own * keep_mask(key_c, own.shape[1:], p, False, x.dtype, x.device)).view(x.shape)

    def attention(
        self, func: Any, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """softmax(q kᵀ s + mask) v, written out, as fused kernels draw the mask themselves."""
        if dropout_p == 0:
            named = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
            found: Tensor = func(q, k, v, **named)
            return found
        if enable_gqa:
            k, v = (value.repeat_interleave(q.shape[-3] // value.shape[-3], -3) for value in (k, v))
        weight = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(weight.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if attn_mask is not None:
            hidden = attn_mask.dtype == torch.bool
            weight = weight.masked_fill(~attn_mask, -torch.inf) if hidden else weight + attn_mask
        return self.dropout(weight.softmax(-1), dropout_p) @ v


def draws_inside(module: nn.Module, x: Tensor, training: bool, calls: AddressedCalls | None = None) -> bool:
    """Whether a forward pass takes numbers from torch's own generator; neither that nor the module is changed.

    `calls`: dropout that is called as a function does not count, as it has addressed masks.
    """
    module, x = copied(module).train(training), x if len(x) > 1 else torch.cat([x, x])  # BatchNorm needs two

    def generators() -> list[Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(x.device)] if x.is_cuda else [])]

    with torch.no_grad(), _own_generator(x.device):
        before = generators()
        with calls or nullcontext():
            call(module, x)  # its result in training is checked before the first round
        return any(not torch.equal(a, b) for a, b in zip(before, generators(), strict=True))


@contextmanager
def seeded(key_1: Tensor | None, device: torch.device) -> Iterator[None]:
    """Inside, torch's own generator is seeded by this key (None: it is left alone)."""
    if key_1 is None:
        yield
        return
    seed = int(key_1) & (2**63 - 1)
    with _own_generator(device):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


@contextmanager
def _own_generator(device: torch.device) -> Iterator[None]:
    """Inside, torch's own generator is this thread's alone; afterwards it is as it was."""
    with _GENERATOR, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
