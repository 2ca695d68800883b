"""Kinds of participation: which clients show up, and how much of the work they finish.

Draws are addressed: a client's fraction does not depend on the other clients asked or on the order of rounds (except in
Stratified, which is about the cohort as a whole). `when_up` composes: Dropout(0.3, when_up=Traces(first=5)) is absent
three times in ten and finishes part of the work otherwise.

Shape letters: C clients of the cohort, G groups among them, U clients still undecided, B rounds of a block,
or attempts at once.
"""

from __future__ import annotations

import math
import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.machine.profiling import stage
from turnout.rng import key, keys, uniform, unit
from turnout.world.enrolment import Enrolment, tied
from turnout.world.traces import Homogeneous, Traces
from turnout.world.turnout_log import TurnoutLog

__all__ = [
    "Always",
    "Dropout",
    "GroupDropout",
    "Homogeneous",
    "OnOff",
    "Participation",
    "Stratified",
    "Traces",
    "TurnoutLog",
]

SIGNATURE = "(client_C, t, full_work, seed, groups)"


class Participation(Protocol):
    """The fraction of the work that each asked client finishes in round t: float64 in [0, 1], 0 = absent.

    `full_work` is how many units are asked for; `groups` is the group of every client of the population, if the data
    has groups. One that needs names or sample counts has `tied_to_clients(enrolment, rounds)` too (enrolment.py).
    """

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        """One number for each client of `client_C`. A draw depends on the seed, the round and the client alone, not on
        earlier calls nor on the other clients: `turnout.rng.uniform(seed, "mine", t, ids=client_C)` is such a draw."""


def raised(participation: Participation, error: Exception) -> Exception:
    """An exception in a participation, as an error that names the part and its line."""
    if isinstance(error, UserError):
        return error
    called = f"world.participation: {type(participation).__name__}.fraction"
    frames = traceback.extract_tb(error.__traceback__)
    if all(frame.name != "fraction" for frame in frames):  # the call itself failed
        return UserError(f"{called} is called with {SIGNATURE}: {error}")
    line = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return UserError(f"{called} raised {type(error).__name__}: {error} ({line})")


def finished(
    participation: Participation, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None
) -> Tensor:
    """The fractions of a participation, checked to be one number in [0, 1] for each client."""
    try:
        with stage("participation"):
            fraction_C = participation.fraction(client_C, t, full_work, seed, groups)
    except Exception as error:  # any failure of a user's part
        raise raised(participation, error) from error
    fits = len(fraction_C) == len(client_C)
    if not fits or (len(fraction_C) and not 0 <= float(fraction_C.min()) <= float(fraction_C.max()) <= 1):  # nor NaN
        wrong_C = ~((fraction_C >= 0) & (fraction_C <= 1))
        shown = fraction_C[wrong_C].tolist()[:3] if fits else list(fraction_C.shape)
        raise UserError(
            f"{type(participation).__name__}.fraction gave {shown} in round {t}: it is the share of the work each "
            f"of the {len(client_C)} clients finishes, 0 to 1 (turnout.testing.check_participation tries yours)"
        )
    return fraction_C


@dataclass(frozen=True)
class Always:
    """Every client asked finishes all of the work."""

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        return torch.ones(len(client_C), dtype=torch.float64)


class PresenceModel(ABC):
    """A base for kinds that decide which clients are up: these finish all of the work, or `when_up`'s fraction."""

    when_up: Participation | None

    @abstractmethod
    def up(self, client_C: Tensor, t: int, seed: int, groups: Tensor | None) -> Tensor:
        """Which clients are up in round t, as booleans."""

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        inner = self.when_up or Always()
        return torch.where(
            self.up(client_C, t, seed, groups), inner.fraction(client_C, t, full_work, seed, groups), 0.0
        )

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> Self:
        part: Any = self
        return replace(part, when_up=tied(self.when_up, enrolment, rounds, "world.participation.when_up"))


def _check_rate(kind: str, rate: float) -> None:
    if not 0 <= rate <= 1:
        raise UserError(f"participation {kind}(rate={rate}): the rate is the share of absent clients, 0 to 1")


@dataclass(frozen=True)
class Dropout(PresenceModel):
    """Each client is absent with probability `rate`, independently of the others and of other rounds.

    rate              the probability of being absent
    full_first_round  all clients are present in round 0, so that methods that need a history have one
    when_up           the participation of those present; None: they finish all of the work

    >>> Dropout(rate=0.5).fraction(torch.arange(6), t=1, full_work=5, seed=0)
    tensor([1., 1., 0., 0., 1., 1.], dtype=torch.float64)
    """

    rate: float = 0.3
    full_first_round: bool = False
    when_up: Participation | None = None

    def __post_init__(self) -> None:
        _check_rate("Dropout", self.rate)

    def up(self, client_C: Tensor, t: int, seed: int, groups: Tensor | None) -> Tensor:
        if self.full_first_round and t == 0:
            return torch.ones(len(client_C), dtype=torch.bool)
        return uniform(seed, "dropout", t, ids=client_C) >= self.rate


