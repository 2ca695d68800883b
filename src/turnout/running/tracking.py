"""A run's trackers and callback receive each finished round.

A tracker that fails at the start is an error. One that fails later (its server is gone) is left out from then on, with
a note: a run of hours does not end for it. The folder keeps each tracker's identifier of the run, so that a resumed run
continues there; a tracker that is new to a resumed run receives the earlier rounds from the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from turnout.experiment import Experiment
from turnout.machine.checksums import read_json, write_json
from turnout.running.config.write import to_table
from turnout.running.folder import unused_name
from turnout.running.loop import FinishedRound
from turnout.running.reported import NO_HOOKS, Hooks, OnRound
from turnout.running.tracker import TrackedRun, Tracker, check_tracker, flat, numbers_of, reason, recorded

FILE = "tracking.json"


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
        for name, tracker in list(self.trackers.items()):
            failed += self._call(name, partial(tracker.log, step.record.round + 1, values))
        if self.on_round is not None:
            self.on_round(replace(step, run=self.run.name))
        return failed

    def catch_up(self, first: int | None) -> list[str]:
        """Send the rounds recorded before `first` (None: all) to trackers that are new to this run, once."""
        failed: list[str] = []
        new, self.new = [name for name in self.trackers if name in self.new], set()
        for past, values in recorded(self.run.folder / "records.sqlite", first) if new else ():
            for name in [name for name in new if name in self.trackers]:
                failed += self._call(name, partial(self.trackers[name].log, past, values))
        return failed

    def _call(self, name: str, call: Callable[[], None]) -> list[str]:
        """Call a method of a tracker, and leave the tracker out if that fails."""
        try:
            call()
        except Exception as error:  # any failure of another library
            del self.trackers[name]
            return [f"{name} has failed and is left out from now on: {reason(error)}"]
        return []

    def begin(self, experiment: Experiment, hooks: Hooks) -> None:
        """Begin every tracker, and write its identifier of the run into the folder."""
        named, path = [*experiment.track, *hooks.trackers], self.run.folder / FILE
        known = read_json(path, "delete it, and trackers start a new run") if path.exists() else {}
        known = {str(name): str(value) for name, value in known.items()}
        settings = flat(to_table(experiment)) if named else {}
        for given in dict.fromkeys(named):
            if isinstance(given, str):
                name, tracker = given, hooks.make_tracker(given)
            else:  # named after its class, with a number if there are several
                name = unused_name(type(given).__name__, self.trackers.__contains__, " ")
                tracker = check_tracker(given, repr(given))
            self.new |= set() if name in known else {name}
            known[name] = tracker.begin(replace(self.run, before=known.get(name), settings=settings))
            self.trackers[name] = tracker
        if named:
            write_json(path, known)

    def end(self, state: str) -> None:
        for name, tracker in list(self.trackers.items()):
            self._call(name, partial(tracker.end, state))


@contextmanager
def tracked(experiment: Experiment, run: TrackedRun, hooks: Hooks = NO_HOOKS) -> Iterator[Tracking]:
    """Begin the trackers of the experiment and of the hooks; at the end, send them how the run ended."""
    tracking, state = Tracking({}, run, set(), hooks.on_round), "interrupted"
    try:
        tracking.begin(experiment, hooks)
        yield tracking
        tracking.catch_up(None)  # if the run was complete already
        state = "finished"
    except Exception:
        state = "failed"
        raise
    finally:
        tracking.end(state)
