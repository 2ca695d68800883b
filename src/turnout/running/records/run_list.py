"""The list of runs that were made together: the file `runs.json` of a folder of run folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any

from turnout.errors import UserError
from turnout.machine.checksums import Damaged, read_json, write_json

NAME = "runs.json"
THEN = "the runs in the folders around it are intact; the command that made them, with --resume, writes the list again"


@dataclass(frozen=True)
class RunEntry:
    """One of the runs.

    variant  the name of its experiment
    seed     its seed
    path     its folder, below the folder of the list
    """

    variant: str
    seed: int
    path: str


@dataclass(frozen=True)
class RunList:
    """The runs of a folder.

    title  their common title
    runs   in the order made
    named  a target and a metric, if a user has added them
    """

    title: str
    runs: tuple[RunEntry, ...]
    named: dict[str, Any] = field(default_factory=dict)


def write_run_list(folder: Path, title: str, runs: Sequence[RunEntry]) -> None:
    write_json(folder / NAME, {"title": title, "runs": [asdict(run) for run in runs]})


def read_run_list(folder: Path) -> RunList:
    """The list of a folder; refuses one that is damaged or names folders elsewhere."""
    path = folder / NAME
    found = read_json(path, THEN)
    try:
        runs = tuple(RunEntry(str(e["variant"]), int(e["seed"]), str(e["path"])) for e in found["runs"])
        for below in (PurePath(run.path) for run in runs):  # runs are written there, and the list may be a stranger's
            if below.is_absolute() or ".." in below.parts:
                raise UserError(f"{path} lists a run outside its folder ({below}): it cannot be resumed; make it again")
        named = {key: found[key] for key in ("target", "metric") if found.get(key) is not None}
        return RunList(str(found.get("title") or folder.absolute().name), runs, named)
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        like = '{"title": ..., "runs": [{"variant": ..., "seed": ..., "path": ...}]}'
        raise Damaged(path, f"it is not a list of runs, {like}: {error!r}", THEN) from error
