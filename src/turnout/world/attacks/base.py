"""What an attack may change of what a client sends, and who attacks.

Shape letters: C clients of the cohort, R those who send an update, h the hostile of them, H all hostile clients, P
shared parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.rng import rng
from turnout.types import Turnout

Share = float | tuple[int, ...]  # of the clients, drawn by the seed; or which they are, by number


@dataclass(frozen=True)
class Scene:
    """What attackers see when they are about to send: everybody's update of the round, and which are their own."""

    t: int
    seed: int
    client_R: Tensor
    update_RP: Tensor
    hostile_R: Tensor  # as booleans

    @property
    def own_hP(self) -> Tensor:
        """What the attackers would send if they were honest."""
        return self.update_RP[self.hostile_R.to(self.update_RP.device)]

    @property
    def honest_P(self) -> Tensor:
        """The mean of the others' updates; of their own where nobody else is there."""
        others_R = ~self.hostile_R if not bool(self.hostile_R.all()) else self.hostile_R
        return self.update_RP[others_R.to(self.update_RP.device)].mean(0)


class Attack:
    """The defaults: an attacker that does nothing wrong. An attack overrides one of them.

    `colludes` says that attackers look at others' updates of the round, which needs all of them in one place.
    """

    colludes: ClassVar[bool] = False

    def update(self, scene: Scene) -> Tensor:
        """What the attackers send [h, P], before it is encoded."""
        return scene.own_hP

    def work(self, turnout: Turnout, hostile_C: Tensor) -> Turnout:
        """How much work is claimed; who is absent stays absent."""
        return turnout

    def examples(self, examples_C: Tensor, hostile_C: Tensor) -> Tensor:
        """How many samples are claimed."""
        return examples_C


@dataclass(frozen=True)
class Attackers:
    """The hostile clients of a world and what they do, one attack after another."""

    client_H: Tensor
    attacks: tuple[Attack, ...]
    seed: int

    def among(self, client_C: Tensor) -> Tensor:
        """Which of these clients are hostile."""
        return torch.isin(client_C.cpu(), self.client_H)

    def sent(self, update_RP: Tensor, client_R: Tensor, t: int) -> Tensor:
        """The updates as they leave the clients; those of the hostile are written over."""
        hostile_R = self.among(client_R)
        if bool(hostile_R.any()):
            for attack in self.attacks:
                forged_hP = attack.update(Scene(t, self.seed, client_R.cpu(), update_RP, hostile_R))
                update_RP[hostile_R.to(update_RP.device)] = forged_hP.to(update_RP)
        return update_RP

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
    """Who attacks in a world of so many clients; None where nobody does."""
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
