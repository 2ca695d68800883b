"""What a fleet's log shows, in numbers: who turns up when, for how long, with whom, and who hardly ever does.

Shape letters: T rounds, M clients, N rows, R runs of rounds in one state, C sampled clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.fleet.fit import fit
from turnout.fleet.fitted import EVERYONE, FleetModel
from turnout.fleet.fleet import Fleet
from turnout.fleet.seasons import DAY, began
from turnout.fleet.spells import runs
from turnout.fleet.statistics import presence

MOST_LENGTHS = 500  # rounds up to which lengths are told one by one
HARDLY = 0.05  # a client that comes to fewer of its rounds is hardly ever there
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class Lengths:
    """How long stays, or absences, last, in rounds: the mean, the median, what a tenth is longer than, and the share
    that lasts at least 1, 2, 3, ... rounds."""

    count: int
    mean: float
    median: float
    longest_tenth: float
    at_least: tuple[float, ...] = ()


@dataclass(frozen=True)
class OutageNote:
    """How often a group, or everyone, was out, and for how many rounds."""

    times: int
    rounds: int


@dataclass(frozen=True)
class GroupNote:
    """Clients that are away together; `like`: how alike one is to the others of its group, as a correlation."""

    clients: tuple[str, ...]
    like: float
    turnout: float
    outages: OutageNote | None


@dataclass(frozen=True)
class Diagnosis:
    """Shares are of 1; lengths are in rounds. Empty tuples and None: the log does not say.

    complete        the share of the visits in which all of the work was done
    mass            the share of the examples of those asked that turned up
    hardly_there    clients that came to fewer than HARDLY of their rounds; `hardly_mass`: their share of the examples
    joined, left    (client, round) of those that came later, or are gone
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
    groups: tuple[GroupNote, ...]
    outages: OutageNote | None
    hardly_there: tuple[str, ...]
    hardly_mass: float | None
    joined: tuple[tuple[str, int], ...]
    left: tuple[tuple[str, int], ...]
    mass: float | None
    mass_by_round: tuple[float, ...]
    work_and_examples: float | None  # correlation over clients of mean work and examples


def diagnose(fleet: Fleet, model: FleetModel | None = None) -> Diagnosis:
    """The numbers of a log; `model` is fitted to it if it is not given."""
    model = model or fit(fleet)
    up_N = fleet.work_N > 0
    came_T = np.bincount(fleet.round_N[up_N], minlength=fleet.rounds)
    asked_T = np.array([len(fleet.asked(t)) for t in range(fleet.rounds)])
    came_M = np.bincount(fleet.client_N[up_N], minlength=fleet.clients)
    share_M = came_M / np.maximum(fleet.asked_M, 1)
    stays_R, aways_R = runs(presence(fleet))
    hardly_M = share_M < HARDLY
    mass_T = _mass(fleet, up_N)
    begin = began(fleet)
    examples_M = fleet.examples_M
    return Diagnosis(
        path=fleet.path,
        clients=fleet.clients,
        rounds=fleet.rounds,
        begins=None if begin is None else begin.strftime("%Y-%m-%d %H:%M"),
        every=fleet.every,
        missing=fleet.missing,
        assumed=fleet.assumed,
        turnout=float(came_T.sum() / max(asked_T.sum(), 1)),
        work=float(fleet.work_N[up_N].mean()) if up_N.any() else 0.0,
        complete=float((fleet.work_N[up_N] >= 1).mean()) if up_N.any() else 0.0,
        turnout_by_round=_shares(came_T, asked_T),
        asked_by_round=tuple(asked_T.tolist()),
        turnout_by_hour=_by_clock(fleet, came_T, asked_T, 3600.0, 24, 0),
        turnout_by_weekday=_by_clock(fleet, came_T, asked_T, DAY, 7, 3),  # 1970 began on a Thursday
        turnout_by_client=tuple(share_M.tolist()),
        stay=_lengths(stays_R),
        away=_lengths(aways_R),
        groups=tuple(_group(fleet, model, g, share_M) for g in range(model.groups.count)),
        outages=_outage(model, EVERYONE),
        hardly_there=tuple(fleet.names[i] for i in np.flatnonzero(hardly_M)),
        hardly_mass=None if examples_M is None else float(examples_M[hardly_M].sum() / max(examples_M.sum(), 1e-9)),
        joined=tuple((fleet.names[i], int(fleet.joined_M[i])) for i in np.flatnonzero(fleet.joined_M > 0)),
        left=tuple((fleet.names[i], int(fleet.left_M[i])) for i in np.flatnonzero(fleet.left_M < fleet.rounds)),
        mass=None if mass_T is None else float(np.nanmean(mass_T)),
        mass_by_round=() if mass_T is None else tuple(mass_T.tolist()),
        work_and_examples=_alike(fleet, up_N),
    )


