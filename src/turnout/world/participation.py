"""Kinds of participation: which clients show up, and how much of the work they finish.

Each kind gives, for the clients asked in round t, the fraction of the work that each finishes; 0 is absent. The draws
are addressed: a client's fraction does not depend on who else is asked or on the order of rounds. (The exception is
Stratified, which is about the cohort as a whole.)

`when_up` composes: Dropout(0.3, when_up=Traces(first=5)) is absent three times in ten and finishes part of
the work otherwise. A kind that needs to know who the clients are has `tied_to_clients` (enrolment.py).

Shape letters: C clients of the cohort, G groups among them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.machine.profiling import stage
from turnout.rng import uniform
from turnout.world.enrolment import Enrolment, tied
from turnout.world.fleet_log import FleetLog
from turnout.world.on_off import up_now
from turnout.world.stratified import keep_in_groups
from turnout.world.traces import Homogeneous, Traces

__all__ = ["Always", "Dropout", "FleetLog", "Homogeneous", "OnOff", "Participation", "Stratified", "Traces"]


class Participation(Protocol):
    """The fraction of the work that each asked client finishes in round t: float64 in [0, 1], 0 = absent.

    `full_work` is how many units are asked for; `groups` is the group of every client of the population, if the data
    has groups. One that needs names or sample counts has `tied_to_clients(enrolment, rounds)` too (`TiedToClients`).
    """

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor: ...


def finished(
    participation: Participation, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None
) -> Tensor:
    """The fractions; a participation is held to what it promises."""
    with stage("participation"):
        fraction_C = participation.fraction(client_C, t, full_work, seed, groups)
    fits = len(fraction_C) == len(client_C)
    if not fits or (len(fraction_C) and not 0 <= float(fraction_C.min()) <= float(fraction_C.max()) <= 1):  # nor NaN
        wrong_C = ~((fraction_C >= 0) & (fraction_C <= 1))
        found = fraction_C[wrong_C].tolist()[:3] if fits else list(fraction_C.shape)
        raise UserError(
            f"{type(participation).__name__}.fraction gave {found} in round {t}: it is the share of the work each "
            f"of the {len(client_C)} clients finishes, 0 to 1 (turnout.testing.check_participation tries yours)"
        )
    return fraction_C


@dataclass(frozen=True)
class Always:
    """Everyone asked finishes everything."""

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        return torch.ones(len(client_C), dtype=torch.float64)


def _work_of_present(
    up_C: Tensor,
    when_up: Participation | None,
    client_C: Tensor,
    t: int,
    full_work: int,
    seed: int,
    groups: Tensor | None,
) -> Tensor:
    """For those who are up, all of the work or the fraction from `when_up`; 0 for the others."""
    inner = when_up or Always()
    return torch.where(up_C, inner.fraction(client_C, t, full_work, seed, groups), 0.0)


Composed = TypeVar("Composed", "Dropout", "Stratified", "OnOff")


def _tied_inside(part: Composed, enrolment: Enrolment, rounds: int) -> Composed:
    """The same with `when_up` for these clients."""
    return replace(part, when_up=tied(part.when_up, enrolment, rounds, "world.participation.when_up"))


def _check_rate(kind: str, rate: float) -> None:
    if not 0 <= rate <= 1:
        raise UserError(f"participation {kind}(rate={rate}): the rate is the share of absent clients, 0 to 1")


@dataclass(frozen=True)
class Dropout:
    """Each client is absent with probability `rate`, independently of the others and of other rounds.

    `full_first_round`: everyone is present in round 0, so that methods that need a history have one.

    >>> Dropout(rate=0.5).fraction(torch.arange(6), t=1, full_work=5, seed=0)
    tensor([1., 1., 0., 0., 1., 1.], dtype=torch.float64)
    """

    rate: float = 0.3
    full_first_round: bool = False
    when_up: Participation | None = None

    def __post_init__(self) -> None:
        _check_rate("Dropout", self.rate)

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> Dropout:
        return _tied_inside(self, enrolment, rounds)

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        up_C = uniform(seed, "dropout", t, ids=client_C) >= self.rate
        if self.full_first_round and t == 0:
            up_C = torch.ones_like(up_C)
        return _work_of_present(up_C, self.when_up, client_C, t, full_work, seed, groups)


@dataclass(frozen=True)
class Stratified:
    """Exactly round((1 - rate) K) of the K asked are present, and every group keeps at least one (paper 003).

    How many each group keeps is uniform over all ways to divide the places, with at least 1 and at most all of a group,
    as in the authors' code; who is kept within a group is uniform. If there are fewer places than groups, that many
    groups keep one client each. Without groups the present are drawn from the whole cohort.

    >>> groups = torch.arange(20) // 4
    >>> work_C = Stratified(rate=0.7).fraction(torch.arange(20), t=1, full_work=2, seed=0, groups=groups)
    >>> int(work_C.sum()), bool((work_C.view(5, 4).sum(1) >= 1).all())
    (6, True)
    """

    rate: float = 0.5
    full_first_round: bool = False
    when_up: Participation | None = None

    def __post_init__(self) -> None:
        _check_rate("Stratified", self.rate)

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> Stratified:
        return _tied_inside(self, enrolment, rounds)

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        first_full = self.full_first_round and t == 0
        present = len(client_C) if first_full else round((1 - self.rate) * len(client_C))
        group_C = torch.zeros_like(client_C) if groups is None else groups[client_C]
        up_C = keep_in_groups(client_C, group_C, present, t, seed)
        return _work_of_present(up_C, self.when_up, client_C, t, full_work, seed, groups)


@dataclass(frozen=True)
class OnOff:
    """Each client goes up and down on its own: up for `mean_up` rounds on average, then down for `mean_down`.

    A two-state Markov chain, up -> down with probability 1 / mean_up and down -> up with 1 / mean_down. Round 0 has the
    long-run distribution: a client is up mean_up / (mean_up + mean_down) of the time.

    >>> weeks = OnOff(mean_up=6, mean_down=2)
    >>> up = torch.stack([weeks.fraction(torch.arange(1000), t, 1, seed=0) for t in range(50)])
    >>> round(float(up.mean()), 2)
    0.75
    """

    mean_up: float = 10.0
    mean_down: float = 5.0
    when_up: Participation | None = None

    def __post_init__(self) -> None:
        if not (1 <= self.mean_up < float("inf") and 1 <= self.mean_down < float("inf")):
            raise UserError(
                f"participation OnOff(mean_up={self.mean_up}, mean_down={self.mean_down}): "
                "both are mean numbers of rounds, 1 or more"
            )
        if self.mean_up == self.mean_down == 1:
            raise UserError(
                "participation OnOff(mean_up=1, mean_down=1): clients would alternate for ever; "
                "make one of them larger than 1"
            )

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> OnOff:
        return _tied_inside(self, enrolment, rounds)

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        up_C = up_now(client_C, t, seed, rise=1 / self.mean_down, fall=1 / self.mean_up)
        return _work_of_present(up_C, self.when_up, client_C, t, full_work, seed, groups)


KINDS = {
    "always": Always,
    "traces": Traces,
    "homogeneous": Homogeneous,
    "dropout": Dropout,
    "stratified": Stratified,
    "on-off": OnOff,
    "fleet-log": FleetLog,
}
