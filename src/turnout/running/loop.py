"""The loop around the round: evaluate, record, checkpoint, stop, resume.

`rounds_of` is a generator that yields each finished round. A run can be killed at any moment: each round is recorded in
one transaction, each checkpoint replaces the last one in one step, and a resumed run deletes the records after its
checkpoint and computes those rounds again, to the same values.
"""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from turnout import __version__
from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.machine.checksums import UNREADABLE, read_json, text_with_checksum, write_json
from turnout.machine.compiler import trouble
from turnout.machine.files import write_whole
from turnout.machine.memory import give_back_freed_memory
from turnout.machine.profiling import stage
from turnout.round_record import CUT, Evaluation, RoundRecord
from turnout.running.config.read import to_toml
from turnout.running.config.run_file import check_reads_back, check_same
from turnout.running.folder import NOISE_KEY, contents, delete_run, make_folder, refuse_full, refuse_to_delete
from turnout.running.records.checkpoint import NAME, Checkpoint, read_checkpoint, start_over, write_checkpoint
from turnout.running.records.export import export_events, export_turnout
from turnout.running.records.records import Records
from turnout.running.stop_rules import Progress, metric_of, reason_to_stop
from turnout.running.tracks.first_values import FILE as FIRST_VALUES
from turnout.running.tracks.first_values import read_first_values
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.track import Track
from turnout.tasks import metric_infos

CHECKPOINT_PART = 0.1  # at most this share of the time: a large state is written less often
DELETE = "delete it to continue; sums may then round differently"
CHECKPOINT_SECONDS = float(os.environ.get("TURNOUT_CHECKPOINT_SECONDS", "5"))


@dataclass(frozen=True)
class FinishedRound:
    """A finished round.

    record      what happened
    evaluation  what was measured after it
    stopped     the stop rule that ends the run with this round, in words
    run         the run's name
    """

    record: RoundRecord
    evaluation: Evaluation | None
    stopped: str | None = None
    run: str = ""


def rounds_of(track: Track, folder: Path) -> Iterator[FinishedRound]:
    """Run an experiment in its folder, or resume it, and yield each round."""
    with Records.open(folder / "records.sqlite") as records:
        if not (folder / "environment.json").exists():
            versions = {"turnout": __version__, "python": platform.python_version(), "torch": torch.__version__}
            about = {"run": secrets.token_hex(8)} | versions | {"platform": platform.platform()}
            write_json(folder / "environment.json", about | track.runtime.describe())
        resumed = read_state(track, folder)
        if resumed is None:
            track.runtime.load(run_id(folder), folder / "clients", [])
            first, state, client_files = 0, track.begin(), list[str]()
        else:
            first, state, client_files = resumed.round + 1, track.unpack(resumed.state), resumed.client_files
        if first:
            last = records.last_round()
            if last is None or last < first - 1:  # records are written before checkpoints: the file was altered
                raise UserError(
                    f"{folder / 'records.sqlite'} lacks rounds that {folder / NAME} has seen (it ends with "
                    f"{'none' if last is None else f'round {last}'}, not round {first - 1}): restore it, or delete "
                    "the checkpoint to start that run over"
                )
            records.check()
        records.cut(first - 1 if first else -2)
        records.describe(metric_infos(track.experiment.task))
        records.warn(track.warnings)
        track.data().write(folder)
        if first == 0 or not (folder / FIRST_VALUES).exists():
            track.first.write(folder)
        if first == 0:
            records.add_evaluation(_evaluated(track, state, -1))
        try:
            yield from _rounds(track, state, first, records, _Checkpoints(track, folder, records, client_files))
        finally:
            export_turnout(records, folder / "turnout.csv", track.names)
            export_events(records, folder / "events.csv", track.names)
            track.data().write(folder)  # with the clients that have enrolled since
            track.runtime.close()


