"""Whether a run fits into free memory, alone or beside others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from turnout.errors import UserError
from turnout.machine.memory import free_bytes
from turnout.running.charts.units import size

ON_HOST = "client state"  # is in host memory on any device, and on disk if it is large
LOADED = "data"  # is in memory already when free memory is read
GO_ON, LOOK_AGAIN = True, False  # the answers to a run that asks for memory


def check_fits(estimate: Mapping[str, int], free: int | None, side_by_side: int = 1) -> int:
    """The bytes a run needs; refuses a run that needs more than is free.

    >>> check_fits({"cohort": 300, "data": 200}, free=300)
    500
    """
    needed = {name: count for name, count in estimate.items() if name != ON_HOST}
    total, data = sum(needed.values()), needed.get(LOADED, 0)
    if free is None or total - data <= free:
        return sum(estimate.values())
    pieces = ", ".join(f"{name} {size(count)}" for name, count in needed.items() if count)
    fewer = "run fewer side by side (--jobs 1), " if total - data * side_by_side <= free else ""
    raise UserError(
        f"this run needs about {size(total)} of memory ({pieces}), but {size(free)} are free here: {fewer}"
        "ask fewer clients a round (algorithm.selection), lower algorithm.local.batch_size, or take a smaller model"
    )


@dataclass(frozen=True)
class Need:
    """The memory a prepared run asks for, in bytes.

    device  where
    whole   all that it needs
    there   the part that it holds already: its data
    free    what was free beside that; None if unknown
    """

    device: str
    whole: int
    there: int
    free: int | None

    @classmethod
    def seen(cls, estimate: Mapping[str, int], device: torch.device) -> Need:
        """The need of a run, and what is free now."""
        whole = sum(count for name, count in estimate.items() if name != ON_HOST)
        return cls(str(device), whole, estimate.get(LOADED, 0), free_bytes(device))


class Room:
    """The memory of a device, granted to runs side by side in the order in which they ask for it.

    Free memory alone is misleading while runs work: each has taken an unknown part of what it needs. So the need of
    each working run is reserved, from the largest total that was observed. A run that does not fit beside them waits
    for one to end. A run that is alone always proceeds, and checks by itself.

    most  bytes to grant, if less than there are
    """

    def __init__(self, most: int | None = None):
        self.most = most
        self.total = 0  # bytes for all together, the most observed since a run last began alone
        self.activity: dict[str, Need] = {}
        self.line: dict[str, Need] = {}  # waiting runs, in the order in which they asked
        self.looking = False  # the first in line was asked to read free memory again, and has not answered
        self.fresh = False  # no run has come or left since then

    def asks(self, name: str, need: Need) -> None:
        """A run is prepared and holds its data, or has read free memory again."""
        if name in self.line:
            self.looking = False
        else:
            self.fresh = False
        self.line[name] = need

    def left(self, name: str) -> None:
        """A run has ended, failed or been killed, and has freed its memory."""
        self.looking = self.looking and name != next(iter(self.line))
        self.fresh = False
        self.line.pop(name, None)
        self.activity.pop(name, None)

    def words(self) -> Iterator[tuple[str, bool]]:
        """Runs that may proceed, or must read free memory again, after a run has asked or left."""
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
        """The first run that waits for another to end."""
        return None if self.looking else next(iter(self.line), None)

    def _fits(self, need: Need) -> bool:
        """Whether the first in line, which has just read free memory, fits beside the others."""
        if need.free is None:
            return True
        data = sum(other.there for other in self.line.values())
        seen = need.free + data + sum(other.there for other in self.activity.values())
        self.total = max(self.total, seen) if self.activity else seen
        total = self.total if self.most is None else min(self.total, self.most)
        aside, more = sum(other.whole for other in self.activity.values()), need.whole - need.there
        return more <= need.free and aside + data + more <= total
