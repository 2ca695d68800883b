"""Runs as streams of messages: they began, a round ended, they ended or failed. In this process; side_by_side.py has
several at a time in others."""

from __future__ import annotations

import errno
import time
import traceback
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from turnout.errors import UserError, out_of_memory
from turnout.experiment import Experiment
from turnout.machine.compiler import trouble
from turnout.machine.files import write_whole
from turnout.machine.memory import free_bytes
from turnout.running.charts.units import duration, show, size
from turnout.running.folder import held
from turnout.running.loop import FinishedRound, begin, rounds_of
from turnout.running.profile import profiled_rounds
from turnout.running.records.checkpoint import rounds_done
from turnout.running.records.glossary import Glossary
from turnout.running.records.records import Records
from turnout.running.state import FILE as STATE
from turnout.running.state import state_kept
from turnout.running.stop_rules import metric_of
from turnout.running.tracking import NO_HOOKS, Hooks, TrackedRun, tracked
from turnout.running.tracks.track import Track

LINE_SECONDS = 0.05  # at least, between two lines of one run
ON_HOST = "client state"  # is in host memory on any device, and on disk if it is large
LOADED = ("data", "base")  # are in memory already when free memory is read


@dataclass(frozen=True)
class Began:
    """A run begins.

    name    the run
    rounds  rounds of its experiment
    done    rounds that were done before
    words   the size of the federation, how clients are trained, the memory it needs, how files became samples
    alike   how many runs like this one fit into free memory; None if unknown
    """

    name: str
    rounds: int
    done: int
    words: str
    alike: int | None = None


@dataclass(frozen=True)
class Line:
    """A round has ended.

    name    the run
    done    rounds that are done
    rounds  rounds of its experiment
    words   the main metric, the turnout, the speed, the work done
    """

    name: str
    done: int
    rounds: int
    words: tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """Something to know about a run, which continues.

    name   the run
    words  a sentence
    """

    name: str
    words: str


@dataclass(frozen=True)
class Ended:
    """A run is complete.

    name   the run
    words  its rounds, their time, the main metric, the stop rule that ended it
    """

    name: str
    words: str


@dataclass(frozen=True)
class Failed:
    """A run has failed.

    name        the run
    why         the reason
    mistake     whether it is a user's mistake, which needs no traceback
    began       whether the run had begun
    for_memory  whether the reason may be a lack of memory
    """

    name: str
    why: str
    mistake: bool
    began: bool = False
    for_memory: bool = False


class DoesNotFit(UserError):
    """A run needs more memory than is free."""


Message = Began | Line | Note | Ended | Failed


@dataclass(frozen=True)
class RunPlace:
    """The folder of a run, and how it is run; a run in the folder is resumed.

    name          the run's name
    folder        its folder
    data_dir      the folder of data files
    threads       threads it may use beside other runs; None: all
    profile       whether to measure the stages of the round
    overwrite     whether to delete the run in the folder first
    fresh         whether the folder must be empty
    other_engine  whether it may resume with another engine
    group         the title of the runs it is made with, for trackers
    hooks         its trackers, and the function that receives finished rounds
    """

    name: str
    folder: Path
    data_dir: Path | None = None
    threads: int | None = None
    profile: bool = False
    overwrite: bool = False
    fresh: bool = False
    other_engine: bool = False
    group: str = ""
    hooks: Hooks = NO_HOOKS


