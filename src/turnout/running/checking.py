"""Verify the files of a run folder: each is read as a resumed run would read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from turnout.data.description import read_description
from turnout.errors import UserError
from turnout.machine.checksums import load_tensors, read_json
from turnout.running.config.read import open_table, read_file
from turnout.running.loop import DELETE
from turnout.running.records import finding
from turnout.running.records.checkpoint import NAME as CHECKPOINT
from turnout.running.records.checkpoint import rounds_done, start_over
from turnout.running.records.records import Records
from turnout.running.state import is_held
from turnout.running.tracks.first_values import FILE as FIRST_VALUES
from turnout.running.tracks.first_values import kept_values
from turnout.running.tracks.rebuild import built_now

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
    """Check every file of a run, or of the runs of a folder, that this library would read back."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: name the folder of a run, or of several")
    inside = [folder]
    if (folder / finding.NAME).is_file():
        found = _checked(folder / finding.NAME, lambda: finding.read_run_list(folder))
        yield found
        if found.wrong is None:
            inside += [run.path for run in finding.read_run_list(folder).runs]
        else:
            inside += sorted(path.parent for path in folder.glob("*/seed-*/experiment.toml"))
    elif not any((folder / name).is_file() for name in ("experiment.toml", "study.txt", "records.sqlite")):
        inside = sorted({path.parent for path in folder.rglob("experiment.toml")})
        if not inside:
            raise UserError(f"{folder} holds no run: it has no experiment.toml and no runs.json")
    for path in dict.fromkeys(inside):
        yield from _run(path)


def _run(folder: Path) -> Iterator[Checked]:
    if is_held(folder):
        yield Checked(folder, note="a process is running here: check again when it has ended")
        return
    settings = folder / "experiment.toml"
    if settings.is_file():
        yield _checked(settings, lambda: read_file(settings))
    for name, then in TABLES.items():
        path = folder / name
        if path.is_file():
            yield _checked(path, lambda path=path, then=then: read_json(path, then))  # type: ignore[misc]
    if (folder / "records.sqlite").is_file():
        yield _checked(folder / "records.sqlite", lambda: _check_records(folder))
    if (folder / CHECKPOINT).is_file():
        then = start_over(folder)
        try:
            _, about = load_tensors(folder / CHECKPOINT, then)
            for name in about.get("client_files", []):
                load_tensors(folder / "clients" / str(name), then)
            yield Checked(folder / CHECKPOINT)
        except (UserError, OSError) as error:
            yield Checked(folder / CHECKPOINT, wrong=str(error))
        yield _first_values(folder)
    for path in sorted([*folder.glob("*.new"), *folder.glob("clients/*.new")]):
        yield Checked(path, note=LEFT)


def _check_records(folder: Path) -> None:
    with Records.read(folder / "records.sqlite") as records:
        records.check()
        last, seen = records.last_round(), rounds_done(folder)
        if seen > (-1 if last is None else last) + 1:
            raise UserError(f"{records.path} lacks rounds of {CHECKPOINT}: {start_over(folder)}")


def _first_values(folder: Path) -> Checked:
    """Check the initial values of the model, and that the same model is built today."""
    path = folder / FIRST_VALUES
    try:
        begun = kept_values(folder, str(load_tensors(folder / CHECKPOINT, start_over(folder))[1].get("fingerprint")))
    except (UserError, OSError) as error:
        return Checked(path, wrong=str(error))
    kept = read_description(folder)
    if kept is None:
        return Checked(path)
    try:
        now = built_now(open_table(read_file(folder / "experiment.toml")), kept)
    except Exception as error:  # any failure of a user's model function
        why = str(error).partition(": give the experiment")[0]
        return Checked(path, note=f"cannot compare it with the model that is built today ({why})")
    return _checked(path, lambda: begun.refuse_other(now, folder))


def _checked(path: Path, read: Callable[[], object]) -> Checked:
    try:
        read()
    except (UserError, OSError) as error:
        return Checked(path, wrong=str(error))
    return Checked(path)