def _rounds(
    track: Track, state: Any, first: int, records: Records, checkpoints: _Checkpoints
) -> Iterator[FinishedRound]:
    """The remaining rounds; each is recorded, and some are checkpointed, before it is yielded."""
    experiment = track.experiment
    progress = Progress.from_records(records, experiment)
    stopped = reason_to_stop(experiment, progress) or track.reason_to_stop(state, first) if first else None
    for t in range(first, experiment.rounds):
        if stopped:
            return
        start = time.perf_counter()
        with stage("weights"):
            store = partial(checkpoints.write_release, t=t) if track.stores_releases else None
            state, record = track.round(state, t, store)
        step = FinishedRound(replace(record, seconds=time.perf_counter() - start), None)
        # A round that was cut has changed only its record; with more simulated hours it runs again.
        done = t - 1 if record.skipped == CUT else t
        if track.stores_releases:  # before clients receive it: a resumed run sends it again, with the same noise
            records.add_round(step.record)
            checkpoints.write(state, done)
        if (t + 1) % experiment.evaluate.every == 0:
            step = _measured(track, state, step)
        progress = progress.after(step.record, step.evaluation, experiment)
        stopped = reason_to_stop(experiment, progress)
        if stopped is None and t + 1 < experiment.rounds:
            stopped = track.reason_to_stop(state, t + 1)
        last = stopped is not None or t == experiment.rounds - 1
        if last and step.evaluation is None:
            step = _measured(track, state, step)
        if not track.stores_releases:
            records.add_round(step.record, step.evaluation)
        elif step.evaluation is not None:
            records.add_evaluation(step.evaluation)
        values = step.evaluation.values if step.evaluation else {}
        loss = values.get("global_loss", values.get("personal_loss"))
        if loss is not None and loss != loss:
            raise UserError(
                f"the model's test loss is not finite after round {t}: training has diverged. Its records are kept; "
                "lower algorithm.local.optimizer.lr or algorithm.server.lr"
            )
        if last or checkpoints.due():
            checkpoints.write(state, done)
        yield replace(step, stopped=stopped)


class _Checkpoints:
    """Writes the checkpoints of a run; `client_files`: the files with clients' rows that the last one lists."""

    def __init__(self, track: Track, folder: Path, records: Records, client_files: list[str]):
        self.track, self.folder, self.records, self.client_files = track, folder, records, client_files
        self._next = time.monotonic() + CHECKPOINT_SECONDS

    def due(self) -> bool:
        return time.monotonic() > self._next

    def write(self, state: Any, t: int) -> None:
        """Write records, then clients' rows, then the checkpoint that lists their files; delete unlisted files."""
        start, clients = time.monotonic(), self.folder / "clients"
        self.records.sync()
        self.client_files = self.track.runtime.save(clients, f"{t:07d}", self.client_files)
        checkpoint = Checkpoint(t, self.track.pack(state), self.track.fingerprint, self.client_files)
        write_checkpoint(self.folder / NAME, checkpoint)
        self.track.runtime.durable(t)
        for path in clients.glob("*.safetensors"):
            if path.name not in self.client_files:
                path.unlink()
        now = time.monotonic()
        pause = max(CHECKPOINT_SECONDS, (now - start) * (1 / CHECKPOINT_PART - 1))
        self._next = now + (pause if CHECKPOINT_SECONDS else 0.0)  # 0: a checkpoint after every round

    def write_release(self, state: Any, t: int) -> None:
        """Store what round t releases before it has ended: a state of the round before, and clients' rows likewise."""
        self.records.sync()
        checkpoint = Checkpoint(t - 1, self.track.pack(state), self.track.fingerprint, self.client_files)
        write_checkpoint(self.folder / NAME, checkpoint)


def _measured(track: Track, state: Any, step: FinishedRound) -> FinishedRound:
    """The round with its evaluation, whose time counts too."""
    start = time.perf_counter()
    evaluation = _evaluated(track, state, step.record.round)
    seconds = step.record.seconds + time.perf_counter() - start
    return replace(step, record=replace(step.record, seconds=seconds), evaluation=evaluation)


def _evaluated(track: Track, state: Any, t: int) -> Evaluation:
    with stage("evaluate"):
        return track.evaluate(state, t)


