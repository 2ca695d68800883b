"""A Triton kernel for addressed dropout.

The mask is never stored: forward and backward compute the same hashes, with the integers of `rng.keys` and
`engine.dropout.keep_mask`.

Shape letters: c clients of a chunk, i channels, B batch, L positions of an image.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from torch import Tensor

from turnout.machine.triton_tools import blank, jit, mixed, pieces, tl
from turnout.rng import _GOLDEN, _MIX_1, _MIX_2

BLOCK = 1024  # numbers per program
WARPS = 4


@jit(do_not_specialize=("key_ptr", "key_s"))
def _drop(
    x_ptr, key_ptr, y_ptr, N, xs_c, xs_0, xs_1, ys_c, ys_0, ys_1, key_s, at_0, at_1, at_2, least, gain,
    INNER: tl.constexpr, L: tl.constexpr,
    GOLDEN: tl.constexpr, MIX_1: tl.constexpr, MIX_2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, second, last = n // (INNER * L), n // L % INNER, n % L
    position = first * at_0 + second * at_1 + last * at_2
    z = mixed(position.to(tl.int64) * GOLDEN + tl.load(key_ptr + c * key_s), MIX_1, MIX_2)
    kept = ((z >> 20) & 0x7FFFFFFF) >= least
    x = tl.load(x_ptr + c * xs_c + first * xs_0 + second * xs_1 + last, mask=n < N, other=0.0)
    tl.store(y_ptr + c * ys_c + first * ys_0 + second * ys_1 + last, x * tl.where(kept, gain, 0.0), mask=n < N)


def drop(x: Tensor, key_c: Tensor, p: float, whole_channels: bool) -> Tensor:
    """x * mask with the mask of `dropout.keep_mask`, for x [c, i, B, h, w] or [c, B, i], 0 < p < 1; in x's order."""
    c, N = x.shape[0], x[0].numel()
    if x.dim() == 5:  # addresses count as for a single client: [B, i, h, w], or [B, i] for whole channels
        i, B, L = x.shape[1], x.shape[2], x.shape[3] * x.shape[4]
        at = (1, i, 0) if whole_channels else (L, i * L, 1)
        x = x if x.stride(4) == 1 and x.stride(3) == x.shape[4] else x.contiguous()
        y = blank(x)
        strides = (*x.stride()[:3], *y.stride()[:3])
    else:
        x, B, L, at = x.contiguous(), 1, N, (0, 0, 1)
        y = blank(x)
        strides = (N, 0, 0, N, 0, 0)
    _drop[pieces(N, BLOCK), c](
        x, key_c, y, N, *strides, key_c.stride(0), *at, int(p * 2**31), 1 / (1 - p),
        B, L, _GOLDEN, _MIX_1, _MIX_2, BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return y
