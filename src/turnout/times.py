"""The times of a cohort in a round, in seconds.

Shape letters: C clients of a cohort.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Times:
    """The times of a cohort in a round, in seconds: simulated (`world.devices`), or observed on devices.

    begin_C       when each client was asked, after the beginning of the round
    download_C, train_C, upload_C  the time of each stage; NaN for absent clients
    bytes_down_C  the size of each download; NaN for absent clients
    late_C        whether the reply comes after the round is closed, or never
    up_C          the upload speed of each client, in bytes per second
    tier_C        the index of each client's tier in `tiers`
    closes        when the round is closed, after its beginning
    planned_up    the upload size that devices planned with, in bytes
    tiers         the names of the tiers
    ends_with_last  whether the round closes with a reply, not at a deadline
    """

    begin_C: Tensor
    download_C: Tensor
    train_C: Tensor
    upload_C: Tensor
    bytes_down_C: Tensor
    late_C: Tensor
    up_C: Tensor
    tier_C: Tensor
    closes: float
    planned_up: int = 0
    tiers: tuple[str, ...] = ("device",)
    ends_with_last: bool = False

    @property
    def arrival_C(self) -> Tensor:
        """When each reply arrives, after the beginning of the round; NaN: never."""
        return self.begin_C + self.download_C + self.train_C + self.upload_C

    @property
    def spent_C(self) -> Tensor:
        """The busy time of each client; 0 for absent clients, and no upload for a reply that never comes."""
        parts = torch.stack([self.download_C, self.train_C, self.upload_C])
        return parts.nan_to_num(nan=0.0, posinf=0.0).sum(0)

    def cut(self, seconds: float, cut_C: Tensor) -> Times:
        """The times if some clients are stopped so many seconds after the beginning."""
        left_C = (seconds - self.begin_C).clamp(min=0)
        parts: dict[str, Any] = {}
        for name in ("download_C", "train_C", "upload_C"):
            parts[name] = torch.where(cut_C, torch.minimum(getattr(self, name), left_C), getattr(self, name))
            left_C = (left_C - parts[name]).clamp(min=0)
        share_C = torch.where(cut_C, parts["download_C"] / self.download_C, 1.0)
        return replace(self, **parts, bytes_down_C=self.bytes_down_C * share_C)

    def columns(self) -> dict[str, Tensor]:
        """The fields with one value per client, by name."""
        return {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}

    def take(self, rows: Tensor) -> Times:
        chosen: dict[str, Any] = {name: value[rows] for name, value in self.columns().items()}
        return replace(self, **chosen)

    def among(self, row_C: Tensor, length: int) -> Times:
        """The same in a longer list, at these positions; the others are absent."""
        blank = {torch.bool: False, torch.int64: -1}
        longer: dict[str, Any] = {
            name: value.new_full((length,), blank.get(value.dtype, torch.nan)).index_copy(0, row_C, value)
            for name, value in self.columns().items()
        }
        return replace(self, **longer)

    def join(self, other: Times) -> Times:
        """These times followed by others; the round is this one."""
        more = other.columns()
        both: dict[str, Any] = {name: torch.cat([value, more[name]]) for name, value in self.columns().items()}
        return replace(self, **both)
