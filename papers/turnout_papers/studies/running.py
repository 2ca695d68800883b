"""Running a study: its parts one after another, each a folder of runs that can be killed and resumed."""

from __future__ import annotations

import fnmatch
import importlib
import math
import pkgutil
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from turnout import Run
from turnout.errors import UserError, nearest
from turnout.machine.checksums import json_text, read_json, table_of
from turnout.machine.files import write_whole
from turnout.machine.threads import cores
from turnout.running.folder import make_folder, refuse_full
from turnout.running.loop import DELETE
from turnout.running.plan import RunPlan, planned_runs
from turnout.running.records.finding import read_run_list
from turnout.running.records.warnings import stood_still, went_wrong
from turnout.running.runs import Outcome, ended_runs, finished_runs
from turnout.running.state import state_of
from turnout.view import HOOKS
from turnout_papers import studies as package
from turnout_papers.studies.claims import EQUAL, NOT_RUN, REFUTED, UNDECIDED, UNTESTED, Claim
from turnout_papers.studies.drawing import draw
from turnout_papers.studies.study import Curve, Curves, Look, Part, ResultRow, Study, StudyPlan

SCALES = ("smoke", "small", "paper")
LOWER_IS_BETTER = ("loss", "perplexity")  # what such a metric's name has in it
NOT_FINITE = "not finite"  # what the error of a run that diverged says of an update, or of the test loss
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
    seconds       that the runs took, all together
    failed        runs that could not be finished for another reason than that they diverged, and why
    command       what was typed
    machine       and where
    stalled       runs that did not move in the end, lost what they had learned, or whose loss exploded, and how
    diverged      runs that diverged, and where; they rank last where they are compared
    notes         what was shrunk, and what the paper leaves open, when it was run
    looks         the numbers of seeds at which it is decided, fixed before the first run; none: they were not fixed
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
    diverged: Sequence[str] = ()
    notes: Sequence[str] = ()
    looks: Sequence[int] = ()

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
                Claim(
                    c["claim"], c["holds"], c["evidence"], c.get("outcome") == REFUTED, c.get("seeds_needed"),
                    c["outcome"] if c.get("outcome") in (EQUAL, UNTESTED) else UNDECIDED,
                )
                for c in found["claims"]
            ]  # fmt: skip
            later: dict[str, Any] = {name: found[name] for name in ("command", "machine") if name in found}
            later |= {name: tuple(found.get(name, ())) for name in ("failed", "stalled", "diverged", "notes", "looks")}
            return cls(found["study"], found["scale"], rows, claims, found["seconds"], **later)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{where} is not the study.json of a study ({error})") from error


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

    only    names of runs (with * and ?) to keep, beside those that are in `out` already; some may be of a later part,
            of which all runs are kept where none is named
    so_far  train nothing: read the runs that have ended in `out`
    """
    plan = planned(study, scale, seeds)
    names = _names(plan.parts)
    pending = [one for one in only if not fnmatch.filter(names, one)]  # they may name runs of a later part
    if pending and (study.then is None or len(pending) == len(only)):
        later = "" if study.then is None else " (runs that judge others are named beside these, not alone)"
        raise unmatched(pending[0], names, later)
    refuse_full(out, resume or so_far)
    if so_far and not any(state_of(file.parent).state == "finished" for file in out.rglob("experiment.toml")):
        raise UserError(f"no run has ended in {out}: leave out --so-far to run the study")
    unread = {} if so_far else missing_data(plan.parts, data_dir)
    for pattern in only or ["*"]:
        named = fnmatch.filter(names, pattern)
        if named and all(name in unread for name in named):
            words = f"--only {pattern!r} names no run" if only else f"{study.name} has no run at {scale} scale"
            raise UserError(f"{words} whose data can be read: {unread[named[0]]}")
    make_folder(out)
    text, mark = f"{study.name} at {scale} scale\n", out / "study.txt"  # a folder holds one study at one scale
    if mark.exists() and (other := mark.read_text(encoding="utf-8")) != text:
        raise UserError(f"{out} is of {other.strip()}, and this is {text.strip()}: choose another --out folder")
    write_whole(mark, text)
    play = partial(ended_runs if so_far else finished_runs, jobs=jobs, quiet=quiet, data_dir=data_dir)
    gathered = Gathered(study, out, play if so_far else partial(play, hooks=HOOKS), so_far)
    curves = gathered.run(plan.parts, only, unread)
    ran = {part.name for part in plan.parts}
    while study.then is not None:
        parts = [part for part in _with_seeds(study.then(scale, curves), seeds) if part.name not in ran]
        if not parts:
            break
        names = _names(parts)
        then_only = [one for one in only if fnmatch.filter(names, one)]  # none: all that follow
        pending = [one for one in pending if one not in then_only]
        if pending and not then_only:
            raise unmatched(pending[0], names)
        curves = gathered.run(parts, then_only, {} if so_far else missing_data(parts, data_dir))
        ran |= {part.name for part in parts}
    if pending:
        raise unmatched(pending[0], names)
    rows = [row for row in study.rows(scale, curves) if not only or row.ours != NOT_RUN]
    for name, picture in draw(study, scale, curves).items():
        write_whole(out / name, picture)
    options = ["--seeds", str(seeds)] * (seeds is not None) + [word for one in only for word in ("--only", one)]
    command = shlex.join(["turnout", "study", "run", study.name, "--scale", scale, *options, *["--so-far"] * so_far])
    claims, seconds = study.decide(scale, curves), round(gathered.seconds, 1)
    failed, stalled, diverged = tuple(gathered.failed), tuple(gathered.stalled), tuple(gathered.diverged)
    findings = Findings(
        study.name,
        scale,
        rows,
        claims,
        seconds,
        failed,
        command,
        gathered.machine,
        stalled,
        diverged,
        tuple(plan.notes),
        study.looks_at(scale),
    )
    write_whole(out / "study.json", findings.to_json())
    return findings


def unmatched(pattern: str, names: Sequence[str], advice: str = "") -> UserError:
    words = f"--only {pattern!r} matches no run of this study at this scale{advice}"
    return UserError(f"{words}: {nearest(pattern, names)}")


def _names(parts: Sequence[Part]) -> list[str]:
    return [name for part in parts for name in part.variants]


@dataclass
class Gathered:
    """What the runs of a study gave, part after part.

    study, out  which study, and its folder
    play        how a plan's runs are made, unless a part says otherwise
    so_far      nothing is trained: `play` reads the runs that have ended
    failed      runs that failed on the way, and why
    stalled     runs that did not move in the end, lost what they had learned, or whose loss exploded, and how
    diverged    runs that diverged, and where
    seconds     of all runs together
    """

    study: Study
    out: Path
    play: partial[Outcome]
    so_far: bool = False
    failed: list[str] = field(default_factory=list)
    stalled: list[str] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    seconds: float = 0.0
    found: dict[str, dict[str, dict[int, Curve]]] = field(default_factory=dict)
    looks: dict[str, dict[int, Look]] = field(default_factory=dict)
    runs: dict[str, dict[int, Run]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)

    @property
    def machine(self) -> str:
        """The GPUs, and this machine's cores if runs were made without one."""
        gpus = sorted(self.devices - {"cpu"})
        return ", ".join(gpus if gpus and "cpu" not in self.devices else [*gpus, f"{cores()} cores"])

    def run(self, parts: Sequence[Part], only: Sequence[str], unread: dict[str, str]) -> Curves:
        """Run every part but for `unread` variants, whose data cannot be read; runs that are complete already are not
        repeated.

        A run whose training diverged has the worst number there is; one that failed for another reason is left out,
        with its seed where it would be compared.
        """
        self.missing |= unread
        chosen = {name for one in only for name in fnmatch.filter(_names(parts), one)}
        if not self.so_far:  # those that an earlier `--only` began in this folder belong to it too
            folders = [self.out / part.name for part in parts if (self.out / part.name / "runs.json").exists()]
            chosen |= {run.variant for folder in folders for run in read_run_list(folder).runs}
        left_out = [name for name in _names(parts) if only and name not in chosen]
        self.missing |= dict.fromkeys(left_out, "left out by --only")
        for part in parts:
            variants = {name: experiment for name, experiment in part.variants.items() if name not in self.missing}
            if variants:
                title, folder = f"{self.study.name}: {part.name}", self.out / part.name
                self.add(part, RunPlan(title, planned_runs(variants, part.seed_range), folder))
                ran = self.found.get(self.study.metric, {})
                self.missing |= {name: "none of its runs ended" for name in variants if name not in ran}
        more = {metric: Curves(self.found.get(metric, {})) for metric in self.study.more}
        return Curves(self.found.get(self.study.metric, {}), self.missing, more, self.looks, self.runs)

    def add(self, part: Part, plan: RunPlan) -> None:
        """Make the runs of a part, and read them."""
        if self.so_far and part.play is not None:
            raise UserError(
                f"--so-far reads runs of one process, and those of {plan.title} are deployments: --resume takes those "
                "that have ended as they are, and makes the others"
            )
        given = {name: self.play.keywords[name] for name in ("jobs", "quiet", "data_dir")}
        done = self.play(plan) if part.play is None else part.play(plan, **given)
        wanted = (self.study.metric, *self.study.more)
        for failure in done.failed:
            words = f"{failure.name}: {failure.why.split(': ')[0]}"  # without advice
            if NOT_FINITE in words:
                self.diverged.append(words)
                it = next(planned for planned in plan.runs if planned.name == failure.name)
                lower = any(word in self.study.metric for word in LOWER_IS_BETTER)
                worst = Curve.diverged(math.inf if lower else -math.inf)
                self.found.setdefault(self.study.metric, {}).setdefault(it.variant, {})[it.seed] = worst
            else:
                self.failed.append(words)
        for entry, run in done.runs.items():
            self.runs.setdefault(entry.variant, {})[entry.seed] = run
            with run.records() as records:
                wrong = stood_still(records.column("skipped").tolist())
                if wrong is None and not part.first_seed:  # settings that are tried may be bad ones
                    wrong = went_wrong({m: records.curve(m) for m in records.metrics()}, records.glossary())
                self.seconds += float(records.column("seconds").sum())
                known = {self.study.metric, *records.metrics(), *records.rounds()}  # a run need not have all of them
                for metric in (metric for metric in wanted if metric in known):
                    by_seed = self.found.setdefault(metric, {}).setdefault(entry.variant, {})
                    by_seed[entry.seed] = Curve(*records.curve(metric))
            self.stalled += [f"{entry.variant} seed {entry.seed}: {wrong}"] if wrong else []
            about = read_json(run.folder / "environment.json", DELETE)
            self.devices.add(str(about.get("device_name") or about.get("device")))
            if self.study.look is not None:
                self.looks.setdefault(entry.variant, {})[entry.seed] = self.study.look(run)


def missing_data(parts: Sequence[Part], data_dir: Path | None) -> dict[str, str]:
    """The variants whose data files cannot be read, with the reason; each data set is tried once."""
    tried: dict[object, str | None] = {}
    found = {}
    for part in parts:
        for name, experiment in part.variants.items():
            data = getattr(experiment.world.data, "data", experiment.world.data)  # what a wrapper has inside
            source = (type(data), *(getattr(data, name, None) for name in ("split", "mirror", "name")))
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
