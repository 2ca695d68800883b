"""When the server closes a round: after the last reply, at a deadline, after enough replies, or without rounds at all.

Time is simulated (`world.devices`); seconds are counted from the beginning of the round. A closing sets
the limit of a round, how many replies are enough, what happens to late ones, and the factor on replies of earlier
rounds. Replies are taken in order of arrival, equal ones by client, so that exactly as many are used as are enough.

Shape letters: C clients asked, R replies.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from turnout.errors import UserError, nearest
from turnout.types import State

IDLE = 60.0  # seconds after which the server asks again if no client turned up and it had no deadline
LATE = ("discard", "use")
ROUNDING = 1e-9  # seconds: a reply that was planned to arrive at the limit does


class Closing(Protocol):
    """How a round ends. State goes in and comes out."""

    @property
    def partial(self) -> bool:
        """Whether clients know the limit and send the work they have finished by then."""
        return False

    @property
    def uses_late(self) -> bool:
        """Whether late replies count in the round in which they arrive."""
        return False

    @property
    def buffer(self) -> int | None:
        """Asynchronous: the server steps after so many replies; None: rounds."""
        return None

    def begin(self) -> State:
        """The state before the first round."""
        return {}

    @abstractmethod
    def limit(self, state: State) -> float:
        """Seconds that a round may take; inf: any."""

    def enough(self, asked: int) -> int:
        """How many replies close a round before its limit, where so many clients are asked."""
        return asked

    def observe(self, state: State, full_C: Tensor) -> State:
        """The state after a round: seconds of complete work of clients whose replies arrived in it; inf for a client
        whose late reply is discarded, since the server knows only that it takes longer."""
        return state

    def discount(self, age_R: Tensor) -> Tensor:
        """Factor on replies that are this many rounds old; 1 for those of this round."""
        return torch.ones(len(age_R), dtype=torch.float64)


@dataclass(frozen=True)
class WaitForAll(Closing):
    """Wait for all clients that turned up, however long that takes."""

    def limit(self, state: State) -> float:
        return math.inf


def close(arrival_C: Tensor, limit: float, enough: int) -> tuple[float, Tensor]:
    """When a round is closed, and which replies are there by then, given when each would arrive (inf: never).

    It is closed by the reply that makes them enough. Where too few come, it is closed at its limit, without a limit
    with the last reply, and without any reply after `IDLE` seconds. Equal arrivals are taken by client.

    >>> close(torch.tensor([3.0, 9.0, torch.inf, 5.0]), torch.inf, enough=2)
    (5.0, tensor([ True, False, False,  True]))
    >>> close(torch.tensor([3.0, 3.0, 3.0]), limit=8.0, enough=2)
    (3.0, tensor([ True,  True, False]))
    """
    first_C = arrival_C.argsort(stable=True)[:enough]
    in_time_C = torch.zeros_like(arrival_C, dtype=torch.bool).index_fill(0, first_C, True)
    in_time_C &= torch.isfinite(arrival_C) & (arrival_C <= limit + ROUNDING)
    found = int(in_time_C.sum())
    if found and (found == enough or math.isinf(limit)):
        return min(limit, float(arrival_C[in_time_C].max())), in_time_C
    return (IDLE if math.isinf(limit) else limit), in_time_C


@dataclass(frozen=True, kw_only=True)
class Aged(WaitForAll):
    """What closings with late replies share.

    late   "discard" them (nothing is trained for them), or "use" them in the round in which they arrive
    power  a late reply of age a counts 1 / (1 + a)^power of its weight
    """

    late: str = "discard"
    power: float = 0.5

    def __post_init__(self) -> None:
        if self.late not in LATE:
            raise UserError(f"algorithm.closing.late is {self.late!r}: {nearest(self.late, LATE)}")
        if not self.power >= 0:
            raise UserError(f"algorithm.closing.power is 0 or more, not {self.power}")
        if self.uses_late and self.partial:
            raise UserError(
                f"algorithm.closing = {type(self).__name__}(late='use') has no effect with partial work: all send what "
                "they have finished by the deadline, so no reply is late; set partial = false, or leave late out"
            )

    @property
    def uses_late(self) -> bool:
        return self.late == "use"

    def discount(self, age_R: Tensor) -> Tensor:
        """1 / (1 + a)^power.

        >>> Deadline(1.0).discount(torch.tensor([0, 3]))
        tensor([1.0000, 0.5000], dtype=torch.float64)
        """
        return (1 + age_R.double()) ** -self.power


@dataclass(frozen=True)
class Deadline(Aged):
    """Close the round after so many simulated seconds, or with the last reply if all are there before.

    partial  clients know the deadline and send what they have finished by then; else those who cannot finish are late
    and the settings of `Aged`
    """

    seconds: float = 60.0
    partial: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.seconds < math.inf:
            raise UserError(f"algorithm.closing.seconds is {self.seconds}: give the simulated seconds a round may take")

    def limit(self, state: State) -> float:
        return self.seconds


@dataclass(frozen=True)
class FirstReplies(Aged):
    """Close the round as soon as enough have replied; who is not among them is late.

    count    how many replies are enough (over-selection: ask 130 with `selection`, close at count = 100); None:
    share    of those who were asked. Late replies of earlier rounds that are used come on top of them
    seconds  at the latest; None: as long as it takes
    and the settings of `Aged`
    """

    count: int | None = None
    share: float = 0.8
    seconds: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = (1 if value is None else value for value in (self.count, self.seconds))
        if not all(value > 0 for value in limits) or not 0 < self.share <= 1:
            raise UserError(
                f"algorithm.closing = {self}: count is at least 1, share above 0 and at most 1, seconds above 0"
            )

    def limit(self, state: State) -> float:
        return math.inf if self.seconds is None else self.seconds

    def enough(self, asked: int) -> int:
        """`count`, or the `share` of those asked; all of them where they are fewer.

        >>> FirstReplies(share=0.5).enough(5), FirstReplies(count=3).enough(5), FirstReplies(count=3).enough(2)
        (3, 3, 2)
        """
        return min(asked, self.count or math.ceil(self.share * asked))


@dataclass(frozen=True)
class Percentile(Aged):
    """A deadline that follows the fleet: `slack` times a percentile of what complete work took the last ones seen.

    percent  of those seen who would have finished
    window   how many of the last ones seen; before any are, the first round waits for all
    partial  as for `Deadline`; those cut short say how far they came, so what is seen is not only the fast
    and the settings of `Aged`

    A late reply that is discarded counts as slower than all that arrived: how slow is not known. Where the percentile
    is among those, the next round waits for all, as the first one does. A late reply that is used is seen when it
    arrives.
    """

    percent: float = 80.0
    window: int = 500
    slack: float = 1.0
    partial: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.percent <= 100 or self.window < 1 or not self.slack > 0:
            raise UserError(
                f"algorithm.closing = {self}: percent is above 0 and at most 100, window at least 1, slack above 0"
            )

    def begin(self) -> State:
        return {"seen": torch.empty(0, dtype=torch.float64)}

    def limit(self, state: State) -> float:
        """The deadline of the next round.

        >>> last = Percentile(percent=50).observe(Percentile().begin(), torch.tensor([1.0, 2.0, 10.0]))
        >>> Percentile(percent=50).limit(last)
        2.0
        """
        seen, part = state["seen"], self.percent / 100
        if not len(seen):
            return math.inf
        below = float(torch.quantile(seen, part, interpolation="lower"))
        between = float(torch.quantile(seen, part)) if math.isfinite(below) else math.inf
        return self.slack * (between if math.isfinite(between) else below)

    def observe(self, state: State, full_C: Tensor) -> State:
        return {"seen": torch.cat([state["seen"], full_C.double()])[-self.window :]}


@dataclass(frozen=True)
class Buffered(Aged):
    """Asynchronous (FedBuff, Nguyen et al. 2022): the server steps after every K replies, whatever round they began in.

    size         K: replies that make a step, which counts as a round; others that arrive at the same moment wait for
                 the next one
    concurrency  clients at work at any time; None: as many as `selection` draws. Who replies makes room for another,
                 who begins with the model of that moment. Where `selection` draws too few to keep so many at work, it
                 draws again among the clients that are free; a client that is asked and absent leaves its place empty
                 until the next step
    power        a reply that is τ steps old counts 1 / (1 + τ)^power of its weight, as in the paper
    """

    size: int = 10
    concurrency: int | None = None
    late: str = "use"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.late != "use":
            raise UserError("algorithm.closing = Buffered has no late replies to discard: leave late out")
        if self.size < 1 or (self.concurrency or 1) < 1:
            raise UserError(f"algorithm.closing = {self}: size and concurrency are at least 1")
        if self.concurrency is not None and self.concurrency < self.size:
            raise UserError(
                f"algorithm.closing: a buffer of {self.size} replies would never fill with {self.concurrency} clients "
                "at work: raise concurrency, or lower size"
            )

    @property
    def buffer(self) -> int | None:
        return self.size


KINDS = {
    "wait": WaitForAll,
    "deadline": Deadline,
    "first-replies": FirstReplies,
    "percentile": Percentile,
    "buffered": Buffered,
}
