"""Whether a run fits into the memory that is free, alone or beside others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from turnout.errors import UserError
from turnout.machine.memory import free_bytes
from turnout.running.charts.units import size

ON_HOST = "client state"  # is in host memory on any device, and on disk where it is large
THERE = "data"  # of this run is in memory already when it is seen what is free
GO_ON, LOOK_AGAIN = True, False  # what a run is told that asked for memory


def check_fits(estimate: Mapping[str, int], free: int | None, side_by_side: int = 1) -> int:
    """The bytes a run needs; a mistake if that is more than is free.

    Of several side by side the others may wait, but their data is in memory: where that is too much, it is said.

    >>> check_fits({"cohort": 300, "data": 200}, free=300)
    500
    """
    needed = _on_device(estimate)
    total, data = sum(needed.values()), needed.get(THERE, 0)
    if free is None or total - data <= free:
        return sum(estimate.values())
    pieces = ", ".join(f"{name} {size(count)}" for name, count in needed.items() if count)
    fewer = "run fewer side by side (--jobs 1), " if total - data * side_by_side <= free else ""
    raise UserError(
        f"this run needs about {size(total)} of memory ({pieces}), but {size(free)} are free here: {fewer}"
        "ask fewer clients a round (algorithm.selection), lower algorithm.local.batch_size, or take a smaller model"
    )


def _on_device(estimate: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in estimate.items() if name != ON_HOST}


@dataclass(frozen=True)
class Need:
    """What a run asks for when it is prepared, in bytes.

    whole  all that it needs on its device
    there  the part of it that it holds already: its data
    free   what it saw free beside that; None if it cannot be found out
    """

    device: str
    whole: int
    there: int
    free: int | None

    @classmethod
    def seen(cls, estimate: Mapping[str, int], device: torch.device) -> Need:
        """What a run needs, beside what is free now."""
        needed = _on_device(estimate)
        return cls(str(device), sum(needed.values()), needed.get(THERE, 0), free_bytes(device))

    @property
    def more(self) -> int:
        return self.whole - self.there


class Room:
    """The memory of a device, shared out among runs side by side in the order in which they ask for it.

    What is free says little while others are at work: they have taken some of what they need, and nobody knows how
    much. So what each at work needs is set aside, from the most that was seen to be there for all of them. A run that
    does not fit beside them waits for one to end. One that is alone goes on in any case, and finds out by itself.

    most  bytes to share out, where that is less than there are
    """

    def __init__(self, most: int | None = None):
        self.most = most
        self.total = 0  # bytes for all of them together, the most that was seen since somebody last began alone
        self.activity: dict[str, Need] = {}
        self.line: dict[str, Need] = {}  # those that wait, in the order in which they came
        self.looking = False  # the first in line was told to look again, and has not answered
        self.fresh = False  # nobody has come or left since it was told so

    def asks(self, name: str, need: Need) -> None:
        """A run is prepared and holds its data, or it has looked again at what is free."""
        if name in self.line:
            self.looking = False
        else:
            self.fresh = False
        self.line[name] = need

    def left(self, name: str) -> None:
        """A run has ended, failed or been killed, and holds nothing any more."""
        self.looking = self.looking and name != next(iter(self.line))
        self.fresh = False
        self.line.pop(name, None)
        self.activity.pop(name, None)

    def words(self) -> Iterator[tuple[str, bool]]:
        """Whom to tell to go on or to look again, once somebody has asked or left."""
        while self.line and not self.looking:
            name, need = next(iter(self.line.items()))
            if not self.fresh:
                self.looking = self.fresh = True
                yield name, LOOK_AGAIN
            elif self._fits(need) or not self.activity:
                self.activity[name] = self.line.pop(name)
                self.fresh = False
                yield name, GO_ON
            else:
                return

    def waits(self) -> str | None:
        """The first of those that wait for another run to end."""
        return None if self.looking else next(iter(self.line), None)

    def _fits(self, need: Need) -> bool:
        """Whether the first in line, which has just looked, fits beside those at work and the data of those in line."""
        if need.free is None:
            return True
        data = sum(other.there for other in self.line.values())
        seen = need.free + data + sum(other.there for other in self.activity.values())
        self.total = max(self.total, seen) if self.activity else seen
        total = self.total if self.most is None else min(self.total, self.most)
        aside = sum(other.whole for other in self.activity.values())
        return need.more <= need.free and aside + data + need.more <= total
