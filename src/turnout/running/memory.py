"""Whether a run fits into the memory that is free."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.errors import Mistake
from turnout.report.units import size

ON_HOST = "client state"  # is in host memory on any device, and on disk where it is large
THERE = "data"  # of this run is in memory already when it is seen what is free


def check_fits(estimate: Mapping[str, int], free: int | None, side_by_side: int = 1) -> int:
    """The bytes a run needs; a mistake if so many such runs side by side need more than is free.

    >>> check_fits({"cohort": 300, "data": 200}, free=300, side_by_side=1)
    500
    """
    needed = {name: count for name, count in estimate.items() if name != ON_HOST}
    total = sum(needed.values())
    if free is None or total * side_by_side - needed.get(THERE, 0) <= free:
        return sum(estimate.values())
    pieces = ", ".join(f"{name} {size(count)}" for name, count in needed.items() if count)
    together = f", and {side_by_side} such runs side by side {size(total * side_by_side)}" if side_by_side > 1 else ""
    fewer = "run fewer side by side (--jobs 1), " if side_by_side > 1 else ""
    raise Mistake(
        f"this run needs about {size(total)} of memory ({pieces}){together}, but {size(free)} are free here: {fewer}"
        "ask fewer clients a round (algorithm.selection), lower algorithm.local.batch_size, or take a smaller model"
    )
