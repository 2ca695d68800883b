"""What a round took each of a cohort, in seconds.

Shape letters: C clients of a cohort.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Times:
    """What a round took each of a cohort, in seconds: simulated (`world.devices`), or as devices were seen to take.

    begin_C       when each was asked, after the beginning of the round
    download_C, train_C, upload_C  what each part took; NaN for who was not there
    full_C        what complete work would have taken in all
    bytes_down_C  what each downloaded, NaN for who was not there
    late_C        whose reply comes after the round is closed, or never
    up_C          bytes a second that each sends
    tier_C        each one's tier in `tiers`
    planned_up    bytes that devices reckoned with sending
    closes        when the round is closed, after its beginning
    ends_with_last  whether that is with a reply, not at a deadline
    """

    begin_C: Tensor
    download_C: Tensor
    train_C: Tensor
    upload_C: Tensor
    full_C: Tensor
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
        """What each was busy in all; 0 for who was not there, and no upload for a reply that never comes."""
        parts = torch.stack([self.download_C, self.train_C, self.upload_C])
        return parts.nan_to_num(nan=0.0, posinf=0.0).sum(0)

    def cut(self, seconds: float, cut_C: Tensor) -> Times:
        """Some of them stopped so many seconds after the beginning: what each part took until then."""
        left_C = (seconds - self.begin_C).clamp(min=0)
        parts: dict[str, Any] = {}
        for name in ("download_C", "train_C", "upload_C"):
            parts[name] = torch.where(cut_C, torch.minimum(getattr(self, name), left_C), getattr(self, name))
            left_C = (left_C - parts[name]).clamp(min=0)
        share_C = torch.where(cut_C, parts["download_C"] / self.download_C, 1.0)
        return replace(self, **parts, bytes_down_C=self.bytes_down_C * share_C)

    def columns(self) -> dict[str, Tensor]:
        """What has one value a client, by name."""
        return {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}

    def take(self, rows: Tensor) -> Times:
        chosen: dict[str, Any] = {name: value[rows] for name, value in self.columns().items()}
        return replace(self, **chosen)

    def among(self, row_C: Tensor, length: int) -> Times:
        """The same in a longer list, at these places; nobody was there at the others."""
        blank = {torch.bool: False, torch.int64: -1}
        longer: dict[str, Any] = {
            name: value.new_full((length,), blank.get(value.dtype, torch.nan)).index_copy(0, row_C, value)
            for name, value in self.columns().items()
        }
        return replace(self, **longer)

    def join(self, other: Times) -> Times:
        """These and others, one after another; the round is this one's."""
        more = other.columns()
        both: dict[str, Any] = {name: torch.cat([value, more[name]]) for name, value in self.columns().items()}
        return replace(self, **both)
