"""Checkpoints: one safetensors file, never pickle, replaced in one step.

The tensors of the state tree are the file's tensors. Its numbers and strings are JSON in the file's metadata, with the
round, the fingerprint of the data and the list of files with the clients' rows (clients/store.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from turnout.errors import UserError
from turnout.machine.checksums import Damaged, load_tensors, save_tensors
from turnout.types import State, Tensors, flatten, unflatten

FORMAT = "turnout-checkpoint-1"
NAME = "checkpoint.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round."""

    round: int
    state: State
    fingerprint: str  # of the data and the model: a checkpoint of another experiment is refused
    client_files: list[str]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the old checkpoint in one step: a killed run has the old one or the new one."""
    tensors, plain = flatten(checkpoint.state)
    about = {
        "format": FORMAT,
        "round": checkpoint.round,
        "fingerprint": checkpoint.fingerprint,
        "client_files": checkpoint.client_files,
        "plain": plain,
    }
    save_tensors(path, _apart(tensors), about)


def _apart(tensors: Tensors) -> Tensors:
    """The tensors, with a copy of each that shares memory with an earlier one: safetensors refuses to write those."""
    seen: set[int] = set()
    result: Tensors = {}
    for name, value in tensors.items():
        own = value.detach().cpu().contiguous()
        shared = own.untyped_storage().data_ptr() in seen and own.numel() > 0
        result[name] = own.clone() if shared else own
        seen.add(result[name].untyped_storage().data_ptr())
    return result


def rounds_done(folder: Path) -> int:
    """How many rounds a run's checkpoint has seen; 0 without a readable checkpoint.

    Only the head of the file is read, through one handle, since the run may replace the file meanwhile.
    """
    try:
        with open(folder / NAME, "rb") as file:
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return int(json.loads(head["__metadata__"]["turnout"])["round"]) + 1
    except (OSError, OverflowError, MemoryError, ValueError, KeyError, TypeError):
        return 0


def read_checkpoint(path: Path, fingerprint: str, like: State) -> Checkpoint:
    """Read a checkpoint; one that is damaged or belongs to another experiment is a mistake.

    Each tensor is placed on the device it has in `like`, the state before the first round.
    """
    devices = {name: value.device for name, value in flatten(like)[0].items()}
    tensors, about = load_tensors(path, then := start_over(path.parent))
    if about.get("format") != FORMAT:
        raise UserError(f"{path} is not a checkpoint of this version of turnout: use another --out folder")
    before_first_values = fingerprint.partition("-")[0]  # what an earlier version wrote
    if about.get("fingerprint") not in (fingerprint, before_first_values):
        raise UserError(
            f"{path} belongs to other data or another model than this experiment's: use another --out folder, or run "
            "the folder's own experiment.toml"
        )
    placed = {name: value.to(devices.get(name, "cpu")) for name, value in tensors.items()}
    try:
        state = unflatten(placed, about["plain"])
        return Checkpoint(int(about["round"]), state, fingerprint, _names(about["client_files"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # of a version without a checksum
        raise Damaged(path, repr(error), then) from error


def _names(said: Any) -> list[str]:
    """Names of files in a folder of the run, and nowhere else."""
    if not all(isinstance(name, str) and PurePath(name).name == name for name in said):
        raise ValueError("it names files elsewhere")
    return list(said)


def start_over(folder: Path) -> str:
    """What to do when the state of a run is lost: its records are not."""
    return (
        f"delete {folder / NAME} and run again with --resume to start that run over; the rounds it has recorded can be "
        f"kept before, turnout export {folder} --csv DIR"
    )
