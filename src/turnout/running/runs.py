"""Running experiments: `run` one or several, times seeds; `run_planned`, a plan of them, one after another or side by
side; `finished_runs` and `ended_runs` for studies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, Unpack, overload

from rich.table import Table
from rich.text import Text

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.machine.lock import locked
from turnout.machine.terminal import console, print_line
from turnout.machine.threads import cores
from turnout.running.config.run_file import check_same, check_settings
from turnout.running.display import Display
from turnout.running.folder import (
    LOCK_FILE,
    LOCK_SECONDS,
    delete_run,
    held,
    kept_if_used,
    new_folder,
    refuse_full,
    refuse_to_delete,
)
from turnout.running.messages import Failed, Message, RunPlace, in_order, messages_of
from turnout.running.plan import (
    Given,
    PlannedRun,
    RunPlan,
    Seeds,
    Several,
    can_travel,
    check_folder,
    named,
    planned_runs,
    seeds_of,
    tracked_by,
    write_plan,
)  # fmt: skip
from turnout.running.records.finding import find_runs
from turnout.running.records.warnings import warnings_in
from turnout.running.result import Run, RunGroup, RunName
from turnout.running.side_by_side import side_by_side
from turnout.running.state import is_complete, state_of
from turnout.running.tracking import NO_HOOKS, Hooks, OnRound, Tracker
from turnout.runtimes.crew import WORKERS


class Options(TypedDict, total=False):
    """The other options of `run`."""

    jobs: int | None
    resume: bool
    overwrite: bool
    quiet: bool
    data_dir: str | Path | None
    profile: bool
    trackers: Sequence[str | Tracker]
    on_round: OnRound | None
    other_engine: bool
    hooks: Hooks


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
    hooks: Hooks = NO_HOOKS,
) -> Run | RunGroup:
    """Run one experiment, or several (a list, or a dict by name) times seeds; the folder is `out`, or new under runs/.

    seeds      how many, counted from the experiments' own, or a list of them; without, each runs once with its own
    jobs       how many runs side by side (default: one per core); one experiment is one run
    resume     resume the run in the folder, or return it if it is complete
    overwrite  delete the run in the folder first
    profile    keep the seconds of each stage of the round in the folder (`profile.json`)
    trackers   where else to send the numbers: "tensorboard", "mlflow:http://host:5000", "wandb", objects of your own
    on_round   a function that is called with each finished round: its `record`, its `evaluation`, the `run`'s name
    other_engine  resume a run with another engine or device than it began with, which rounds differently
    hooks      called when the runs have ended, and makes trackers by name; `to.run` writes the report
    """
    if resume and overwrite:
        raise UserError("resume=True and overwrite=True: resume the run in the folder, or delete it, but not both")
    where = Path(data_dir) if data_dir else None
    listed = [trackers] if isinstance(trackers, str) else list(trackers)
    hooks = replace(hooks, trackers=tuple(t for t in listed if not isinstance(t, str)), on_round=on_round)
    variants = tracked_by(named(experiment), [t for t in listed if isinstance(t, str)])
    single = isinstance(experiment, Experiment) and seeds is None
    title = ", ".join(list(variants)[:3]) + (" and others" if len(variants) > 3 else "")
    plan = RunPlan(
        title, planned_runs(variants, seeds_of(variants, seeds)), Path(out) if out is not None else new_folder(title)
    )
    failed = run_planned(
        plan, jobs=jobs, resume=resume, overwrite=overwrite, quiet=quiet, data_dir=where, profile=profile,
        other_engine=other_engine, hooks=hooks, raises=single,
    )  # fmt: skip
    if not quiet:
        if not single and hooks.table is not None:
            print_table(hooks.table, plan.out, stderr=True)
        if not single:
            say_where(plan.out, stderr=True)
        say_warnings(plan.out)
    if failed:
        raise UserError(explained(failed, len(plan.runs)))
    ended = those_that_ended(plan, failed, where)
    return next(iter(ended.values())) if single else RunGroup(plan.out, ended)


# -- a plan


def run_planned(
    plan: RunPlan,
    *,
    jobs: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    data_dir: Path | None = None,
    profile: bool = False,
    other_engine: bool = False,
    hooks: Hooks = NO_HOOKS,
    raises: bool = False,
) -> list[Failed]:
    """Run a plan, and return the runs that failed; the folder can be resumed and reported on as a whole.

    Of several runs, those that have ended are not prepared again, unless a tracker or callback needs their rounds.

    raises  let the error of a run through as it is
    """
    several = len(plan.runs) > 1

    def refuse() -> None:
        refuse_full(plan.out, resume, {run.path.partition("/")[0] for run in plan.runs})
        check_folder(plan)

    if overwrite:
        refuse_to_delete(plan.out)
    else:
        refuse()
    for planned in plan.runs:
        check_settings(planned.experiment)
    for name in dict.fromkeys(t for planned in plan.runs for t in planned.experiment.track):
        hooks.make_tracker(name)  # refuses one that is not known or not installed before the work begins
    left = plan.runs
    if resume and several and not hooks.listens:
        left = [run for run in left if run.experiment.track or not is_complete(plan.out / run.path, run.experiment)]
    jobs = jobs_at_a_time(left, jobs, hooks)
    place = RunPlace(
        "", plan.out, data_dir, threads=max(1, cores() // jobs) if jobs > 1 else None,
        profile=profile, overwrite=overwrite and not several, fresh=not (several or resume or overwrite),
        other_engine=other_engine,
        group="" if raises else plan.title, hooks=replace(hooks, on_end=(), table=None),  # which may not be picklable
    )  # fmt: skip
    work = []
    for run in left:
        name = run.experiment.title or plan.out.name if raises else run.name
        work.append((run.experiment, replace(place, name=name, folder=plan.out / run.path)))
    failed: list[Failed] = []
    display = Display(sum(run.experiment.rounds for run in left), quiet, len(plan.runs), len(plan.runs) - len(left))
    with kept_if_used(plan.out), reported(plan.out, hooks), held(plan.out) if several else nullcontext():
        if several:  # a single run holds its folder itself, and is deleted once the new one can begin (loop.begin)
            if overwrite:
                delete_run(plan.out)
            refuse()  # another command may have begun here since
            write_plan(plan)
        with WORKERS.reused(), display:
            messages: Iterator[Message] = side_by_side(work, jobs) if jobs > 1 else in_order(work)
            for message in messages_of(*work[0]) if raises else messages:
                display.show(message)
                failed += [message] if isinstance(message, Failed) else []
    return failed


def explained(failed: Sequence[Failed], runs: int) -> str:
    """Which runs failed and why: each reason once, and at most three."""
    if runs == 1:
        return failed[0].why
    reasons: dict[str, list[str]] = {}
    for failure in failed:
        reasons.setdefault(failure.why, []).append(failure.name)
    listed = [f"{', '.join(n[:4])}{' and others' if len(n) > 4 else ''}: {why}" for why, n in reasons.items()]
    more = f"; and {len(listed) - 3} more, each for a reason of its own" if len(listed) > 3 else ""
    return f"{len(failed)} of {runs} runs failed. " + "; ".join(listed[:3]) + more


def jobs_at_a_time(runs: Sequence[PlannedRun], jobs: int | None, hooks: Hooks) -> int:
    """How many runs at a time: one per core, but one on a GPU, if an experiment cannot be pickled, or if an object of
    this process receives the rounds."""
    if len(runs) < 2:
        return 1
    if hooks.listens:
        if jobs is not None and jobs > 1:
            raise UserError(
                f"{jobs} runs side by side are processes of their own, and on_round and trackers of your own are in "
                "this one: leave jobs out, or name the tracker by its path, package.module:Name"
            )
        return 1
    if jobs is None:
        shared = all(run.experiment.runtime.shares_the_machine for run in runs)
        return min(cores(), len(runs)) if shared and can_travel(runs) else 1
    jobs = min(jobs, len(runs))
    if jobs > 1 and not can_travel(runs):
        raise UserError(
            f"{jobs} runs side by side are processes of their own, and an experiment has something that these would "
            "not have (a function of the script itself, a lambda): put it into a module, or run one at a time (jobs=1)"
        )
    return jobs


def those_that_ended(plan: RunPlan, failed: Sequence[Failed], data_dir: Path | None) -> dict[RunName, Run]:
    """The runs that did not fail, by variant and seed."""
    lost = {failure.name for failure in failed}
    return {
        RunName(planned.variant, planned.seed): Run(plan.out / planned.path, planned.experiment, data_dir)
        for planned in plan.runs
        if planned.name not in lost
    }


# -- when runs have ended


def print_table(table: Callable[[Path, int], Table], folder: Path, stderr: bool = False) -> None:
    """Print the table of results, if any run has records."""
    screen = console(stderr)
    with suppress(UserError):  # no records
        screen.print(table(folder, screen.width))


def say_where(folder: Path, stderr: bool = False) -> None:
    """Print where the report and the picture are."""
    for name, path in (("report", folder / "report.html"), ("picture", folder / "curves.svg")):
        if path.exists():
            console(stderr).print(Text(f"{name}: {path}"), soft_wrap=True)


def say_warnings(folder: Path) -> None:
    """What is odd about the runs of a folder, as their last lines."""
    with suppress(UserError):  # no records
        for who, words in warnings_in(find_runs(folder)):
            line = f"warning ({who}): {words}" if who else f"warning: {words}"
            print_line(line, "yellow")


@contextmanager
def reported(folder: Path, hooks: Hooks) -> Iterator[None]:
    """Call the hooks in the end, also of a run that was interrupted, failed or was refused."""
    try:
        yield
    finally:
        if folder.is_dir() and hooks.on_end:
            with suppress(UserError), locked(folder / LOCK_FILE, LOCK_SECONDS):  # no records yet, or another's business
                for hook in hooks.on_end:
                    hook(folder)


# -- for studies


@dataclass(frozen=True)
class Outcome:
    """The outcome of a plan.

    runs    finished runs, by variant and seed
    failed  the others
    """

    runs: dict[RunName, Run]
    failed: list[Failed]


def finished_runs(
    plan: RunPlan, *, jobs: int | None, quiet: bool, data_dir: Path | None, hooks: Hooks = NO_HOOKS
) -> Outcome:
    """Run or resume a plan; runs that fail once begun are left out, a run that cannot begin is an error."""
    failed = run_planned(plan, jobs=jobs, resume=True, quiet=quiet, data_dir=data_dir, hooks=hooks)
    refused = [failure for failure in failed if not failure.began]
    if refused or len(failed) == len(plan.runs):
        raise UserError(explained(refused or failed, len(plan.runs)))
    if not quiet:
        say_warnings(plan.out)
    return Outcome(those_that_ended(plan, failed, data_dir), failed)


def ended_runs(plan: RunPlan, *, jobs: int | None, quiet: bool, data_dir: Path | None) -> Outcome:
    """The finished runs of a plan, read from its folder; nothing is trained. As `finished_runs`."""
    failed = []
    for planned in plan.runs:
        folder = plan.out / planned.path
        if not (folder / "experiment.toml").is_file():
            failed.append(Failed(planned.name, "it had not begun", False))
            continue
        check_same(folder / "experiment.toml", planned.experiment)
        state = state_of(folder)
        if state.state == "failed":
            failed.append(Failed(planned.name, state.why or "it failed", True, True))
        elif state.state != "finished":
            failed.append(Failed(planned.name, f"{state.done} of its {state.rounds} rounds were done", False, True))
    return Outcome(those_that_ended(plan, failed, data_dir), failed)
