"""Runs, finished or not: their records, curves, report and trained model; and groups of runs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

from torch import nn

from turnout.data.description import Description, read_description
from turnout.errors import UserError, nearest, optional
from turnout.experiment import Experiment, Stop
from turnout.machine.terminal import harmless
from turnout.models import Model
from turnout.running.charts.units import show
from turnout.running.config.dotted import allowing
from turnout.running.config.read import open_table, read_file
from turnout.running.records.export import as_frame, client_columns, round_columns
from turnout.running.records.finding import find_runs, runs_in
from turnout.running.records.records import Records
from turnout.running.records.warnings import warnings_of
from turnout.running.state import state_of
from turnout.running.stop_rules import Progress, reason_to_stop
from turnout.running.tracks.prepare import prepare
from turnout.running.trained import trained_model, trained_weights
from turnout.types import Tensors

PRINTED = 20  # runs of a group that are printed


class InFolder:
    """Runs in a folder, with their report."""

    folder: Path

    def report(self) -> Path:
        """Write report.html and return its path."""
        return Path(_view("page").write_report(self.folder))

    def _repr_html_(self) -> str:
        """The output in a notebook: a summary or table of the results, and the curves."""
        return str(_view("short").runs_html(self.folder))


def _view(module: str) -> Any:
    """A module of turnout.view.report, imported by name: the core does not depend on it."""
    return importlib.import_module(f"turnout.view.report.{module}")


@dataclass(frozen=True, repr=False)
class Run(InFolder):
    """A finished (or interrupted) run.

    folder      its folder
    experiment  its settings
    data_dir    the folder of data files
    """

    folder: Path
    experiment: Experiment
    data_dir: Path | None = None

    def __repr__(self) -> str:
        """Its state, in a line."""
        state = state_of(self.folder)
        measured = f", {state.metric} {show(state.value, state.unit)}" if state.value is not None else ""
        return harmless(
            f"Run in {self.folder}: {state.state}, {state.done:,}/{self.experiment.rounds:,} rounds{measured}"
        )

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
        """The number of recorded rounds."""
        with self.records() as records:
            last = records.last_round()
            return 0 if last is None else last + 1

    def stopped(self) -> str | None:
        """The stop rule that ended the run before its last round; None if none did."""
        with self.records() as records:
            if self.experiment.stop == Stop() or (records.last_round() or 0) + 1 >= self.experiment.rounds:
                return None
            return reason_to_stop(self.experiment, Progress.from_records(records, self.experiment))

    def warnings(self) -> list[str]:
        """Sentences about likely problems: no client trained, training diverged, no client holds a class."""
        return warnings_of(find_runs(self.folder).runs[0])

    def frame(self, clients: bool = False) -> Any:
        """The records as a pandas DataFrame: a row per round, or with `clients` one per client and round.

        Round -1 is the evaluation before training.
        """
        with self.records() as records:
            if clients:
                return as_frame(client_columns(records), ["round", "client"])
            return as_frame(round_columns(records), ["round"])

    def model(self, client: int | str | None = None, module: Model | None = None) -> nn.Module:
        """The trained model as an ordinary module; for a client (number or name), with its personal parameters.

        Without a client, personal parameters have their initial values, or their average if they were shared. Give a
        `module`, or a function that builds it, if the run's file cannot name the model (a lambda, an object). The data
        is not needed, except for a folder of an older version.
        """
        return trained_model(self.experiment, self.folder, self.data_dir, client, module)

    def weights(self, client: int | str | None = None, module: Model | None = None) -> Tensors:
        """The trained parameters and buffers by name, as in `model(client).state_dict()`, without the module.

        Two kinds of runs need the module: one whose frozen values take more than 64 MiB (the folder has only their
        hashes), and one whose clients exchange scores.
        """
        return trained_weights(self.experiment, self.folder, self.data_dir, client, module)

    def data(self) -> Description:
        """The description of the data: shapes, labels, names."""
        return read_description(self.folder) or prepare(self.experiment, self.data_dir).data()


def load_model(
    folder: str | Path,
    client: int | str | None = None,
    data_dir: str | Path | None = None,
    *,
    allow: Sequence[str] = (),
) -> nn.Module:
    """A run's trained model from its folder alone, without its data and the program that ran it.

    A user's own model is built again from its dotted path; a model that only a program has (a lambda, a module in
    memory) is given to `to.open_run(folder).model(module=...)`. `allow`: as for `open_run`.
    """
    return open_one(folder, data_dir, allow=allow).model(client)


class RunName(NamedTuple):
    """Identifies one of several runs.

    variant  the name of its experiment
    seed     its seed
    """

    variant: str
    seed: int


@dataclass(frozen=True, repr=False)
class RunGroup(InFolder):
    """Several runs in one folder: experiments times seeds. `group[name]` are the runs of one experiment.

    folder  their folder
    runs    by variant and seed
    """

    folder: Path
    runs: Mapping[RunName, Run]

    def __repr__(self) -> str:
        """A table of the first runs: name, seed, rounds, the main metric at its last evaluation, folder."""
        states = {name: state_of(run.folder) for name, run in list(self.runs.items())[:PRINTED]}
        main = next((state.metric for state in states.values() if state.metric), None)
        rows = [["name", "seed", "rounds", main or "", "folder"]]
        for name, state in states.items():
            value = "" if state.value is None else show(state.value, state.unit)
            folder = os.path.relpath(self.runs[name].folder, self.folder)
            rows.append([name.variant, str(name.seed), f"{state.done:,}", value, folder])
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, wide, strict=True)).rstrip() for row in rows]
        more = [f"... and {len(self) - PRINTED:,} more"] if len(self) > PRINTED else []
        return harmless("\n".join([f"{len(self):,} runs in {self.folder}", *lines, *more]))

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs.values())

    @overload
    def __getitem__(self, variant: int) -> Run: ...
    @overload
    def __getitem__(self, variant: str) -> list[Run]: ...
    def __getitem__(self, variant: int | str) -> Run | list[Run]:
        """The runs of one experiment, one per seed; by number, one run in the order made."""
        if isinstance(variant, int):
            return list(self)[variant]
        if variant not in self.variants:
            raise UserError(f"there is no {variant!r} here: {nearest(variant, self.variants)}")
        return self.variants[variant]

    @property
    def variants(self) -> dict[str, list[Run]]:
        """The runs of each experiment by its name, one per seed."""
        by_variant: dict[str, list[Run]] = {}
        for name, run in self.runs.items():
            by_variant.setdefault(name.variant, []).append(run)
        return by_variant

    def final(self, metric: str) -> dict[str, list[float]]:
        """A metric at its last evaluation, for each experiment, one per seed."""
        return {name: [run.final(metric) for run in runs] for name, runs in self.variants.items()}

    def frame(self, clients: bool = False) -> Any:
        """The records of all runs as a pandas DataFrame: as `Run.frame`, by variant and seed."""
        pandas = optional("pandas", "runs.frame()", "frames")
        return pandas.concat({name: run.frame(clients) for name, run in self.runs.items()}, names=["variant", "seed"])


def open_run(
    folder: str | Path,
    data_dir: str | Path | None = None,
    experiment: Experiment | None = None,
    *,
    allow: Sequence[str] = (),
) -> Run | RunGroup:
    """A run from its folder, or the group of a folder that holds several.

    Objects that a run's file cannot hold (a lambda, tensors in memory) are missing from its experiment; records,
    reports and weights do not need them. To have them, give the experiment as well.

    allow  packages whose code the file may name by a dotted path, besides modules below the current folder
    """
    path = Path(folder)
    if experiment is not None or not holds_several(path):
        return open_one(path, data_dir, experiment, allow=allow)
    found = {
        RunName(run.variant, run.seed or 0): open_one(run.path, data_dir, allow=allow) for run in runs_in(path).runs
    }
    return RunGroup(path, found)


def open_one(
    folder: str | Path,
    data_dir: str | Path | None = None,
    experiment: Experiment | None = None,
    *,
    allow: Sequence[str] = (),
) -> Run:
    """As `open_run`, but refuses a folder of several runs."""
    path = Path(folder)
    if holds_several(path):
        raise UserError(f"{path} holds several runs: name one of the folders in it")
    if not (path / "experiment.toml").is_file():
        raise UserError(f"{path} is not a run folder: it has no experiment.toml")
    if experiment is None:
        with allowing(allow):
            experiment = open_table(read_file(path / "experiment.toml"))
    return Run(path, experiment, Path(data_dir) if data_dir else None)


def holds_several(path: Path) -> bool:
    """Whether a folder holds runs that were made together, or the seeds of one of their variants."""
    return (path / "runs.json").is_file() or any(path.glob("seed-*/experiment.toml"))
