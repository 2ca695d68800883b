"""What a device keeps on its disk: its rows after each round that the server may still come back to.

A file a round, written in one step before the reply is sent. Which of them are its rows now is the server's to say: the
one of the last reply that was used. A server that was killed goes on from its last checkpoint, so files are kept until
a later one is in a checkpoint; a reply that was not used leaves nothing behind.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from turnout.deploy.flower.messages import NEVER, Standing
from turnout.machine.files import replacing
from turnout.types import Tensors


class RowsOnDisk:
    """The rows of one client, by run and round."""

    def __init__(self, folder: Path):
        self.folder = folder

    def _path(self, run: str, t: int) -> Path:
        return self.folder / run / f"{t:07d}.safetensors"

    def rounds(self, run: str) -> list[int]:
        """The rounds there are rows of."""
        return sorted(int(path.stem) for path in (self.folder / run).glob("*.safetensors"))

    def write(self, run: str, t: int, rows: Tensors) -> None:
        path = self._path(run, t)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            save_file({name: value.contiguous().cpu() for name, value in rows.items()}, temporary)

    def read(self, run: str, t: int) -> Tensors | None:
        """The rows after a round; None where they are lost."""
        try:
            return load_file(self._path(run, t))
        except (OSError, SafetensorError):
            return None

    def settle(self, standing: Standing) -> None:
        """Delete what will never be asked for: replies that were not used, and what is older than the checkpoint."""
        for t in self.rounds(standing.run):
            if t > standing.used or t < standing.durable:
                self._path(standing.run, t).unlink()

    def forget(self, run: str) -> None:
        self.settle(Standing(run, 0, NEVER, NEVER))
