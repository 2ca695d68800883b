"""The list of runs that were made together: the file `runs.json` of a folder of run folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any

from turnout.errors import UserError
from turnout.machine.checksums import Damaged, read_json, write_json

NAME = "runs.json"
THEN = (
    "the runs in the folders beside it are not touched by that; the command that made them, with --resume, writes the "
    "list anew"
)


@dataclass(frozen=True)
class ListedRun:
    """One of the runs; `path` is below the folder."""

    variant: str
    seed: int
    path: str


@dataclass(frozen=True)
class RunList:
    """The runs in their order; `named` are a target and a metric, where a person has added them."""

    title: str
    runs: tuple[ListedRun, ...]
    named: dict[str, Any] = field(default_factory=dict)


def write_run_list(folder: Path, title: str, runs: Sequence[ListedRun]) -> None:
    write_json(folder / NAME, {"title": title, "runs": [asdict(run) for run in runs]})


def read_run_list(folder: Path) -> RunList:
    """The list of a folder; one that is damaged, or that names folders elsewhere, is a mistake."""
    path = folder / NAME
    found = read_json(path, THEN)
    try:
        runs = tuple(ListedRun(str(e["variant"]), int(e["seed"]), _inside(path, e["path"])) for e in found["runs"])
        named = {key: found[key] for key in ("target", "metric") if found.get(key) is not None}
        return RunList(str(found.get("title") or folder.absolute().name), runs, named)
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        like = '{"title": ..., "runs": [{"variant": ..., "seed": ..., "path": ...}]}'
        raise Damaged(path, f"it is not a list of runs, {like}: {error!r}", THEN) from error


def _inside(path: Path, said: Any) -> str:
    """A path below the folder; a list that a stranger made may say another, and runs are written where it says."""
    below = PurePath(str(said))
    if below.is_absolute() or ".." in below.parts:
        raise UserError(f"{path} lists a run outside its folder ({said}): it cannot be gone on with; make it anew")
    return str(said)
