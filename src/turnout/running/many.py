"""Running experiments: one, or several variants and seeds side by side.

A run is a folder (experiment.py writes it). Several runs are a folder of such folders, `variant/seed-N`, with a
`runs.json` that lists them.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from turnout.config.check import check_settings
from turnout.config.read import check_same, to_toml
from turnout.errors import Mistake
from turnout.experiment import Experiment
from turnout.machine.threads import cores
from turnout.running.display import Display, Failed, Message
from turnout.running.folder import Run, file_name, new_folder, open_run
from turnout.running.loop import make_folder, refuse_full, write_whole
from turnout.running.processes import Place, in_order, messages_of, side_by_side
from turnout.runtimes.settings import InProcess

__all__ = ["Run", "Task", "new_folder", "open_run", "run", "run_many", "run_tasks", "tasks_of"]


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    quiet: bool = False,
    data_dir: str | Path | None = None,
    profile: bool = False,
) -> Run:
    """Run one experiment with a progress display; the folder is `out`, or a new one under runs/.

    `profile`: keep the seconds of each stage of the round in the folder (profiling.py).
    """
    if not isinstance(experiment, Experiment):
        what = f"the {type(experiment).__name__} {experiment!r}"
        raise Mistake(f"to.run was given {what}: give an Experiment (recipes are for `turnout run NAME`)")
    folder = Path(out) if out is not None else new_folder(experiment.title or "run")
    result = Run(folder, experiment, Path(data_dir) if data_dir else None)
    place = Place(experiment.title or folder.name, folder, result.data_dir, resume, profile=profile)
    try:
        with Display(total=experiment.rounds, quiet=quiet) as display:
            for message in messages_of(experiment, place):
                display.show(message)
    finally:
        write_reports(folder)
    return result


def write_reports(folder: Path) -> None:
    """The report and the picture of what there is, also of a run that was interrupted or went wrong."""
    from turnout.report import write_picture, write_report

    try:
        write_report(folder)
        write_picture(folder)
    except Mistake:
        return  # no records yet


@dataclass(frozen=True)
class Task:
    """One run of many."""

    variant: str
    seed: int
    experiment: Experiment
    path: str  # below the common folder

    @property
    def name(self) -> str:
        return f"{self.variant} seed {self.seed}"


def tasks_of(variants: Mapping[str, Experiment], seeds: Sequence[int]) -> list[Task]:
    """Every variant with every seed; a single run needs no subfolder."""
    if len(variants) == 1 and len(seeds) == 1:
        return [Task(name, seeds[0], e.but(seed=seeds[0]), ".") for name, e in variants.items()]
    folders = _folders(variants)
    return [
        Task(name, seed, experiment.but(seed=seed), f"{folders[name]}/seed-{seed}")
        for seed in seeds
        for name, experiment in variants.items()
    ]


def _folders(names: Mapping[str, object]) -> dict[str, str]:
    """A folder for each variant; names that would share one are numbered.

    >>> _folders({"a b": 0, "a/b": 0})
    {'a b': 'a_b', 'a/b': 'a_b-2'}
    """
    found: dict[str, str] = {}
    for name in names:
        base = folder = file_name(name)
        number = 2
        while folder in found.values():
            folder, number = f"{base}-{number}", number + 1
        found[name] = folder
    return found


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
    tasks = tasks_of(variants, seeds)
    failed = run_tasks(title, tasks, out, jobs=jobs, resume=resume, quiet=quiet, data_dir=data_dir)
    if failed:
        raise Mistake(explained(failed, len(tasks)))
    return [Run(out / t.path, t.experiment, data_dir) for t in tasks]


def run_tasks(
    title: str,
    tasks: Sequence[Task],
    out: Path,
    *,
    jobs: int | None = None,
    resume: bool = False,
    quiet: bool = False,
    data_dir: Path | None = None,
    profile: bool = False,
) -> list[Failed]:
    """Run them all, and say which failed; the folder can be resumed and reported on as a whole."""
    refuse_full(out, resume)
    _check_folder(out, len(tasks))
    for task in tasks:
        check_settings(task.experiment)
    make_folder(out)
    if len(tasks) > 1:
        _write_plan(title, tasks, out)
    failed: list[Failed] = []
    try:
        with Display(sum(t.experiment.rounds for t in tasks), quiet, len(tasks)) as display:
            for message in _messages(tasks, out, jobs, data_dir, profile):
                display.show(message)
                failed += [message] if isinstance(message, Failed) else []
    finally:
        write_reports(out)
    return failed


def explained(failed: Sequence[Failed], runs: int) -> str:
    """Which runs failed and why, equal reasons once."""
    reasons: dict[str, list[str]] = {}
    for failure in failed:
        reasons.setdefault(failure.why, []).append(failure.name)
    if runs == 1:
        return failed[0].why
    words = [
        f"{', '.join(names[:4])}{' and others' if len(names) > 4 else ''}: {why}" for why, names in reasons.items()
    ]
    return f"{len(failed)} of {runs} runs failed. " + "; ".join(words)


def _check_folder(out: Path, tasks: int) -> None:
    """Refuse to mix one run and several in a folder."""
    if tasks > 1 and (out / "experiment.toml").exists():
        raise Mistake(f"{out} holds a single run, and this would be {tasks}: choose another --out folder")
    if tasks == 1 and (out / "runs.json").exists():
        raise Mistake(f"{out} holds several runs, and this would be one: choose another --out folder")


def _write_plan(title: str, tasks: Sequence[Task], out: Path) -> None:
    """The list of runs and their experiments, so that all can be resumed from the folder alone."""
    _refuse_to_forget(tasks, out)
    listed = [{"variant": t.variant, "seed": t.seed, "path": t.path} for t in tasks]
    plan = out / "runs.json.new"
    plan.write_text(json.dumps({"title": title, "runs": listed}, indent=2) + "\n", encoding="utf-8")
    plan.replace(out / "runs.json")
    for task in tasks:
        path = out / task.path / "experiment.toml"
        text = check_same(path, task.experiment) if path.exists() else to_toml(task.experiment)
        if text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)


def _refuse_to_forget(tasks: Sequence[Task], out: Path) -> None:
    """The table and the report are of the runs that are listed: none that is there may drop out of the list."""
    try:
        listed = json.loads((out / "runs.json").read_text(encoding="utf-8"))["runs"]
        lost = [f"{run['variant']} seed {run['seed']}" for run in listed if run["path"] not in {t.path for t in tasks}]
    except (OSError, ValueError, KeyError, TypeError):
        return  # a new folder, or a damaged list that is written anew
    if lost:
        raise Mistake(
            f"{out} also holds {', '.join(lost[:3])}{' and others' if len(lost) > 3 else ''}: ask for all of its runs "
            "(and more if you like), or choose another --out folder"
        )


def _messages(
    tasks: Sequence[Task], out: Path, jobs: int | None, data_dir: Path | None, profile: bool
) -> Iterator[Message]:
    jobs = jobs_for(tasks) if jobs is None else min(jobs, len(tasks))
    threads = max(1, cores() // jobs) if jobs > 1 else None
    work = [(t.experiment, Place(t.name, out / t.path, data_dir, True, threads, jobs, profile)) for t in tasks]
    return in_order(work) if jobs == 1 else side_by_side(work, jobs)


def jobs_for(tasks: Sequence[Task]) -> int:
    """How many runs side by side: a core each, but one at a time on a GPU or where an experiment cannot travel."""
    runtimes = [t.experiment.runtime for t in tasks]
    on_cpu = all(isinstance(r, InProcess) and r.device in ("cpu", "auto") for r in runtimes)
    if len(tasks) == 1 or not on_cpu:
        return 1
    if torch.cuda.is_available() and any(isinstance(r, InProcess) and r.device == "auto" for r in runtimes):
        return 1
    return min(cores(), len(tasks)) if _travels(tasks) else 1


def _travels(tasks: Sequence[Task]) -> bool:
    try:
        pickle.dumps([t.experiment for t in tasks])
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True
