"""Updates cut to a length: norm clipping (Sun et al. 2019) and centred clipping (Karimireddy, He, Jaggi, ICML 2021).

Shape letters: r replies with a weight, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from turnout.errors import UserError
from turnout.parts.aggregation import Combined
from turnout.parts.robust.coordinates import coordinate_median
from turnout.parts.robust.votes import Robust, Votes, lengths


def clipped_mean(votes: Votes, limit: float | None, centre_P: Tensor | None = None) -> tuple[Tensor, int]:
    """v + Σ α_c (D_c − v) min(1, τ / ‖D_c − v‖) with α_c = weight / Σ weight, and how many were cut."""
    length_r = lengths(votes.update_rP, centre_P)
    most = coordinate_median(length_r[:, None], votes.weight_r) if limit is None else length_r.new_tensor(limit)
    factor_r = (most / length_r.clamp(min=1e-300)).clamp(max=1.0)
    part_r = factor_r * votes.weight_r / votes.total
    mean_P = part_r.to(votes.update_rP) @ votes.update_rP
    if centre_P is not None:
        mean_P = mean_P + (1 - part_r.sum()).to(centre_P) * centre_P
    return mean_P, int((factor_r < 1 - 1e-12).sum())


@dataclass(frozen=True)
class NormClip(Robust):
    """Σ weight_c D_c min(1, M / ‖D_c‖) (Sun et al. 2019): no client moves the model further than its share of M.

    limit  M; None: the median length of the round's updates, by weight, so that half of the replies are cut

    It bounds the effect of a minority and does not undo it: a share a of the weight moves the model by at most a M, in
    any direction. With a number for M that holds for every a (no breakdown); the median length breaks down at 1/2.
    """

    limit: float | None = None

    def __post_init__(self) -> None:
        _check_limit("NormClip", self.limit)

    def centre(self, votes: Votes, replies: int) -> Combined:
        mean_P, cut = clipped_mean(votes, self.limit)
        return Combined(mean_P, extra={"clipped": float(cut)})


@dataclass(frozen=True)
class CentredClip(Robust):
    """v ← v + Σ α_c (D_c − v) min(1, τ / ‖D_c − v‖), a few times (Karimireddy, He, Jaggi 2021, Algorithm 2).

    limit  τ; None: the median distance from v, by weight
    steps  how often

    The paper starts at the last round's v and needs momentum for it; here v starts at the round's coordinate median,
    because the cohort changes from round to round. Breakdown point 1/2 (of the start and of the median distance); each
    step adds at most τ times the hostile share.
    """

    limit: float | None = None
    steps: int = 3

    def __post_init__(self) -> None:
        _check_limit("CentredClip", self.limit)
        if self.steps < 1:
            raise UserError(f"CentredClip(steps={self.steps}): at least 1")

    def centre(self, votes: Votes, replies: int) -> Combined:
        v_P, cut = coordinate_median(votes.update_rP, votes.weight_r), 0
        for _ in range(self.steps):
            v_P, cut = clipped_mean(votes, self.limit, v_P)
        return Combined(v_P, extra={"clipped": float(cut)})


def _check_limit(name: str, limit: float | None) -> None:
    if limit is not None and not limit > 0:
        raise UserError(
            f"{name}(limit={limit!r}): a length is above 0; leave it out for the median length of the round"
        )


KINDS = {"norm-clip": NormClip, "centred-clip": CentredClip}
