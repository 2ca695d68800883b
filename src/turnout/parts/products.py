"""The mean of adapters as the mean of what they do: of the products B A, not of their factors apart.

Shape letters: R replies, P shared parameters, o outputs, i inputs, r rank, k columns of all factors side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.parts.aggregation import Combined, weighted_sum
from turnout.parts.updates import Updates

LORA_A, LORA_B = ".lora_A.", ".lora_B."  # in the names of the factors, ours and peft's


@dataclass(frozen=True)
class ProductMean:
    """FlexLoRA (Bai et al., 2024): the change of each layer is the weighted mean of the clients' changes B_c A_c,

        M = B A + Σ_c w_c (B_c A_c - B A),    B A <- the best approximation of M of rank r,

    where averaging the factors apart gives (Σ w B_c)(Σ w A_c), which is another matrix. The approximation is found
    without M itself: by QR of all factors side by side and a singular value decomposition of a core of their size. Of
    the factors with this product, those are taken whose A is as large as before and turned as little as possible. What
    has no pair of factors is summed as usual; where A is frozen (FFA-LoRA) the plain sum is exact already.

    The record's `discarded_energy` is the share of M's squared singular values that the rank has no room for.
    """

    linear: ClassVar[bool] = True  # in the products

    def combine(self, updates: Updates, weight_R: Tensor) -> Combined:
        row_r = (weight_R != 0).nonzero().squeeze(1)
        used = updates if len(row_r) == len(weight_R) else updates.take(row_r)
        # clients may have scaled their updates, which is a weight of the product's change
        weight_r = (weight_R[row_r] * used.scaled_R).to(used.update_RP)
        update_P = weighted_sum(updates.update_RP, weight_R)
        pairs, lost, whole = list(factor_pairs(updates.slots)), 0.0, 0.0
        model_rP = used.models() if len(row_r) else used.update_RP
        for A, B in pairs:
            start_A, start_B = (_factor(updates.start_P[None], slot)[0] for slot in (A, B))
            A_r, B_r = (_factor(model_rP, slot) for slot in (A, B))
            A_k, B_k, weight_k = start_A[None], start_B[None], 1 - weight_r.sum()[None]
            if used.start_RP is not None:  # each client changed a product of its own
                A_k, B_k = (torch.cat([first, _factor(used.start_RP, slot)]) for first, slot in ((A_k, A), (B_k, B)))
                weight_k = torch.cat([torch.ones_like(weight_k), -weight_r])
            stacked = torch.cat([A_k, A_r]), torch.cat([B_k, B_r]), torch.cat([weight_k, weight_r])
            found = mean_product(*stacked, start_A)
            if found is None:
                continue
            new_A, new_B, energy_r = found
            for slot, new, old in ((A, new_A, start_A), (B, new_B, start_B)):
                update_P[slot.start : slot.start + slot.size] = (new - old).flatten()
            lost, whole = lost + float(energy_r[len(start_A) :].sum()), whole + float(energy_r.sum())
        return Combined(update_P, extra={"discarded_energy": lost / whole if whole else 0.0})


def mean_product(
    A_kri: Tensor, B_kor: Tensor, weight_k: Tensor, near_ri: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The factors of the best approximation of Σ_k w_k B_k A_k, whose A is near the given one, and the energy of all
    its directions; None if the sum is 0.

    >>> one = torch.ones(1, 1, 2)
    >>> A, B, _ = mean_product(torch.cat([one, -one]), torch.ones(2, 2, 1), torch.tensor([0.75, 0.25]), one[0])
    >>> B @ A  # (0.75 - 0.25) times ones
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    kind, rank = A_kri.dtype, A_kri.shape[1]
    A_kri, B_kor, weight_k, near_ri = (value.double() for value in (A_kri, B_kor, weight_k, near_ri))
    Q_o, R_o = torch.linalg.qr((weight_k[:, None, None] * B_kor).transpose(0, 1).flatten(1))  # [o, k r]
    Q_i, R_i = torch.linalg.qr(A_kri.flatten(0, 1).T)
    U, S, V = torch.linalg.svd(R_o @ R_i.T, full_matrices=False)
    if not float(S[:1].sum()):
        return None
    room = min(rank, len(S))
    size = float(near_ri.square().sum().div(rank).sqrt()) or 1.0
    A, B = near_ri.new_zeros(rank, near_ri.shape[1]), near_ri.new_zeros(Q_o.shape[0], rank)
    A[:room], B[:, :room] = size * (Q_i @ V[:room].T).T, Q_o @ (U[:, :room] * S[:room]) / size
    left, _, right = torch.linalg.svd(near_ri @ A.T)  # the rotation that brings A nearest
    turn = left @ right
    return (turn @ A).to(kind), (B @ turn.T).to(kind), S.square()


def factor_pairs(slots: tuple[Slot, ...]) -> Iterator[tuple[Slot, Slot]]:
    """The factors A and B of each layer of which both are among these columns."""
    named = {slot.name: slot for slot in slots}
    for name, slot in named.items():
        other = named.get(f".{name}".replace(LORA_A, LORA_B)[1:])  # a model that is one layer has no name before it
        if LORA_A in f".{name}" and other is not None:
            yield slot, other


def _factor(rows_RP: Tensor, slot: Slot) -> Tensor:
    return rows_RP[:, slot.start : slot.start + slot.size].view(-1, *slot.shape)


KINDS = {"product-mean": ProductMean}
