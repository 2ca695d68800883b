"""A folder that is used already: what it holds, which choices there are, and deleting the run in it."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.running.config.run_file import changed_settings
from turnout.running.folder import RUN_FILES, contents, held, is_lock
from turnout.running.records.checkpoint import rounds_done
from turnout.running.records.records import Records
from turnout.running.stop_rules import Progress, reason_to_stop

WRITTEN = RUN_FILES | {
    "environment.json", "records.sqlite", "records.sqlite-wal", "records.sqlite-shm", "checkpoint.safetensors",
    "turnout.csv", "events.csv", "replay.toml", "names.csv", "report.html", "curves.svg", "profile.json", "data.json",
    "state.json", "tracking.json", "untrained.safetensors",
}  # fmt: skip
FOLDERS = {"clients", "tensorboard", "wandb"}  # with clients' rows, and what trackers keep in a run's folder


def refuse_used(folder: Path, experiment: Experiment) -> None:
    """Refuse a folder with a run in it, and name the choices: to go on, another folder, to delete it first."""
    there = set(contents(folder))
    if "runs.json" in there:
        raise UserError(
            f"{folder} holds several runs. Choose one: another folder keeps them, overwrite=True deletes them first"
        )
    if "experiment.toml" not in there:
        return  # whatever it is, refuse_full has a sentence for it
    changed = changed_settings(folder / "experiment.toml", experiment)
    if changed:
        differ = f"{', '.join(changed[:3])} differ{'s' * (len(changed) == 1)}"
        raise UserError(
            f"{folder} holds another experiment ({differ}). Choose one: another folder keeps both, overwrite=True "
            "deletes it first"
        )
    done, wanted = rounds_done(folder), experiment.rounds
    if done >= wanted or _stopped(folder, experiment):
        what, resumed = f"complete with {done} rounds", "returns it"
    else:
        what, resumed = f"with {done} of {wanted} rounds", "goes on with it"
    raise UserError(
        f"{folder} holds this experiment, {what}. Choose one: resume=True {resumed}, another folder keeps it beside a "
        "new run, overwrite=True deletes it first"
    )


def _stopped(folder: Path, experiment: Experiment) -> bool:
    """Whether a stop rule has ended the run."""
    if not (folder / "records.sqlite").is_file():
        return False
    with Records.read(folder / "records.sqlite") as records:
        return reason_to_stop(experiment, Progress.from_records(records, experiment)) is not None


def refuse_to_delete(folder: Path) -> None:
    """Refuse to delete a folder that holds no run, or something that no run wrote."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, and a run needs a folder: choose another")
    there = contents(folder)
    if there and not RUN_FILES & set(there):
        raise UserError(f"{folder} holds no run, but {', '.join(there[:3])}: overwrite=True deletes runs only")
    for path in folder.rglob("*"):
        name = path.name.removesuffix(".new")
        inside = FOLDERS & set(path.relative_to(folder).parts[:-1])
        if not (path.is_dir() and not path.is_symlink()) and name not in WRITTEN and not inside and not is_lock(path):
            raise UserError(
                f"{folder} also holds {path.relative_to(folder)}, which no run wrote: move it away, or choose another "
                "folder, since overwrite=True deletes all of it"
            )


def delete_run(folder: Path, holding: bool = False) -> None:
    """Delete the run in a folder, or the runs; one that another process is working in stays, and so does the lock.

    `holding`: this process holds the folder already.
    """
    refuse_to_delete(folder)
    if not folder.is_dir():
        return
    with nullcontext() if holding else held(folder):
        for used in {path.parent for path in folder.rglob("experiment.toml")} - {folder}:
            with held(used):
                pass
        for path in [path for path in folder.iterdir() if not is_lock(path)]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