def _shares(part_T: np.ndarray, whole_T: np.ndarray) -> tuple[float, ...]:
    found = np.divide(part_T, whole_T, out=np.full(len(whole_T), np.nan), where=whole_T > 0)
    return tuple(found.tolist())


def _lengths(length_R: np.ndarray) -> Lengths:
    if not len(length_R):
        return Lengths(0, 0.0, 0.0, 0.0)
    median, tenth, most = np.quantile(length_R, [0.5, 0.9, 0.99]).tolist()
    sorted_R, lasts = np.sort(length_R), np.arange(1, min(int(most), MOST_LENGTHS) + 1)
    at_least = 1 - np.searchsorted(sorted_R, lasts) / len(sorted_R)
    return Lengths(len(length_R), float(length_R.mean()), median, tenth, tuple(at_least.tolist()))


def _by_clock(
    fleet: Fleet, came_T: np.ndarray, asked_T: np.ndarray, unit: float, count: int, first: int
) -> tuple[float, ...]:
    """The turnout at each hour of the day, or day of the week, where the log is long and fine enough to say."""
    if fleet.start_T is None or fleet.clock != "calendar" or fleet.every is None:
        return ()
    if fleet.every > unit or fleet.rounds * fleet.every < count * unit:
        return ()
    place_T = (fleet.start_T // unit + first).astype(np.int64) % count
    return _shares(np.bincount(place_T, came_T, count), np.bincount(place_T, asked_T, count))


def _mass(fleet: Fleet, up_N: np.ndarray) -> np.ndarray | None:
    """The share of the examples of those asked that turned up, by round."""
    if fleet.examples_M is None:
        return None
    came_T = np.bincount(fleet.round_N[up_N], fleet.examples_M[fleet.client_N[up_N]], fleet.rounds)
    asked_T = np.array([fleet.examples_M[fleet.asked(t)].sum() for t in range(fleet.rounds)])
    return np.array(_shares(came_T, asked_T))


def _alike(fleet: Fleet, up_N: np.ndarray) -> float | None:
    """Whether those who hold more do more: the correlation of clients' mean work and their examples."""
    if fleet.examples_M is None:
        return None
    count_M = np.bincount(fleet.client_N[up_N], minlength=fleet.clients)
    work_M = np.bincount(fleet.client_N[up_N], fleet.work_N[up_N], fleet.clients) / np.maximum(count_M, 1)
    known_M = count_M > 0
    pair = work_M[known_M], fleet.examples_M[known_M]
    if known_M.sum() < 3 or any(np.std(one) == 0 for one in pair):
        return None
    return float(np.corrcoef(*pair)[0, 1])


def _outage(model: FleetModel, group: int) -> OutageNote | None:
    found = model.outages.get(group)
    return None if found is None else OutageNote(found.episodes, found.rounds)


def _group(fleet: Fleet, model: FleetModel, group: int, share_M: np.ndarray) -> GroupNote:
    members = model.groups.members(group)
    names = tuple(fleet.names[i] for i in members)
    return GroupNote(names, model.groups.like_G[group], float(share_M[members].mean()), _outage(model, group))
