"""`nn.LSTM` and `nn.GRU` of many clients at once, since torch's own recurrent kernels have no batching rule.

    LSTM   c_t = f c_{t-1} + i g,  h_t = o tanh(c_t);  i, f, o = sigmoid and g = tanh of their gates a_t + U h_{t-1} + b
    GRU    h_t = (1 - z) n + z h_{t-1};  r, z = sigmoid of theirs, n = tanh(a_t + r (U h_{t-1} + b)) of its own

a_t = W x_t + b' is one product for all positions. On a GPU with TF32 all positions of a layer of up to 256 units and 32
samples are one kernel (kernels/recurrence.py).

Shape letters: c clients, T positions, B batch, H hidden size, G gates (4 H or 3 H), S numbers saved for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from turnout.engine.kernels.layers import supports
from turnout.engine.kernels.recurrence import KERNELS, RecurrentKernels, fits
from turnout.engine.stacked import Stacked, StackedGradient

aten: Any = torch.ops.aten

# The pointwise part of one position, for rows of all clients and samples [N, ...]. Forward: from the gates' two halves
# and the state to h, c and the numbers for backward. Backward: the gradients of a, u, h (its direct part) and c.


def _lstm_forward(a: Tensor, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if a.is_cuda:
        return aten._thnn_fused_lstm_cell(a, u, c)
    i, f, g, o = (a + u).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new_c = f * c + i * g
    return o * new_c.tanh(), new_c, torch.cat([i, f, g, o], 1)


def _lstm_backward(dh: Tensor, dc: Tensor, c: Tensor, new_c: Tensor, saved: Tensor) -> tuple[Tensor, ...]:
    if dh.is_cuda:
        da, dc, _ = aten._thnn_fused_lstm_cell_backward_impl(dh, dc, c, new_c, saved, False)
        return da, da, torch.zeros_like(dh[:, :0]), dc
    i, f, g, o = saved.chunk(4, 1)
    tanh = new_c.tanh()
    dc = dc + dh * o * (1 - tanh * tanh)
    parts = [dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g), dh * tanh * o * (1 - o)]
    da = torch.cat(parts, 1)
    return da, da, torch.zeros_like(dh[:, :0]), dc * f


def _gru_forward(a: Tensor, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    (a_r, a_z, a_n), (u_r, u_z, u_n) = a.chunk(3, 1), u.chunk(3, 1)
    r, z = (a_r + u_r).sigmoid(), (a_z + u_z).sigmoid()
    n = torch.addcmul(a_n, r, u_n).tanh()
    return n + z * (h - n), c, torch.cat([r, z, n, u_n, h], 1)


def _gru_backward(dh: Tensor, dc: Tensor, c: Tensor, new_c: Tensor, saved: Tensor) -> tuple[Tensor, ...]:
    r, z, n, u_n, h = saved.chunk(5, 1)
    d_n = dh * (1 - z) * (1 - n * n)
    d_r, d_z = d_n * u_n * r * (1 - r), dh * (h - n) * z * (1 - z)
    return torch.cat([d_r, d_z, d_n], 1), torch.cat([d_r, d_z, d_n * r], 1), dh * z, dc


FORWARD: dict[str, Callable[..., tuple[Tensor, Tensor, Tensor]]] = {"lstm": _lstm_forward, "gru": _gru_forward}
BACKWARD: dict[str, Callable[..., tuple[Tensor, ...]]] = {"lstm": _lstm_backward, "gru": _gru_backward}


class Recurrence(Stacked):
    """(a [B, T, G], U [G, H], b [G], h [B, H], c [B, H or 0]) -> h and c after every position, and backward's numbers.

    Of c clients with one more dimension in front.
    """

    dims = 3

    @staticmethod
    def forward(a: Tensor, U: Tensor, b: Tensor, h: Tensor, c: Tensor, kind: str) -> tuple[Tensor, Tensor, Tensor]:
        if a.dim() == 3:
            found = Recurrence.forward(a[None], U[None], b[None], h[None], c[None], kind)
            return found[0][0], found[1][0], found[2][0]
        (clients, B, _, G), h, c = a.shape, h.contiguous(), c.contiguous()

        def position(a_cBG: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
            u = torch.baddbmm(b[:, None], h, U.transpose(1, 2)).view(-1, G)
            given = a_cBG.reshape(-1, G), u, h.view(clients * B, -1), c.reshape(clients * B, -1)
            return tuple(value.view(clients, B, -1) for value in FORWARD[kind](*given))

        kernels = _kernels(kind, a, U)
        if kernels is not None:
            return kernels.forward(a, U, b, position(a[:, :, 0], h, c))
        hs, cs, kept = [], [], []
        for a_cBG in a.movedim(2, 0).contiguous():
            h, c, saved = position(a_cBG, h, c)
            hs.append(h)
            cs.append(c)
            kept.append(saved)
        return _by_position(hs), _by_position(cs), _by_position(kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, U, _, h, c, ctx.kind = inputs
        ctx.save_for_backward(U, h, c, *output)
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        U, h, c, hs, cs, saved = ctx.saved_tensors
        dhs = torch.zeros_like(hs) if given[0] is None else given[0]
        da, du, dh, dc = RecurrenceBackward.apply(dhs, given[1], U, c, cs, saved, ctx.kind)
        before = torch.cat([h.unsqueeze(1), hs[:, :-1]], 1)
        dU = du.flatten(0, 1).t() @ before.flatten(0, 1)
        return da, dU, du.sum((0, 1)), dh, dc, None


class RecurrenceBackward(StackedGradient):
    """The gradients of a, of U h + b at every position, and of the first h and c."""

    dims = 3

    @staticmethod
    def forward(
        dhs: Tensor, dcs: Tensor | None, U: Tensor, c: Tensor, cs: Tensor, saved: Tensor, kind: str
    ) -> tuple[Tensor, ...]:
        if dhs.dim() == 3:
            last = None if dcs is None else dcs[None]
            found = RecurrenceBackward.forward(dhs[None], last, U[None], c[None], cs[None], saved[None], kind)
            return tuple(value[0] for value in found)
        kernels = _kernels(kind, dhs, U)
        if kernels is not None:
            return kernels.backward(dhs, dcs, U, c, cs, saved)
        clients, B, T, H = dhs.shape
        rows = clients * B
        dh, dc = dhs.new_zeros(clients, B, H), c.new_zeros(rows, c.shape[-1])
        das, dus = [], []
        for t in reversed(range(T)):
            dh_N = (dh + dhs[:, :, t]).view(rows, H)
            dc = dc if dcs is None else dc + dcs[:, :, t].reshape(rows, -1)
            earlier = (c if t == 0 else cs[:, :, t - 1]).reshape(rows, -1)
            da, du, direct, dc = BACKWARD[kind](
                dh_N, dc, earlier, cs[:, :, t].reshape(rows, -1), saved[:, :, t].reshape(rows, -1)
            )
            dh = torch.bmm(du.view(clients, B, -1), U)
            dh = dh if direct.shape[1] == 0 else dh + direct.view(clients, B, H)
            das.append(da.view(clients, B, -1))
            dus.append(du.view(clients, B, -1))
        found_a = _by_position(das[::-1])
        found_u = found_a.view_as(found_a) if da is du else _by_position(dus[::-1])
        return found_a, found_u, dh, dc.view(clients, B, -1)


def _kernels(kind: str, x: Tensor, U: Tensor) -> RecurrentKernels | None:
    """The kernels that compute a layer's positions x [..., B, T, any] at once; None if there are none."""
    return KERNELS[kind] if supports(x) and fits(x.shape[-3], x.shape[-2], U) else None


