"""Whether a device accepts work now: battery, charging, quiet hours, or the user's own function.

What the platform reports is read; otherwise the configured value counts. A check that cannot be made passes.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from turnout.errors import UserError

POWER = Path("/sys/class/power_supply")
OwnRule = Callable[[], bool]


@dataclass(frozen=True)
class PolicyConditions:
    """The state of a device; None: not known.

    battery   part of its battery that is left
    charging  whether it is charging
    hour      of the day, such as 13.5
    """

    battery: float | None = None
    charging: bool | None = None
    hour: float = 12.0


@dataclass(frozen=True)
class Policy:
    """When a device works.

    least_battery   not with less of its battery than this part, unless it is charging
    only_charging   only while it is charging
    quiet           hours in which it does not work: "22-7", "12-13"; several with commas
    own             the user's own function without arguments, True to work: "package.module:name" in files
    """

    least_battery: float = 0.0
    only_charging: bool = False
    quiet: str = ""
    own: OwnRule | None = None

    def __post_init__(self) -> None:
        quiet_hours(self.quiet)

    def refusal(self, now: PolicyConditions | None = None) -> str | None:
        """Why the device declines; None: it accepts.

        >>> Policy(least_battery=0.3).refusal(PolicyConditions(battery=0.2, charging=False))
        'battery at 20 %'
        >>> Policy(quiet="22-7").refusal(PolicyConditions(hour=23.5)), Policy().refusal(PolicyConditions())
        ('quiet hours', None)
        """
        now = now or conditions()
        if now.battery is not None and now.battery < self.least_battery and not now.charging:
            return f"battery at {100 * now.battery:.0f} %"
        if self.only_charging and now.charging is False:
            return "not charging"
        for first, last in quiet_hours(self.quiet):
            if first <= now.hour < last if first <= last else now.hour >= first or now.hour < last:
                return "quiet hours"
        return None if self.own is None or self.own() else "the user's own rule"


def quiet_hours(text: str) -> list[tuple[float, float]]:
    """The hours of such a text.

    >>> quiet_hours("22-7, 12-13")
    [(22.0, 7.0), (12.0, 13.0)]
    """
    try:
        return [(float(a), float(b)) for a, b in (part.split("-") for part in text.split(",") if part.strip())]
    except ValueError as error:
        raise UserError(f'quiet = {text!r}: hours are written as "22-7", several as "22-7, 12-13"') from error


def conditions() -> PolicyConditions:
    """The state of this machine (Linux: /sys/class/power_supply)."""
    now = datetime.datetime.now()
    battery, charging = None, None
    for supply in sorted(POWER.glob("*")) if POWER.is_dir() else ():
        kind, capacity, status, online = (_read(supply / name) for name in ("type", "capacity", "status", "online"))
        if kind == "Battery" and capacity.isdecimal():
            battery, charging = int(capacity) / 100, status in ("Charging", "Full", "Not charging")
        elif kind == "Mains" and online in ("0", "1"):
            charging = online == "1" or bool(charging)
    return PolicyConditions(battery, charging, now.hour + now.minute / 60)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
