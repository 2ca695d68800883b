"""When the server closes a round: after the last reply, at a deadline, after enough replies, or without rounds at all.

Time is simulated (`world.devices`); seconds are counted from the beginning of the round. A closing answers: what limit
clients are told, when the round is closed given when replies would arrive, what becomes of late ones, and how much a
reply counts that is some rounds old.

Shape letters: C clients asked, R replies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from turnout.errors import Mistake, nearest
from turnout.types import State

IDLE = 60.0  # seconds after which the server asks again where nobody turned up and it had no deadline
LATE = ("discard", "use")


class Closing(Protocol):
    """How a round ends. State goes in and comes out."""

    @property
    def partial(self) -> bool:
        """Whether clients are told the limit and send what they have finished by then."""
        ...

    @property
    def uses_late(self) -> bool:
        """Whether late replies count in the round in which they arrive."""
        ...

    @property
    def buffer(self) -> int | None:
        """Asynchronous: the server steps after so many replies; None: rounds."""
        ...

    def begin(self) -> State:
        """What it remembers before the first round."""
        ...

    def limit(self, state: State) -> float:
        """Seconds that a round may take; inf: any."""
        ...

    def closes(self, arrival_C: Tensor, limit: float) -> float:
        """When the round is closed, given when each reply would arrive (inf: never)."""
        ...

    def observe(self, state: State, full_C: Tensor) -> State:
        """What it remembers after a round: seconds that complete work would take those who were on."""
        ...

    def discount(self, age_R: Tensor) -> Tensor:
        """What replies are multiplied by that are so many rounds old; 1 for those of this round."""
        ...


@dataclass(frozen=True)
class WaitForAll:
    """Wait for everybody who turned up, however long that takes."""

    @property
    def partial(self) -> bool:
        return False

    @property
    def uses_late(self) -> bool:
        return False

    @property
    def buffer(self) -> int | None:
        return None

    def begin(self) -> State:
        return {}

    def limit(self, state: State) -> float:
        return math.inf

    def closes(self, arrival_C: Tensor, limit: float) -> float:
        """The last arrival, or the limit where somebody is missing.

        >>> WaitForAll().closes(torch.tensor([3.0, torch.inf, 5.0]), torch.inf)
        5.0
        """
        return last_or_limit(arrival_C, limit)

    def observe(self, state: State, full_C: Tensor) -> State:
        return state

    def discount(self, age_R: Tensor) -> Tensor:
        return torch.ones(len(age_R), dtype=torch.float64)


def last_or_limit(arrival_C: Tensor, limit: float) -> float:
    """A round ends with its last reply, at the limit where one is missing, and is tried again where there is none."""
    coming_C = arrival_C[arrival_C <= limit]
    if math.isfinite(limit):
        return float(arrival_C.max()) if len(arrival_C) and len(coming_C) == len(arrival_C) else limit
    coming_C = coming_C[torch.isfinite(coming_C)]
    return float(coming_C.max()) if len(coming_C) else IDLE


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
            raise Mistake(f"algorithm.closing.late is {self.late!r}: {nearest(self.late, LATE)}")
        if not self.power >= 0:
            raise Mistake(f"algorithm.closing.power is 0 or more, not {self.power}")

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
            raise Mistake(f"algorithm.closing.seconds is {self.seconds}: give the simulated seconds a round may take")

    def limit(self, state: State) -> float:
        return self.seconds


@dataclass(frozen=True)
class FirstReplies(Aged):
    """Close the round as soon as enough have replied; who is not among them is late.

    count    how many replies are enough (over-selection: ask 130 with `selection`, close at count = 100); None:
    share    of those who were asked
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
            raise Mistake(
                f"algorithm.closing = {self}: count is at least 1, share above 0 and at most 1, seconds above 0"
            )

    def limit(self, state: State) -> float:
        return math.inf if self.seconds is None else self.seconds

    def closes(self, arrival_C: Tensor, limit: float) -> float:
        """The arrival of the last reply that is wanted.

        >>> FirstReplies(share=0.5).closes(torch.tensor([3.0, 9.0, torch.inf, 5.0]), torch.inf)
        5.0
        """
        enough = min(len(arrival_C), self.count or math.ceil(self.share * len(arrival_C)))
        found_C = arrival_C[arrival_C <= limit].sort().values
        if enough and len(found_C) >= enough and math.isfinite(float(found_C[enough - 1])):
            return float(found_C[enough - 1])
        return last_or_limit(arrival_C, limit)


@dataclass(frozen=True)
class Percentile(Aged):
    """A deadline that follows the fleet: `slack` times a percentile of what complete work took the last ones seen.

    percent  of those seen who would have finished
    window   how many of the last ones seen; before any are, the first round waits for all
    partial  as for `Deadline`; those cut short say how far they came, so what is seen is not only the fast
    and the settings of `Aged`
    """

    percent: float = 80.0
    window: int = 500
    slack: float = 1.0
    partial: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.percent <= 100 or self.window < 1 or not self.slack > 0:
            raise Mistake(
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
        seen = state["seen"]
        return self.slack * float(torch.quantile(seen, self.percent / 100)) if len(seen) else math.inf

    def observe(self, state: State, full_C: Tensor) -> State:
        return {"seen": torch.cat([state["seen"], full_C.double()])[-self.window :]}


@dataclass(frozen=True)
class Buffered(Aged):
    """Asynchronous (FedBuff, Nguyen et al. 2022): the server steps after every K replies, whatever round they began in.

    size         K: replies that make a step, which counts as a round
    concurrency  clients at work at any time; None: as many as `selection` draws. Who replies makes room for another,
                 who begins with the model of that moment
    power        a reply that is τ steps old counts 1 / (1 + τ)^power of its weight, as in the paper
    """

    size: int = 10
    concurrency: int | None = None
    late: str = "use"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.late != "use":
            raise Mistake("algorithm.closing = Buffered has no late replies to discard: leave late out")
        if self.size < 1 or (self.concurrency or 1) < 1:
            raise Mistake(f"algorithm.closing = {self}: size and concurrency are at least 1")
        if self.concurrency is not None and self.concurrency < self.size:
            raise Mistake(
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
