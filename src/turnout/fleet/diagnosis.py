"""The diagnosis of a fleet's log in numbers: turnout, lengths of stays, groups, outages, rare clients; parts to try.

Shape letters: T rounds, M clients, N rows, R runs of rounds in one state.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from turnout.fleet.findings import Finding, find
from turnout.fleet.fleet_model import Outages, fit
from turnout.fleet.groups import Groups, away_together
from turnout.fleet.log_statistics import presence, runs, sampled, share
from turnout.fleet.participation_log import DAY, ParticipationLog
from turnout.fleet.reading import Reading
from turnout.fleet.rhythm import ComesWhen, asked_by_group

MOST_LENGTHS = 500  # rounds up to which lengths are listed one by one
HARDLY = 0.05  # a client that comes to a smaller share of its rounds is hardly ever there
OFTEN, MOSTLY = 0.9, 0.97  # shares of visits and rounds below which something is worth a part
FRESH = 10  # rounds: an update that old can still stand for its client
LINKED = 0.3  # a correlation worth mentioning


@dataclass(frozen=True)
class Lengths:
    """How long stays, or absences, last, in rounds.

    count          how many there are
    mean, median   of their lengths
    longest_tenth  a tenth is longer
    at_least       the share that lasts at least 1, 2, 3, ... rounds
    """

    count: int
    mean: float
    median: float
    longest_tenth: float
    at_least: tuple[float, ...] = ()


@dataclass(frozen=True)
class GroupNote:
    """Clients that are away together.

    clients  their names
    like     the correlation of one with the others of its group
    turnout  the mean turnout of its clients
    outages  of the group; None if it was never out
    """

    clients: tuple[str, ...]
    like: float
    turnout: float
    outages: Outages | None


@dataclass(frozen=True)
class Diagnosis:
    """The numbers of a log. Shares are of 1; lengths are in rounds. Empty tuples and None: not known from the log.

    path, clients, rounds, every, missing, assumed  as in the log
    begins             when the log begins
    turnout            share of those asked that came
    work, complete     mean work of those that came, and the share of their visits in which all of it was done
    turnout_by_round, turnout_by_hour, turnout_by_weekday, turnout_by_client   the turnout of each
    asked_by_round     how many clients were asked in each round
    stay, away         lengths of stays and absences
    findings           what stands out: outages, a trend, a rhythm, labels, empty rounds
    comes_when         the hours at which clients come, if there is a daily rhythm
    groups             clients that are away together
    hardly_there       clients that came to a smaller share of their rounds than HARDLY
    hardly_mass        their share of the examples
    joined, left       (client, round) of those that joined later, or left
    mass, mass_by_round  share of the examples of those asked that turned up
    work_and_examples  correlation over clients of mean work and examples
    """

    path: str
    clients: int
    rounds: int
    begins: str | None
    every: float | None
    missing: str
    assumed: tuple[str, ...]
    turnout: float
    work: float
    complete: float
    turnout_by_round: tuple[float, ...]
    asked_by_round: tuple[int, ...]
    turnout_by_hour: tuple[float, ...]
    turnout_by_weekday: tuple[float, ...]
    turnout_by_client: tuple[float, ...]
    stay: Lengths
    away: Lengths
    findings: tuple[Finding, ...]
    comes_when: tuple[ComesWhen, ...]
    groups: tuple[GroupNote, ...]
    hardly_there: tuple[str, ...]
    hardly_mass: float | None
    joined: tuple[tuple[str, int], ...]
    left: tuple[tuple[str, int], ...]
    mass: float | None
    mass_by_round: tuple[float, ...]
    work_and_examples: float | None

    @property
    def asked_share(self) -> float:
        """The share of the clients that is asked in a round."""
        return sum(self.asked_by_round) / max(1, self.clients * self.rounds)


def diagnose(log: ParticipationLog, groups: Groups | None = None) -> Diagnosis:
    """The numbers of a log; its `groups` are found if they are not given."""
    groups = groups or away_together(log)
    outages = _outages_of_groups(log, groups)
    up_N = log.work_N > 0
    came_T = np.zeros(log.rounds, np.int64)
    some_T = np.diff(log.first_row_T) > 0  # rounds with rows
    came_T[some_T] = np.add.reduceat(up_N.view(np.uint8), log.first_row_T[:-1][some_T], dtype=np.int64)
    asked_T = asked_by_group(log, np.zeros(log.clients, np.int64), 1)[:, 0]
    visits_M = np.bincount(log.client_N[up_N], minlength=log.clients)
    share_M = visits_M / np.maximum(log.asked_M, 1)
    stays_R, aways_R = runs(presence(log))
    findings, comes_when = find(log, groups, came_T, asked_T)
    hardly_M = share_M < HARDLY
    begins = None
    if log.start_T is not None and log.is_calendar:
        begins = datetime.fromtimestamp(float(log.start_T[0]), UTC).strftime("%Y-%m-%d %H:%M")
    hardly_mass = mass_T = linked = None
    if log.examples_M is not None:
        work_M = np.bincount(log.client_N[up_N], log.work_N[up_N], log.clients) / np.maximum(visits_M, 1)
        pair = work_M[visits_M > 0], log.examples_M[visits_M > 0]
        if len(pair[0]) >= 3 and all(np.std(one) > 0 for one in pair):
            linked = float(np.corrcoef(*pair)[0, 1])
        hardly_mass = float(log.examples_M[hardly_M].sum() / max(log.examples_M.sum(), 1e-9))
        mass_came_T = np.bincount(log.round_N[up_N], log.examples_M[log.client_N[up_N]], log.rounds)
        mass_T = share(mass_came_T, np.array([log.examples_M[log.asked(t)].sum() for t in range(log.rounds)]))
    return Diagnosis(
        path=log.path,
        clients=log.clients,
        rounds=log.rounds,
        begins=begins,
        every=log.every,
        missing=log.missing,
        assumed=log.assumed,
        turnout=float(came_T.sum() / max(asked_T.sum(), 1)),
        work=float(log.work_N.sum() / max(came_T.sum(), 1)),
        complete=float((log.work_N >= 1).sum() / max(came_T.sum(), 1)),
        turnout_by_round=tuple(share(came_T, asked_T).tolist()),
        asked_by_round=tuple(asked_T.tolist()),
        turnout_by_hour=_by_time(log, came_T, asked_T, 3600.0, 24, 0),
        turnout_by_weekday=_by_time(log, came_T, asked_T, DAY, 7, 3),  # 1970 began on a Thursday
        turnout_by_client=tuple(share_M.tolist()),
        stay=_lengths(stays_R),
        away=_lengths(aways_R),
        findings=findings,
        comes_when=comes_when,
        groups=tuple(
            GroupNote(
                tuple(log.names[i] for i in groups.members(g)),
                groups.like_G[g],
                float(share_M[groups.members(g)].mean()),
                outages.get(g),
            )
            for g in range(groups.count)
        ),
        hardly_there=tuple(log.names[i] for i in np.flatnonzero(hardly_M)),
        hardly_mass=hardly_mass,
        joined=tuple((log.names[i], int(log.joined_M[i])) for i in np.flatnonzero(log.joined_M > 0)),
        left=tuple((log.names[i], int(log.left_M[i])) for i in np.flatnonzero(log.left_M < log.rounds)),
        mass=None if mass_T is None else float(np.nanmean(mass_T)),
        mass_by_round=() if mass_T is None else tuple(mass_T.tolist()),
        work_and_examples=linked,
    )


def _outages_of_groups(log: ParticipationLog, groups: Groups) -> dict[int, Outages]:
    """The outages of each group that has any, by the model of sampled clients."""
    if not groups.count:
        return {}
    chosen_S = sampled(log)
    some = log if len(chosen_S) == log.clients else log.of_clients(chosen_S)
    return fit(some, Groups(groups.group_M[chosen_S], groups.like_G)).outages


def _lengths(length_R: np.ndarray) -> Lengths:
    if not len(length_R):
        return Lengths(0, 0.0, 0.0, 0.0)
    median, tenth, most = np.quantile(length_R, [0.5, 0.9, 0.99]).tolist()
    lasts = np.arange(1, min(int(most), MOST_LENGTHS) + 1)
    at_least = 1 - np.searchsorted(np.sort(length_R), lasts) / len(length_R)
    return Lengths(len(length_R), float(length_R.mean()), median, tenth, tuple(at_least.tolist()))


def _by_time(
    log: ParticipationLog, came_T: np.ndarray, asked_T: np.ndarray, unit: float, count: int, first: int
) -> tuple[float, ...]:
    """The turnout at each hour of the day, or day of the week, if the log is long and fine enough."""
    if log.start_T is None or not log.is_calendar or log.every is None:
        return ()
    if log.every > unit or log.rounds * log.every < count * unit:
        return ()
    place_T = (log.start_T // unit + first).astype(np.int64) % count
    return tuple(share(np.bincount(place_T, came_T, count), np.bincount(place_T, asked_T, count)).tolist())


@dataclass(frozen=True)
class PartToTry:
    """A part of Turnout that a diagnosis suggests. A log has no data, so it can only suggest.

    setting  of an experiment file
    why      the reason in the log
    """

    setting: str
    why: str


def parts_to_try(found: Diagnosis, reading: Reading = Reading()) -> list[PartToTry]:  # noqa: B008 (frozen)
    """Parts to try for this fleet, in the order of the round; plain FedAvg if nothing is in the way.

    `reading`: how the log was read, which a setting that names the log must repeat.
    """
    parts = [PartToTry(*part) for part in _suggested(found, reading)]
    if not parts:
        why = f"{found.turnout:.0%} of those asked come and finish their work: there is nothing to make up for"
        return [PartToTry('algorithm.weighting = "fedavg"', why)]
    return parts


def _suggested(found: Diagnosis, reading: Reading) -> Iterator[tuple[str, str]]:
    if found.joined:
        why = f"{len(found.joined)} clients joined while the log was written: a newcomer's data shifts the objective"
        yield 'algorithm.membership.join = "fast-reboot"', why
    if found.left:
        why = f"{len(found.left)} clients left: decide whether the model should still serve them"
        yield 'algorithm.membership.leave = "decide"', why
    if found.turnout < MOSTLY:
        lasts = f"{1 - found.turnout:.0%} of those asked are absent, for a median of {found.away.median:.0f} rounds"
        if found.away.median <= FRESH:
            yield 'algorithm.substitution = "stale"', f"{lasts}: their last update is not old"
        why = f"{lasts}, independently: a client like an absent one is mostly there, if the data has such"
        if found.groups:
            sizes = ", ".join(str(len(group.clients)) for group in found.groups)
            why = (
                f"{lasts}; groups of {sizes} clients are away together, so a friend must be found in another group: it "
                "helps if groups hold similar data, and cannot if each holds its own"
            )
        yield 'algorithm.substitution = "friends"', why
    if found.complete < OFTEN:
        why = f"{1 - found.complete:.0%} of the visits end with a part of the work done ({found.work:.0%} on average)"
        linked = found.work_and_examples
        if linked is not None and abs(linked) > LINKED:
            more = "more" if linked > 0 else "less"
            why += f", and clients with more examples do {more} of it (correlation {linked:.2f})"
        yield 'algorithm.weighting = "C"', f"{why}: scheme C counts updates by the work behind them"
        yield 'algorithm.weighting = "fednova"', "the same, by normalised steps"
    if found.hardly_there:
        held = "" if found.hardly_mass is None else f" and hold {found.hardly_mass:.0%} of the examples"
        why = f"{len(found.hardly_there)} clients come to fewer than 5 % of their rounds{held}"
        yield (
            'algorithm.personal = "batch-norm"',
            f"{why}: the common model hardly learns from them, layers of their own stay theirs",
        )
    if rhythm := next((one for one in found.findings if one.kind == "rhythm"), None):
        settings = {"kind": "fleet-log", "path": found.path, "mode": "blocks", "reading": reading.settings()}
        why = f"{rhythm.words} Drawing clients at random would not show that"
        yield f"world.participation = {_inline(settings)}", why


def _inline(settings: dict[str, Any]) -> str:
    """A table of TOML on one line, without empty tables.

    >>> _inline({"kind": "fleet-log", "reading": {"every": "1h"}, "more": {}})
    '{kind = "fleet-log", reading = {every = "1h"}}'
    """
    cells = {name: _inline(value) if isinstance(value, dict) else json.dumps(value) for name, value in settings.items()}
    return "{" + ", ".join(f"{name} = {cell}" for name, cell in cells.items() if cell != "{}") + "}"


def as_json(found: Diagnosis, parts: list[PartToTry]) -> str:
    """A diagnosis as JSON; unknown numbers are null."""
    whole = asdict(found) | {"parts_to_try": [asdict(part) for part in parts]}
    return json.dumps(_without_nan(whole), indent=1, ensure_ascii=False) + "\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value
