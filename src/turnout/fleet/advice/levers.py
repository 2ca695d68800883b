"""Levers of production: what an operator can change beside the method, tried on the method that is recommended.

Each lever is a change of the experiment that the race ran: rounds of another length (the log is cut again), more or
fewer clients asked, a round that closes before the last reply, no rounds at all. All run the seeds of the race, so that
the difference to the fleet as it is now is paired by seed. Each has its cost: time, bytes, device-hours and energy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.fleet import ParticipationLog, Reading, read_fleet
from turnout.fleet.advice.candidates import Judge
from turnout.fleet.advice.cases import RaceCase, events_of, write_stand_ins
from turnout.fleet.advice.trials import TrialOutcome, measure
from turnout.fleet.blocks import block_length
from turnout.fleet.fleet_participation import FleetLog
from turnout.parts.closing import Buffered, Deadline, FirstReplies
from turnout.parts.selection import Count, Fraction, MinSeparation
from turnout.running.charts.units import duration
from turnout.statistics import Standing, standing

AS_NOW = "as it is now"
CUTS = (0.5, 2.0, 4.0)  # times the length of a round
MOST_LEVER_SEEDS = 16
PILOT = 4  # rounds whose time is taken
REST = 4  # rounds between two participations of a client
MORE = 1.3  # times the clients, asked so that enough reply


@dataclass(frozen=True)
class Lever:
    """A setting of production.

    name     in tables
    about    in a few words
    setting  how to set it, as on the command line
    changes  of the experiment, by path
    every    seconds from round to round, if known
    """

    name: str
    about: str
    setting: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    every: float | None = None

    def case_of(self, world: str) -> str:
        """The name of a world with this setting."""
        return f"{world} | {self.name}"

    def on(self, experiment: Experiment) -> Experiment:
        return experiment.but(**self.changes)


def levers_of(
    case: RaceCase, clients: int, log: ParticipationLog, path: Path, reading: Reading, folder: Path,
    data_dir: Path | None, stop: Callable[[], bool] = lambda: False,
) -> list[Lever]:  # fmt: skip
    """The levers that this fleet has; the first is the fleet as it is now. The log is cut again until `stop`."""
    experiment = case.experiment
    pilot = measure(experiment.but(rounds=PILOT, **{"world.events": ()}), data_dir)
    round_takes, came = pilot.waited / PILOT, log.work_N.size and float((log.work_N > 0).sum() / log.asked_M.sum())
    selection = experiment.algorithm.selection
    part = selection.share if isinstance(selection, Fraction) else 1.0
    asked = selection.clients if isinstance(selection, Count) else max(1, round(part * clients))
    replies = max(1, round(asked * came))
    found = [Lever(AS_NOW, "the fleet as the log has it", every=log.every)]
    found += _cut_again(case, log, path, reading, folder, stop)

    def closing(name: str, about: str, made: Any, setting: str, **more: Any) -> Lever:
        changes = {"algorithm.closing": made, **more}
        return Lever(name, about, f"--set 'algorithm.closing={setting}'", changes, log.every)

    if (more := min(clients, math.ceil(MORE * asked))) > asked:
        found.append(closing(
            f"ask {more}, take {replies}",
            f"ask {more} instead of {asked} clients, close with the first {replies} replies",
            FirstReplies(count=replies), f'{{kind="first-replies", count={replies}}}',
            **{"algorithm.selection": Count(more)}))  # fmt: skip
        setting = f"{asking(more)} {found[-1].setting}"
        found[-1] = replace(found[-1], setting=setting)
    if asked >= 8:
        fewer = Count(asked // 2)
        found.append(Lever(f"ask {fewer.clients}", f"ask {fewer.clients} instead of {asked} clients",
                           asking(fewer.clients),
                           {"algorithm.selection": fewer}, log.every))  # fmt: skip
    rest = MinSeparation(REST, of=selection)
    found.append(Lever(f"rest {REST} rounds", f"a client that took part is not asked again for {REST} rounds",
                       f"--set 'algorithm.selection={{kind=\"min-separation\", separation={REST}}}'",
                       {"algorithm.selection": rest}, log.every))  # fmt: skip
    if replies >= 5:
        first = max(1, round(0.8 * replies))
        found.append(closing(f"wait for {first}", f"close with the first {first} replies, of about {replies} that come",
                             FirstReplies(count=first), f'{{kind="first-replies", count={first}}}'))  # fmt: skip
    if round_takes > 0:
        limit = float(f"{round_takes / 2:.2g}")
        found.append(closing(f"deadline {duration(limit)}",
                             "close after half the time that a round takes; clients send what they have by then",
                             Deadline(seconds=limit), f'{{kind="deadline", seconds={limit}}}'))  # fmt: skip
    if replies >= 4:
        found.append(closing(f"buffer of {replies // 2}", f"no rounds: a step after every {replies // 2} replies",
                             Buffered(size=replies // 2), f'{{kind="buffered", size={replies // 2}}}'))  # fmt: skip
    return found


def asking(clients: int) -> str:
    """The setting that asks so many clients."""
    return f"--set 'algorithm.selection={{kind=\"count\", clients={clients}}}'"


def _cut_again(
    case: RaceCase, log: ParticipationLog, path: Path, reading: Reading, folder: Path, stop: Callable[[], bool]
) -> list[Lever]:
    """Rounds of other lengths, over as much time of the log; none if the log has rounds and not times."""
    found: list[Lever] = []
    now = case.experiment.world.participation
    if log.every is None or not isinstance(now, FleetLog):
        return found
    for times in CUTS:
        if stop():
            break
        every = log.every * times
        rounds = round(case.experiment.rounds / times)
        try:
            cut = read_fleet(path, replace(reading, every=f"{every:g}s"))
        except UserError:  # too many rounds
            continue
        if cut.rounds == log.rounds or rounds < 4 or cut.rounds < 4:
            continue
        changes: dict[str, Any] = {"rounds": rounds, "evaluate.every": rounds}
        if case.chosen:  # stand-ins: the same clients of the log, cut again
            place = {name: m for m, name in enumerate(cut.names)}
            if not all(name in place for name in case.chosen):
                continue
            chosen = [place[name] for name in case.chosen]
            file = folder / f"stand-ins-{every:g}s.csv"
            write_stand_ins(cut, chosen, file)
            made = replace(now, path=str(file), length=block_length(cut))
            changes["world.events"] = events_of(cut, chosen, rounds)
        else:
            made = replace(now, reading=replace(reading, every=f"{every:g}s"), length=block_length(cut))
        name, length = f"rounds of {duration(every)}", f"{every:g}s" if every % 60 else f"{every / 60:g}min"
        words = f"{rounds} rounds of {duration(every)} instead of {case.experiment.rounds} of {duration(log.every)}"
        found.append(Lever(name, words, f"--every {length}", {**changes, "world.participation": made}, every))
    return found


@dataclass(frozen=True)
class PulledLever:
    """What a lever does, and what it costs: means over its runs.

    lever         the setting
    seeds         it ran
    score         its mean score
    worst         the same for the worst tenth of clients, if it was measured
    against       the difference of the score to the fleet as it is now; None for that itself
    days          that the rounds take at the log's pace; None if not known
    round_takes   seconds of a round, from the first client asked to the last reply used
    sent          bytes, both ways
    device_hours  of all devices together
    energy        in kWh, if the watts of a device are known
    is_front      whether no other has a higher score for fewer device-hours
    """

    lever: Lever
    seeds: int
    score: float
    worst: float | None
    against: Standing | None
    days: float | None
    round_takes: float
    sent: float
    device_hours: float
    energy: float | None
    is_front: bool = False


def pulled(
    levers: Sequence[Lever], outcomes: Mapping[str, Mapping[tuple[str, int], TrialOutcome]], judge: Judge,
    worlds: Sequence[str], rounds: int, watts: float | None,
) -> list[PulledLever]:  # fmt: skip
    """What each lever does and costs; those without a whole seed are left out."""
    scores: dict[str, dict[int, float]] = {}
    for lever in levers:
        runs = outcomes.get(lever.name, {})
        seeds = [s for s in range(MOST_LEVER_SEEDS) if all((w, s) in runs for w in worlds)]
        scores[lever.name] = {s: fmean(judge.score(runs[w, s], w) for w in worlds) for s in seeds}
    now, found = scores.get(AS_NOW, {}), []
    tried = [lever for lever in levers if scores[lever.name]]
    for lever in tried:
        of_lever = list(outcomes[lever.name].values())
        worst = [o.final(judge.worst) for o in of_lever if judge.worst in o.values]
        count = lever.changes.get("rounds", rounds)
        hours = fmean(o.devices for o in of_lever) / 3600
        both = {s: v for s, v in scores[lever.name].items() if s in now}
        known = lever.name != AS_NOW and len(both) > 1
        found.append(PulledLever(
            lever, len(scores[lever.name]), fmean(scores[lever.name].values()), fmean(worst) if worst else None,
            standing(lever.name, both, now, len(tried) - 1) if known else None,
            None if lever.every is None else count * lever.every / 86400, fmean(o.waited for o in of_lever) / count,
            fmean(o.up + o.down for o in of_lever), hours, None if watts is None else hours * watts / 1000,
        ))  # fmt: skip
    front = [one for one in found if not any(
        (o.score >= one.score and o.device_hours < one.device_hours)
        or (o.score > one.score and o.device_hours <= one.device_hours) for o in found)]  # fmt: skip
    return [replace(one, is_front=one in front) for one in found]


def lever_sentence(one: PulledLever, now: PulledLever, judge: Judge) -> str:
    """A lever in words: its difference with interval, and its costs beside those of the fleet as it is now."""
    s = one.against
    if s is None or s.gap is None:
        return ""
    ends = "" if s.low is None or s.high is None else f" ({judge.shown(s.low)} to {judge.shown(s.high)})"
    parts = [f"{judge.shown(s.gap)}{ends}"]
    for what, mine, its in (("device-hours", one.device_hours, now.device_hours), ("bytes", one.sent, now.sent),
                            ("time of a round", one.round_takes, now.round_takes)):  # fmt: skip
        if its > 0 and abs(mine / its - 1) > 0.02:
            parts.append(f"{mine / its:.2f} times the {what}")
    return f"{one.lever.name} ({one.lever.setting}): {', '.join(parts)}"
