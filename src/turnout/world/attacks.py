"""Clients that attack: forged updates and false claims, as parts of a simulated world.

`Attack` is what an attack may change, `Attackers` the hostile clients of a world; the attacks follow. Attacks on the
data (labels flipped, a backdoor) wrap the data: data/wrappers.py. Both draw the same clients from the same seed.

Shape letters: C clients of the cohort, R clients that send an update, h the hostile of them, H all hostile clients, P
shared parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import UserError, check_settings
from turnout.rng import rng
from turnout.types import Tensors, Turnout

Share = float | tuple[int, ...]  # of the clients, drawn by the seed; or which they are, by number


@dataclass(frozen=True)
class Scene:
    """What attackers see before they send.

    t          the round
    seed       of the experiment
    client_R   the clients that send an update
    update_RP  all updates of the round
    hostile_R  which of the clients are hostile, as booleans
    """

    t: int
    seed: int
    client_R: Tensor
    update_RP: Tensor
    hostile_R: Tensor

    @property
    def own_hP(self) -> Tensor:
        """What the attackers would send if they were honest."""
        return self.update_RP[self.hostile_R.to(self.update_RP.device)]

    @property
    def honest_RP(self) -> Tensor:
        """The updates of the others; all updates, if there are no others."""
        honest_R = self.hostile_R if bool(self.hostile_R.all()) else ~self.hostile_R
        return self.update_RP[honest_R.to(self.update_RP.device)]


class Attack:
    """The defaults: an attacker that behaves honestly. An attack overrides one of the methods.

    `colludes` says that attackers read others' updates of the round, which needs all of them in one place.
    """

    colludes: ClassVar[bool] = False

    def update(self, scene: Scene) -> Tensor:
        """What the attackers send [h, P], before it is encoded."""
        return scene.own_hP

    def beside(self, value_h: Tensor) -> Tensor:
        """What the attackers send of anything else [h, ...]: one statistic, moment or upload of a term."""
        return value_h

    def work(self, turnout: Turnout, hostile_C: Tensor) -> Turnout:
        """How much work is claimed; absent clients stay absent."""
        return turnout

    def examples(self, examples_C: Tensor, hostile_C: Tensor) -> Tensor:
        """How many samples are claimed."""
        return examples_C


@dataclass(frozen=True)
class Attackers:
    """The hostile clients of a world and what they do.

    client_H  the hostile clients, sorted
    attacks   applied one after another
    seed      of the experiment
    """

    client_H: Tensor
    attacks: tuple[Attack, ...]
    seed: int

    def among(self, client_C: Tensor) -> Tensor:
        return torch.isin(client_C.cpu(), self.client_H)

    def sent(self, update_RP: Tensor, client_R: Tensor, t: int) -> Tensor:
        """The updates as the clients send them; those of hostile clients are overwritten."""
        hostile_R = self.among(client_R)
        if bool(hostile_R.any()):
            for attack in self.attacks:
                forged_hP = attack.update(Scene(t, self.seed, client_R.cpu(), update_RP, hostile_R))
                update_RP[hostile_R.to(update_RP.device)] = forged_hP.to(update_RP)
        return update_RP

    def sent_beside(self, tensors: Tensors, client_R: Tensor) -> Tensors:
        """Statistics, moments or uploads of a term as the clients send them; what clients keep is not changed."""
        hostile_R = self.among(client_R)
        if not bool(hostile_R.any()):
            return tensors
        sent = Tensors()
        for name, value in tensors.items():
            value_h = value[hostile_R.to(value.device)]
            for attack in self.attacks:
                value_h = attack.beside(value_h)
            sent[name] = value.clone()
            sent[name][hostile_R.to(value.device)] = value_h.to(value)
        return sent

    def claimed_work(self, turnout: Turnout) -> Turnout:
        hostile_C = self.among(turnout.client_C) & turnout.present_C
        for attack in self.attacks:
            turnout = attack.work(turnout, hostile_C)
        return turnout

    def claimed_examples(self, client_C: Tensor, examples_C: Tensor) -> Tensor:
        for attack in self.attacks:
            examples_C = attack.examples(examples_C, self.among(client_C))
        return examples_C


def attackers_of(attacks: Sequence[Attack], attackers: Share, clients: int, seed: int) -> Attackers | None:
    return Attackers(hostile_clients(attackers, clients, seed), tuple(attacks), seed) if attacks else None


def hostile_clients(attackers: Share, clients: int, seed: int) -> Tensor:
    """The hostile clients, sorted: those named, or a share drawn from the seed.

    >>> hostile_clients((4, 1), 5, seed=0), len(hostile_clients(0.4, 5, seed=0))
    (tensor([1, 4]), 2)
    """
    if not isinstance(attackers, tuple | list):
        drawn_N = torch.randperm(clients, generator=rng(seed, "attackers"))
        return drawn_N[: round(attackers * clients)].sort().values
    outside = [client for client in attackers if not 0 <= client < clients]
    if outside:
        raise UserError(f"attackers: there is no client {outside[0]}, they are 0 to {clients - 1}")
    return torch.tensor(sorted(set(attackers)), dtype=torch.int64)


def check_attackers(path: str, attackers: Share) -> None:
    if not isinstance(attackers, tuple | list) and not 0 <= attackers <= 1:
        raise UserError(f"{path} is a share from 0 to 1, or a list of clients, not {attackers!r}")


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends −strength · D, the opposite of the update D.

    strength  how many times as long as the update
    """

    strength: float = 1.0

    def update(self, scene: Scene) -> Tensor:
        return -self.strength * scene.own_hP


