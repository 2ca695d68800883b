"""Which runs are made together and where: variants times seeds, listed in the folder's `runs.json`.

Several runs are a folder of run folders, `variant/seed-N`; a single run needs no subfolder. `named`, `tracked_by` and
`seeds_of` read the arguments of `to.run`.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.machine.checksums import text_with_checksum, write_json
from turnout.machine.files import write_whole
from turnout.machine.threads import script_left_alone
from turnout.running.config.read import to_toml
from turnout.running.config.run_file import check_same
from turnout.running.folder import file_name, unused_name
from turnout.running.records.finding import NAME, read_run_list

Several = Sequence[Experiment] | Mapping[str, Experiment]
Given = Experiment | Several
Seeds = int | Sequence[int]


@dataclass(frozen=True)
class PlannedRun:
    """One run of several.

    variant     the name of its experiment
    seed        its seed
    experiment  its settings
    path        its folder, below the common folder
    """

    variant: str
    seed: int
    experiment: Experiment
    path: str

    @property
    def name(self) -> str:
        return f"{self.variant} seed {self.seed}"


@dataclass(frozen=True)
class RunPlan:
    """Runs to make.

    title  their common title
    runs   in the order to make them
    out    their folder
    """

    title: str
    runs: Sequence[PlannedRun]
    out: Path

    def text(self) -> str:
        variants, seeds = len({run.variant for run in self.runs}), len({run.seed for run in self.runs})
        counted = [f"{n} {word}s" for n, word in ((variants, "variant"), (seeds, "seed")) if n > 1]
        return f"{self.title}: {' × '.join(counted) or 'one run'}, in {self.out}"


def planned_runs(variants: Mapping[str, Experiment], seeds: Sequence[int] | None = None) -> list[PlannedRun]:
    """Every variant with every seed; without seeds, each variant once with its own.

    >>> [run.path for run in planned_runs({"a b": Experiment(), "a/b": Experiment()})]
    ['a_b/seed-0', 'a_b-2/seed-0']
    """
    if seeds is None:
        listed = list(variants.items())
    else:
        listed = [(name, experiment.but(seed=seed)) for seed in seeds for name, experiment in variants.items()]
    if len(listed) == 1:
        return [PlannedRun(name, e.seed, e, ".") for name, e in listed]
    folders, used = dict[str, str](), set[str]()
    for name in variants:  # names that would give the same folder are numbered; some file systems ignore case
        folders[name] = unused_name(file_name(name), lambda folder: folder.lower() in used)
        used.add(folders[name].lower())
    return [PlannedRun(name, e.seed, e, f"{folders[name]}/seed-{e.seed}") for name, e in listed]


def check_folder(plan: RunPlan) -> None:
    """Refuse to mix one run and several in a folder."""
    out, runs = plan.out, len(plan.runs)
    if runs > 1 and (out / "experiment.toml").exists():
        raise UserError(f"{out} holds a single run, and this would be {runs}: choose another --out folder")
    if runs == 1 and (out / "runs.json").exists():
        raise UserError(f"{out} holds several runs, and this would be one: choose another --out folder")


def write_plan(plan: RunPlan) -> None:
    """Write the list of runs and their experiments, so that all can be resumed from the folder alone."""
    if lost := other_runs(plan):  # table and report show the listed runs only
        raise UserError(
            f"{plan.out} also holds {', '.join(lost[:3])}{' and others' if len(lost) > 3 else ''}: include all of its "
            "runs (and more if you like), or choose another --out folder"
        )
    for run in plan.runs:
        path = plan.out / run.path / "experiment.toml"
        text = check_same(path, run.experiment) if path.exists() else to_toml(run.experiment)
        if text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text_with_checksum(text))
    listed = [{"variant": run.variant, "seed": run.seed, "path": run.path} for run in plan.runs]
    write_json(plan.out / NAME, {"title": plan.title, "runs": listed})


def other_runs(plan: RunPlan) -> list[str]:
    """Runs in a folder that are not in a plan: listed there, or begun before the list was written."""
    paths = {run.path for run in plan.runs}
    try:
        listed = read_run_list(plan.out).runs
        return [run.name for run in listed if str(run.path.relative_to(plan.out)) not in paths]
    except (OSError, UserError):  # a new folder, or a damaged list, which will be rewritten
        files = sorted(plan.out.glob("*/seed-*/experiment.toml"))
        begun = {str(path.parent.relative_to(plan.out)): path.parent for path in files}
        return [f"{path.parent.name} {path.name}" for name, path in begun.items() if name not in paths]


def can_travel(runs: Sequence[PlannedRun]) -> bool:
    """Whether other processes can load these experiments: nothing in them belongs to the script itself."""
    try:
        with script_left_alone():
            pickle.dumps([run.experiment for run in runs])
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def named(given: Any) -> dict[str, Experiment]:
    """Experiments by name: a dict's own, else their titles, else their numbers."""
    if isinstance(given, Experiment):
        return {given.title or "run": given}
    by_name = given
    if isinstance(given, Sequence) and not isinstance(given, str):
        by_name = {getattr(e, "title", "") or f"experiment {i}": e for i, e in enumerate(given, 1)}
        if len(by_name) < len(given):
            raise UserError("two experiments have the same title: give a dict, {name: experiment}")
    if not isinstance(by_name, Mapping) or not by_name or not all(isinstance(e, Experiment) for e in by_name.values()):
        raise UserError(
            f"to.run was given {given!r}: give an Experiment (recipes are for `turnout run NAME`), or several, as a "
            "list or as a dict by name"
        )
    return {str(name): experiment for name, experiment in by_name.items()}


def tracked_by(variants: Mapping[str, Experiment], trackers: Sequence[str]) -> dict[str, Experiment]:
    """The experiments with these trackers added; they are settings, so that a resumed run keeps them."""
    tracked = {}
    for name, experiment in variants.items():
        listed = tuple(dict.fromkeys([*experiment.track, *trackers]))
        tracked[name] = experiment.but(track=listed) if trackers else experiment
    return tracked


def seeds_of(variants: Mapping[str, Experiment], seeds: Any) -> Sequence[int] | None:
    """The seeds that every experiment is repeated with; None if each runs once with its own.

    >>> seeds_of({"a": Experiment(seed=3)}, 2), seeds_of({"a": Experiment()}, None)
    ([3, 4], None)
    """
    if seeds is None:
        return None
    wanted = seeds
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        own = {experiment.seed for experiment in variants.values()}
        if len(own) > 1:
            raise UserError(f"the experiments have different seeds of their own ({sorted(own)}): give seeds as a list")
        wanted = range(min(own), min(own) + seeds)
    numbers = isinstance(wanted, Sequence) and all(isinstance(seed, int) for seed in wanted)
    if not numbers or not wanted or len(set(wanted)) < len(wanted):
        raise UserError(f"seeds is a number of seeds, at least 1, or a list of different ones, not {seeds!r}")
    return list(wanted)
