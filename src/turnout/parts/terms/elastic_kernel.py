"""A Triton kernel for what an elastic term sends: v = u w and Σ u w² in one pass over all clients' u and w.

Shape letters: c clients of a chunk, P shared parameters.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from torch import Tensor

from turnout.machine.triton_tools import jit, pieces, tl

BLOCK = 4096  # numbers per program
WARPS = 8


@jit
def _products(u_ptr, w_ptr, v_ptr, z_ptr, P, us_c, ws_c, vs_c, tiles, BLOCK: tl.constexpr):
    c = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(u_ptr + c * us_c + p, mask=p < P, other=0.0)
    w = tl.load(w_ptr + c * ws_c + p, mask=p < P, other=0.0)
    v = u * w
    tl.store(v_ptr + c * vs_c + p, v, mask=p < P)
    tl.store(z_ptr + c * tiles + tl.program_id(0), tl.sum(v * w, 0))


def products(u_cP: Tensor, w_cP: Tensor) -> tuple[Tensor, Tensor]:
    """u w [c, P], and Σ u w² [c, 1]."""
    (c, P), tiles = u_cP.shape, pieces(u_cP.shape[1], BLOCK)
    v_cP, z_ct = u_cP.new_empty(c, P), u_cP.new_empty(c, tiles)
    _products[tiles, c](
        u_cP, w_cP, v_cP, z_ct, P, u_cP.stride(0), w_cP.stride(0), P, tiles, BLOCK, num_warps=WARPS
    )  # fmt: skip
    return v_cP, z_ct.sum(1, keepdim=True)
