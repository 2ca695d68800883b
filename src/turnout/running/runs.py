"""Running experiments: one, or several times seeds (`run`), side by side (`run_many`, `run_planned`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, Unpack, overload

from rich.text import Text

from turnout.config.check import check_settings
from turnout.config.read import check_same
from turnout.errors import Mistake
from turnout.experiment import Experiment
from turnout.machine.lock import locked
from turnout.machine.terminal import Terminal
from turnout.machine.threads import cores
from turnout.running.display import Display, Failed, Message
from turnout.running.folder import LOCK_FILE, LOCK_SECONDS, held, kept_if_used, new_folder, refuse_full
from turnout.running.given import Given, Seeds, Several, named, seeds_of, tracked_by
from turnout.running.messages import Place, in_order, messages_of
from turnout.running.plan import PlannedRun, RunPlan, can_travel, check_folder, jobs_for, planned_runs, write_plan
from turnout.running.result import Run, RunGroup, RunName
from turnout.running.side_by_side import side_by_side
from turnout.running.state import is_complete, state_of
from turnout.running.tracking import NOBODY, Listeners, OnRound, check_trackers
from turnout.running.used import delete_run, refuse_to_delete, refuse_used
from turnout.runtimes.keeping import KEPT
from turnout.trackers.tracker import Tracker


class Options(TypedDict, total=False):
    """What `run` takes beside experiments, a folder and seeds."""

    jobs: int | None
    resume: bool
    overwrite: bool
    quiet: bool
    data_dir: str | Path | None
    profile: bool
    trackers: Sequence[str | Tracker]
    on_round: OnRound | None
    other_engine: bool


@overload
def run(
    experiment: Experiment, out: str | Path | None = None, *, seeds: None = None, **options: Unpack[Options]
) -> Run: ...
@overload
def run(experiment: Given, out: str | Path | None = None, *, seeds: Seeds, **options: Unpack[Options]) -> RunGroup: ...
@overload
def run(
    experiment: Several, out: str | Path | None = None, *, seeds: Seeds | None = None, **options: Unpack[Options]
) -> RunGroup: ...
def run(
    experiment: Given,
    out: str | Path | None = None,
    *,
    seeds: Seeds | None = None,
    jobs: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    data_dir: str | Path | None = None,
    profile: bool = False,
    trackers: Sequence[str | Tracker] = (),
    on_round: OnRound | None = None,
    other_engine: bool = False,
) -> Run | RunGroup:
    """Run one experiment, or several (a list, or a dict by name) times seeds; the folder is `out`, or new under runs/.

    seeds      how many, counted from the experiments' own, or a list of them; without, each runs once with its own
    jobs       how many runs side by side (as many as there are cores); one experiment is one run
    resume     go on with the run in the folder, or return it where it is complete
    overwrite  delete the run in the folder first
    profile    keep the seconds of each stage of the round in the folder (`profile.json`)
    trackers   where else the numbers are shown: "tensorboard", "mlflow:http://host:5000", "wandb", objects of your own
    on_round   a function that is called with each finished round: its `record`, its `evaluation`, the `run`'s name
    other_engine  go on with a run though its engine or device is not here, and another one rounds differently
    """
    if resume and overwrite:
        raise Mistake("resume=True and overwrite=True: go on with the run in the folder, or delete it; say one of them")
    where = Path(data_dir) if data_dir else None
    listed = [trackers] if isinstance(trackers, str) else list(trackers)
    listeners = Listeners(tuple(t for t in listed if not isinstance(t, str)), on_round)
    variants = tracked_by(named(experiment), [t for t in listed if isinstance(t, str)])
    if isinstance(experiment, Experiment) and seeds is None:
        (only,) = variants.values()
        folder = Path(out) if out is not None else new_folder(only.title or "run")
        if not resume and not overwrite:
            refuse_used(folder, only)
        place = Place(only.title or folder.name, folder, where, resume, profile=profile, overwrite=overwrite)
        return _run_one(only, replace(place, listeners=listeners, other_engine=other_engine), quiet)
    title = ", ".join(list(variants)[:3]) + (" and others" if len(variants) > 3 else "")
    runs = planned_runs(variants, seeds_of(variants, seeds))
    plan = RunPlan(title, runs, Path(out) if out is not None else new_folder(title))
    failed = run_planned(
        plan, jobs=jobs, resume=resume, overwrite=overwrite, quiet=quiet, data_dir=where, profile=profile,
        listeners=listeners, other_engine=other_engine,
    )  # fmt: skip
    if not quiet:
        say_warnings(plan.out)
    return RunGroup(plan.out, _finished(plan, failed, where))


def _run_one(experiment: Experiment, place: Place, quiet: bool) -> Run:
    folder = place.folder
    with kept_if_used(folder), reported(folder), Display(total=experiment.rounds, quiet=quiet) as display:
        for message in messages_of(experiment, place):
            display.show(message)
    if not quiet:
        say_warnings(folder)
    return Run(folder, experiment, place.data_dir)


def say_warnings(folder: Path) -> None:
    """What is odd about the runs of a folder, as their last lines."""
    from turnout.report import find_runs, warnings_in

    with suppress(Mistake):  # no records
        for who, words in warnings_in(find_runs(folder)):
            line = f"warning ({who}): {words}" if who else f"warning: {words}"
            Terminal(stderr=True, soft_wrap=True).print(Text(line, style="yellow"))


@contextmanager
def reported(folder: Path) -> Iterator[None]:
    """Write the report and the picture of what there is in the end, also of a run that was interrupted or failed.

    Of two commands that began here at the same moment one was refused, and ends here too.
    """
    from turnout.report import write_picture, write_report

    try:
        yield
    finally:
        if folder.is_dir():
            with suppress(Mistake), locked(folder / LOCK_FILE, LOCK_SECONDS):  # no records yet, or another's business
                write_report(folder)
                write_picture(folder)


def run_many(
    title: str,
    variants: Mapping[str, Experiment],
    seeds: Sequence[int],
    out: Path,
    *,
    jobs: int | None = None,
    resume: bool = False,
    quiet: bool = False,
    data_dir: Path | None = None,
) -> list[Run]:
    """Run variants and seeds, `jobs` at a time; if some fail the others are finished first, then it is a mistake."""
    plan = RunPlan(title, planned_runs(variants, seeds), out)
    failed = run_planned(plan, jobs=jobs, resume=resume, quiet=quiet, data_dir=data_dir)
    if not quiet:
        say_warnings(out)
    return list(_finished(plan, failed, data_dir).values())


def _finished(plan: RunPlan, failed: Sequence[Failed], data_dir: Path | None) -> dict[RunName, Run]:
    """The runs by variant and seed; a mistake where some failed."""
    if failed:
        raise Mistake(explained(failed, len(plan.runs)))
    return _named(plan, failed, data_dir)


def _named(plan: RunPlan, failed: Sequence[Failed], data_dir: Path | None) -> dict[RunName, Run]:
    """The runs that did not fail, by variant and seed."""
    lost = {failure.name for failure in failed}
    return {
        RunName(planned.variant, planned.seed): Run(plan.out / planned.path, planned.experiment, data_dir)
        for planned in plan.runs
        if planned.name not in lost
    }


@dataclass(frozen=True)
class Outcome:
    """The runs that ended well, and those that failed on the way."""

    runs: dict[RunName, Run]
    failed: list[Failed]


def finished_runs(plan: RunPlan, *, jobs: int | None, quiet: bool, data_dir: Path | None) -> Outcome:
    """Run or go on with a plan, and go without the runs that fail once begun; one that cannot begin is a mistake."""
    failed = run_planned(plan, jobs=jobs, resume=True, quiet=quiet, data_dir=data_dir)
    refused = [failure for failure in failed if not failure.began]
    if refused or len(failed) == len(plan.runs):
        raise Mistake(explained(refused or failed, len(plan.runs)))
    if not quiet:
        say_warnings(plan.out)
    return Outcome(_named(plan, failed, data_dir), failed)


def ended_runs(plan: RunPlan, *, jobs: int | None, quiet: bool, data_dir: Path | None) -> Outcome:
    """What has ended of a plan that was begun, as it lies in the folder; nothing is trained. As `finished_runs`."""
    failed = []
    for planned in plan.runs:
        folder = plan.out / planned.path
        if not (folder / "experiment.toml").is_file():
            failed.append(Failed(planned.name, "it had not begun", False))
            continue
        check_same(folder / "experiment.toml", planned.experiment)
        found = state_of(folder)
        if found.state == "failed":
            failed.append(Failed(planned.name, found.why or "it failed", True, True))
        elif found.state != "finished":
            failed.append(Failed(planned.name, f"{found.done} of its {found.rounds} rounds were done", False, True))
    return Outcome(_named(plan, failed, data_dir), failed)


def run_planned(
    plan: RunPlan,
    *,
    jobs: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    data_dir: Path | None = None,
    profile: bool = False,
    listeners: Listeners = NOBODY,
    other_engine: bool = False,
) -> list[Failed]:
    """Run them all, and say which failed; the folder can be resumed and reported on as a whole.

    Of several runs those that have ended are taken as they are: nothing is prepared or asked of the engine for them.

    With `overwrite` what is in the folder is deleted, once the settings of all are known to be right.
    """
    if overwrite:
        refuse_to_delete(plan.out)
    else:
        _refuse(plan, resume)
    for planned in plan.runs:
        check_settings(planned.experiment)
    check_trackers(list(dict.fromkeys(t for planned in plan.runs for t in planned.experiment.track)))
    places = Place(
        "", plan.out, data_dir, profile=profile, overwrite=overwrite and len(plan.runs) == 1, group=plan.title,
        listeners=listeners, other_engine=other_engine,
    )  # fmt: skip
    left = replace(plan, runs=[run for run in plan.runs if not (resume and _has_ended(plan, run, listeners))])
    jobs = _side_by_side(left, jobs, listeners)
    if overwrite and len(plan.runs) > 1:
        delete_run(plan.out)  # a single one is deleted when the new one is known to be able to begin (loop.begin)
    failed: list[Failed] = []
    rounds, ended = sum(planned.experiment.rounds for planned in left.runs), len(plan.runs) - len(left.runs)
    display = Display(rounds, quiet, len(plan.runs), ended)
    with kept_if_used(plan.out), reported(plan.out), _group_held(plan, resume), KEPT.held(), display:
        for message in _messages(left, jobs, places):
            display.show(message)
            failed += [message] if isinstance(message, Failed) else []
    return failed


def _has_ended(plan: RunPlan, planned: PlannedRun, listeners: Listeners) -> bool:
    """Whether nothing is left of a run, not even somebody to tell of it."""
    unheard = listeners == NOBODY and not planned.experiment.track
    return unheard and len(plan.runs) > 1 and is_complete(plan.out / planned.path, planned.experiment)


def _refuse(plan: RunPlan, resume: bool) -> None:
    refuse_full(plan.out, resume, {run.path.partition("/")[0] for run in plan.runs})
    check_folder(plan)


@contextmanager
def _group_held(plan: RunPlan, resume: bool) -> Iterator[None]:
    """Hold the folder of several runs and write down which they are; a single run holds its folder itself."""
    if len(plan.runs) == 1:
        yield
        return
    with held(plan.out):
        _refuse(plan, resume)  # another command may have begun here since
        write_plan(plan)
        yield


def explained(failed: Sequence[Failed], runs: int) -> str:
    """Which runs failed and why, each reason once, and no more than a few reasons."""
    reasons: dict[str, list[str]] = {}
    for failure in failed:
        reasons.setdefault(failure.why, []).append(failure.name)
    if runs == 1:
        return failed[0].why
    words = [
        f"{', '.join(names[:4])}{' and others' if len(names) > 4 else ''}: {why}" for why, names in reasons.items()
    ]
    more = f"; and {len(words) - 3} more, each for a reason of its own" if len(words) > 3 else ""
    return f"{len(failed)} of {runs} runs failed. " + "; ".join(words[:3]) + more


def _side_by_side(plan: RunPlan, jobs: int | None, listeners: Listeners) -> int:
    """How many runs at a time; who listens in this process hears of one after another."""
    if listeners != NOBODY:
        if jobs is not None and jobs > 1:
            raise Mistake(
                f"{jobs} runs side by side are processes of their own, and on_round and trackers of your own are in "
                "this one: leave jobs out, or name the tracker by its path, package.module:Name"
            )
        return 1
    if jobs is None:
        return jobs_for(plan.runs)
    jobs = min(jobs, len(plan.runs))
    if jobs > 1 and not can_travel(plan.runs):
        raise Mistake(
            f"{jobs} runs side by side are processes of their own, and an experiment has something that these would "
            "not have (a function of the script itself, a lambda): put it into a module, or run one at a time (jobs=1)"
        )
    return jobs


def _messages(plan: RunPlan, jobs: int, places: Place) -> Iterator[Message]:
    threads = max(1, cores() // jobs) if jobs > 1 else None
    work = [
        (
            planned.experiment,
            replace(places, name=planned.name, folder=plan.out / planned.path, threads=threads, side_by_side=jobs),
        )
        for planned in plan.runs
    ]
    return in_order(work) if jobs == 1 else side_by_side(work, jobs)
