"""What a method costs: bytes of a run, and rounds and bytes until it is nearly as good as plain FedAvg gets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnout.fleet.advice.aims import NEARLY, Judge
from turnout.fleet.advice.fleet import percent
from turnout.fleet.advice.trial import Outcome
from turnout.running.charts.units import duration, size

Runs = Mapping[tuple[str, int], Outcome]  # (world, seed) -> what came out


@dataclass(frozen=True)
class Cost:
    """What the recommended method costs: bytes of a run both ways; rounds and bytes until it is nearly as good as plain
    FedAvg gets (None: it did not get there); seconds of a simulated run on this machine."""

    up: float
    down: float
    rounds: int
    near_rounds: float | None
    near_bytes: float | None
    seconds: float

    def sentences(self, every: float | None) -> list[str]:
        """In words; `every`: the seconds from one round of the log to the next, where that is known."""
        found = [f"{self.rounds} rounds send {size(self.up)} up and {size(self.down)} down, all clients together"]
        if self.near_rounds is not None and self.near_bytes is not None:
            took = f"{self.near_rounds:.0f} rounds and {size(self.near_bytes)}"
            when = f", {duration(self.near_rounds * every)} at the log's pace" if every else ""
            found.append(f"{percent(NEARLY)} of what plain FedAvg ends up with after {took}{when}")
        return [
            *found,
            f"a simulated run takes {duration(self.seconds)} here; devices' own time is not known from a log",
        ]


def cost_of(found: Runs, plain: Runs, judge: Judge, rounds: int) -> Cost | None:
    """The mean over a method's runs, beside those of plain FedAvg; None without any."""
    if not found:
        return None
    reached = [
        _near(outcome, [o for (c, _), o in plain.items() if c == case], judge) for (case, _), outcome in found.items()
    ]
    known = [r for r in reached if r is not None]
    all_there = len(known) == len(reached) and known
    runs = list(found.values())
    return Cost(
        up=_mean([o.up for o in runs]),
        down=_mean([o.down for o in runs]),
        rounds=rounds,
        near_rounds=_mean([r for r, _ in known]) if all_there else None,
        near_bytes=_mean([b for _, b in known]) if all_there else None,
        seconds=_mean([o.seconds for o in runs]),
    )


def _near(outcome: Outcome, plain: Sequence[Outcome], judge: Judge) -> tuple[float, float] | None:
    """Rounds and bytes until a run was nearly as good as plain FedAvg ends up in the same world."""
    if not plain:
        return None
    ends = _mean([o.final(judge.metric) for o in plain])
    target = ends * NEARLY if judge.higher else ends / NEARLY
    for t, value, sent in zip(outcome.rounds, outcome.values.get(judge.metric, ()), outcome.sent, strict=False):
        if value >= target if judge.higher else value <= target:
            return float(t), sent
    return None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
