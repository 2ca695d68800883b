"""What can be had from a run, finished or not: its records, curves, report and trained model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from turnout.errors import Mistake
from turnout.experiment import Experiment
from turnout.records.records import Records
from turnout.running.frames import as_frame, client_columns, round_columns
from turnout.running.loop import read_state
from turnout.running.stop_rules import Progress, reason_to_stop
from turnout.tracks.prepare import prepare


@dataclass(frozen=True)
class Run:
    """A finished (or interrupted) run."""

    folder: Path
    experiment: Experiment
    data_dir: Path | None = None

    def records(self) -> Records:
        """The records, open for reading."""
        return Records.read(self.folder / "records.sqlite")

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """A metric as (rounds, values)."""
        with self.records() as records:
            rounds, values = records.curve(metric)
            return rounds.tolist(), values.tolist()

    def final(self, metric: str) -> float:
        """A metric at its last evaluation."""
        return self.curve(metric)[1][-1]

    def rounds(self) -> int:
        """How many rounds are recorded."""
        with self.records() as records:
            last = records.last_round()
            return 0 if last is None else last + 1

    def stopped(self) -> str | None:
        """Which stop rule ended the run before its last round; None if none did."""
        with self.records() as records:
            if (records.last_round() or 0) + 1 >= self.experiment.rounds:
                return None
            return reason_to_stop(self.experiment, Progress.from_records(records, self.experiment))

    def warnings(self) -> list[str]:
        """What is odd about the run: that nobody trained, that the loss exploded, that a class is held by nobody."""
        from turnout.report import find_runs, warnings_of

        return warnings_of(find_runs(self.folder).runs[0])

    def report(self) -> Path:
        """Write report.html and return its path."""
        from turnout.report import write_report

        return write_report(self.folder)

    def frame(self, clients: bool = False) -> Any:
        """The records as a pandas DataFrame: a row per round, or with `clients` one per client and round.

        Round -1 is the evaluation before training.
        """
        with self.records() as records:
            if clients:
                return as_frame(client_columns(records), ["round", "client"])
            return as_frame(round_columns(records), ["round"])

    def _repr_html_(self) -> str:
        """What a notebook shows: the numbers in short, and the curves."""
        from turnout.report import runs_html

        return runs_html(self.folder)

    def model(self, client: int | None = None) -> nn.Module:
        """The trained model as an ordinary module; for a client, with that client's personal parameters.

        Without a client, personal parameters have their initial values, or their average if they were shared.
        """
        track = prepare(self.experiment, self.data_dir)
        if client is not None and not 0 <= client < track.clients:
            raise Mistake(f"there is no client {client}: they are 0 to {track.clients - 1}")
        found = read_state(track, self.folder)
        if found is None:
            raise Mistake(f"{self.folder} has no checkpoint yet: the run has not got that far")
        return track.module(track.unpack(found.state), client)


def open_run(folder: str | Path, data_dir: str | Path | None = None, experiment: Experiment | None = None) -> Run:
    """A run from its folder; if its file cannot name all of its objects, give the experiment as well."""
    from turnout.config.read import load

    path = Path(folder)
    if (path / "runs.json").is_file() or any(path.glob("seed-*/experiment.toml")):
        raise Mistake(f"{path} holds several runs: name one of the folders in it")
    if not (path / "experiment.toml").is_file():
        raise Mistake(f"{path} is not a run folder: it has no experiment.toml")
    return Run(path, experiment or load(path / "experiment.toml"), Path(data_dir) if data_dir else None)