@dataclass(frozen=True)
class GroupDropout(PresenceModel):
    """Each client is absent with the probability of its group: absence that is tied to the data.

    Groups are those of the data; the partition `clustered` makes some.

    rates    the probability of being absent, for each group in order
    when_up  the participation of those present; None: they finish all of the work

    >>> groups = torch.tensor([0, 0, 0, 1, 1, 1])
    >>> GroupDropout((1.0, 0.0)).fraction(torch.arange(6), t=1, full_work=5, seed=0, groups=groups)
    tensor([0., 0., 0., 1., 1., 1.], dtype=torch.float64)
    """

    rates: tuple[float, ...] = (0.8, 0.1)
    when_up: Participation | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(self.rates))
        for rate in self.rates:
            _check_rate("GroupDropout", rate)

    def up(self, client_C: Tensor, t: int, seed: int, groups: Tensor | None) -> Tensor:
        number = 0 if groups is None else int(groups.max()) + 1
        if number != len(self.rates):
            raise UserError(
                f"participation GroupDropout has {len(self.rates)} rates, and the data has {number} groups of clients: "
                "give a rate for each group, of data with groups (world.data.partition.kind = 'clustered')"
            )
        assert groups is not None
        rate_C = torch.tensor(self.rates, dtype=torch.float64)[groups[client_C]]
        return uniform(seed, "group-dropout", t, ids=client_C) >= rate_C


@dataclass(frozen=True)
class Stratified(PresenceModel):
    """Exactly round((1 - rate) K) of the K asked are present, and every group keeps at least one (paper 003).

    How many each group keeps is uniform over all ways to divide the places, with at least 1 and at most all of a group,
    as in the authors' code; the choice within a group is uniform. If there are fewer places than groups, that many
    groups keep one client each. Without groups the present are drawn from the whole cohort.

    rate              the share of the cohort that is absent
    full_first_round  all clients are present in round 0, so that methods that need a history have one
    when_up           the participation of those present; None: they finish all of the work

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

    def up(self, client_C: Tensor, t: int, seed: int, groups: Tensor | None) -> Tensor:
        full = self.full_first_round and t == 0
        present = len(client_C) if full else round((1 - self.rate) * len(client_C))
        group_C = torch.zeros_like(client_C) if groups is None else groups[client_C]
        _, group_C, size_G = torch.unique(group_C, return_inverse=True, return_counts=True)
        keep_G = divide(size_G, present, t, seed)
        order_C = (group_C + uniform(seed, "stratified", t, ids=client_C)).argsort()  # by group, random inside
        sorted_group_C = group_C[order_C]
        rank_C = torch.arange(len(client_C)) - (size_G.cumsum(0) - size_G)[sorted_group_C]
        up_C = torch.zeros(len(client_C), dtype=torch.bool)
        up_C[order_C] = rank_C < keep_G[sorted_group_C]
        return up_C


@dataclass(frozen=True)
class OnOff(PresenceModel):
    """Each client goes up and down independently: up for `mean_up` rounds on average, then down for `mean_down`.

    A two-state Markov chain, up -> down with probability 1 / mean_up and down -> up with 1 / mean_down. Round 0 has the
    long-run distribution: a client is up mean_up / (mean_up + mean_down) of the time.

    mean_up    mean length of a stay, in rounds
    mean_down  mean length of an absence, in rounds
    when_up    the participation of those present; None: they finish all of the work

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

    def up(self, client_C: Tensor, t: int, seed: int, groups: Tensor | None) -> Tensor:
        return up_now(client_C, t, seed, rise=1 / self.mean_down, fall=1 / self.mean_up)


