"""What the kernels for convolutions of clients have in common: which positions and outputs a program has, and how it
writes them.

Shape letters: n positions of all images of a client, o outputs, c client.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from turnout.machine.triton_tools import jit, tl


@jit
def patch_corners(
    n, OH: tl.constexpr, OW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr
):  # fmt: skip
    """Of positions: image, place in it, and the row and column of the input at which the patch begins."""
    place = n % (OH * OW)
    return n // (OH * OW), place, place // OW * SH - PH, place % OW * SW - PW


@jit
def own_outputs(BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr):
    """A program's positions, outputs and client."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    return n, tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O), tl.program_id(2).to(tl.int64)


@jit
def store_outputs(
    total, b_ptr, y_ptr, c, o, n, image, place, N, bs_c, ys_c, ys_o, ys_b, ys_p, O: tl.constexpr, BIAS: tl.constexpr  # noqa: E741
):  # fmt: skip
    """Write a tile [o, n] of results, with the bias added."""
    if BIAS:
        total += tl.load(b_ptr + c * bs_c + o, mask=o < O, other=0.0)[:, None]
    y_at = y_ptr + c * ys_c + o[:, None] * ys_o + (image * ys_b + place * ys_p)[None, :]
    tl.store(y_at, total, mask=(o < O)[:, None] & (n < N)[None, :])