def _by_position(values: list[Tensor]) -> Tensor:
    """[c, B, T, ...] with contiguous positions."""
    return torch.stack(values).movedim(0, 2)


def lstm(x: Tensor, state: Any, weights: Any, *options: Any) -> Any:
    """`torch.lstm`; NotImplemented for a packed sequence, a projection or dropout between its layers."""
    if isinstance(state, Tensor):
        return NotImplemented
    return _layers("lstm", x, state[0], state[1], weights, *options)


def gru(x: Tensor, state: Any, weights: Any, *options: Any) -> Any:
    """`torch.gru`; NotImplemented for a packed sequence or dropout between its layers."""
    if isinstance(weights, Tensor):
        return NotImplemented
    found = _layers("gru", x, state, state.new_zeros(*state.shape[:-1], 0), weights, *options)
    return found if found is NotImplemented else found[:2]


def _layers(
    kind: str, x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor],
    biases: bool, layers: int, dropout: float, train: bool, both_ways: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """The output, and each layer's last h and c; options as torch's functions take them."""
    each, ways = 4 if biases else 2, 2 if both_ways else 1
    draws = dropout > 0 and train and layers > 1
    if len(weights) != each * layers * ways or x.dim() != 3 or draws:
        return NotImplemented
    x = x if batch_first else x.transpose(0, 1)
    last: list[tuple[Tensor, Tensor]] = []
    for layer in range(layers):
        outs = []
        for way in range(ways):
            n = layer * ways + way
            W, U, *b = weights[n * each : (n + 1) * each]
            added, own = b or (None, torch.zeros_like(U[:, 0]))
            if b and kind == "lstm" and _kernels(kind, x, U) is not None:  # one bias, added there
                added, own = None, b[0] + b[1]
            a = linear(x.flip(1) if way else x, W, added)
            hs, cs, _ = Recurrence.apply(a, U, own, h[n], c[n], kind)
            outs.append(hs.flip(1) if way else hs)
            last.append((hs[:, -1], cs[:, -1]))
        x = torch.cat(outs, 2)
    last_h, last_c = (torch.stack(values) for values in zip(*last, strict=True))
    return x if batch_first else x.transpose(0, 1), last_h, last_c
