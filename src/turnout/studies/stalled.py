"""Runs that ended without moving: every round of their last fifth was skipped, so what they show is an old model."""

from __future__ import annotations

from collections.abc import Sequence

from turnout.running.result import Run

PART = 5  # the last fifth


def stalled(run: Run) -> str | None:
    """Since when nothing moved and why, in words; None where something did in the last fifth of the rounds."""
    with run.records() as records:
        reasons = [why if isinstance(why, str) else None for why in records.rounds()["skipped"]]
    since = last_stretch(reasons)
    if len(reasons) - since < max(1, len(reasons) // PART):
        return None
    return f"every round from {since} to {len(reasons) - 1} was skipped ({reasons[-1]})"


def last_stretch(reasons: Sequence[str | None]) -> int:
    """Where the rounds begin that were skipped to the end.

    >>> last_stretch(["nobody", None, "nobody", "nobody"]), last_stretch([None])
    (2, 1)
    """
    moved = [t for t, why in enumerate(reasons) if why is None]
    return moved[-1] + 1 if moved else 0
