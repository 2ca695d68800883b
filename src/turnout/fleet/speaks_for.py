"""Which parts of Turnout a diagnosis speaks for, and why. A log says nothing about the data: these are parts to try."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from turnout.fleet.diagnosis import WEEKDAYS, Diagnosis
from turnout.fleet.likeness import Likeness
from turnout.fleet.reading import Reading

OFTEN, MOSTLY = 0.9, 0.97  # shares of visits and rounds below which something is worth a part
FRESH = 10  # rounds: an update that old can still stand for its client
UNEVEN_HOURS = 1.5  # times more at the best hour than at the worst
LINKED = 0.3  # a correlation worth a word


@dataclass(frozen=True)
class PartToTry:
    """A setting of an experiment file, and what in the log speaks for it."""

    setting: str
    why: str


def as_json(found: Diagnosis, parts: list[PartToTry], like: Likeness | None) -> str:
    """A diagnosis as data; what is not known is null."""
    whole = asdict(found) | {"parts_to_try": [asdict(part) for part in parts]}
    if like is not None:
        whole["drawn"] = asdict(like)
    return json.dumps(_known(whole), indent=1, ensure_ascii=False) + "\n"


def _known(value: Any) -> Any:
    """The same without NaN, which JSON has not."""
    if isinstance(value, dict):
        return {name: _known(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_known(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def speaks_for(found: Diagnosis, reading: Reading = Reading()) -> list[PartToTry]:  # noqa: B008 (frozen)
    """Parts to try for this fleet, in the order of the round; plain FedAvg where nothing is in the way.

    `reading`: how the log was read, which a setting that names it has to say too.
    """
    parts = [*_membership(found), *_absence(found), *_work(found), *_rare(found), *_hours(found, reading)]
    if not parts:
        why = f"{found.turnout:.0%} of those asked come and finish their work: there is nothing to make up for"
        return [PartToTry('algorithm.weighting = "fedavg"', why)]
    return parts


def _membership(found: Diagnosis) -> Iterator[PartToTry]:
    if found.joined:
        why = f"{len(found.joined)} clients joined while the log was written: a newcomer's data shifts the objective"
        yield PartToTry('algorithm.membership.join = "fast-reboot"', why)
    if found.left:
        why = f"{len(found.left)} clients left: decide whether the model should go on serving them"
        yield PartToTry('algorithm.membership.leave = "decide"', why)


def _absence(found: Diagnosis) -> Iterator[PartToTry]:
    if found.turnout >= MOSTLY:
        return
    lasts = f"{1 - found.turnout:.0%} of those asked are absent, for a median of {found.away.median:.0f} rounds"
    if found.away.median <= FRESH:
        yield PartToTry('algorithm.substitution = "stale"', f"{lasts}: their last update is not old")
    if found.groups:
        sizes = ", ".join(str(len(group.clients)) for group in found.groups)
        why = (
            f"{lasts}; groups of {sizes} clients are away together, so a friend must be found in another group: it "
            "helps where groups hold like data, and cannot where each holds its own"
        )
    else:
        why = f"{lasts}, each on its own: somebody like an absent client is mostly there, if the data has such"
    yield PartToTry('algorithm.substitution = "friends"', why)


def _work(found: Diagnosis) -> Iterator[PartToTry]:
    if found.complete >= OFTEN:
        return
    why = f"{1 - found.complete:.0%} of the visits end with a part of the work done ({found.work:.0%} on average)"
    linked = found.work_and_examples
    if linked is not None and abs(linked) > LINKED:
        more = "more" if linked > 0 else "less"
        why += f", and clients with more examples do {more} of it (correlation {linked:.2f})"
    yield PartToTry('algorithm.weighting = "C"', f"{why}: scheme C counts updates by the work behind them")
    yield PartToTry('algorithm.weighting = "fednova"', "the same, by normalised steps")


def _rare(found: Diagnosis) -> Iterator[PartToTry]:
    if not found.hardly_there:
        return
    many = f"{len(found.hardly_there)} clients come to fewer than 5 % of their rounds"
    held = "" if found.hardly_mass is None else f" and hold {found.hardly_mass:.0%} of the examples"
    why = f"{many}{held}: the common model hardly hears them, layers of their own stay theirs"
    yield PartToTry('algorithm.personal = "batch-norm"', why)


def _hours(found: Diagnosis, reading: Reading) -> Iterator[PartToTry]:
    for what, shares in (("hour", found.turnout_by_hour), ("day", found.turnout_by_weekday)):
        if shares and max(shares) > UNEVEN_HOURS * max(min(shares), 1e-9):
            best, worst = shares.index(max(shares)), shares.index(min(shares))
            names = [f"{at}:00" for at in (best, worst)] if what == "hour" else [WEEKDAYS[at] for at in (best, worst)]
            why = (
                f"the turnout is {max(shares):.0%} at {names[0]} and {min(shares):.0%} at {names[1]}: rounds see other "
                f"clients by the {what}, which drawing clients at random would not show"
            )
            settings = {"kind": "fleet-log", "path": found.path, "mode": "blocks", "reading": reading.said()}
            yield PartToTry(f"world.participation = {_inline(settings)}", why)
            return


def _inline(settings: dict[str, Any]) -> str:
    """A table of TOML on one line, without tables that are empty.

    >>> _inline({"kind": "fleet-log", "reading": {"every": "1h"}, "more": {}})
    '{kind = "fleet-log", reading = {every = "1h"}}'
    """
    cells = {name: _inline(value) if isinstance(value, dict) else json.dumps(value) for name, value in settings.items()}
    return "{" + ", ".join(f"{name} = {cell}" for name, cell in cells.items() if cell != "{}") + "}"
