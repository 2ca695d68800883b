"""Checkpoints: one safetensors file, never pickle, replaced in one step.

The tensors of the state tree are the file's tensors. Its numbers and strings are JSON in the file's metadata, with the
round, the fingerprint of the data and the list of files with the clients' rows (clients/store.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from turnout.errors import Mistake
from turnout.machine.files import replacing
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
    with replacing(path) as temporary:
        save_file(_apart(tensors), temporary, {"turnout": json.dumps(about)})


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
    try:
        with safe_open(path, "pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {}).get("turnout", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        raise Mistake(
            f"{path} is damaged ({error}): delete it and run again with --resume to start that run over"
        ) from error
    if about.get("format") != FORMAT:
        raise Mistake(f"{path} is not a checkpoint of this version of turnout: use another --out folder")
    if about["fingerprint"] != fingerprint:
        raise Mistake(
            f"{path} belongs to other data or another model than this experiment's: use another --out folder, or run "
            "the folder's own experiment.toml"
        )
    placed = {name: value.to(devices.get(name, "cpu")) for name, value in tensors.items()}
    return Checkpoint(about["round"], unflatten(placed, about["plain"]), about["fingerprint"], about["client_files"])
