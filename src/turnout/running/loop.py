"""The loop around the round: evaluate, record, checkpoint, stop, resume.

`rounds_of` is a generator: whoever drives it sees each round as it ends and can show it; there are no callbacks. A run
can be killed at any moment: records are one transaction a round, checkpoints replace one another in one step, and a
resumed run deletes what is later than its checkpoint and computes it again, to the same values.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from turnout import __version__
from turnout.config.read import check_same, to_toml
from turnout.errors import Mistake
from turnout.experiment import Experiment
from turnout.machine.clock import stage
from turnout.machine.files import write_whole
from turnout.records.checkpoint import NAME, Checkpoint, read_checkpoint, write_checkpoint
from turnout.records.records import Records, export_turnout
from turnout.round_log import Evaluation, RoundRecord
from turnout.running.folder import make_folder, refuse_full
from turnout.running.stop_rules import Progress, metric_of, reason_to_stop
from turnout.runtimes.settings import InProcess
from turnout.tracks.prepare import prepare
from turnout.tracks.track import Track

CHECKPOINT_PART = 0.1  # of the time at most: a large state is written less often
CHECKPOINT_SECONDS = float(os.environ.get("TURNOUT_CHECKPOINT_SECONDS", "5"))


@dataclass(frozen=True)
class FinishedRound:
    """A round that has ended: its record, and what was measured after it."""

    record: RoundRecord
    evaluation: Evaluation | None
    stopped: str | None = None  # why this was the last round, before the last one asked for


def rounds_of(track: Track, folder: Path) -> Iterator[FinishedRound]:
    """Run (or go on with) an experiment in its folder, round by round."""
    with Records.open(folder / "records.sqlite") as records:
        first, state, client_files = _restore(track, folder)
        _refuse_gap(records, first, folder)
        records.cut(first - 1 if first else -2)
        _write_environment(track, folder)
        if first == 0:
            records.add_evaluation(_evaluated(track, state, -1))
        progress = Progress.from_records(records, track.experiment)
        due = time.monotonic() + CHECKPOINT_SECONDS
        stopped = reason_to_stop(track.experiment, progress) if first else None
        for t in range(first, track.experiment.rounds):
            if stopped:
                break
            state, step = _one_round(track, state, t)
            progress = progress.after(step.record, step.evaluation, track.experiment)
            stopped = reason_to_stop(track.experiment, progress)
            last = stopped is not None or t == track.experiment.rounds - 1
            if last and step.evaluation is None:
                step = replace(step, evaluation=_evaluated(track, state, t))
            records.add_round(step.record, step.evaluation)
            _refuse_nan(step)
            if last or time.monotonic() > due:
                start = time.monotonic()
                records.sync()
                client_files = _save(track, state, folder, t, client_files)
                due = time.monotonic() + pause_after(time.monotonic() - start)
            yield replace(step, stopped=stopped)
        export_turnout(records, folder / "turnout.csv")


def pause_after(seconds: float) -> float:
    """How long to wait after a checkpoint that took so long; no time at all where one is wanted after every round.

    >>> pause_after(0.01), pause_after(2.0)
    (5.0, 18.0)
    """
    return max(CHECKPOINT_SECONDS, seconds * (1 / CHECKPOINT_PART - 1)) if CHECKPOINT_SECONDS else 0.0


def _one_round(track: Track, state: Any, t: int) -> tuple[Any, FinishedRound]:
    start = time.perf_counter()
    with stage("weights"):
        state, record = track.round(state, t)
    record = replace(record, seconds=time.perf_counter() - start)
    due = (t + 1) % track.experiment.evaluate.every == 0
    return state, FinishedRound(record, _evaluated(track, state, t) if due else None)


def _evaluated(track: Track, state: Any, t: int) -> Evaluation:
    with stage("evaluate"):
        return track.evaluate(state, t)


def _refuse_nan(step: FinishedRound) -> None:
    values = step.evaluation.values if step.evaluation else {}
    loss = values.get("global_loss", values.get("personal_loss"))
    if loss is not None and loss != loss:
        raise Mistake(
            f"the model's test loss is not a number after round {step.record.round}: training has diverged. Its "
            "records are kept; lower algorithm.local.optimizer.lr or algorithm.server.lr"
        )


def _refuse_gap(records: Records, first: int, folder: Path) -> None:
    """Rounds are recorded before they are in a checkpoint: where they are not, somebody took them away."""
    last = records.last_round()
    if first and (last is None or last < first - 1):
        raise Mistake(
            f"{folder / 'records.sqlite'} lacks rounds that {folder / NAME} has seen (it ends with "
            f"{'none' if last is None else f'round {last}'}, not round {first - 1}): restore it, or delete the "
            "checkpoint to start that run over"
        )


def _restore(track: Track, folder: Path) -> tuple[int, Any, list[str]]:
    """The next round to run, the state and the client files: from the checkpoint, or from the beginning."""
    found = read_state(track, folder)
    return (0, track.begin(), []) if found is None else (found.round + 1, track.unpack(found.state), found.client_files)


def read_state(track: Track, folder: Path) -> Checkpoint | None:
    """The checkpoint of a run folder, with what clients keep put back in its place; None where there is none yet."""
    path = folder / NAME
    if not path.exists():
        return None
    found = read_checkpoint(path, track.fingerprint, track.pack(track.begin()))
    try:
        track.load_clients(folder / "clients", found.client_files)
    except (OSError, SafetensorError, KeyError) as error:
        raise Mistake(
            f"the clients' rows in {folder / 'clients'} are damaged ({error}): delete {path} and run again with "
            "--resume to start that run over"
        ) from error
    return found


def _save(track: Track, state: Any, folder: Path, t: int, files: list[str]) -> list[str]:
    """Client rows first, then the checkpoint that names them, then the files nothing names any more."""
    clients = folder / "clients"
    files = track.save_clients(clients, f"{t:07d}", files)
    checkpoint = Checkpoint(t, track.pack(state), track.fingerprint, files)
    write_checkpoint(folder / NAME, checkpoint)
    for path in clients.glob("*.safetensors"):
        if path.name not in files:
            path.unlink()
    return files


def _write_environment(track: Track, folder: Path) -> None:
    """What a result may depend on beyond the experiment: versions, device, and how the work was cut up."""
    path = folder / "environment.json"
    if path.exists():
        return
    versions = {"turnout": __version__, "python": platform.python_version(), "torch": torch.__version__}
    about = versions | {"platform": platform.platform()} | track.about()
    write_whole(path, json.dumps(about, indent=2) + "\n")


def as_before(experiment: Experiment, folder: Path) -> Experiment:
    """The experiment with the chunk and thread count its folder was begun with, so that sums round the same way.

    On a CPU the chunk follows from the model and the threads; on a GPU it was chosen by the memory that was free then.
    """
    path, runtime = folder / "environment.json", experiment.runtime
    if not path.exists() or not isinstance(runtime, InProcess):
        return experiment
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        threads, chunk, device = before["threads"], before["chunk"], before["device"]
    except (ValueError, KeyError, TypeError) as error:
        raise Mistake(f"{path} is damaged ({error!r}): delete it to go on; sums may then round differently") from error
    if runtime.threads is None:
        runtime = replace(runtime, threads=threads)
    if runtime.chunk is None and device.startswith("cuda"):
        runtime = replace(runtime, chunk=chunk)
    return experiment.but(runtime=runtime)


def begin(experiment: Experiment, folder: Path, resume: bool, data_dir: Path | None = None) -> Track:
    """Make (or, with `resume`, find again) a run folder and prepare its experiment."""
    refuse_full(folder, resume)
    make_folder(folder)
    settings = folder / "experiment.toml"
    renewed = check_same(settings, experiment) if settings.exists() else None
    if settings.exists():
        experiment = as_before(experiment, folder)
    metric_of(experiment)  # the stop rules' metric is a name that can be mistyped
    prepared = prepare(experiment, data_dir)
    if not settings.exists() or not (folder / "environment.json").exists():
        write_whole(settings, to_toml(experiment))
    elif renewed is not None:
        write_whole(settings, renewed)
    return prepared
