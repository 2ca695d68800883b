"""Running experiments from Python: one or several, times seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack, overload

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.running.display import Display
from turnout.running.folder import kept_if_used, new_folder, refuse_used
from turnout.running.messages import RunPlace, messages_of
from turnout.running.plan import Given, RunPlan, Seeds, Several, named, planned_runs, seeds_of, tracked_by
from turnout.running.planned import explained, run_planned, those_that_ended
from turnout.running.reported import NO_HOOKS, Hooks, OnRound, print_table, reported, say_warnings, say_where
from turnout.running.result import Run, RunGroup
from turnout.running.tracker import Tracker


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
    if isinstance(experiment, Experiment) and seeds is None:
        (only,) = variants.values()
        folder = Path(out) if out is not None else new_folder(only.title or "run")
        if not resume and not overwrite:
            refuse_used(folder, only)
        name = only.title or folder.name
        place = RunPlace(name, folder, where, resume, None, 1, profile, overwrite, other_engine, hooks=hooks)
        with kept_if_used(folder), reported(folder, hooks), Display(total=only.rounds, quiet=quiet) as display:
            for message in messages_of(only, place):
                display.show(message)
        if not quiet:
            say_warnings(folder)
        return Run(folder, only, where)
    title = ", ".join(list(variants)[:3]) + (" and others" if len(variants) > 3 else "")
    runs = planned_runs(variants, seeds_of(variants, seeds))
    plan = RunPlan(title, runs, Path(out) if out is not None else new_folder(title))
    failed = run_planned(
        plan, jobs=jobs, resume=resume, overwrite=overwrite, quiet=quiet, data_dir=where, profile=profile,
        other_engine=other_engine, hooks=hooks,
    )  # fmt: skip
    if not quiet:
        if hooks.table is not None:
            print_table(hooks.table, plan.out, stderr=True)
        say_where(plan.out, stderr=True)
        say_warnings(plan.out)
    if failed:
        raise UserError(explained(failed, len(plan.runs)))
    return RunGroup(plan.out, those_that_ended(plan, failed, where))