def read_state(track: Track, folder: Path, mark: str | None = None) -> Checkpoint | None:
    """Read the checkpoint of a run folder and load the clients' rows into the track; None without a checkpoint.

    `mark`: the fingerprint it must have, if not the track's own (which was rebuilt without its data).
    """
    path = folder / NAME
    if not path.exists():
        return None
    if mark is None and (begun := read_first_values(folder)) is not None:
        begun.refuse_other(track.first, folder)
    checkpoint = read_checkpoint(path, mark or track.fingerprint, track.pack(track.begin()))
    try:
        track.runtime.load(run_id(folder), folder / "clients", checkpoint.client_files)
    except (*UNREADABLE, UserError) as error:
        why = start_over(folder)
        raise UserError(f"the clients' rows in {folder / 'clients'} are damaged ({error}): {why}") from error
    return checkpoint


def run_id(folder: Path) -> str:
    """The random identity of a run, drawn when it began; "" for a run of an older version."""
    path = folder / "environment.json"
    return str(read_json(path, DELETE).get("run", "")) if path.exists() else ""


def as_before(experiment: Experiment, folder: Path) -> Experiment:
    """The experiment with the chunk and thread count its folder began with, so that sums round alike."""
    path, runtime = folder / "environment.json", experiment.runtime
    if not path.exists():
        return experiment
    before = read_json(path, DELETE)
    begun = [before[name] for name in ("threads", "chunk", "device", "engine")]
    return experiment.but(runtime=runtime.as_begun(*begun))


def _refuse_other_engine(track: Track, folder: Path, allowed: bool) -> None:
    """Refuse another engine than the run began with: it rounds differently, and so would the results."""
    path = folder / "environment.json"
    if not path.exists():
        return
    before, now = read_json(path, DELETE), track.runtime.describe()
    was, here = ((about.get("engine"), str(about.get("device")).partition(":")[0]) for about in (before, now))
    if was == here:
        return
    if not allowed:
        why = f" ({missing})" if was[0] == "native" and (missing := trouble()) else ""
        raise UserError(
            f"{folder} began with the {was[0]} engine on {was[1]}, and would resume here with the {here[0]} engine on "
            f"{here[1]}{why}, which rounds differently: resume it where it began, or allow this with --other-engine "
            "(Python: other_engine=True)"
        )
    write_json(path, before | now | {"engines before": [*before.get("engines before", []), list(was)]})


def begin(
    experiment: Experiment,
    folder: Path,
    resume: bool,
    data_dir: Path | None = None,
    overwrite: bool = False,
    other_engine: bool = False,
) -> Track:
    """Begin or resume a run in a folder that this process holds; returns its track."""
    settings, replaced = folder / "experiment.toml", overwrite and bool(contents(folder))
    if replaced:
        refuse_to_delete(folder)
    else:
        refuse_full(folder, resume)
        for left in [*folder.glob("*.new"), *folder.glob("clients/*.new")]:  # a process was killed while writing them
            left.unlink(missing_ok=True)
    resumed, renewed = settings.exists() and not replaced, None
    if resumed:
        renewed = check_same(settings, experiment)
        experiment = as_before(experiment, folder)
    metric_of(experiment)  # refuses a misspelt metric of the stop rules
    prepared = prepare(experiment, data_dir)
    give_back_freed_memory()  # of reading the data, before checking that the rest fits
    if resumed:
        _refuse_other_engine(prepared, folder, other_engine)
    if not resumed or not (folder / "environment.json").exists():
        check_reads_back(experiment)
        renewed = to_toml(experiment)
    if replaced:
        delete_run(folder)
    if renewed is not None:
        make_folder(folder)
        write_whole(settings, text_with_checksum(renewed))
    return prepared.with_noise_key(partial(_noise_key, folder))


def _noise_key(folder: Path) -> int:
    """The secret key of a private run, in a file that only its owner can read; drawn when the run begins."""
    path = folder / NOISE_KEY
    if not path.exists():
        if (folder / NAME).exists():
            raise UserError(
                f"{path} is missing, and the noise of {folder} cannot be continued without it: restore it, or begin "
                "again in another folder (the rounds so far count against the same clients)"
            )
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
    try:
        return int(path.read_text(encoding="ascii"), 16)
    except ValueError as error:
        raise UserError(f"{path} does not hold a key of 64 hexadecimal digits: restore it from a copy") from error
