"""Partitions that need no quota of each label: equal shards of the sorted samples, or the owners named in the data.

Shape letters: S samples of the pool, C clients, K shards of a client, O owners.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.data.partition.label_quotas import check_filled, divide_pools, label_pools, trim
from turnout.errors import UserError
from turnout.rng import rng


@dataclass(frozen=True)
class Shards:
    """Sort by label, cut into equal shards, give each client `per_client` of them at random.

    `shards` is how many are cut in all, by default per_client x clients. Paper 003 cuts 200 (of 250 CIFAR-10 images
    each), of which 20 clients take 2 each.
    """

    per_client: int = 2
    shards: int | None = None

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise UserError(f"Shards(per_client={self.per_client}): a client has at least 1 shard")

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        label_pools(label_S, "Shards")
        used = self.per_client * clients
        shards = used if self.shards is None else self.shards
        if not used <= shards <= len(label_S):
            raise UserError(
                f"Shards: {clients} clients of {self.per_client} shards need {used} shards, and {shards} "
                f"are to be cut from {len(label_S)} samples; use fewer clients or change the number of shards"
            )
        g = rng(seed, "partition", "shards")
        mixed_S = torch.randperm(len(label_S), generator=g)
        sorted_S = mixed_S[label_S[mixed_S].argsort(stable=True)]
        cut = divide_pools(torch.ones(shards, 1), torch.tensor([len(label_S)])).squeeze(1)
        piece = sorted_S.split(cut.tolist())
        given_CK = torch.randperm(shards, generator=g)[:used].view(clients, self.per_client).sort(1).values
        rows_C = [torch.cat([piece[s] for s in shards_K]) for shards_K in given_CK.tolist()]
        return check_filled(trim(rows_C, want_C, seed), "Shards")


@dataclass(frozen=True)
class Natural:
    """Each owner in the data is a client; owners with fewer than `min_size` samples are left out.

    With fewer clients than owners, the clients are a random choice of owners.
    """

    min_size: int = 1

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        if owner_S is None:
            raise UserError("Natural needs data with owners: name an owner column, or use another partition")
        owners_O = self.owners(owner_S)
        if clients > len(owners_O):
            raise UserError(
                f"Natural: {clients} clients are asked for, and {len(owners_O)} owners have "
                f"{self.min_size} or more samples: ask for fewer clients, or lower min_size"
            )
        chosen = torch.randperm(len(owners_O), generator=rng(seed, "partition", "owners"))[:clients].sort().values
        order_S = owner_S.argsort(stable=True)
        start_C = torch.searchsorted(owner_S[order_S], owners_O[chosen])
        end_C = torch.searchsorted(owner_S[order_S], owners_O[chosen], right=True)
        rows_C = [order_S[a:b] for a, b in zip(start_C.tolist(), end_C.tolist(), strict=True)]
        return check_filled(trim(rows_C, want_C, seed), "Natural")

    def owners(self, owner_S: Tensor) -> Tensor:
        """The owners with enough samples."""
        owner_O, count_O = owner_S.unique(return_counts=True)
        return owner_O[count_O >= self.min_size]


KINDS = {"shards": Shards, "natural": Natural}
