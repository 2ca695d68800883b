"""Which runs a folder holds: a run itself, those its `runs.json` lists, or what lies below it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.machine.checksums import read_json
from turnout.running.records.records import Records
from turnout.running.records.run_list import NAME, RunEntry, RunList, read_run_list
from turnout.view.report.runs import FILE, RunRecords, Runs


@dataclass(frozen=True)
class FoundRun:
    """A run of a folder: what it is called, and where it is."""

    variant: str
    seed: int | None
    path: Path


@dataclass(frozen=True)
class FoundRuns:
    """The runs of a folder that have records, in the order listed; `waiting` are listed and have none yet."""

    title: str
    runs: list[FoundRun]
    single: bool  # the folder is a run itself
    waiting: list[FoundRun] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)  # a target and a metric, where `runs.json` names them


def runs_in(folder: str | Path) -> FoundRuns:
    """Which runs a folder holds: itself, those its `runs.json` lists, or `<variant>/seed-<n>` below it."""
    folder = Path(folder)
    if (folder / FILE).is_file():
        name = folder.absolute().name
        return FoundRuns(name, [FoundRun(name, None, folder)], single=True)
    listed = read_run_list(folder) if (folder / NAME).is_file() else _found(folder)
    runs = [FoundRun(entry.variant, entry.seed, folder / entry.path) for entry in listed.runs]
    present = [run for run in runs if (run.path / FILE).is_file()]
    if not present:
        raise UserError(f"no records in {folder} yet; name the folder of a run (it has a file {FILE})")
    waiting = [run for run in runs if run not in present]
    return FoundRuns(listed.title, present, single=False, waiting=waiting, named=listed.named)


def find_runs(folder: str | Path) -> Runs:
    """What the records of a folder's runs say."""
    found = runs_in(folder)
    runs = tuple(read_run(run.path, run.variant, run.seed) for run in found.runs)
    title = str(runs[0].settings().get("title") or found.title) if found.single else found.title
    return Runs(title, runs, len(found.waiting), **(_stop(runs[0]) | found.named))


def _stop(run: RunRecords) -> dict[str, Any]:
    stop = run.settings().get("stop")
    wanted = stop if isinstance(stop, dict) else {}
    return {
        key: wanted[key]
        for key, kind in (("target", float | int), ("metric", str))
        if isinstance(wanted.get(key), kind)
    }


def _found(folder: Path) -> RunList:
    paths = sorted(p.parent.relative_to(folder) for p in [*folder.glob(f"*/{FILE}"), *folder.glob(f"*/*/{FILE}")])
    entries = []
    for path in paths:
        number = re.fullmatch(r"seed-(\d+)", path.name)
        variant = str(path.parent) if number else str(path)
        variant = folder.absolute().name if variant == "." else variant  # the seeds of one variant
        entries.append(RunEntry(variant, int(number[1]) if number else 0, str(path)))
    return RunList(folder.absolute().name, tuple(sorted(entries, key=lambda entry: (entry.variant, entry.seed))))


def read_run(path: Path, variant: str, seed: int | None) -> RunRecords:
    """What the report needs of one run."""
    with Records.read(path / FILE) as records:
        friends = records.db.execute("SELECT 1 FROM clients WHERE friend >= 0 AND friend != client LIMIT 1")
        return RunRecords(
            variant,
            seed,
            path,
            rounds=records.rounds(),
            curves={name: records.curve(name) for name in records.metrics()},
            client_values={name: records.client_evaluation(name) for name in records.client_metrics()},
            events=records.events(),
            has_friends=friends.fetchone() is not None,
            glossary=records.glossary(),
            warned=tuple(records.warnings()),
            names=client_names(path),
        )


def client_names(path: Path) -> tuple[str, ...]:
    """The clients' names as the run's folder has them; none where the file is older or damaged: a report needs none."""
    try:
        names = read_json(path / "data.json", "").get("names")
    except (OSError, UserError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()
