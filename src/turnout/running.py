"""Running experiments: one, or several variants and seeds side by side, and looking at what came out.

A run is a folder (experiment.py writes it). Several runs are a folder of such folders, `variant/seed-N`, with a `runs.json`
that lists them.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from turnout.checkpoint import read_checkpoint
from turnout.errors import Mistake
from turnout.experiment import Step, begin, rounds_of
from turnout.prepare import Prepared, prepare
from turnout.progress import Display, Line
from turnout.record import Records
from turnout.round import Server
from turnout.runtimes.settings import InProcess
from turnout.settings import Experiment


@dataclass(frozen=True)
class Run:
    """A finished (or interrupted) run: its folder, and what can be had from it."""

    folder: Path
    experiment: Experiment
    data_dir: Path | None = None

    def records(self) -> Records:
        """The records, open for reading."""
        return Records.read(self.folder / "records.sqlite")

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """A metric over the rounds."""
        with self.records() as records:
            rounds, values = records.curve(metric)
            return rounds.tolist(), values.tolist()

    def final(self, metric: str) -> float:
        """A metric at its last evaluation."""
        return self.curve(metric)[1][-1]

    def report(self) -> Path:
        """Write report.html and say where it is."""
        from turnout.report import write_report

        return write_report(self.folder)

    def model(self, client: int | None = None) -> nn.Module:
        """The trained model as an ordinary module; with a client, that client's own (shared and personal parameters)."""
        prepared = prepare(self.experiment, self.data_dir)
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            raise Mistake(f"{self.folder} has no checkpoint yet: the run has not got that far")
        if client is not None and not 0 <= client < prepared.federation.clients:
            raise Mistake(f"there is no client {client}: they are 0 to {prepared.federation.clients - 1}")
        found = read_checkpoint(path, prepared.fingerprint, prepared.runtime.device)
        prepared.runtime.store.load(self.folder / "clients", found.client_files)
        return trained_module(prepared, Server(**found.state), client)


def trained_module(prepared: Prepared, server: Server, client: int | None) -> nn.Module:
    """The template with the server's weights in it, and one client's personal ones where asked."""
    layout = prepared.model.layout
    personal, states = prepared.model.flat_P[layout.shared :], dict(prepared.model.states) | server.states
    if client is not None and prepared.runtime.store.initial:
        rows = prepared.runtime.store.gather(torch.tensor([client]))
        personal = rows["personal"][0] if "personal" in rows else personal
        states |= {name: rows[f"state/{name}"][0] for name in layout.personal_states}
    flat_P = torch.cat([server.shared_P.cpu(), personal.to("cpu", server.shared_P.dtype)])
    module = copy.deepcopy(prepared.template)
    weights = layout.unpack(flat_P) | {name: value.cpu() for name, value in states.items()}
    module.load_state_dict(weights, strict=False)
    return module.eval()


def open_run(folder: str | Path, data_dir: str | Path | None = None) -> Run:
    """A run from its folder."""
    from turnout.config import load

    path = Path(folder)
    if not (path / "experiment.toml").exists():
        raise Mistake(f"{path} is not a run folder: it has no experiment.toml")
    return Run(path, load(path / "experiment.toml"), Path(data_dir) if data_dir else None)


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    quiet: bool = False,
    data_dir: str | Path | None = None,
) -> Run:
    """Run one experiment with a progress display; the folder is `out`, or a new one under runs/."""
    folder = Path(out) if out is not None else new_folder(experiment.title or "run")
    where = Path(data_dir) if data_dir else None
    with Display(total=experiment.rounds, quiet=quiet) as display:
        for line in lines_of(experiment, folder, resume, where):
            display.show(line)
    result = Run(folder, experiment, where)
    result.report()
    return result


def lines_of(
    experiment: Experiment, folder: Path, resume: bool, data_dir: Path | None, name: str = ""
) -> Iterator[Line]:
    """Run an experiment; one line of progress a round."""
    prepared = begin(experiment, folder, resume, data_dir)
    main, value = f"global_{experiment.task.main}", None
    for step in rounds_of(prepared, folder):
        value = step.evaluation.values.get(main, value) if step.evaluation else value
        yield _line(step, name, experiment.rounds, main, value)


