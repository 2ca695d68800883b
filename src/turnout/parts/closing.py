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

from turnout.errors import UserError, check_settings

IDLE = 60.0  # seconds after which the server asks again if no client turned up and it had no deadline
ROUNDING = 1e-9  # seconds: a reply that was planned to arrive at the limit does


class Closing(Protocol):
    """How a round ends."""

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

    @property
    @abstractmethod
    def limit(self) -> float:
        """Seconds that a round may take; inf: any."""

    def enough(self, asked: int) -> int:
        """How many replies close a round before its limit, where so many clients are asked."""
        return asked

    def discount(self, age_R: Tensor) -> Tensor:
        """Factor on replies that are this many rounds old; 1 for those of this round."""
        return torch.ones(len(age_R), dtype=torch.float64)


@dataclass(frozen=True)
class WaitForAll(Closing):
    """Wait for all clients that turned up, however long that takes."""

    @property
    def limit(self) -> float:
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
    replies = int(in_time_C.sum())
    if replies and (replies == enough or math.isinf(limit)):
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
        check_settings(self, late=("discard", "use"), power="[0, inf)")
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
        check_settings(self, seconds="(0, inf)")

    @property
    def limit(self) -> float:
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
        check_settings(self, count="[1, inf)", share="(0, 1]", seconds="(0, inf]")

    @property
    def limit(self) -> float:
        return math.inf if self.seconds is None else self.seconds

    def enough(self, asked: int) -> int:
        """`count`, or the `share` of those asked; all of them where they are fewer.

        >>> FirstReplies(share=0.5).enough(5), FirstReplies(count=3).enough(5), FirstReplies(count=3).enough(2)
        (3, 3, 2)
        """
        return min(asked, self.count or math.ceil(self.share * asked))


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
        check_settings(self, late=("use",), size="[1, inf)", concurrency="[1, inf)")
        if self.concurrency is not None and self.concurrency < self.size:
            raise UserError(
                f"algorithm.closing: a buffer of {self.size} replies would never fill with {self.concurrency} clients "
                "at work: raise concurrency, or lower size"
            )

    @property
    def buffer(self) -> int | None:
        return self.size


KINDS = {"wait": WaitForAll, "deadline": Deadline, "first-replies": FirstReplies, "buffered": Buffered}
