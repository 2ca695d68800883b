"""Which runs a folder holds: itself, those its `runs.json` lists, or those that lie below it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from turnout.errors import UserError
from turnout.machine.checksums import Damaged, read_json
from turnout.running.records.records import FILE, Records
from turnout.running.records.runs import FoundRun, RunRecords, Runs

NAME = "runs.json"
THEN = "the runs in the folders around it are intact; the command that made them, with --resume, writes the list again"


@dataclass(frozen=True)
class FoundRuns:
    """The runs of a folder.

    title    what they are called together
    runs     in the order listed
    single   the folder is a run itself
    waiting  those that are listed and have no records yet
    named    a target and a metric, where a user has added them to `runs.json`
    """

    title: str
    runs: list[FoundRun]
    single: bool = False
    waiting: list[FoundRun] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)


def read_run_list(folder: Path) -> FoundRuns:
    """The list of a folder; refuses one that is damaged or names folders elsewhere."""
    path = folder / NAME
    listed = read_json(path, THEN)
    try:
        runs = [FoundRun(str(e["variant"]), int(e["seed"]), folder / str(e["path"])) for e in listed["runs"]]
        for below in (PurePath(str(e["path"])) for e in listed["runs"]):  # written to, and the list may be a stranger's
            with suppress(FileNotFoundError, NotADirectoryError):
                (folder / below).lstat()  # a name that no file can have
            if below.is_absolute() or ".." in below.parts:
                raise UserError(f"{path} lists a run outside its folder ({below}): it cannot be resumed; make it again")
        named = {key: listed[key] for key in ("target", "metric") if listed.get(key) is not None}
        return FoundRuns(str(listed.get("title") or folder.absolute().name), runs, named=named)
    except UserError:
        raise
    except (OSError, OverflowError, ValueError, KeyError, TypeError, AttributeError) as error:
        like = '{"title": ..., "runs": [{"variant": ..., "seed": ..., "path": ...}]}'
        raise Damaged(path, f"it is not a list of runs, {like}: {error!r}", THEN) from error


def runs_in(folder: str | Path) -> FoundRuns:
    """The runs of a folder: itself, those its `runs.json` lists, or `<variant>/seed-<n>` below it."""
    folder = Path(folder)
    own = folder.absolute().name
    if (folder / FILE).is_file():
        return FoundRuns(own, [FoundRun(own, None, folder)], single=True)
    if (folder / NAME).is_file():
        listed = read_run_list(folder)
    else:
        runs = []
        for path in (file.parent for pattern in ("*", "*/*") for file in folder.glob(f"{pattern}/{FILE}")):
            number = re.fullmatch(r"seed-(\d+)", path.name)
            variant = str((path.parent if number else path).relative_to(folder))
            runs.append(FoundRun(own if variant == "." else variant, int(number[1]) if number else 0, path))
        listed = FoundRuns(own, sorted(runs, key=lambda run: (run.variant, run.seed)))
    present = [run for run in listed.runs if (run.path / FILE).is_file()]
    if not present:
        raise UserError(f"no records in {folder} yet; name the folder of a run (it has a file {FILE})")
    return replace(listed, runs=present, waiting=[run for run in listed.runs if run not in present])


def find_runs(folder: str | Path) -> Runs:
    """The records of a folder's runs."""
    several = runs_in(folder)
    runs = tuple(map(_read_run, several.runs))
    title = str(runs[0].settings().get("title") or several.title) if several.single else several.title
    stop, kinds = runs[0].settings().get("stop"), {"target": float | int, "metric": str}
    stop = stop if isinstance(stop, dict) else {}
    named = {key: stop[key] for key, kind in kinds.items() if isinstance(stop.get(key), kind)} | several.named
    return Runs(title, runs, len(several.waiting), **named)


def _read_run(run: FoundRun) -> RunRecords:
    with Records.read(run.path / FILE) as records:
        records.check_kinds()
        friends = list(records.rows("SELECT 1 FROM clients WHERE friend >= 0 AND friend != client LIMIT 1"))
        return RunRecords(
            run.variant,
            run.seed,
            run.path,
            rounds=records.rounds(),
            curves={name: records.curve(name) for name in records.metrics()},
            client_values={name: records.client_evaluation(name) for name in records.client_metrics()},
            events=records.events(),
            has_friends=bool(friends),
            glossary=records.glossary(),
            warned=tuple(records.warnings()),
            names=client_names(run.path),
        )


def client_names(path: Path) -> tuple[str, ...]:
    """The clients' names in a run's folder; none where the file is older or damaged: a report needs none."""
    try:
        names = read_json(path / "data.json", "").get("names")
    except (OSError, UserError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()
