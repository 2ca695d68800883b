"""From the arguments of `turnout run` to a plan of runs, and to one run in several processes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.recipes import cook, find_recipe
from turnout.running.config.read import from_table, load, parse_value, read_file
from turnout.running.config.variants import variants_in, with_setting, with_value
from turnout.running.folder import contents, new_folder
from turnout.running.plan import PlannedRun, RunPlan, other_runs, planned_runs, tracked_by
from turnout.running.records.finding import read_run_list
from turnout.running.records.runs import FoundRun
from turnout.runtimes.crew import WORKERS
from turnout.runtimes.processes import GROUP, Ranks, opened, under_torchrun
from turnout.settings import InProcess, Processes

DEFAULT_RECIPE = "absence"
SEEDS_TO_COMPARE = 3


def check_numbers(seeds: int | None, jobs: int | None) -> None:
    for name, value in (("--seeds", seeds), ("--jobs", jobs)):
        if value is not None and value < 1:
            raise UserError(f"{name} {value}: give at least 1")


def make_plan(
    source: str | None,
    settings: Sequence[str],
    grid: Sequence[str],
    seeds: int | None,
    out: Path | None,
    resume: bool,
    track: Sequence[str] = (),
) -> RunPlan:
    """The planned runs, with trackers; `--resume --out DIR` without a source means the runs in the folder."""
    if resume and out is None:
        raise UserError("--resume needs the folder of the runs: turnout run --out DIR --resume")
    if source is None and resume and not grid and seeds is None and out is not None:
        if _holds_runs(out):
            return _from_folder(out, settings, track)
        if not out.exists():
            raise UserError(
                f"there is no folder {out} to resume: turnout run --out {out} starts the recipe {DEFAULT_RECIPE} there"
            )
    if source == "":
        raise UserError("the recipe or file is an empty text: leave it out for the default, or see turnout list")
    refuse_twice(settings, grid)
    title, variants = read_source(source or DEFAULT_RECIPE)
    variants = {name: _with_settings(experiment, settings) for name, experiment in variants.items()}
    variants = tracked_by(with_grid(variants, grid), track)
    first = next(iter(variants.values())).seed
    count = seeds or (SEEDS_TO_COMPARE if len(variants) > 1 else 1)
    plan = RunPlan(title, planned_runs(variants, range(first, first + count)), out or new_folder(title))
    if source is None and resume:
        _refuse_other(plan)
    return plan


def _refuse_other(plan: RunPlan) -> None:
    """Refuse to resume a folder without a named source unless its runs are those of the default recipe."""
    if _holds_runs(plan.out):
        mine = (plan.out / "runs.json").is_file() and not other_runs(plan)
    else:
        folders = {run.path.partition("/")[0] for run in plan.runs}
        mine = {*contents(plan.out)} <= folders and not other_runs(plan)
    if not mine:
        raise UserError(
            f"{plan.out} holds other runs than those of {DEFAULT_RECIPE}, or none: name their recipe or file; or, if "
            "it has an experiment.toml or runs.json, leave out --grid and --seeds"
        )


def read_source(source: str) -> tuple[str, dict[str, Experiment]]:
    """A title and the variants of a recipe or of a file; a recipe takes precedence over a file of the same name."""
    path = Path(source)
    if path.suffix != ".toml" and ":" not in source and find_recipe(source) is not None:
        return source, cook(source)
    if path.suffix == ".toml" or path.is_file():
        table = read_file(path)
        title = str(table.get("title") or path.stem)
        return title, variants_in(table) or {title: from_table(table)}
    if path.is_dir():
        raise UserError(f"{source} is a folder: give a recipe or a .toml file, or resume it: --out {source} --resume")
    return source.rpartition(":")[2], cook(source)


def one_experiment(source: str) -> Experiment:
    """The experiment of a recipe or a file; the first of several variants."""
    return next(iter(read_source(source)[1].values()))


def _with_settings(experiment: Experiment, settings: Sequence[str]) -> Experiment:
    for setting in settings:
        experiment = with_setting(experiment, setting)
    return experiment


def refuse_twice(settings: Sequence[str], grid: Sequence[str]) -> None:
    """Refuse a path in two --grid options, and a --set that a --grid would replace."""
    seen: set[str] = set()
    for path in map(_path, grid):
        if path in seen:
            raise UserError(f"--grid {path} is given twice: give all its values at once, --grid {path}=...,...")
        seen.add(path)
    if lost := [path for path in map(_path, settings) if path in seen]:
        raise UserError(f"--set {lost[0]} has no effect together with --grid {lost[0]}: leave one of them out")


def _path(setting: str) -> str:
    """The path of `a.b=c`; a part's `kind` stands for the part."""
    return setting.partition("=")[0].strip().removesuffix(".kind")


