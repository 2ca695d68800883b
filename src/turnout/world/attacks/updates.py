"""What is sent instead of an update: the sign flipped, noise, a little is enough (ALIE), inner product, nothing.

Shape letters: h the hostile of those who send an update, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.rng import rng
from turnout.types import Turnout
from turnout.world.attacks.base import Attack, Scene


@dataclass(frozen=True)
class SignFlip(Attack):
    """−strength · D: the opposite of what was learned."""

    strength: float = 1.0

    def update(self, scene: Scene) -> Tensor:
        return -self.strength * scene.own_hP


@dataclass(frozen=True)
class Noise(Attack):
    """Random numbers, `strength` times as long as the update would be."""

    strength: float = 10.0

    def update(self, scene: Scene) -> Tensor:
        own_hP, client_h = scene.own_hP, scene.client_R[scene.hostile_R].tolist()
        width = own_hP.shape[1]
        drawn = [torch.randn(width, generator=rng(scene.seed, "attack noise", scene.t, c)) for c in client_h]
        each = self.strength * own_hP.norm(dim=1, keepdim=True) / width**0.5
        return each * torch.stack(drawn).to(own_hP)


@dataclass(frozen=True)
class ALIE(Attack):
    """μ − z σ, "a little is enough" (Baruch, Baruch, Goldberg, NeurIPS 2019): all attackers send what is just near
    enough to the mean to be believed.

    μ and σ, parameter by parameter, are of what the attackers themselves would send. z is the largest with Φ(z) <
    (m − f − s) / (m − f), s = ⌊m / 2 + 1⌋ − f, for m replies of which f are hostile, or as given.
    """

    z: float | None = None
    colludes: ClassVar[bool] = True

    def update(self, scene: Scene) -> Tensor:
        own_hP = scene.own_hP
        z = z_max(len(scene.client_R), len(own_hP)) if self.z is None else self.z
        forged_P = own_hP.mean(0) - z * own_hP.std(0, correction=0)
        return forged_P.expand_as(own_hP)


def z_max(replies: int, hostile: int) -> float:
    """How many standard deviations may be lied; as many as anybody likes (3) where the hostile are a majority.

    >>> round(z_max(50, 24), 2), z_max(4, 3)
    (1.43, 3.0)
    """
    honest, needed = replies - hostile, replies // 2 + 1 - hostile
    if needed <= 0 or honest <= 0:
        return 3.0
    return max(0.0, NormalDist().inv_cdf(min(max((honest - needed) / honest, 1e-9), 1 - 1e-9)))


@dataclass(frozen=True)
class InnerProduct(Attack):
    """−ε · mean of the honest updates (Xie, Koyejo, Gupta, UAI 2019): the sum points backwards, or hardly forwards.

    The paper breaks medians and Krum with a small ε (0.1), means with a large one.
    """

    epsilon: float = 0.5
    colludes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise UserError(f"InnerProduct(epsilon={self.epsilon!r}): above 0")

    def update(self, scene: Scene) -> Tensor:
        return (-self.epsilon * scene.honest_P).expand_as(scene.own_hP)


@dataclass(frozen=True)
class FreeRider(Attack):
    """No training at all: an update of zeros, said to be complete work."""

    def update(self, scene: Scene) -> Tensor:
        return torch.zeros_like(scene.own_hP)

    def work(self, turnout: Turnout, hostile_C: Tensor) -> Turnout:
        return turnout.claiming(hostile_C, 1.0)


KINDS = {
    "sign-flip": SignFlip,
    "noise": Noise,
    "alie": ALIE,
    "inner-product": InnerProduct,
    "free-rider": FreeRider,
}
