"""The arithmetic of partitions by label: how many samples of each label for each client, then which rows.

A partition is a matrix of weights, client by label. Without wanted sizes all rows of a label are given out, in
proportion to its column. With wanted sizes a client's mix of labels follows its row, as far as the samples suffice.

Shape letters: S samples of the pool, C clients, L labels that occur.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.rng import rng


def label_pools(label_S: Tensor, partition: str) -> tuple[Tensor, Tensor]:
    """The labels that occur, renumbered 0 .. L - 1 for each sample, and how many samples each has."""
    if label_S.ndim != 1 or label_S.is_floating_point():
        raise UserError(f"{partition} deals by label, and the targets here are not labels: use IID or Natural")
    _, code_S, count_L = label_S.unique(return_inverse=True, return_counts=True)
    return code_S, count_L


def divide_pools(weight_CL: Tensor, pool_L: Tensor) -> Tensor:
    """Divide all samples of every label among the clients, in proportion to their weights.

    >>> divide_pools(torch.tensor([[1.0], [1.0], [2.0]]), torch.tensor([10]))
    tensor([[2],
            [3],
            [5]])
    """
    weight_CL = weight_CL.double()
    total_L = weight_CL.sum(0)
    # Multiply before dividing: equal weights then give exact multiples, and no share is rounded down to 0.
    end_CL = (weight_CL.cumsum(0) * pool_L / total_L.clamp(min=1e-300)).round()
    end_CL[-1] = torch.where(total_L > 0, pool_L.double(), 0.0)
    return torch.diff(end_CL, dim=0, prepend=end_CL.new_zeros(1, len(pool_L))).long()


def fill_wishes(weight_CL: Tensor, pool_L: Tensor, want_C: Tensor) -> Tensor:
    """Give each client as many samples as it wants, in the proportions of its row, while a label has samples.

    If a label has too few, the clients that want the most of it get less (all the same number), the others what they
    want.

    >>> fill_wishes(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([50, 30]), torch.tensor([20, 90]))
    tensor([[10, 10],
            [ 0, 20]])
    """
    weight_CL = weight_CL.double()
    end_CL = (weight_CL.cumsum(1) * want_C[:, None] / weight_CL.sum(1, keepdim=True).clamp(min=1e-300)).round()
    end_CL[:, -1] = want_C.double()
    wish_CL = torch.diff(end_CL, dim=1, prepend=end_CL.new_zeros(len(want_C), 1)).long()
    wish_CL = torch.where(weight_CL > 0, wish_CL, 0)
    return torch.stack([_level(wish_C, int(pool)) for wish_C, pool in zip(wish_CL.unbind(1), pool_L, strict=True)], 1)


def _level(wish_C: Tensor, pool: int) -> Tensor:
    """min(wish, v) with the largest whole number v for which the sum is at most `pool`."""
    if int(wish_C.sum()) <= pool:
        return wish_C
    low, high = 0, pool
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int(wish_C.clamp(max=middle).sum()) <= pool else (low, middle - 1)
    return wish_C.clamp(max=low)


def pick_rows(code_S: Tensor, count_CL: Tensor, seed: int) -> list[Tensor]:
    """Random rows for each client, as many of each label as `count_CL` says, each row at most once.

    A client's rows are in the order of labels.
    """
    rows, owners = [], []
    for label, count_C in enumerate(count_CL.unbind(1)):
        row_S = (code_S == label).nonzero().squeeze(1)
        row_S = row_S[torch.randperm(len(row_S), generator=rng(seed, "partition", "rows", label))]
        rows.append(row_S[: int(count_C.sum())])
        owners.append(torch.repeat_interleave(torch.arange(len(count_C)), count_C))
    order_R = torch.cat(owners).argsort(stable=True)
    return list(torch.cat(rows)[order_R].split(count_CL.sum(1).tolist()))


def trim(rows_C: list[Tensor], want_C: Tensor | None, seed: int) -> list[Tensor]:
    """At most the wanted number of each client's rows, chosen at random."""
    if want_C is None:
        return rows_C
    return [
        rows[torch.randperm(len(rows), generator=rng(seed, "partition", "trim", c))[:want].sort().values]
        for c, (rows, want) in enumerate(zip(rows_C, want_C.tolist(), strict=True))
    ]


def check_labels_held(count_CL: Tensor, weight_CL: Tensor, pool_L: Tensor, partition: str) -> None:
    """Refuse counts in which a client has weight for a label and gets no sample of it."""
    missing = ((weight_CL > 0) & (count_CL == 0)).nonzero()
    if len(missing):
        client, label = missing[0].tolist()
        holders = int((weight_CL[:, label] > 0).sum())
        raise UserError(
            f"{partition}: client {client} gets no sample of label {label}, whose {int(pool_L[label])} "
            f"samples are shared by {holders} clients; use fewer clients, or larger sizes if they are tiny"
        )


def check_filled(rows_C: list[Tensor], partition: str, least: int = 1) -> list[Tensor]:
    """Refuse rows that leave a client with fewer than `least` samples."""
    short = [c for c, rows in enumerate(rows_C) if len(rows) < least]
    if short:
        raise UserError(
            f"{partition} leaves {len(short)} of {len(rows_C)} clients with fewer than {least} samples "
            f"(client {short[0]} has {len(rows_C[short[0]])}): use fewer clients or another partition"
        )
    return rows_C