def _line(step: Step, name: str, rounds: int, metric: str, value: float | None) -> Line:
    record = step.record
    return Line(
        name=name,
        round=record.round,
        rounds=rounds,
        metric=metric,
        value=value,
        asked=record.asked,
        answered=record.answered,
        work=record.work or 0.0,
        seconds=record.seconds,
        stopped=step.stopped,
    )


def new_folder(name: str) -> Path:
    """A folder under runs/ that does not exist yet."""
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, i = base, 2
    while path.exists():
        path, i = base.with_name(f"{base.name}-{i}"), i + 1
    return path


@dataclass(frozen=True)
class Task:
    """One run of many."""

    variant: str
    seed: int
    experiment: Experiment
    path: str  # below the common folder


def tasks_of(variants: Mapping[str, Experiment], seeds: Sequence[int]) -> list[Task]:
    """Every variant with every seed; a single run needs no subfolder."""
    single = len(variants) == 1 and len(seeds) == 1
    return [
        Task(name, seed, experiment.but(seed=seed), "." if single else f"{_file_name(name)}/seed-{seed}")
        for seed in seeds
        for name, experiment in variants.items()
    ]


def _file_name(name: str) -> str:
    return "".join(ch if ch.isalnum() or ch in "-_.=" else "_" for ch in name) or "run"


def run_many(
    title: str,
    variants: Mapping[str, Experiment],
    seeds: Sequence[int],
    out: Path,
    *,
    jobs: int = 1,
    resume: bool = False,
    quiet: bool = False,
    data_dir: Path | None = None,
) -> list[Run]:
    """Run variants and seeds, `jobs` at a time; the folder can be reported on as a whole."""
    tasks = tasks_of(variants, seeds)
    if out.exists() and any(out.iterdir()) and not resume:
        raise Mistake(f"{out} is not empty: choose another --out folder, or add --resume to go on with the runs in it")
    out.mkdir(parents=True, exist_ok=True)
    if len(tasks) > 1:
        listed = [{"variant": t.variant, "seed": t.seed, "path": t.path} for t in tasks]
        (out / "runs.json").write_text(json.dumps({"title": title, "runs": listed}, indent=2) + "\n")
    total = sum(t.experiment.rounds for t in tasks)
    with Display(total=total, quiet=quiet, runs=len(tasks)) as display:
        for line in _all_lines(tasks, out, jobs, data_dir):
            display.show(line)
    return [Run(out / t.path, t.experiment, data_dir) for t in tasks]


def _all_lines(tasks: Sequence[Task], out: Path, jobs: int, data_dir: Path | None) -> Iterator[Line]:
    if jobs <= 1 or len(tasks) == 1:
        for task in tasks:
            yield from lines_of(task.experiment, out / task.path, True, data_dir, f"{task.variant} seed {task.seed}")
        return
    yield from _in_processes(tasks, out, jobs, data_dir)


def _in_processes(tasks: Sequence[Task], out: Path, jobs: int, data_dir: Path | None) -> Iterator[Line]:
    """Each run in a process of its own, with its share of the cores; lines arrive through a queue."""
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with (
        context.Manager() as manager,
        ProcessPoolExecutor(jobs, mp_context=context, initializer=_on_few_cores, initargs=(threads,)) as pool,
    ):
        lines: Any = manager.Queue()
        pending = [pool.submit(_worker, _with_threads(t, threads), out, data_dir, lines) for t in tasks]
        waiting = len(pending)
        try:
            while waiting:
                line = lines.get()
                waiting -= line is None
                if line is not None:
                    yield line
            for done in pending:
                done.result()
        finally:
            for job in pending:
                job.cancel()


def _with_threads(task: Task, threads: int) -> Task:
    runtime = task.experiment.runtime
    if isinstance(runtime, InProcess) and runtime.threads is None:
        return replace(task, experiment=task.experiment.but(runtime=replace(runtime, threads=threads)))
    return task


def _on_few_cores(threads: int) -> None:
    torch.set_num_threads(threads)


def _worker(task: Task, out: Path, data_dir: Path | None, lines: Any) -> None:
    try:
        for line in lines_of(task.experiment, out / task.path, True, data_dir, f"{task.variant} seed {task.seed}"):
            lines.put(line)
    finally:
        lines.put(None)
