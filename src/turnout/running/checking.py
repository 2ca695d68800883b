"""Verify the files of a run folder: each is read as a resumed run would read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from turnout.errors import UserError
from turnout.machine.checksums import load_tensors, read_json
from turnout.running.config.read import read_file
from turnout.running.loop import DELETE
from turnout.running.records import finding
from turnout.running.records.checkpoint import NAME as CHECKPOINT
from turnout.running.records.checkpoint import rounds_done, start_over
from turnout.running.records.records import Records
from turnout.running.state import is_held
from turnout.running.tracks.first_values import FILE as FIRST_VALUES
from turnout.running.tracks.first_values import kept_values

TABLES = {
    "environment.json": DELETE,
    "data.json": "run again with --resume, which writes it again",
    "state.json": "delete it: the records still show how far the run got",
    "tracking.json": "delete it, and trackers start a new run",
    "profile.json": "delete it; --profile measures again",
    "study.json": "the study's command with --resume writes it again",
}
LEFT = "a process was killed while writing this; it is not used, and can be deleted"


@dataclass(frozen=True)
class Checked:
    """A file that was checked.

    path   the file
    wrong  what is damaged, or None
    note   something unusual but harmless
    """

    path: Path
    wrong: str | None = None
    note: str | None = None


def checked_folder(folder: Path) -> Iterator[Checked]:
    """Check every file of a run, or of the runs below a folder, that this library would read back."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: name the folder of a run, or of several")
    listed = folder / finding.NAME
    if listed.is_file():
        yield _checked(listed, lambda: finding.read_run_list(folder))
    names = ("experiment.toml", "records.sqlite", "study.json")
    inside = sorted({path.parent for name in names for path in folder.rglob(name)})
    if not inside and not listed.is_file():
        raise UserError(f"{folder} holds no run: it has no experiment.toml and no runs.json")
    for path in inside:
        yield from _run(path)


def _run(folder: Path) -> Iterator[Checked]:
    if is_held(folder):
        yield Checked(folder, note="a process is running here: check again when it has ended")
        return
    checks: dict[str, Callable[[], object]] = {"experiment.toml": lambda: read_file(folder / "experiment.toml")}
    checks |= {name: partial(read_json, folder / name, then) for name, then in TABLES.items()}
    checks |= {"records.sqlite": lambda: _check_records(folder), CHECKPOINT: lambda: _check_checkpoint(folder)}
    yield from (_checked(folder / name, check) for name, check in checks.items() if (folder / name).is_file())
    if (folder / CHECKPOINT).is_file():
        yield _checked(folder / FIRST_VALUES, lambda: _check_first_values(folder))
    for path in sorted([*folder.glob("*.new"), *folder.glob("clients/*.new")]):
        yield Checked(path, note=LEFT)


def _check_records(folder: Path) -> None:
    with Records.read(folder / "records.sqlite") as records:
        records.check()
        last, seen = records.last_round(), rounds_done(folder)
        if seen > (-1 if last is None else last) + 1:
            raise UserError(f"{records.path} lacks rounds of {CHECKPOINT}: {start_over(folder)}")


def _check_checkpoint(folder: Path) -> None:
    _, about = load_tensors(folder / CHECKPOINT, start_over(folder))
    for name in about.get("client_files", []):
        load_tensors(folder / "clients" / str(name), start_over(folder))


def _check_first_values(folder: Path) -> None:
    _, about = load_tensors(folder / CHECKPOINT, start_over(folder))
    kept_values(folder, str(about.get("fingerprint")))


def _checked(path: Path, read: Callable[[], object]) -> Checked:
    try:
        read()
    except (UserError, OSError) as error:
        return Checked(path, wrong=str(error))
    return Checked(path)
