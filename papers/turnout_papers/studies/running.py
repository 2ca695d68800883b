"""Running a study: its parts one after another, each a folder of runs that can be killed and resumed."""

from __future__ import annotations

import fnmatch
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from turnout.errors import UserError, nearest
from turnout.experiment import DataSpec
from turnout.machine.checksums import json_text, table_of
from turnout.machine.files import write_whole
from turnout.machine.threads import cores
from turnout.running.folder import make_folder, refuse_full
from turnout.running.plan import RunPlan, planned_runs
from turnout.running.planned import Outcome, ended_runs, finished_runs
from turnout.running.records.records import Records
from turnout.running.records.warnings import stood_still
from turnout.view import HOOKS
from turnout_papers.studies.claims import NOT_RUN, REFUTED, Claim
from turnout_papers.studies.so_far import ended_folders, machines, refuse_none, seconds_at_work
from turnout_papers.studies.study import Curve, Curves, Look, Part, Plan, Row, Study, check_scale


@dataclass(frozen=True)
class Findings:
    """What a study found: the file `study.json`, field by field."""

    study: str
    scale: str
    rows: Sequence[Row]
    claims: Sequence[Claim]
    seconds: float
    failed: Sequence[str] = ()  # runs that could not be finished, and why
    command: str = ""  # what was typed
    machine: str = ""  # and where
    stalled: Sequence[str] = ()  # runs that did not move in the end, and why

    def to_json(self) -> str:
        return json_text(asdict(self) | {"claims": [_claim_row(c) for c in self.claims]}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "the text") -> Findings:
        try:
            found = table_of(text)
            rows, claims = [Row(**row) for row in found["rows"]], [_claim_of(claim) for claim in found["claims"]]
            return cls(found["study"], found["scale"], rows, claims, found["seconds"], **_later_fields(found))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{where} is not what `turnout study run --json` writes ({error})") from error


def _later_fields(found: dict[str, Any]) -> dict[str, Any]:
    """What files of earlier versions do not say."""
    said = {name: found[name] for name in ("command", "machine") if name in found}
    return said | {name: tuple(found.get(name, ())) for name in ("failed", "stalled")}


def _claim_row(claim: Claim) -> dict[str, Any]:
    return {
        "claim": claim.claim,
        "holds": claim.holds,
        "outcome": claim.outcome,
        "evidence": claim.evidence,
        "seeds_needed": claim.seeds_needed,
    }


def _claim_of(row: dict[str, Any]) -> Claim:
    """A claim from its row; files of earlier versions do not say what was refuted."""
    refuted = row.get("outcome") == REFUTED
    return Claim(row["claim"], row["holds"], row["evidence"], refuted, row.get("seeds_needed"))


def planned(study: Study, scale: str, seeds: int | None = None) -> Plan:
    """The study's plan at a scale, with another number of seeds where asked."""
    check_scale(scale)
    plan = study.plan(scale)
    if seeds is None:
        return plan
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: a study needs at least 1 seed (2 to decide anything)")
    return replace(plan, parts=_with_seeds(plan.parts, seeds))


def _with_seeds(parts: Sequence[Part], seeds: int | None) -> Sequence[Part]:
    """Another number of seeds to judge by; what settings are chosen on stays, so that the choice does."""
    if seeds is None:
        return parts
    return [part if part.first_seed else replace(part, seeds=seeds) for part in parts]


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
    so_far  train nothing: what the runs say that have ended in `out`
    """
    start = time.monotonic()
    plan = planned(study, scale, seeds)
    for pattern in only:
        refuse_nothing(pattern, plan)
    refuse_full(out, resume or so_far)
    if so_far:
        refuse_none(ended_folders(out), out)
    make_folder(out)
    _refuse_another(study, scale, out / "study.txt")
    ways = Ways(jobs, quiet, data_dir, so_far)
    curves = run_plan(study, plan, out, ways, only)
    if study.then is not None:
        chosen = replace(plan, parts=_with_seeds(study.then(scale, curves), seeds))
        those = naming(only, chosen.parts)  # none: whatever follows from the runs that were kept
        curves = joined(curves, run_plan(study, chosen, out, ways, those))
    rows, claims = study.rows(scale, curves), study.claims(scale, curves)
    if only:  # without the rows of runs that were left out
        rows = [row for row in rows if row.ours != NOT_RUN]
    for name, picture in study.pictures(scale, curves).items():
        write_whole(out / name, picture)
    ended = curves.folders if so_far or resume else []
    seconds = round(seconds_at_work(ended) if ended else time.monotonic() - start, 1)
    command = as_typed(study, scale, seeds, only) + (" --so-far" if so_far else "")
    said = machines(ended)
    where = said if so_far or said not in ("", "cpu") else machine()  # a resumed run may be of another machine
    findings = Findings(study.name, scale, rows, claims, seconds, curves.failed, command, where, curves.stalled)
    write_whole(out / "study.json", findings.to_json())
    return findings


def as_typed(study: Study, scale: str, seeds: int | None, only: Sequence[str]) -> str:
    """The command that makes these numbers."""
    chosen = [f"--seeds {seeds}"] if seeds is not None else []
    return " ".join(
        [f"turnout study run {study.name} --scale {scale}", *chosen, *(f"--only {shlex.quote(one)}" for one in only)]
    )


def machine() -> str:
    """The GPU, or how many cores."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{cores()} cores"


