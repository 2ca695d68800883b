"""A plan of several runs, one after another or side by side: run it, resume it, or read what has ended of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from turnout.errors import UserError
from turnout.machine.threads import cores
from turnout.running.config.run_file import check_same, check_settings
from turnout.running.display import Display, Failed
from turnout.running.folder import delete_run, held, kept_if_used, refuse_full, refuse_to_delete
from turnout.running.messages import RunPlace, in_order
from turnout.running.plan import PlannedRun, RunPlan, can_travel, check_folder, write_plan
from turnout.running.reported import NO_HOOKS, Hooks, reported, say_warnings
from turnout.running.result import Run, RunName
from turnout.running.side_by_side import side_by_side
from turnout.running.state import is_complete, state_of
from turnout.runtimes.crew import KEPT


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
        found = state_of(folder)
        if found.state == "failed":
            failed.append(Failed(planned.name, found.why or "it failed", True, True))
        elif found.state != "finished":
            failed.append(Failed(planned.name, f"{found.done} of its {found.rounds} rounds were done", False, True))
    return Outcome(those_that_ended(plan, failed, data_dir), failed)


def those_that_ended(plan: RunPlan, failed: Sequence[Failed], data_dir: Path | None) -> dict[RunName, Run]:
    """The runs that did not fail, by variant and seed."""
    lost = {failure.name for failure in failed}
    return {
        RunName(planned.variant, planned.seed): Run(plan.out / planned.path, planned.experiment, data_dir)
        for planned in plan.runs
        if planned.name not in lost
    }


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
) -> list[Failed]:
    """Run a plan, and return the runs that failed; the folder can be resumed and reported on as a whole.

    Of several runs, those that have ended are not prepared again, unless a tracker or callback needs their rounds.
    """
    several = len(plan.runs) > 1
    if overwrite:
        refuse_to_delete(plan.out)
    else:
        _refuse(plan, resume)
    for planned in plan.runs:
        check_settings(planned.experiment)
    for name in dict.fromkeys(t for planned in plan.runs for t in planned.experiment.track):
        hooks.make_tracker(name)  # refuses one that is not known or not installed before the work begins
    left = plan
    if resume and several and not hooks.listens:
        left = replace(plan, runs=[
            run for run in plan.runs if run.experiment.track or not is_complete(plan.out / run.path, run.experiment)
        ])  # fmt: skip
    jobs = jobs_at_a_time(left.runs, jobs, hooks)
    place = RunPlace(
        "", plan.out, data_dir, threads=max(1, cores() // jobs) if jobs > 1 else None, side_by_side=jobs,
        profile=profile, overwrite=overwrite and not several, group=plan.title, other_engine=other_engine,
        hooks=replace(hooks, on_end=(), table=None),  # which may not be picklable
    )  # fmt: skip
    work = [(run.experiment, replace(place, name=run.name, folder=plan.out / run.path)) for run in left.runs]
    if overwrite and several:
        delete_run(plan.out)  # a single one is deleted once the new one can begin (loop.begin)
    failed: list[Failed] = []
    rounds, ended = sum(planned.experiment.rounds for planned in left.runs), len(plan.runs) - len(left.runs)
    display = Display(rounds, quiet, len(plan.runs), ended)
    with kept_if_used(plan.out), reported(plan.out, hooks), held(plan.out) if several else nullcontext():
        if several:  # a single run holds its folder itself
            _refuse(plan, resume)  # another command may have begun here since
            write_plan(plan)
        with KEPT.held(), display:
            for message in in_order(work) if jobs == 1 else side_by_side(work, jobs):
                display.show(message)
                failed += [message] if isinstance(message, Failed) else []
    return failed


def _refuse(plan: RunPlan, resume: bool) -> None:
    refuse_full(plan.out, resume, {run.path.partition("/")[0] for run in plan.runs})
    check_folder(plan)


def explained(failed: Sequence[Failed], runs: int) -> str:
    """Which runs failed and why: each reason once, and at most three."""
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


def jobs_at_a_time(runs: Sequence[PlannedRun], jobs: int | None, hooks: Hooks) -> int:
    """How many runs at a time: one per core, but one on a GPU, if an experiment cannot be pickled, or if an object of
    this process receives the rounds."""
    if hooks.listens:
        if jobs is not None and jobs > 1:
            raise UserError(
                f"{jobs} runs side by side are processes of their own, and on_round and trackers of your own are in "
                "this one: leave jobs out, or name the tracker by its path, package.module:Name"
            )
        return 1
    if jobs is None:
        alone = len(runs) == 1 or not all(run.experiment.runtime.shares_the_machine for run in runs)
        return 1 if alone or not can_travel(runs) else min(cores(), len(runs))
    jobs = min(jobs, len(runs))
    if jobs > 1 and not can_travel(runs):
        raise UserError(
            f"{jobs} runs side by side are processes of their own, and an experiment has something that these would "
            "not have (a function of the script itself, a lambda): put it into a module, or run one at a time (jobs=1)"
        )
    return jobs