def up_now(client_C: Tensor, t: int, seed: int, rise: float, fall: float, purpose: str = "onoff") -> Tensor:
    """Which clients' chains are up in round t, computed for any round in any order, without a history.

    Coupling from the past: in round s every client has a number u_s in [0, 1), which moves both states. Up stays up if
    u_s < 1 - fall; down comes up if u_s < rise. If u_s is below both bounds or above both, the state after round s is
    known whatever it was before. Otherwise the state stays, or, if rise > 1 - fall, it changes. So walk back from t to
    the latest round that decides. Rounds before 0 are walked through too, which makes round 0 an exact draw from the
    long-run distribution. Chains of another `purpose` are independent.
    """
    both_up, any_up = min(rise, 1 - fall), max(rise, 1 - fall)
    up_C = torch.zeros(len(client_C), dtype=torch.bool)
    undecided_U, last = torch.arange(len(client_C)), t
    block = min(32, math.ceil(1 / (1 - any_up + both_up)))  # rounds at a time: as many as are needed on average
    while len(undecided_U):
        u_BU = numbers_before(client_C[undecided_U], last, block, seed, purpose)
        decides_BU = (u_BU < both_up) | (u_BU >= any_up)
        back_U = decides_BU.to(torch.int8).argmax(0)  # the first row that decides, counted back from `last`
        state_U = u_BU.gather(0, back_U[None])[0] < both_up
        if rise > 1 - fall:
            state_U ^= ((t - last + back_U) % 2).to(torch.bool)
        found_U = decides_BU.any(0)
        up_C[undecided_U[found_U]] = state_U[found_U]
        undecided_U = undecided_U[~found_U]
        last -= block
    return up_C


def numbers_before(client_U: Tensor, last: int, block: int, seed: int, purpose: str) -> Tensor:
    """The numbers u_s of some clients in rounds last, last - 1, ... [B, U]."""
    base_B = torch.tensor([key(seed, purpose, s) for s in range(last, last - block, -1)])
    return unit(keys(base_B[:, None], client_U[None, :]))


def divide(size_G: Tensor, places: int, t: int, seed: int) -> Tensor:
    """How many of each group are present: 1 <= count <= size with sum `places`, every such list equally likely.

    >>> divide(torch.tensor([4, 4, 4, 4, 4]), places=5, t=0, seed=0)
    tensor([1, 1, 1, 1, 1])
    >>> int(divide(torch.tensor([4, 4, 4, 4, 4]), places=14, t=0, seed=0).sum())
    14
    """
    groups = len(size_G)
    if places < groups:
        lucky_G = uniform(seed, "strata", t, ids=torch.arange(groups)).argsort().argsort()
        return (lucky_G < places).to(torch.int64)
    most_G = size_G - 1
    extra, room = places - groups, int(most_G.sum())
    if 2 * extra > room:  # fewer to leave out than to keep: draw those to leave out
        return size_G - _compose(most_G, room - extra, t, seed)
    return 1 + _compose(most_G, extra, t, seed)


def _compose(most_G: Tensor, total: int, t: int, seed: int) -> Tensor:
    """Uniformly random counts in 0..most with this sum, for a total of at most half the sum of `most`.

    Rejection sampling, as in the authors' code, but with better proposals. All groups but the largest draw from
    P(n) ~ exp(tilt n), with the tilt that gives the total on average; the largest takes the rest r, if it fits. A list
    is then proposed with probability ~ exp(tilt (total - r)), so accepting it with probability exp(tilt r) makes all
    lists equally likely.
    """
    if total == 0 or len(most_G) == 1:
        return torch.full_like(most_G, total)
    largest = int(most_G.argmax())
    tilt = _tilt(most_G, total)
    span_G = torch.expm1(tilt * (most_G + 1).double())
    attempts, block = min(256, 8 + 60_000 // len(most_G)), 0
    while True:
        ids = torch.arange(attempts * len(most_G))
        u_BG = uniform(seed, "strata", t, block, ids=ids).view(attempts, -1)
        count_BG = (torch.log1p(u_BG * span_G) / tilt).to(torch.int64).minimum(most_G)
        rest_B = total - count_BG.sum(1) + count_BG[:, largest]
        fits_B = (rest_B >= 0) & (rest_B <= most_G[largest])
        taken_B = fits_B & (u_BG[:, largest] < torch.exp(tilt * rest_B.double()))
        if taken_B.any():
            first = int(taken_B.to(torch.int8).argmax())
            count_BG[first, largest] = rest_B[first]
            return count_BG[first]
        block += 1


def _tilt(most_G: Tensor, total: int) -> float:
    """The tilt < 0 at which counts with P(n) ~ exp(tilt n) on 0..most add up to `total` on average, by bisection."""
    size_K, groups_K = (most_G + 1).unique(return_counts=True)
    sizes = list(zip(size_K.tolist(), groups_K.tolist(), strict=True))
    low, high = -60.0, -1e-6
    for _ in range(40):
        tilt = (low + high) / 2
        each = 1 / math.expm1(-tilt)
        mean = sum(k * (each - n / math.expm1(min(-tilt * n, 700.0))) for n, k in sizes)
        low, high = (tilt, high) if mean < total else (low, tilt)
    return high


KINDS = {
    "always": Always,
    "traces": Traces,
    "homogeneous": Homogeneous,
    "dropout": Dropout,
    "group-dropout": GroupDropout,
    "stratified": Stratified,
    "on-off": OnOff,
    "turnout-log": TurnoutLog,
}
