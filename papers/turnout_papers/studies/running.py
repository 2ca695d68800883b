"""Running a study: its parts one after another, each a folder of runs that can be killed and resumed."""

from __future__ import annotations

import fnmatch
import importlib
import math
import pkgutil
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from turnout.errors import UserError, nearest
from turnout.machine.checksums import json_text, read_json, table_of
from turnout.machine.files import write_whole
from turnout.machine.threads import cores
from turnout.running.folder import make_folder, refuse_full
from turnout.running.loop import DELETE
from turnout.running.plan import RunPlan, planned_runs
from turnout.running.records.records import Records
from turnout.running.records.warnings import stood_still
from turnout.running.runs import Outcome, ended_runs, finished_runs
from turnout.running.state import RECORDS, state_of
from turnout.view import HOOKS
from turnout_papers import studies as package
from turnout_papers.studies.claims import NOT_RUN, REFUTED, Claim
from turnout_papers.studies.study import Curve, Curves, Look, Part, ResultRow, Study, StudyPlan

SCALES = ("smoke", "small", "paper")
ORDER = ("Flexible participation", "EFL", "Labels and models", "FDMS", "MTFL")  # how `reproduces` begins, by paper


@cache
def studies() -> dict[str, Study]:
    """All studies by name, by paper and table, those of no paper last: every module here that has a `STUDY` is one."""
    names = [f"{package.__name__}.{info.name}" for info in pkgutil.iter_modules(package.__path__)]
    listed = [getattr(importlib.import_module(name), "STUDY", None) for name in names if name != __name__]
    found: dict[str, Study] = {}

    def place(study: Study) -> tuple[int, str]:
        paper = next((i for i, name in enumerate(ORDER) if study.reproduces.startswith(name)), len(ORDER))
        return paper, study.reproduces

    for study in sorted((s for s in listed if s is not None), key=place):
        if study.name in found:
            raise ValueError(f"two studies are called {study.name!r}")
        found[study.name] = study
    return found


def find_study(name: str) -> Study:
    if not isinstance(name, str) or name not in studies():
        raise UserError(f"there is no study {name!r}: {nearest(name, studies())}")
    return studies()[name]


# -- findings


@dataclass(frozen=True)
class Findings:
    """What a study found: the file `study.json`, field by field.

    study, scale  which study, and how large
    rows          numbers beside the published ones
    claims        what the paper claims, decided
    seconds       how long the runs took
    failed        runs that could not be finished, and why
    command       what was typed
    machine       and where
    stalled       runs that did not move in the end, and why
    """

    study: str
    scale: str
    rows: Sequence[ResultRow]
    claims: Sequence[Claim]
    seconds: float
    failed: Sequence[str] = ()
    command: str = ""
    machine: str = ""
    stalled: Sequence[str] = ()

    def to_json(self) -> str:
        fields = ("claim", "holds", "outcome", "evidence", "seeds_needed")
        claims = [{name: getattr(claim, name) for name in fields} for claim in self.claims]
        return json_text(asdict(self) | {"claims": claims}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "the text") -> Findings:
        """Read a file of this or an earlier version; those had fewer fields, and no `outcome` of a claim."""
        try:
            found = table_of(text)
            rows = [ResultRow(**row) for row in found["rows"]]
            claims = [
                Claim(c["claim"], c["holds"], c["evidence"], c.get("outcome") == REFUTED, c.get("seeds_needed"))
                for c in found["claims"]
            ]
            later: dict[str, Any] = {name: found[name] for name in ("command", "machine") if name in found}
            later |= {name: tuple(found.get(name, ())) for name in ("failed", "stalled")}
            return cls(found["study"], found["scale"], rows, claims, found["seconds"], **later)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{where} is not what `turnout study run --json` writes ({error})") from error


# -- running


def planned(study: Study, scale: str, seeds: int | None = None) -> StudyPlan:
    """The study's plan at a scale, with another number of seeds where asked."""
    if scale not in SCALES:
        raise UserError(f"there is no scale {scale!r}: {nearest(scale, SCALES)}")
    if seeds is not None and seeds < 1:
        raise UserError(f"--seeds {seeds}: a study needs at least 1 seed (2 to decide anything)")
    plan = study.plan(scale)
    return replace(plan, parts=_with_seeds(plan.parts, seeds))


