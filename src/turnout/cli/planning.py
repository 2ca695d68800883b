"""From the arguments of `turnout run` to a plan of runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.parts.closing import Closing, Deadline, FirstReplies, WaitForAll
from turnout.recipes import cook, find_recipe
from turnout.running.config.read import from_table, load, with_setting, with_value
from turnout.running.config.text import parse_value, read_file
from turnout.running.config.variants import variants_in
from turnout.running.folder import contents, new_folder
from turnout.running.given import tracked_by
from turnout.running.plan import PlannedRun, RunPlan, other_runs, planned_runs
from turnout.running.records.run_list import ListedRun, read_run_list

DEFAULT_RECIPE = "participation"
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
    deadlines: str | None = None,
) -> RunPlan:
    """The runs that were asked for, with trackers; `--resume --out DIR` without a source means those in the folder."""
    plan = _asked_for(source, settings, grid, seeds, out, resume, deadlines)
    runs = [replace(run, experiment=tracked_by({"": run.experiment}, track)[""]) for run in plan.runs]
    return replace(plan, runs=runs)


def _asked_for(
    source: str | None,
    settings: Sequence[str],
    grid: Sequence[str],
    seeds: int | None,
    out: Path | None,
    resume: bool,
    deadlines: str | None,
) -> RunPlan:
    if resume and out is None:
        raise UserError("--resume goes on with the runs of a folder: name it, turnout run --out DIR --resume")
    bare = source is None and resume and not grid and seeds is None and deadlines is None
    if bare and out is not None and _holds_runs(out):
        return _from_folder(out, settings)
    if bare and out is not None and not out.exists():
        raise UserError(
            f"there is no folder {out} to go on with: turnout run --out {out} starts the recipe {DEFAULT_RECIPE} there"
        )
    if source == "":
        raise UserError("the recipe or file is an empty text: leave it out for the default, or see turnout list")
    refuse_twice(settings, grid)
    title, variants = read_source(source or DEFAULT_RECIPE)
    variants = {name: with_settings(experiment, settings) for name, experiment in variants.items()}
    variants = with_deadlines(with_grid(variants, grid), deadlines)
    first = next(iter(variants.values())).seed
    count = seeds or (SEEDS_TO_COMPARE if len(variants) > 1 else 1)
    plan = RunPlan(title, planned_runs(variants, range(first, first + count)), out or new_folder(title))
    if source is None and resume:
        _refuse_other(plan)
    return plan


def _refuse_other(plan: RunPlan) -> None:
    """Nobody named what a folder's runs are of: they may be those of the default recipe, and no others."""
    folders = {run.path.partition("/")[0] for run in plan.runs}
    if _holds_runs(plan.out):
        mine = (plan.out / "runs.json").is_file() and not other_runs(plan)
    else:
        mine = {*contents(plan.out)} <= folders and not other_runs(plan)
    if not mine:
        raise UserError(
            f"{plan.out} holds other runs than those of {DEFAULT_RECIPE}, or none: name the recipe or file that they "
            "are of; or, where it has an experiment.toml or runs.json, leave out --grid and --seeds"
        )


def read_source(source: str) -> tuple[str, dict[str, Experiment]]:
    """A title and the variants of a recipe or of a file; a recipe goes before what is called the same here."""
    path = Path(source)
    if path.suffix != ".toml" and ":" not in source and find_recipe(source) is not None:
        return source, cook(source)
    if path.suffix == ".toml" or path.is_file():
        table = read_file(path)
        title = str(table.get("title") or path.stem)
        return title, variants_in(table) or {title: from_table(table)}
    if path.is_dir():
        raise UserError(
            f"{source} is a folder: give a recipe or a .toml file, or go on with it by --out {source} --resume"
        )
    return source.rpartition(":")[2], cook(source)


def one_experiment(source: str) -> Experiment:
    """The experiment of a recipe or a file; of several variants the first."""
    return next(iter(read_source(source)[1].values()))


