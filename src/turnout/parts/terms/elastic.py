"""The elastic term of EFL: penalises moving parameters that carry much Fisher information.

Clients send the diagonal u of the Fisher information of their own data at their final weights, and v = u w; the server
sums the uploads of the last round and broadcasts U and V (and Z, the constant that makes the loss exact). Uploads are
neither scaled by work nor lent to other clients: they describe a client's own data.

Shape letters: c clients of a chunk, C replies, P shared parameters, k entries a client sends, n entries broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import UserError, check_settings
from turnout.machine.triton_tools import jit, pieces, takes, tl
from turnout.parts.terms.base import At, Departures, FusedStep, LocalTerm, PostStep, SelectiveDownload, TermTraits
from turnout.parts.updates import Applied
from turnout.types import Extra, Tensors, wire_bytes

BLOCK = 4096  # numbers per program of the kernel
WARPS = 8


@dataclass(frozen=True)
class Elastic(LocalTerm, FusedStep, PostStep, Departures, SelectiveDownload, TermTraits):
    """F̃_k(ω) = f_k(ω) + λ/2 Σ_i (ω - ω^i)ᵀ diag(I_i) (ω - ω^i), i over the last round's reporters (paper 001, (2)).

    So the gradient gains λ (U ω - V), entry by entry. In the first round there are no uploads, and no term.

    strength      λ
    samples       most samples of a client that the Fisher information is taken over
    reduce        U and V are the "sum" over uploads, as in the paper, or the "mean", which needs no λ for their number
    step          "explicit": the gradient gains the term, which needs η λ max U < 2 (the records warn above 1);
                  "proximal": ω <- (ω + η λ V) / (1 + η λ U) after the optimizer's step, stable for any λ
    fisher_every  compute and send u and v only every this many rounds; a client that has the latest U and V keeps them
    fisher_keep   share of the entries that is sent: the largest of u, with their positions
    memory        keep the last u and v of clients that have left but stay in the objective
    decoupled     take the explicit step after the optimizer's own, so that Adam does not normalise λ away

    >>> at = At(torch.tensor([[3.0]]), torch.tensor([[1.0]]), 0.1, 0, torch.ones(1), torch.ones(1), *[None] * 3)
    >>> server_state = {"U": torch.tensor([2.0]), "V": torch.tensor([4.0]), "Z": torch.tensor([9.0])}
    >>> Elastic(0.5).transform_grad(torch.zeros(1, 1), at, server_state, {})  # λ (U ω - V) = 0.5 (2 · 3 - 4)
    tensor([[1.]])
    """

    cuda_graph_safe: ClassVar[bool] = True
    finite_witness: ClassVar[Mapping[str, str]] = dict.fromkeys(("u", "v", "index"), "z")  # z = Σ u w², u >= 0
    not_negative: ClassVar[tuple[str, ...]] = ("u", "z")

    strength: float = 0.1
    samples: int = 32
    reduce: str = "sum"
    step: str = "explicit"
    fisher_every: int = 1
    fisher_keep: float | None = None
    decoupled: bool = False
    memory: bool = False
    name: str = "elastic"

    def __post_init__(self) -> None:
        check_settings(self, strength="[0, inf)", samples="[1, inf)", fisher_every="[1, inf)", fisher_keep="(0, 1]")
        check_settings(self, reduce=("sum", "mean"), step=("explicit", "proximal"))
        if self.decoupled and self.step == "proximal":
            raise UserError("an elastic term's proximal step comes after the optimizer's anyway: leave decoupled out")

    def server_state(self, initial_P: Tensor) -> Tensors:
        """Empty before the first upload."""
        if self.strength == 0:
            return {}
        state = {name: initial_P.new_empty(0) for name in ("U", "V", "Z")}
        if self.fisher_keep is not None:
            state["index"] = torch.empty(0, dtype=torch.int32, device=initial_P.device)
        if self.fisher_every > 1:
            state["made"] = torch.full((1,), -1, dtype=torch.int32, device=initial_P.device)
        return state

    def client_state(self, initial_P: Tensor) -> Tensors:
        """The round of the U and V a client holds (with `fisher_every`); its last upload (with `memory`)."""
        held = {"held": torch.full((1,), -1, dtype=torch.int32)} if self._keeps else {}
        nothing = self._message(initial_P.new_zeros(1, len(initial_P)), initial_P[None]) if self.remembers else {}
        return held | {name: value[0] for name, value in nothing.items()}

    @property
    def _keeps(self) -> bool:
        return self.fisher_every > 1 and self.strength > 0

    @property
    def remembers(self) -> bool:
        return self.memory and self.strength > 0

    @property
    def sends(self) -> float:
        """u and v, and the positions of the entries that are sent."""
        return 0 if self.strength == 0 else 2 if self.fisher_keep is None else 3 * self.fisher_keep

    @property
    def comparable(self) -> bool:
        return self.fisher_keep is None

    def fetched(self, server_state: Tensors, client_state: Tensors) -> Tensor | None:
        if not self._keeps:
            return None
        made = {"made": server_state["made"]}
        rest = wire_bytes(server_state) - wire_bytes(made)
        return wire_bytes(made) + rest * (client_state["held"] != server_state["made"]).squeeze(1).long()

    # -- local training

    def transform_grad(self, grad_cP: Tensor, at: At, server_state: Tensors, client_state: Tensors) -> Tensor:
        if self.step == "proximal" or self.decoupled or not _there(server_state):
            return grad_cP
        return self._pull(grad_cP, at.x_cP, server_state, self.strength)

    def post_step(self, at: At, server_state: Tensors, client_state: Tensors) -> None:
        if not _there(server_state):
            return
        if self.step == "proximal":  # the minimiser of |y - x|²/2 + rate (U y²/2 - V y)
            rate = at.lr * self.strength
            shift_n, stiff_n = rate * server_state["V"], 1 + rate * server_state["U"]
            if "index" not in server_state:
                at.x_cP.add_(shift_n).div_(stiff_n)
                return
            index_n = server_state["index"].long()
            at.x_cP.index_copy_(1, index_n, at.x_cP.index_select(1, index_n).add_(shift_n).div_(stiff_n))
        elif self.decoupled:
            self._pull(at.x_cP, at.x_cP, server_state, -at.lr * self.strength)

    def as_quadratic(self, start_cP: Tensor, server_state: Tensors) -> tuple[Tensor, Tensor] | None:
        if self.step == "proximal" or self.decoupled:
            return None
        stiff_P, pull_P = torch.zeros_like(start_cP[0]), torch.zeros_like(start_cP[0])
        if _there(server_state):
            where = server_state["index"].long() if "index" in server_state else slice(None)
            stiff_P[where], pull_P[where] = self.strength * server_state["U"], self.strength * server_state["V"]
        return stiff_P, pull_P

    @staticmethod
    def _pull(into_cP: Tensor, x_cP: Tensor, server_state: Tensors, factor: float) -> Tensor:
        """into <- into + factor (U x - V)"""
        if "index" not in server_state:
            return into_cP.addcmul_(x_cP, server_state["U"], value=factor).sub_(server_state["V"], alpha=factor)
        index_n = server_state["index"].long()
        pull_cn = x_cP.index_select(1, index_n).mul_(server_state["U"]).sub_(server_state["V"])
        return into_cP.index_add_(1, index_n, pull_cn, alpha=factor)

    def finish(self, at: At, server_state: Tensors, client_state: Tensors) -> tuple[Tensors, Tensors]:
        """u = diag(I) at the final weights, v = u w, z = Σ u w²."""
        kept = client_state | ({"held": server_state["made"].expand_as(client_state["held"])} if self._keeps else {})
        if self.strength == 0 or at.t % self.fisher_every:
            return {}, kept
        message = self._message(at.squared_gradients(self.samples), at.x_cP)
        return message, kept | message if self.remembers else kept

    def _message(self, u_cP: Tensor, x_cP: Tensor) -> Tensors:
        places: Tensors = {}
        if self.fisher_keep is not None:
            u_cP, index_ck = u_cP.topk(math.ceil(self.fisher_keep * u_cP.shape[1]))
            x_cP, places = x_cP.gather(1, index_ck), {"index": index_ck.int()}
        if takes(u_cP, x_cP):
            v_cP, z_c1 = products_by_kernel(u_cP, x_cP)
            return places | {"u": u_cP, "v": v_cP, "z": z_c1}
        v_cP = u_cP * x_cP
        return places | {"u": u_cP, "v": v_cP, "z": (v_cP * x_cP).sum(1, keepdim=True)}

    # -- the server

    def server_update(self, server_state: Tensors, upload: Tensors, applied: Applied) -> tuple[Tensors, Extra]:
        """U = Σ u, V = Σ v over the uploads of this round; without any they stay as they are."""
        if self.strength == 0:
            return server_state, {}
        new = server_state
        if upload:
            if left := applied.left.get(self.name):  # the last uploads of clients that left, if they ever sent any
                known_L = left["u"].any(1)
                upload = {name: torch.cat([value, left[name][known_L].to(value)]) for name, value in upload.items()}
            new = self._sums(upload, len(applied.start_P))
            if self.fisher_every > 1:
                new["made"] = torch.full_like(server_state["made"], applied.t)
        numbers = (self._loss(applied.start_P, server_state), _largest(server_state), _largest(new))
        loss, before, now = torch.stack([number.double() for number in numbers]).tolist()  # a GPU is waited for once
        before, now = (applied.lr * self.strength * largest for largest in (before, now))
        columns: Extra = {"elastic_loss": loss, "elastic_stiffness": before}  # of this round's term, at its start
        if self.step == "explicit" and before <= 1 < now:
            columns["elastic_warning"] = (
                f"η λ max U has become {now:.3g}: above 2 the explicit step diverges; lower strength or the learning "
                "rate, or take reduce = 'mean' or step = 'proximal'"
            )
        return new, columns

    def _sums(self, upload: Tensors, width: int) -> Tensors:
        parts = {"U": upload["u"], "V": upload["v"], "Z": upload["z"]}
        share = 1 / len(upload["z"]) if self.reduce == "mean" else 1.0
        if "index" not in upload:
            if upload["u"].is_cuda:  # as a product, which is faster
                ones_C = upload["u"].new_full((len(upload["u"]),), share)
                return {name: ones_C @ value for name, value in parts.items()}
            return {name: value.sum(0) * share for name, value in parts.items()}
        index_N = upload["index"].long().flatten()
        full = {n: upload["u"].new_zeros(width).index_add(0, index_N, parts[n].flatten(), alpha=share) for n in "UV"}
        index_n = full["U"].nonzero().squeeze(1)
        kept = {name: value[index_n] for name, value in full.items()}
        return kept | {"Z": parts["Z"].sum(0) * share, "index": index_n.int()}

    def loss(self, x_P: Tensor, server_state: Tensors) -> float:
        """λ/2 Σ_i (x - w_i)ᵀ diag(I_i) (x - w_i) = λ/2 (Σ U x² - 2 Σ V x + Σ_i z_i), exactly."""
        return float(self._loss(x_P, server_state))

    def _loss(self, x_P: Tensor, server_state: Tensors) -> Tensor:
        if not _there(server_state):
            return x_P.new_zeros((), dtype=torch.float64)
        x_n = (x_P[server_state["index"].long()] if "index" in server_state else x_P).double()
        U, V, Z = (server_state[name].double() for name in ("U", "V", "Z"))
        return 0.5 * self.strength * ((x_n * (U * x_n - 2 * V)).sum() + Z.sum())


def _largest(server_state: Tensors) -> Tensor:
    """max U, 0 without any."""
    return server_state["U"].max() if _there(server_state) else server_state["U"].new_zeros(())


def _there(server_state: Tensors) -> bool:
    return "U" in server_state and server_state["U"].numel() > 0


@jit
def _products(u_ptr, w_ptr, v_ptr, z_ptr, P, us_c, ws_c, vs_c, tiles, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    c = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(u_ptr + c * us_c + p, mask=p < P, other=0.0)
    w = tl.load(w_ptr + c * ws_c + p, mask=p < P, other=0.0)
    v = u * w
    tl.store(v_ptr + c * vs_c + p, v, mask=p < P)
    tl.store(z_ptr + c * tiles + tl.program_id(0), tl.sum(v * w, 0))


def products_by_kernel(u_cP: Tensor, w_cP: Tensor) -> tuple[Tensor, Tensor]:
    """v = u w [c, P] and Σ u w² [c, 1] on a GPU, in one pass over all clients' u and w."""
    (c, P), tiles = u_cP.shape, pieces(u_cP.shape[1], BLOCK)
    v_cP, z_ct = u_cP.new_empty(c, P), u_cP.new_empty(c, tiles)
    _products[tiles, c](
        u_cP, w_cP, v_cP, z_ct, P, u_cP.stride(0), w_cP.stride(0), P, tiles, BLOCK, num_warps=WARPS
    )  # fmt: skip
    return v_cP, z_ct.sum(1, keepdim=True)


KINDS = {"elastic": Elastic}