def _with_seeds(parts: Sequence[Part], seeds: int | None) -> Sequence[Part]:
    """Another number of seeds to judge by; those that settings are chosen on stay, so that the choice does."""
    return [part if part.first_seed or seeds is None else replace(part, seeds=seeds) for part in parts]


def run_study(
    study: Study,
    scale: str,
    out: Path,
    *,
    seeds: int | None = None,
    jobs: int | None = None,
    resume: bool = False,
    quiet: bool = False,
    data_dir: Path | None = None,
    only: Sequence[str] = (),
    so_far: bool = False,
) -> Findings:
    """Run a study, decide its claims, draw its pictures, all in `out`.

    only    names of runs (with * and ?) to keep
    so_far  train nothing: read the runs that have ended in `out`
    """
    start = time.monotonic()
    plan = planned(study, scale, seeds)
    names = _names(plan.parts)
    for pattern in only:
        if not fnmatch.filter(names, pattern):
            raise UserError(f"--only {pattern!r} matches no run of this study at this scale: {nearest(pattern, names)}")
    refuse_full(out, resume or so_far)
    if so_far and not any(state_of(file.parent).state == "finished" for file in out.rglob("experiment.toml")):
        raise UserError(f"no run has ended in {out}: leave out --so-far to run the study")
    make_folder(out)
    text, mark = f"{study.name} at {scale} scale\n", out / "study.txt"  # a folder holds one study at one scale
    if mark.exists() and (other := mark.read_text(encoding="utf-8")) != text:
        raise UserError(f"{out} is of {other.strip()}, and this is {text.strip()}: choose another --out folder")
    write_whole(mark, text)
    ways = Ways(jobs, quiet, data_dir, so_far)
    curves = run_plan(study, plan, out, ways, only)
    if study.then is not None:
        chosen = replace(plan, parts=_with_seeds(study.then(scale, curves), seeds))
        then_only = [one for one in only if fnmatch.filter(_names(chosen.parts), one)]  # none: all that follow
        curves = joined(curves, run_plan(study, chosen, out, ways, then_only))
    rows, claims = study.rows(scale, curves), study.claims(scale, curves)
    if only:  # without the rows of runs that were left out
        rows = [row for row in rows if row.ours != NOT_RUN]
    for name, picture in study.pictures(scale, curves).items():
        write_whole(out / name, picture)
    ended = curves.folders if so_far or resume else []
    seconds = round(seconds_at_work(ended) if ended else time.monotonic() - start, 1)
    options = ["--seeds", str(seeds)] * (seeds is not None) + [word for one in only for word in ("--only", one)]
    command = shlex.join(["turnout", "study", "run", study.name, "--scale", scale, *options, *["--so-far"] * so_far])
    about: list[Mapping[str, Any]] = [read_json(folder / "environment.json", DELETE) for folder in ended]
    where = ", ".join(sorted({str(one.get("device_name") or one.get("device")) for one in about}))
    if not so_far and where in ("", "cpu"):  # a resumed run may be of another machine
        where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{cores()} cores"
    findings = Findings(study.name, scale, rows, claims, seconds, curves.failed, command, where, curves.stalled)
    write_whole(out / "study.json", findings.to_json())
    return findings


def _names(parts: Sequence[Part]) -> list[str]:
    return [name for part in parts for name in part.variants]


@dataclass(frozen=True)
class Ways:
    """How the runs of a study are made.

    jobs      runs side by side; None: as many as there are cores
    quiet     without progress
    data_dir  where data files are
    so_far    train nothing: read the runs that have ended
    """

    jobs: int | None = None
    quiet: bool = False
    data_dir: Path | None = None
    so_far: bool = False

    def play(self, part: Part, plan: RunPlan) -> Outcome:
        if self.so_far and part.play is not None:
            raise UserError(
                f"--so-far reads runs of one process, and those of {plan.title} are deployments: --resume takes those "
                "that have ended as they are, and makes the others"
            )
        play = ended_runs if self.so_far else part.play or partial(finished_runs, hooks=HOOKS)
        return play(plan, jobs=self.jobs, quiet=self.quiet, data_dir=self.data_dir)