def with_grid(variants: Mapping[str, Experiment], grid: Sequence[str]) -> dict[str, Experiment]:
    """Every variant with every combination of the grid's values, named after them."""
    axes = [parse_axis(axis) for axis in grid]
    if not axes:
        return dict(variants)
    last = [path.rpartition(".")[2] for path, _ in axes]
    named = {path: word if last.count(word) == 1 else path for (path, _), word in zip(axes, last, strict=True)}
    found: dict[str, Experiment] = {}
    for (name, experiment), values in itertools.product(variants.items(), itertools.product(*(v for _, v in axes))):
        words = [name] if len(variants) > 1 else []
        for (path, _), value in zip(axes, values, strict=True):
            experiment = with_value(experiment, path, parse_value(value))
            words.append(f"{named[path]}={value}")
        found[", ".join(words)] = experiment
    return found


def parse_axis(axis: str) -> tuple[str, list[str]]:
    """One --grid as a path and its values.

    >>> parse_axis("model.hidden=[10,20],[30]")
    ('model.hidden', ['[10,20]', '[30]'])
    """
    path, equals, text = axis.partition("=")
    values = split_values(text)
    if not equals or not path.strip() or not all(values):
        raise UserError(f"--grid {axis}: write it as path=value,value, such as --grid algorithm.local.epochs=1,5,10")
    if path.strip() == "seed":
        raise UserError(f"--grid {axis}: repeat seeds with --seeds N")
    if len(set(values)) < len(values):
        raise UserError(f"--grid {axis}: a value is given twice")
    return path.strip(), values


def split_values(text: str) -> list[str]:
    """Split at commas that are not inside brackets or quotes."""
    values, depth, quote = [""], 0, ""
    for ch in text:
        quote = "" if ch == quote else quote or (ch if ch in "\"'" else "")
        depth += 0 if quote else (ch in "[{") - (ch in "]}")
        if ch == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += ch
    return [value.strip() for value in values]


def _holds_runs(out: Path) -> bool:
    return (out / "runs.json").is_file() or (out / "experiment.toml").is_file()


def _from_folder(out: Path, settings: Sequence[str], track: Sequence[str]) -> RunPlan:
    """The runs in a folder, finished or not."""
    title, found = out.name, [FoundRun("", 0, out)]
    if (out / "runs.json").is_file():
        listed = read_run_list(out)
        title, found = listed.title, listed.runs
    runs = []
    for run in found:
        given = _with_settings(load(run.path / "experiment.toml"), settings)
        experiment = tracked_by({"": given}, track)[""]
        path = str(run.path.relative_to(out))
        runs.append(PlannedRun(run.variant or experiment.title or title, experiment.seed, experiment, path))
    return RunPlan(title, runs, out)


# -- one run in several processes: `--processes N`, or `torchrun ... -m turnout run`


def follows() -> bool:
    """Whether this is one of torchrun's processes other than the first, which has the plan."""
    return under_torchrun() and os.environ["RANK"] != "0"


def with_processes(plan: RunPlan, processes: int | None, jobs: int | None) -> RunPlan:
    """The plan with so many processes for each run; under torchrun, as many as it has started."""
    started = int(os.environ["WORLD_SIZE"]) if under_torchrun() else None
    if started is not None and jobs is not None and jobs > 1:
        raise UserError(f"--jobs {jobs} under torchrun: its processes work on one run at a time; leave --jobs out")
    if started is not None and processes not in (None, started):
        raise UserError(f"--processes {processes}, but torchrun has started {started}: leave --processes out")
    number = started if processes is None else processes
    if number is None:
        return plan
    if number < 1:
        raise UserError(f"--processes {number}: give at least 1")
    runs = []
    for run in plan.runs:
        runtime = run.experiment.runtime
        if not isinstance(runtime, InProcess | Processes):
            raise UserError(f"--processes {number} together with runtime.kind = {runtime.kind!r}: use only one of them")
        runs.append(replace(run, experiment=run.experiment.but(runtime=Processes(number, runtime.compute))))
    return replace(plan, runs=runs)


@contextmanager
def joined() -> Iterator[None]:
    """Join torchrun's other processes from the beginning, so that they end when all runs have ended."""
    with WORKERS.reused():
        if under_torchrun():
            WORKERS.get(GROUP, lambda: opened(int(os.environ["WORLD_SIZE"])), Ranks.end)
        yield
