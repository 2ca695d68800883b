"""Updates cut to a length: norm clipping (Sun et al. 2019) and centred clipping (Karimireddy, He, Jaggi, ICML 2021).

Shape letters: r replies with a weight, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.parts.aggregation import Combined
from turnout.parts.robust.coordinates import coordinate_median
from turnout.parts.robust.votes import Votes, lengths, votes
from turnout.parts.updates import Updates


def clipped_mean(found: Votes, limit: float | None, centre_P: Tensor | None = None) -> tuple[Tensor, int]:
    """v + Σ α_c (D_c − v) min(1, τ / ‖D_c − v‖) with α_c = weight / Σ weight, and how many were cut."""
    length_r = lengths(found.update_rP, centre_P)
    most = coordinate_median(length_r[:, None], found.weight_r) if limit is None else length_r.new_tensor(limit)
    factor_r = (most / length_r.clamp(min=1e-300)).clamp(max=1.0)
    part_r = factor_r * found.weight_r / found.total
    mean_P = part_r.to(found.update_rP) @ found.update_rP
    if centre_P is not None:
        mean_P = mean_P + (1 - part_r.sum()).to(centre_P) * centre_P
    return mean_P, int((factor_r < 1 - 1e-12).sum())


def _check_limit(name: str, limit: float | None) -> None:
    if limit is not None and not limit > 0:
        raise UserError(
            f"{name}(limit={limit!r}): a length is above 0; leave it out for the median length of the round"
        )


@dataclass(frozen=True)
class NormClip:
    """Σ weight_c D_c min(1, M / ‖D_c‖) (Sun et al. 2019): nobody moves the model further than its share of M.

    `limit` is M; without one it is the median length of the round's updates, by weight, so half of the replies are cut.

    It bounds what a minority does, and does not undo it: a share a of the weight moves the model by a M at most, in any
    direction. With a number for M that holds for every a (no breakdown); the median length breaks down at 1/2.
    """

    limit: float | None = None
    linear: ClassVar[bool] = False
    guards: ClassVar[str] = "updates"

    def __post_init__(self) -> None:
        _check_limit("NormClip", self.limit)

    def combine(self, arrived: Updates, weight_R: Tensor) -> Tensor | Combined:
        found = votes(arrived, weight_R)
        if found is None:
            return torch.zeros_like(arrived.start_P)
        mean_P, cut = clipped_mean(found, self.limit)
        return Combined(found.sized(mean_P), extra={"clipped": float(cut)})


@dataclass(frozen=True)
class CentredClip:
    """v ← v + Σ α_c (D_c − v) min(1, τ / ‖D_c − v‖), a few times (Karimireddy, He, Jaggi 2021, Algorithm 2).

    limit  τ; without one the median distance from v, by weight
    steps  how often

    The paper begins at the last round's v and needs momentum for it; here v begins at the round's coordinate median,
    because who turns up changes from round to round. Breakdown point 1/2 (of where it begins, and of the median
    distance); each step adds at most τ times the hostile share.
    """

    limit: float | None = None
    steps: int = 3
    linear: ClassVar[bool] = False
    guards: ClassVar[str] = "updates"

    def __post_init__(self) -> None:
        _check_limit("CentredClip", self.limit)
        if self.steps < 1:
            raise UserError(f"CentredClip(steps={self.steps}): at least 1")

    def combine(self, arrived: Updates, weight_R: Tensor) -> Tensor | Combined:
        found = votes(arrived, weight_R)
        if found is None:
            return torch.zeros_like(arrived.start_P)
        v_P, cut = coordinate_median(found.update_rP, found.weight_r), 0
        for _ in range(self.steps):
            v_P, cut = clipped_mean(found, self.limit, v_P)
        return Combined(found.sized(v_P), extra={"clipped": float(cut)})


KINDS = {"norm-clip": NormClip, "centred-clip": CentredClip}