def with_settings(experiment: Experiment, settings: Sequence[str]) -> Experiment:
    for setting in settings:
        experiment = with_setting(experiment, setting)
    return experiment


def refuse_twice(settings: Sequence[str], grid: Sequence[str]) -> None:
    """Refuse a path that two --grid vary, and a --set that a --grid would replace."""
    seen: set[str] = set()
    for path in (_path(axis) for axis in grid):
        if path in seen:
            raise UserError(f"--grid {path} is there twice: give all its values at once, --grid {path}=...,...")
        seen.add(path)
    if lost := [path for path in map(_path, settings) if path in seen]:
        raise UserError(f"--set {lost[0]} has no effect beside --grid {lost[0]}: leave one of them out")


def _path(setting: str) -> str:
    """The path of `a.b=c`; a part's `kind` stands for the part."""
    return setting.partition("=")[0].strip().removesuffix(".kind")


def with_deadlines(variants: Mapping[str, Experiment], deadlines: str | None) -> dict[str, Experiment]:
    """Every variant with every deadline, named after it; a closing that has `seconds` keeps its other settings."""
    if deadlines is None:
        return dict(variants)
    found = {}
    for said in deadlines.split(","):
        seconds = _seconds(said.strip())
        name = "no deadline" if seconds is None else f"deadline {seconds:g} s"
        for variant, experiment in variants.items():
            label = f"{variant}, {name}" if len(variants) > 1 else name
            found[label] = experiment.but(**{"algorithm.closing": _with_seconds(experiment, seconds)})
    return found


def _with_seconds(experiment: Experiment, seconds: float | None) -> Closing:
    """How rounds are closed with another deadline."""
    closing = getattr(experiment.algorithm, "closing", None)
    if seconds is None:
        return WaitForAll()
    return replace(closing, seconds=seconds) if isinstance(closing, Deadline | FirstReplies) else Deadline(seconds)


def _seconds(said: str) -> float | None:
    """A deadline as it was written; None for none."""
    if said == "none":
        return None
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UserError(f"--deadline {said!r}: give simulated seconds, such as --deadline 30,60,none")
    return seconds


def with_grid(variants: Mapping[str, Experiment], grid: Sequence[str]) -> dict[str, Experiment]:
    """Every variant with every combination of the grid's values, named after them."""
    axes = [parse_axis(axis) for axis in grid]
    named = short_names([path for path, _ in axes])
    if not axes:
        return dict(variants)
    found: dict[str, Experiment] = {}
    for (name, experiment), values in itertools.product(variants.items(), itertools.product(*(v for _, v in axes))):
        words = [name] if len(variants) > 1 else []
        for (path, _), value in zip(axes, values, strict=True):
            experiment = with_value(experiment, path, parse_value(value))
            words.append(f"{named[path]}={value}")
        found[", ".join(words)] = experiment
    return found


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """The last word of each path, or the whole path if several end in the same word.

    >>> short_names(["algorithm.weighting", "algorithm.local.epochs"])
    {'algorithm.weighting': 'weighting', 'algorithm.local.epochs': 'epochs'}
    """
    last = [path.rpartition(".")[2] for path in paths]
    return {path: word if last.count(word) == 1 else path for path, word in zip(paths, last, strict=True)}


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
        raise UserError(f"--grid {axis}: seeds are repeated with --seeds N")
    if len(set(values)) < len(values):
        raise UserError(f"--grid {axis}: a value is there twice")
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


def _from_folder(out: Path, settings: Sequence[str]) -> RunPlan:
    """The runs in a folder, finished or not."""
    entries: Sequence[ListedRun] = [ListedRun("", 0, ".")]
    title = out.name
    if (out / "runs.json").is_file():
        listed = read_run_list(out)
        title, entries = listed.title, listed.runs
    runs = []
    for entry in entries:
        experiment = with_settings(load(out / entry.path / "experiment.toml"), settings)
        runs.append(PlannedRun(entry.variant or experiment.title or title, experiment.seed, experiment, entry.path))
    return RunPlan(title, runs, out)
