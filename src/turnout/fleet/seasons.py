"""The day and the week of a fleet, counted in rounds.

Shape letters: T rounds.
"""

from __future__ import annotations

from datetime import UTC, datetime

from turnout.fleet.fleet import Fleet

DAY = 86400.0
LEAST_DAYS, LEAST_WEEKS = 2, 4  # that a log must have for its days, or weeks, to be told apart


def rounds_a_day(fleet: Fleet) -> int | None:
    """How many rounds a day has, where that is a whole number above 1 and the log has days enough."""
    return _rounds_in(fleet, DAY, LEAST_DAYS)


def rounds_a_week(fleet: Fleet) -> int | None:
    """How many rounds a week has, where that is a whole number above 1 and the log has weeks enough."""
    return _rounds_in(fleet, 7 * DAY, LEAST_WEEKS)


def season(fleet: Fleet) -> int:
    """After how many rounds the same hour comes again: those of a week, else of a day, else 1."""
    return rounds_a_week(fleet) or rounds_a_day(fleet) or 1


def _rounds_in(fleet: Fleet, seconds: float, least: int) -> int | None:
    if fleet.every is None or fleet.every <= 0:
        return None
    rounds = round(seconds / fleet.every)
    whole = rounds > 1 and abs(rounds * fleet.every - seconds) < 0.01 * seconds
    return rounds if whole and fleet.rounds >= least * rounds else None


def began(fleet: Fleet) -> datetime | None:
    """When the log begins, where it says."""
    if fleet.start_T is None or fleet.clock != "calendar":
        return None
    return datetime.fromtimestamp(float(fleet.start_T[0]), UTC)