def messages_of(experiment: Experiment, place: RunPlace) -> Iterator[Message]:
    """Run an experiment, or resume it, and yield messages about it."""
    folder, name = place.folder, place.name
    with held(folder, place.fresh), one_torch_thread(), state_kept(folder) as end:
        with warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings("always", message="this model cannot be vectorised")
            warnings.filterwarnings("always", message="the clients' samples cannot go through this model together")
            if place.threads is not None and not (folder / "environment.json").exists():
                experiment = experiment.but(runtime=experiment.runtime.on_threads(place.threads))  # its share of cores
            prepared = begin(experiment, folder, True, place.data_dir, place.overwrite, place.other_engine)
        yield from (Note(name, str(warning.message)) for warning in caught)
        yield from (Note(name, f"warning: {words}") for words in prepared.warnings)
        estimate, free = prepared.memory(), free_bytes(prepared.device)
        needed = check_fits(estimate, free, side_by_side=place.threads is not None)
        end.has_begun = True
        (folder / STATE).unlink(missing_ok=True)
        rounds, done = prepared.experiment.rounds, rounds_done(folder)
        resumed = f", resumed after round {done}" if 0 < done < rounds else ""
        words = f"{_headline(prepared)}, about {size(sum(estimate.values()))} of memory{resumed}"
        words += f"\n{prepared.data_note}" if prepared.data_note else ""
        yield Began(name, rounds, done, words, None if free is None else free // max(1, needed))
        measured, end.why = yield from _lines(prepared, place)
        with Records.read(folder / "records.sqlite") as records:
            seconds, last = float(records.rounds()["seconds"].sum()), records.last_round()
        if measured is None:
            yield Ended(name, f"all of its {max(rounds, done):,} rounds were done before: nothing left to do")
        else:
            parts = [f"{(-1 if last is None else last) + 1} rounds in {duration(seconds)}", measured, end.why]
            yield Ended(name, ", ".join(part for part in parts if part))


def check_fits(estimate: Mapping[str, int], free: int | None, side_by_side: bool = False) -> int:
    """The bytes a run needs on its device; refuses a run that needs more than is free.

    >>> check_fits({"cohort": 300, "data": 200}, free=300)
    500
    """
    needed = {name: count for name, count in estimate.items() if name != ON_HOST}
    total = sum(needed.values())
    if free is None or total - sum(needed.get(name, 0) for name in LOADED) <= free:
        return total
    pieces = ", ".join(f"{name} {size(count)}" for name, count in needed.items() if count)
    fewer = "run fewer side by side (--jobs 1), " if side_by_side else ""
    raise DoesNotFit(
        f"this run needs about {size(total)} of memory ({pieces}), but {size(free)} are free here: {fewer}"
        "ask fewer clients a round (algorithm.selection), lower algorithm.local.batch_size, or take a smaller model"
    )


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Give torch one thread for its own operations, on any machine: how a sum is split changes how it rounds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _headline(prepared: Track) -> str:
    """The size of the federation, and how clients are trained."""
    about, why = prepared.runtime.describe(), trouble()  # why: what prevents a faster engine
    engine = f"{about['engine'].replace(' ', '-')} engine" + (f" ({why})" if why else "")
    workers = [f"{about[kind]} {kind}" for kind in ("processes", "workers") if kind in about]
    device, threads = about["device"], about["threads"]
    cores = f" ({threads} thread{'s' * (threads > 1)})" if device == "cpu" else ""
    return f"{prepared.headline()}, {', '.join([engine, *workers])} on {device}{cores}"


def _lines(prepared: Track, place: RunPlace) -> Generator[Line | Note, None, tuple[str | None, str | None]]:
    """Yield a line for each round, at most one every LINE_SECONDS.

    Returns the main metric in words, None if no round was left to do, and the stop rule that ended the run.
    """
    metric, total = metric_of(prepared.experiment), prepared.experiment.rounds
    unit = Glossary.of(prepared.experiment.task).unit(metric)
    measured, step, trained, busy, shown = "", None, 0, 0.0, 0.0

    def line(step: FinishedRound) -> Line:
        record = step.record
        turnout, rate = f"turnout {record.answered}/{record.asked}", f"{trained / busy:,.0f} clients/s" if busy else ""
        words = (measured, turnout, rate, f"work {record.work or 0.0:.0%}")
        return Line(place.name, record.round + 1, total, tuple(word for word in words if word))

    rounds = profiled_rounds(prepared, place.folder) if place.profile else rounds_of(prepared, place.folder)
    run = TrackedRun(place.name, place.group or place.name, place.folder, rounds_done(place.folder))
    with tracked(prepared.experiment, run, place.hooks) as tracking:
        for step in rounds:
            trained, busy = trained + step.record.answered, busy + step.record.seconds
            if step.evaluation is not None and metric in step.evaluation.values:
                measured = f"{metric} {show(step.evaluation.values[metric], unit)}"
            yield from (Note(place.name, words) for words in tracking.after(step))
            if time.monotonic() - shown > LINE_SECONDS:
                shown = time.monotonic()
                yield line(step)
    if step is None:
        return None, None
    yield line(step)
    return measured, step.stopped


def guarded(experiment: Experiment, place: RunPlace) -> Iterator[Message]:
    """`messages_of`, with a failure as the last message; keeps the traceback of an error that is not a UserError."""
    kept, began = place.folder / "error.txt", False
    with suppress(OSError):
        kept.unlink(missing_ok=True)
    try:
        for message in messages_of(experiment, place):
            began = began or isinstance(message, Began)
            yield message
    except UserError as mistake:
        yield Failed(place.name, str(mistake), True, began, isinstance(mistake, DoesNotFit))
    except Exception as error:
        short = out_of_memory(error)
        for_memory = short is not None
        if short is None and isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
            then = "free some space" if full else "fix that"
            short = (
                f"{error.filename or place.folder} cannot be used ({error.strerror or error}): {then}, then --resume"
            )
        if short is not None:
            yield Failed(place.name, short, True, began, for_memory)
            return
        with suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, traceback.format_exc())
        yield Failed(place.name, f"{type(error).__name__}: {error} (more in {kept})", False, began)


def in_order(work: Sequence[tuple[Experiment, RunPlace]]) -> Iterator[Message]:
    """Several runs in this process, one after another."""
    for experiment, place in work:
        yield from guarded(experiment, place)
