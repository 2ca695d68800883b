"""Whether the files of a run folder are what was written: each is read as a resumed run would read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from turnout.data.description import read_description
from turnout.errors import UserError
from turnout.machine.checksums import load_tensors, read_json
from turnout.running.config.read import open_table, read_file
from turnout.running.loop import DELETE
from turnout.running.records import run_list
from turnout.running.records.checkpoint import NAME as CHECKPOINT
from turnout.running.records.checkpoint import rounds_done, start_over
from turnout.running.records.records import Records
from turnout.running.state import is_held
from turnout.running.tracks.first_values import FILE as FIRST_VALUES
from turnout.running.tracks.first_values import kept_values
from turnout.running.tracks.rebuild import built_now

TABLES = {
    "environment.json": DELETE,
    "data.json": "run again with --resume, which writes it anew",
    "state.json": "delete it: the folder still says how far the run got",
    "tracking.json": "delete it, and trackers begin anew",
    "profile.json": "delete it; --profile measures again",
    "study.json": "the study's command with --resume writes it anew",
}
LEFT = "a process was killed while it wrote this; it is not used, and can be deleted"


@dataclass(frozen=True)
class Checked:
    """A file that was looked at: what is wrong with it, or None; `note` where something is odd and harmless."""

    path: Path
    wrong: str | None = None
    note: str | None = None


def checked_folder(folder: Path) -> Iterator[Checked]:
    """Look at every file of a run, or of the runs of a folder, that this library would read back."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: name that of a run, or of several")
    inside = [folder]
    if (folder / run_list.NAME).is_file():
        found = _looked_at(folder / run_list.NAME, lambda: run_list.read_run_list(folder))
        yield found
        if found.wrong is None:
            inside += [folder / run.path for run in run_list.read_run_list(folder).runs]
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
        yield Checked(folder, note="a process is running here: look again when it has ended")
        return
    settings = folder / "experiment.toml"
    if settings.is_file():
        yield _looked_at(settings, lambda: read_file(settings))
    for name, then in TABLES.items():
        path = folder / name
        if path.is_file():
            yield _looked_at(path, lambda path=path, then=then: read_json(path, then))  # type: ignore[misc]
    if (folder / "records.sqlite").is_file():
        yield _looked_at(folder / "records.sqlite", lambda: _records(folder))
    if (folder / CHECKPOINT).is_file():
        yield _looked_at(folder / CHECKPOINT, lambda: _state(folder))
        yield _first_values(folder)
    for path in sorted([*folder.glob("*.new"), *folder.glob("clients/*.new")]):
        yield Checked(path, note=LEFT)


def _records(folder: Path) -> None:
    with Records.read(folder / "records.sqlite") as records:
        records.check()
        last, seen = records.last_round(), rounds_done(folder)
        if seen > (-1 if last is None else last) + 1:
            raise UserError(f"{records.path} lacks rounds that {CHECKPOINT} has seen: {start_over(folder)}")


def _state(folder: Path) -> None:
    """The checkpoint, and the files of clients' rows that it lists."""
    then = start_over(folder)
    _, about = load_tensors(folder / CHECKPOINT, then)
    for name in about.get("client_files", []):
        load_tensors(folder / "clients" / str(name), then)


def _first_values(folder: Path) -> Checked:
    """What the run keeps of its model before the first round, and whether the same model is built today."""
    path = folder / FIRST_VALUES
    try:
        begun = kept_values(folder, str(load_tensors(folder / CHECKPOINT, start_over(folder))[1].get("fingerprint")))
    except (UserError, OSError) as error:
        return Checked(path, wrong=str(error))
    kept = read_description(folder)
    if begun is None or kept is None:  # a run of an older version
        return Checked(path)
    try:
        now = built_now(open_table(read_file(folder / "experiment.toml")), kept)
    except Exception as error:  # whatever a function that builds a model does
        why = str(error).partition(": give the experiment")[0]
        return Checked(path, note=f"it cannot be compared with the model that is built today ({why})")
    return _looked_at(path, lambda: begun.refuse_other(now, folder))


def _looked_at(path: Path, read: Callable[[], object]) -> Checked:
    try:
        read()
    except (UserError, OSError) as error:
        return Checked(path, wrong=str(error))
    return Checked(path)
