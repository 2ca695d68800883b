"""Clients' own state by id: gather(ids), scatter(ids). Only clients that have some take room.

What a client keeps between rounds (personal parameters, residuals, control variates) is one row per name. Rows live on
the device that trains while they fit its share, then in the processor's memory, then in a file mapped into memory.
Checkpoints are incremental: each writes the rows that changed since the last one, and now and then all of them, so that
a round with a small cohort never rewrites a large population.

Shape letters: C clients asked for.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from turnout.machine.checksums import load_tensors, save_tensors
from turnout.machine.memory import to_device
from turnout.machine.profiling import staged
from turnout.types import Tensors

ENROLLED = "enrolled-"  # how files begin that say who real clients are: their rows are on their devices


def _there(index: Tensor) -> Callable[[torch.device], Tensor]:
    """An index on the device that is asked for, copied there once."""
    return cache(lambda device: to_device(index, device))


class ClientStore:
    """Rows per client, starting from `initial` (one client's state) for those never seen."""

    def __init__(
        self,
        initial: Tensors,
        memory_limit: int = 4 << 30,
        folder: Path | None = None,
        device: torch.device | None = None,
        device_limit: int = 0,
    ):
        """`device_limit`: bytes that rows may take on `device`; beyond it all of them move to memory."""
        self.initial = {name: value.detach().cpu() for name, value in initial.items()}
        self.memory_limit, self.folder = memory_limit, folder
        self.device, self.device_limit = device or torch.device("cpu"), device_limit
        self.clear()

    def clear(self) -> None:
        """Forget every client."""
        self._slot: dict[int, int] = {}
        self._free: list[int] = []  # slots of clients that were forgotten
        self._touched: set[int] = set()
        self._forgotten: set[int] = set()
        self._rows: Tensors = {name: self._allocate(name, 0) for name in self.initial}

    def __len__(self) -> int:
        return len(self._slot)

    @property
    def row_bytes(self) -> int:
        """What one client costs."""
        return sum(value.numel() * value.element_size() for value in self.initial.values())

    def knows(self, client_C: Tensor) -> Tensor:
        """Which of these clients have rows of their own."""
        return torch.tensor([c in self._slot for c in client_C.tolist()], dtype=torch.bool)

    @staged("client state")
    def gather(self, client_C: Tensor, wanted: Callable[[str], bool] = lambda name: True) -> Tensors:
        """The rows of some clients (of the wanted names); a client never seen has the initial ones."""
        if not self.initial:
            return {}
        slots = [self._slot.get(c, -1) for c in client_C.tolist()]
        known = torch.tensor([i for i, s in enumerate(slots) if s >= 0], dtype=torch.int64)
        where = torch.tensor([s for s in slots if s >= 0], dtype=torch.int64)
        result, there = {}, _there(where)
        for name, value in ((n, v) for n, v in self.initial.items() if wanted(n)):
            kept = self._rows[name]
            if len(known) == len(slots):
                result[name] = kept.index_select(0, there(kept.device))
                continue
            rows = value.to(kept.device).expand(len(slots), *value.shape).clone()
            rows[known.to(kept.device)] = kept[there(kept.device)]
            result[name] = rows
        return result

    @staged("client state")
    def scatter(self, client_C: Tensor, rows: Tensors) -> None:
        """Keep new rows for some clients."""
        if not self.initial:
            return
        clients = client_C.tolist()
        new = [c for c in dict.fromkeys(clients) if c not in self._slot]
        for c in new:
            self._slot[c] = self._free.pop() if self._free else len(self._slot)
        self._grow(len(self._slot) + len(self._free))
        fresh = torch.tensor([self._slot[c] for c in new], dtype=torch.int64)
        for name in self.initial.keys() - rows.keys():
            kept = self._rows[name]
            kept[fresh.to(kept.device)] = self.initial[name].to(kept.device)
        there = _there(torch.tensor([self._slot[c] for c in clients], dtype=torch.int64))
        for name, value in rows.items():
            kept = self._rows[name]
            kept.index_copy_(0, there(kept.device), value.detach().to(kept))
        self._touched.update(clients)

    def forget(self, client: int) -> None:
        """A client has left for good: if it comes back it is new."""
        if client in self._slot:
            self._free.append(self._slot.pop(client))
            self._touched.discard(client)
            self._forgotten.add(client)

    def _grow(self, needed: int) -> None:
        for name, value in self._rows.items():
            if needed > len(value):
                bigger = self._allocate(name, max(needed, 2 * len(value), 64))
                bigger[: len(value)] = value
                self._rows[name] = bigger

    def _allocate(self, name: str, rows: int) -> Tensor:
        like = self.initial[name]
        shape = (rows, *like.shape)
        if self.device.type != "cpu" and rows * self.row_bytes <= self.device_limit:
            return torch.empty(shape, dtype=like.dtype, device=self.device)
        if rows * self.row_bytes <= self.memory_limit:
            return torch.empty(shape, dtype=like.dtype)
        folder = self.folder or Path(tempfile.mkdtemp(prefix="turnout-store-"))
        path = folder / f"{name.replace('/', '.')}-{rows}.rows"
        folder.mkdir(parents=True, exist_ok=True)
        size = rows * like.numel()
        mapped = torch.from_file(str(path), shared=True, size=size, dtype=like.dtype).view(shape)
        if self.folder is None and os.name == "posix":  # the map keeps the file, and a killed process leaves nothing
            path.unlink()
            folder.rmdir()
        return mapped

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        """Write the rows that changed since `files` were written (all, once that is less); the new list of files.

        Files are valid only when the checkpoint that lists them is in place, so a kill in between loses nothing.
        """
        if not self.initial or (files and not self._touched and not self._forgotten):
            return files
        folder.mkdir(parents=True, exist_ok=True)
        written = sum((folder / f).stat().st_size for f in files)
        whole = not files or written > 2 * len(self._slot) * self.row_bytes
        clients = sorted(self._slot if whole else self._touched)
        name = f"clients-{mark}.safetensors"
        ids = torch.tensor(clients, dtype=torch.int64)
        about = {"client": ids, "forgotten": torch.tensor(sorted(self._forgotten), dtype=torch.int64)}
        save_tensors(folder / name, about | {n: v.cpu().contiguous() for n, v in self.gather(ids).items()}, {})
        self._touched.clear()
        self._forgotten.clear()
        return [name] if whole else [*files, name]

    def load(self, folder: Path, files: list[str]) -> None:
        """Go back to what these files say."""
        self.clear()
        for file in (file for file in files if not file.startswith(ENROLLED)):
            rows, _ = load_tensors(folder / file, "these rows are lost")
            for client in rows.pop("forgotten").tolist():
                self.forget(client)
            self.scatter(rows.pop("client"), rows)
        self._touched.clear()
        self._forgotten.clear()
