"""A run's trackers and callback, which receive each finished round.

A tracker that fails at the start is an error. One that fails later (its server is gone) is left out from then on, with
a note: a run of hours does not end for it. The folder keeps each tracker's identifier of the run, so that a resumed run
continues there; a tracker that is new to a resumed run receives the earlier rounds from the records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from turnout.experiment import Experiment
from turnout.machine.checksums import read_json, write_json
from turnout.running.config.write import to_table
from turnout.running.loop import FinishedRound
from turnout.running.tracker import (
    MakeTracker,
    TrackedRun,
    Tracker,
    check_tracker,
    flat,
    numbers_of,
    own_tracker,
    reason,
    recorded,
)

FILE = "tracking.json"

OnRound = Callable[[FinishedRound], object]


@dataclass(frozen=True)
class Listeners:
    """Receivers of finished rounds in this process.

    trackers  objects of the user's program
    on_round  a function of the finished round
    """

    trackers: tuple[Tracker, ...] = ()
    on_round: OnRound | None = None


NOBODY = Listeners()


@dataclass
class Tracking:
    """The trackers of one run.

    trackers  by name
    run       the run
    new       names of those that have not received this run before
    on_round  the user's function
    """

    trackers: dict[str, Tracker]
    run: TrackedRun
    new: set[str]
    on_round: OnRound | None

    def after(self, step: FinishedRound) -> list[str]:
        """Send a finished round; returns sentences about trackers that failed."""
        failed = self.catch_up(step.record.round)
        values = numbers_of(step.record, step.evaluation) if self.trackers else {}
        for said, tracker in list(self.trackers.items()):
            failed += self._tell(said, partial(tracker.log, step.record.round + 1, values))
        if self.on_round is not None:
            self.on_round(replace(step, run=self.run.name))
        return failed

    def catch_up(self, first: int | None) -> list[str]:
        """Send the rounds recorded before `first` (None: all) to trackers that are new to this run, once."""
        failed: list[str] = []
        new, self.new = [said for said in self.trackers if said in self.new], set()
        for past, values in recorded(self.run.folder / "records.sqlite", first) if new else ():
            for said in [said for said in new if said in self.trackers]:
                failed += self._tell(said, partial(self.trackers[said].log, past, values))
        return failed

    def _tell(self, said: str, tell: Callable[[], None]) -> list[str]:
        try:
            tell()
        except Exception as error:  # any failure of another library
            del self.trackers[said]
            return [f"{said} has failed and is left out from now on: {reason(error)}"]
        return []

    def end(self, state: str) -> None:
        for said, tracker in list(self.trackers.items()):
            self._tell(said, partial(tracker.end, state))


@contextmanager
def tracked(
    experiment: Experiment, run: TrackedRun, listeners: Listeners = NOBODY, make_tracker: MakeTracker = own_tracker
) -> Iterator[Tracking]:
    """Begin the experiment's trackers and the listeners; at the end, send them how the run ended."""
    tracking, state = Tracking({}, run, set(), listeners.on_round), "interrupted"
    try:
        _begin(tracking, experiment, [*experiment.track, *listeners.trackers], make_tracker)
        yield tracking
        tracking.catch_up(None)  # if the run was complete already
        state = "finished"
    except Exception:
        state = "failed"
        raise
    finally:
        tracking.end(state)


def _begin(
    tracking: Tracking, experiment: Experiment, named: Sequence[str | Tracker], make_tracker: MakeTracker
) -> None:
    """Begin every tracker, and keep its identifier of the run."""
    run, known = tracking.run, _read(tracking.run.folder)
    settings = flat(to_table(experiment)) if named else {}
    for said in dict.fromkeys(named):
        name = said if isinstance(said, str) else _name_of(said, tracking.trackers)
        tracker = make_tracker(said) if isinstance(said, str) else check_tracker(said, repr(said))
        tracking.new |= set() if name in known else {name}
        known[name] = tracker.begin(replace(run, before=known.get(name), settings=settings))
        tracking.trackers[name] = tracker
    if named:
        write_json(run.folder / FILE, known)


def _name_of(tracker: Tracker, taken: Collection[str]) -> str:
    """The name of a program's own tracker: its class, numbered if there are several."""
    base = name = type(tracker).__name__
    number = 2
    while name in taken:
        name, number = f"{base} {number}", number + 1
    return name


def _read(folder: Path) -> dict[str, str]:
    path = folder / FILE
    found = read_json(path, "delete it, and trackers start a new run") if path.exists() else {}
    return {str(name): str(value) for name, value in found.items()}