def _refuse_another(study: Study, scale: str, mark: Path) -> None:
    """A folder holds one study at one scale, which its study.txt names from the beginning."""
    text = f"{study.name} at {scale} scale\n"
    if mark.exists() and mark.read_text(encoding="utf-8") != text:
        raise UserError(
            f"{mark.parent} is of {mark.read_text(encoding='utf-8').strip()}, and this is {text.strip()}: choose "
            "another --out folder"
        )
    write_whole(mark, text)


def refuse_nothing(pattern: str, plan: Plan) -> None:
    names = [name for part in plan.parts for name in part.variants]
    if not fnmatch.filter(names, pattern):
        raise UserError(f"--only {pattern!r} is no run of this study at this scale: {nearest(pattern, names)}")


@dataclass(frozen=True)
class Ways:
    """How the runs of a study are made; `so_far`: they are not, those that ended are read."""

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

    def missing(self, parts: Sequence[Part]) -> dict[str, str]:
        """What cannot run here; what has run needs no data."""
        return {} if self.so_far else missing_data(parts, self.data_dir)


def run_plan(study: Study, plan: Plan, out: Path, ways: Ways, only: Sequence[str] = ()) -> Curves:
    """Run every part whose data can be had; runs that are complete already are not repeated.

    A run that failed on the way (its training diverged, say) is left out, with its seed where it would be compared.
    """
    failed: list[str] = []
    still: list[str] = []
    folders: list[Path] = []
    found: dict[str, dict[str, dict[int, Curve]]] = {metric: {} for metric in (study.metric, *study.more)}
    looks: dict[str, dict[int, Look]] = {}
    missing = ways.missing(plan.parts) | left_out(plan.parts, only)
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
                stood, curves = stood_still(records.column("skipped").tolist()), read_curves(records, study)
            still += [f"{entry.variant} seed {entry.seed}: {stood}"] if stood else []
            for metric, curve in curves.items():
                found[metric].setdefault(entry.variant, {})[entry.seed] = curve
            if study.look is not None:
                looks.setdefault(entry.variant, {})[entry.seed] = study.look(run)
    more = {metric: Curves(found[metric], missing) for metric in study.more}
    return Curves(found[study.metric], missing, more, looks, tuple(failed), tuple(still), folders)


def read_curves(records: Records, study: Study) -> dict[str, Curve]:
    """The curve of the study's metric, and of those of its other metrics that this run has."""
    known = {*records.metrics(), *records.rounds()}
    wanted = [study.metric, *(metric for metric in study.more if metric in known)]
    return {metric: Curve(*records.curve(metric)) for metric in wanted}


def joined(first: Curves, second: Curves) -> Curves:
    """Two sets of curves as one."""
    more = {metric: joined(first.more[metric], second.more[metric]) for metric in first.more}
    looks = {**first.looks, **second.looks}
    return Curves(
        {**first.curves, **second.curves},
        {**first.missing, **second.missing},
        more,
        looks,
        (*first.failed, *second.failed),
        (*first.stalled, *second.stalled),
        (*first.folders, *second.folders),
    )


def naming(only: Sequence[str], parts: Sequence[Part]) -> Sequence[str]:
    """Those of the patterns that name a run of these parts."""
    names = [name for part in parts for name in part.variants]
    return [one for one in only if fnmatch.filter(names, one)]


def left_out(parts: Sequence[Part], only: Sequence[str]) -> dict[str, str]:
    """The variants that --only leaves out, with the reason."""
    names = [name for part in parts for name in part.variants] if only else []
    return {name: "left out by --only" for name in names if not any(fnmatch.fnmatch(name, one) for one in only)}


def missing_data(parts: Sequence[Part], data_dir: Path | None) -> dict[str, str]:
    """The variants whose data cannot be had, with the reason; each data set is tried once."""
    tried: dict[object, str | None] = {}
    found = {}
    for part in parts:
        for name, experiment in part.variants.items():
            data = experiment.world.data
            source = (type(data), getattr(data, "split", None), getattr(data, "mirror", None))
            if source not in tried:
                tried[source] = _why_missing(data, data_dir)
            why = tried[source]
            if why is not None:
                found[name] = why
    return found


def _why_missing(data: DataSpec, data_dir: Path | None) -> str | None:
    """Why the files of a data set cannot be read; None if they can, or if it needs no files."""
    if not hasattr(data, "read"):
        return None
    try:
        data.read(data_dir)
    except UserError as mistake:
        return str(mistake)
    return None