def run_plan(study: Study, plan: StudyPlan, out: Path, ways: Ways, only: Sequence[str] = ()) -> Curves:
    """Run every part whose data can be had; runs that are complete already are not repeated.

    A run that failed on the way (its training diverged, for example) is left out, with its seed where it would be
    compared.
    """
    failed: list[str] = []
    still: list[str] = []
    folders: list[Path] = []
    found: dict[str, dict[str, dict[int, Curve]]] = {metric: {} for metric in (study.metric, *study.more)}
    looks: dict[str, dict[int, Look]] = {}
    missing = {} if ways.so_far else missing_data(plan.parts, ways.data_dir)
    left_out = [name for name in _names(plan.parts) if only and not any(fnmatch.fnmatch(name, one) for one in only)]
    missing |= dict.fromkeys(left_out, "left out by --only")
    for part in plan.parts:
        variants = {name: experiment for name, experiment in part.variants.items() if name not in missing}
        if not variants:
            continue
        title, seeds, folder = f"{study.name}: {part.name}", part.seed_range, out / part.name
        done = ways.play(part, RunPlan(title, planned_runs(variants, seeds), folder))
        failed += [f"{failure.name}: {failure.why.split(': ')[0]}" for failure in done.failed]  # without the advice
        missing |= {name: "none of its runs ended" for name in variants if all(r.variant != name for r in done.runs)}
        folders += [run.folder for run in done.runs.values()]
        for entry, run in done.runs.items():
            with run.records() as records:
                stood = stood_still(records.column("skipped").tolist())
                known = {study.metric, *records.metrics(), *records.rounds()}  # a run need not have all of them
                for metric in (metric for metric in found if metric in known):
                    found[metric].setdefault(entry.variant, {})[entry.seed] = Curve(*records.curve(metric))
            still += [f"{entry.variant} seed {entry.seed}: {stood}"] if stood else []
            if study.look is not None:
                looks.setdefault(entry.variant, {})[entry.seed] = study.look(run)
    more = {metric: Curves(found[metric], missing) for metric in study.more}
    return Curves(found[study.metric], missing, more, looks, tuple(failed), tuple(still), folders)


def joined(first: Curves, second: Curves) -> Curves:
    """Two sets of curves as one."""
    return Curves(
        {**first.curves, **second.curves},
        {**first.missing, **second.missing},
        {metric: joined(first.more[metric], second.more[metric]) for metric in first.more},
        {**first.looks, **second.looks},
        (*first.failed, *second.failed),
        (*first.stalled, *second.stalled),
        (*first.folders, *second.folders),
    )


def missing_data(parts: Sequence[Part], data_dir: Path | None) -> dict[str, str]:
    """The variants whose data files cannot be read, with the reason; each data set is tried once."""
    tried: dict[object, str | None] = {}
    found = {}
    for part in parts:
        for name, experiment in part.variants.items():
            data = experiment.world.data
            source = (type(data), getattr(data, "split", None), getattr(data, "mirror", None))
            if source not in tried:
                tried[source] = None
                try:
                    if hasattr(data, "read"):
                        data.read(data_dir)
                except UserError as mistake:
                    tried[source] = str(mistake)
            if (why := tried[source]) is not None:
                found[name] = why
    return found


# -- studies that were resumed


def seconds_at_work(folders: Sequence[Path]) -> float:
    """How long some of these runs were at work: pauses in between, of hours or days, do not count."""
    spans = []
    for folder in folders:
        with Records.read(folder / RECORDS) as records:
            end = state_of(folder).when
            spans.append((end - float(records.column("seconds").sum()), end))
    return covered(spans)


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of what spans of time cover together.

    >>> covered([(0.0, 3.0), (10.0, 12.0), (2.0, 4.0)])
    6.0
    """
    total, until = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
