"""TensorBoard: event files in the run's folder, or a folder per run in a folder of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnout.machine.optional import optional
from turnout.running.tracking import TrackedRun


class TensorBoard:
    """Event files; `tensorboard --logdir DIR` shows them. Without a folder, in the run's own, under `tensorboard`."""

    def __init__(self, place: str | None = None):
        optional("tensorboard", "tracking by TensorBoard", "tensorboard")
        self._library = optional("torch.utils.tensorboard", "tracking by TensorBoard", "tensorboard")
        self.place = place
        self._writer: Any = None

    def begin(self, run: TrackedRun) -> str:
        names = [name.replace("/", "_") for name in dict.fromkeys((run.group, run.name))]
        folder = run.folder / "tensorboard" if self.place is None else Path(self.place, *names)
        # Later rounds that an earlier process logged are hidden: they are computed again.
        purge = run.first + 1 if run.before is not None else None
        self._writer = self._library.SummaryWriter(str(folder), purge_step=purge, flush_secs=5)
        if run.before is None and run.settings:
            rows = [f"| {name} | {value} |" for name, value in run.settings.items()]
            self._writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]))
        return str(folder)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def end(self, state: str) -> None:
        self._writer.close()
