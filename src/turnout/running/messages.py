"""Runs as streams of messages, in this process (side_by_side.py: several at a time in others)."""

from __future__ import annotations

import errno
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from turnout.errors import UserError, out_of_memory
from turnout.experiment import Experiment
from turnout.machine.compiler import trouble
from turnout.machine.files import write_whole
from turnout.running.display import Began, Ended, Failed, Line, Message, Note
from turnout.running.folder import held, refuse_full
from turnout.running.loop import begin, rounds_of
from turnout.running.memory import GO_ON, Need, check_fits
from turnout.running.profile import profiled_rounds
from turnout.running.records.checkpoint import rounds_done
from turnout.running.records.glossary import Glossary
from turnout.running.records.records import Records
from turnout.running.reported import NO_HOOKS, Hooks
from turnout.running.state import failed_start_kept, state_kept
from turnout.running.stop_rules import metric_of
from turnout.running.tracker import TrackedRun
from turnout.running.tracking import tracked
from turnout.running.tracks.track import Track

ENGINE_NAMES = {
    "native": "native engine",
    "by hand": "by-hand engine",
    "vmap": "vmap engine",
    "loop": "plain loop",
    "channels-last": "plain loop (channels last)",
}
LINE_SECONDS = 0.05  # at least, between two lines of one run


@dataclass(frozen=True)
class RunPlace:
    """The folder of a run, and how it is run.

    name          the run's name
    folder        its folder
    data_dir      the folder of data files
    resume        whether a run in the folder may be resumed
    threads       threads it may use; None: all
    side_by_side  how many runs share this machine
    profile       whether to measure the stages of the round
    overwrite     whether to delete the run in the folder first
    other_engine  whether it may resume with another engine
    group         the title of the runs it is made with, for trackers; its own name if it is alone
    hooks         its trackers, and the function that receives finished rounds
    """

    name: str
    folder: Path
    data_dir: Path | None = None
    resume: bool = True
    threads: int | None = None
    side_by_side: int = 1
    profile: bool = False
    overwrite: bool = False
    other_engine: bool = False
    group: str = ""
    hooks: Hooks = NO_HOOKS


def at_once(need: Need) -> bool:
    """The answer to a run that is alone: proceed, and check by itself whether it fits."""
    return GO_ON


def messages_of(experiment: Experiment, place: RunPlace, ask: Callable[[Need], bool] = at_once) -> Iterator[Message]:
    """Run an experiment, or resume it, and yield messages about it.

    ask  called before the first round; may wait for memory; answers whether to proceed or to read free memory again
    """
    for name in experiment.track:  # refuse one that is not known or not installed before the work begins
        place.hooks.make_tracker(name)
    if not place.overwrite:
        refuse_full(place.folder, place.resume)
    with held(place.folder), one_torch_thread():
        with warnings.catch_warnings(record=True) as caught, failed_start_kept(place.folder):
            warnings.filterwarnings("always", message="this model cannot be vectorised")
            if place.threads is not None and not (place.folder / "environment.json").exists():
                experiment = experiment.but(runtime=experiment.runtime.on_threads(place.threads))  # its share of cores
            prepared = begin(
                experiment, place.folder, place.resume, place.data_dir, place.overwrite, place.other_engine
            )
        yield from (Note(place.name, str(warning.message)) for warning in caught)
        yield from (Note(place.name, f"warning: {words}") for words in prepared.warnings)
        estimate = prepared.memory()
        while ask(need := Need.seen(estimate, prepared.device)) != GO_ON:
            pass
        needed = check_fits(estimate, need.free, place.side_by_side)
        with state_kept(place.folder) as state:
            about, why = prepared.runtime.describe(), trouble()  # why: what prevents a faster engine
            engine = ENGINE_NAMES.get(about["engine"], about["engine"]) + (f" ({why})" if why else "")
            workers = [f"{about[kind]} {kind}" for kind in ("processes", "workers") if kind in about]
            began = Began(
                name=place.name,
                rounds=prepared.experiment.rounds,
                done=rounds_done(place.folder),
                device=about["device"],
                engine=", ".join([engine, *workers]),
                threads=about["threads"],
                headline=prepared.headline(),
                memory=needed,
                data_note=prepared.data_note,
            )
            yield began
            stopped = state["why"] = yield from _lines(prepared, place)
            with Records.read(place.folder / "records.sqlite") as records:
                seconds = float(records.rounds()["seconds"].sum())  # of all rounds, as in the table
            yield Ended(place.name, max(began.rounds, began.done), seconds, stopped)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Give torch one thread for its own operations, on any machine: how a sum is split changes how it rounds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _lines(prepared: Track, place: RunPlace) -> Generator[Line | Note, None, str | None]:
    """Yield a line for each round, at most one every LINE_SECONDS; return why the run ended early."""
    metric = metric_of(prepared.experiment)
    unit = Glossary.of(prepared.experiment.task).unit(metric)
    line, shown, stopped = Line(place.name, prepared.experiment.rounds, metric, unit), 0.0, None
    rounds = profiled_rounds(prepared, place.folder) if place.profile else rounds_of(prepared, place.folder)
    run = TrackedRun(place.name, place.group or place.name, place.folder, rounds_done(place.folder))
    with tracked(prepared.experiment, run, place.hooks) as tracking:
        for step in rounds:
            line, stopped = line.after(step.record, step.evaluation), step.stopped
            yield from (Note(place.name, words) for words in tracking.after(step))
            if time.monotonic() - shown > LINE_SECONDS:
                shown = time.monotonic()
                yield line
    if line.round >= 0:
        yield line
    return stopped


def guarded(experiment: Experiment, place: RunPlace, ask: Callable[[Need], bool] = at_once) -> Iterator[Message]:
    """`messages_of`, with a failure as the last message; keeps the traceback of an error that is not a UserError."""
    kept, began = place.folder / "error.txt", False
    with suppress(OSError):
        kept.unlink(missing_ok=True)
    try:
        for message in messages_of(experiment, place, ask):
            began = began or isinstance(message, Began)
            yield message
    except UserError as mistake:
        yield Failed(place.name, str(mistake), True, began)
    except Exception as error:
        short = out_of_memory(error)
        if short is None and isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
            then = "free some space" if full else "fix that"
            short = (
                f"{error.filename or place.folder} cannot be used ({error.strerror or error}): {then}, then --resume"
            )
        if short is not None:
            yield Failed(place.name, short, True, began)
            return
        with suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, traceback.format_exc())
        yield Failed(place.name, f"{type(error).__name__}: {error} (more in {kept})", False, began)


def in_order(work: Sequence[tuple[Experiment, RunPlace]]) -> Iterator[Message]:
    """Several runs in this process, one after another."""
    for experiment, place in work:
        yield from guarded(experiment, place)