@dataclass(frozen=True)
class Noise(Attack):
    """Sends random numbers.

    strength  how many times as long as the update would be
    """

    strength: float = 10.0

    def update(self, scene: Scene) -> Tensor:
        own_hP, client_h = scene.own_hP, scene.client_R[scene.hostile_R].tolist()
        width = own_hP.shape[1]
        drawn = [torch.randn(width, generator=rng(scene.seed, "attack noise", scene.t, c)) for c in client_h]
        each = self.strength * own_hP.norm(dim=1, keepdim=True) / width**0.5
        return each * torch.stack(drawn).to(own_hP)


@dataclass(frozen=True)
class ALIE(Attack):
    """Sends μ − z σ, "a little is enough" (Baruch, Baruch, Goldberg, NeurIPS 2019): all attackers send the same update,
    just near enough to the mean to be accepted. μ and σ, parameter by parameter, are of what the attackers themselves
    would send.

    z  how many deviations; None: the largest with Φ(z) < (m − f − s) / (m − f), s = ⌊m / 2 + 1⌋ − f, for m replies of
       which f are hostile
    """

    z: float | None = None
    colludes: ClassVar[bool] = True

    def update(self, scene: Scene) -> Tensor:
        own_hP = scene.own_hP
        z = z_max(len(scene.client_R), len(own_hP)) if self.z is None else self.z
        forged_P = own_hP.mean(0) - z * own_hP.std(0, correction=0)
        return forged_P.expand_as(own_hP)


def z_max(replies: int, hostile: int) -> float:
    """The largest z of ALIE; 3 if hostile clients are a majority, where any z would do.

    >>> round(z_max(50, 24), 2), z_max(4, 3)
    (1.43, 3.0)
    """
    honest, needed = replies - hostile, replies // 2 + 1 - hostile
    if needed <= 0 or honest <= 0:
        return 3.0
    return max(0.0, NormalDist().inv_cdf(min(max((honest - needed) / honest, 1e-9), 1 - 1e-9)))


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Sends −ε · mean of the honest updates (Xie, Koyejo, Gupta, UAI 2019).

    epsilon  ε; the paper breaks medians and Krum with a small one (0.1), means with a large one
    """

    epsilon: float = 0.5
    colludes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise UserError(f"InnerProduct(epsilon={self.epsilon!r}): above 0")

    def update(self, scene: Scene) -> Tensor:
        return (-self.epsilon * scene.honest_RP.mean(0)).expand_as(scene.own_hP)


@dataclass(frozen=True)
class Opposed(Attack):
    """Sends μ − z σ sign(μ) with μ and σ of the honest updates, parameter by parameter: all attackers send the same
    update, among the honest ones in every parameter, and on the wrong side of as many as z σ reaches.

    z  how many deviations
    """

    z: float = 1.0
    colludes: ClassVar[bool] = True

    def update(self, scene: Scene) -> Tensor:
        honest_P, spread_P = scene.honest_RP.mean(0), scene.honest_RP.std(0, correction=0)
        return (honest_P - self.z * spread_P * honest_P.sign()).expand_as(scene.own_hP)


@dataclass(frozen=True)
class FalseFriend(Attack):
    """Sends the mean of the honest updates, which makes it the most similar client of all, and in every `period`-th
    round −strength times that, with all the shares of missing clients that a substitution lends to their friend.

    strength  how many times as long as the mean
    period    in rounds
    """

    strength: float = 4.0
    period: int = 2
    colludes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self, strength="(0, inf)", period="[1, inf)")

    def update(self, scene: Scene) -> Tensor:
        strikes = scene.t % self.period == self.period - 1
        return ((-self.strength if strikes else 1.0) * scene.honest_RP.mean(0)).expand_as(scene.own_hP)


@dataclass(frozen=True)
class Beside(Attack):
    """Sends an honest update, and something else for all that goes beside it: statistics, moments, uploads of terms.

    strength  how many times what an honest client would send; negative: the opposite
    """

    strength: float = -100.0

    def beside(self, value_h: Tensor) -> Tensor:
        return self.strength * value_h.double()


@dataclass(frozen=True)
class FreeRider(Attack):
    """Does not train: sends an update of zeros and claims complete work."""

    def update(self, scene: Scene) -> Tensor:
        return torch.zeros_like(scene.own_hP)

    def work(self, turnout: Turnout, hostile_C: Tensor) -> Turnout:
        return turnout.claiming(hostile_C, 1.0)


@dataclass(frozen=True)
class ClaimWork(Attack):
    """Claims a fraction of the work, whatever was done.

    fraction  the claim. A small one has its update scaled up under scheme C (E / s); 1 makes unfinished work count as
              complete under scheme A
    """

    fraction: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UserError(
                f"ClaimWork(fraction={self.fraction!r}): above 0, at most 1; a server rejects a claim of more than was "
                "asked"
            )

    def work(self, turnout: Turnout, hostile_C: Tensor) -> Turnout:
        return turnout.claiming(hostile_C, self.fraction)


@dataclass(frozen=True)
class ClaimExamples(Attack):
    """Claims to hold more samples than it has, which raises its share.

    factor  how many times as many
    """

    factor: float = 100.0

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise UserError(f"ClaimExamples(factor={self.factor!r}): above 0")

    def examples(self, examples_C: Tensor, hostile_C: Tensor) -> Tensor:
        claimed_C = (examples_C.double() * self.factor).round().clamp(min=1).to(examples_C.dtype)
        return torch.where(hostile_C.to(examples_C.device) & (examples_C > 0), claimed_C, examples_C)


KINDS = {
    "claim-work": ClaimWork,
    "claim-examples": ClaimExamples,
    "sign-flip": SignFlip,
    "noise": Noise,
    "alie": ALIE,
    "inner-product": InnerProduct,
    "free-rider": FreeRider,
    "opposed": Opposed,
    "false-friend": FalseFriend,
    "beside": Beside,
}
