"""Checkpoints: one safetensors file, never pickle, replaced in one step.

The tensors of the state tree are the file's tensors. Its numbers and strings are JSON in the file's metadata, with the
round, the fingerprint of the data and the list of files with the clients' rows (clients/store.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePath

from turnout.errors import UserError
from turnout.machine.checksums import Damaged, load_tensors, save_tensors
from turnout.types import State, Tensors, flatten, unflatten

FORMAT = "turnout-checkpoint-1"
NAME = "checkpoint.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round.

    round         its number
    state         the server's state as a tree
    fingerprint   a hash of the data and the model: a checkpoint of another experiment is refused
    client_files  the files with the clients' rows
    """

    round: int
    state: State
    fingerprint: str
    client_files: list[str]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the old checkpoint in one step: after a kill there is the old one or the new one."""
    flat, plain = flatten(checkpoint.state)
    seen: set[int] = set()
    tensors: Tensors = {}
    for name, value in flat.items():
        own = value.detach().cpu().contiguous()
        shared = own.untyped_storage().data_ptr() in seen and own.numel() > 0
        tensors[name] = own.clone() if shared else own  # safetensors refuses tensors that share memory
        seen.add(tensors[name].untyped_storage().data_ptr())
    about = {
        "format": FORMAT,
        "round": checkpoint.round,
        "fingerprint": checkpoint.fingerprint,
        "client_files": checkpoint.client_files,
        "plain": plain,
    }
    save_tensors(path, tensors, about)


def rounds_done(folder: Path) -> int:
    """The number of rounds in a run's checkpoint; 0 without a readable checkpoint."""
    try:
        with open(folder / NAME, "rb") as file:
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return int(json.loads(head["__metadata__"]["turnout"])["round"]) + 1
    except (OSError, OverflowError, MemoryError, ValueError, KeyError, TypeError):
        return 0


def read_checkpoint(path: Path, fingerprint: str, like: State) -> Checkpoint:
    """Read a checkpoint; refuses one that is damaged or belongs to another experiment."""
    devices = {name: value.device for name, value in flatten(like)[0].items()}
    tensors, about = load_tensors(path, then := start_over(path.parent))
    if about.get("format") != FORMAT:
        raise UserError(f"{path} is not a checkpoint of this version of turnout: use another --out folder")
    if about.get("fingerprint") != fingerprint:
        raise UserError(
            f"{path} belongs to other data or another model than this experiment's: use another --out folder, or run "
            "the folder's own experiment.toml"
        )
    placed = {name: value.to(devices.get(name, "cpu")) for name, value in tensors.items()}
    try:
        state = unflatten(placed, about["plain"])
        names = list(about["client_files"])
        if not all(isinstance(name, str) and PurePath(name).name == name for name in names):
            raise ValueError("it names files elsewhere")
        return Checkpoint(int(about["round"]), state, fingerprint, names)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # written by hand, without a checksum
        raise Damaged(path, repr(error), then) from error


def start_over(folder: Path) -> str:
    """What to do when the state of a run is lost, but not its records."""
    return (
        f"delete {folder / NAME} and run again with --resume to start that run over; to keep its recorded rounds, "
        f"first turnout export {folder} --csv DIR"
    )
