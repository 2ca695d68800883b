"""Running experiments: one (`run`), or several variants and seeds side by side (`run_many`, `run_planned`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from turnout.config.check import check_settings
from turnout.errors import Mistake
from turnout.experiment import Experiment
from turnout.machine.threads import cores
from turnout.running.display import Display, Failed, Message
from turnout.running.folder import kept_if_used, make_folder, new_folder, refuse_full
from turnout.running.plan import RunPlan, check_folder, jobs_for, planned_runs, write_plan
from turnout.running.processes import Place, in_order, messages_of, side_by_side
from turnout.running.result import Run
from turnout.running.used import refuse_used


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    quiet: bool = False,
    data_dir: str | Path | None = None,
    profile: bool = False,
    overwrite: bool = False,
) -> Run:
    """Run one experiment with a progress display; the folder is `out`, or a new one under runs/.

    resume     go on with the run in the folder, or return it where it is complete
    overwrite  delete the run in the folder first
    profile    keep the seconds of each stage of the round in the folder (`profile.json`)
    """
    if not isinstance(experiment, Experiment):
        what = f"the {type(experiment).__name__} {experiment!r}"
        raise Mistake(f"to.run was given {what}: give an Experiment (recipes are for `turnout run NAME`)")
    folder = Path(out) if out is not None else new_folder(experiment.title or "run")
    if resume and overwrite:
        raise Mistake("resume=True and overwrite=True: go on with the run in the folder, or delete it; say one of them")
    if not resume and not overwrite:
        refuse_used(folder, experiment)
    result = Run(folder, experiment, Path(data_dir) if data_dir else None)
    place = Place(
        experiment.title or folder.name, folder, result.data_dir, resume, profile=profile, overwrite=overwrite
    )
    with kept_if_used(folder), reported(folder), Display(total=experiment.rounds, quiet=quiet) as display:
        for message in messages_of(experiment, place):
            display.show(message)
    if not quiet:
        say_warnings(folder)
    return result


def say_warnings(folder: Path) -> None:
    """What is odd about the runs of a folder, as their last lines."""
    from turnout.report import find_runs, warnings_in

    with suppress(Mistake):  # no records
        for who, words in warnings_in(find_runs(folder)):
            line = f"warning ({who}): {words}" if who else f"warning: {words}"
            Console(stderr=True, soft_wrap=True).print(Text(line, style="yellow"))


@contextmanager
def reported(folder: Path) -> Iterator[None]:
    """Write the report and the picture of what there is in the end, also of a run that was interrupted or failed."""
    from turnout.report import write_picture, write_report

    try:
        yield
    finally:
        with suppress(Mistake):  # no records yet
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
    if failed:
        raise Mistake(explained(failed, len(plan.runs)))
    return [Run(out / planned.path, planned.experiment, data_dir) for planned in plan.runs]


def run_planned(
    plan: RunPlan,
    *,
    jobs: int | None = None,
    resume: bool = False,
    quiet: bool = False,
    data_dir: Path | None = None,
    profile: bool = False,
) -> list[Failed]:
    """Run them all, and say which failed; the folder can be resumed and reported on as a whole."""
    refuse_full(plan.out, resume)
    check_folder(plan)
    for planned in plan.runs:
        check_settings(planned.experiment)
    failed: list[Failed] = []
    with kept_if_used(plan.out), reported(plan.out):
        make_folder(plan.out)
        if len(plan.runs) > 1:
            write_plan(plan)
        with Display(sum(planned.experiment.rounds for planned in plan.runs), quiet, len(plan.runs)) as display:
            for message in _messages(plan, jobs, data_dir, profile):
                display.show(message)
                failed += [message] if isinstance(message, Failed) else []
    return failed


def explained(failed: Sequence[Failed], runs: int) -> str:
    """Which runs failed and why, each reason once."""
    reasons: dict[str, list[str]] = {}
    for failure in failed:
        reasons.setdefault(failure.why, []).append(failure.name)
    if runs == 1:
        return failed[0].why
    words = [
        f"{', '.join(names[:4])}{' and others' if len(names) > 4 else ''}: {why}" for why, names in reasons.items()
    ]
    return f"{len(failed)} of {runs} runs failed. " + "; ".join(words)


def _messages(plan: RunPlan, jobs: int | None, data_dir: Path | None, profile: bool) -> Iterator[Message]:
    jobs = jobs_for(plan.runs) if jobs is None else min(jobs, len(plan.runs))
    threads = max(1, cores() // jobs) if jobs > 1 else None
    work = [
        (planned.experiment, Place(planned.name, plan.out / planned.path, data_dir, True, threads, jobs, profile))
        for planned in plan.runs
    ]
    return in_order(work) if jobs == 1 else side_by_side(work, jobs)
