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

import torch
from safetensors import SafetensorError, safe_open

from turnout.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from turnout.config import check_same, to_toml
from turnout.errors import Mistake
from turnout.evaluation import measure, measure_clients
from turnout.prepare import Prepared, prepare
from turnout.record import Evaluation, Records, RoundRecord, export_turnout
from turnout.round import Server, run_round
from turnout.runtimes.settings import InProcess
from turnout.selection import draw
from turnout.settings import Experiment
from turnout.stopping import Progress, reason_to_stop
from turnout.version import __version__

CHECKPOINT_SECONDS = float(os.environ.get("TURNOUT_CHECKPOINT_SECONDS", "5"))


@dataclass(frozen=True)
class Step:
    """A round that has ended: its record, and what was measured after it."""

    record: RoundRecord
    evaluation: Evaluation | None
    stopped: str | None = None  # why this was the last round, before the last one asked for


def rounds_of(prepared: Prepared, folder: Path) -> Iterator[Step]:
    """Run (or go on with) an experiment in its folder, round by round."""
    with Records.open(folder / "records.sqlite") as records:
        first, server, client_files = _restore(prepared, folder)
        records.cut(first - 1 if first else -2)
        _write_environment(prepared, folder)
        if first == 0:
            records.add_evaluation(evaluate(prepared, server, -1))
        progress = Progress.from_records(records, prepared.experiment)
        saved = time.monotonic()
        stopped = reason_to_stop(prepared.experiment, progress) if first else None
        for t in range(first, prepared.experiment.rounds):
            if stopped:
                break
            server, step = _one_round(prepared, server, t)
            progress = progress.after(step.record, step.evaluation, prepared.experiment)
            stopped = reason_to_stop(prepared.experiment, progress)
            last = stopped is not None or t == prepared.experiment.rounds - 1
            if last and step.evaluation is None:
                step = replace(step, evaluation=evaluate(prepared, server, t))
            records.add_round(step.record, step.evaluation)
            _refuse_nan(step)
            if last or time.monotonic() - saved > CHECKPOINT_SECONDS:
                records.sync()
                client_files = _save(prepared, server, folder, t, client_files)
                saved = time.monotonic()
            yield replace(step, stopped=stopped)
        export_turnout(records, folder / "turnout.csv")


def _one_round(prepared: Prepared, server: Server, t: int) -> tuple[Server, Step]:
    experiment = prepared.experiment
    start = time.perf_counter()
    server, record = run_round(server, prepared.members, t, experiment.seed, experiment.algorithm, prepared.runtime)
    record = replace(record, seconds=time.perf_counter() - start)
    due = (t + 1) % experiment.evaluate.every == 0
    return server, Step(record, evaluate(prepared, server, t) if due else None)


def evaluate(prepared: Prepared, server: Server, t: int) -> Evaluation:
    """The global model (shared parameters, initial personal ones) on the central test set, and per client if asked."""
    experiment, runtime, layout = prepared.experiment, prepared.runtime, prepared.model.layout
    home = prepared.model.flat_P[layout.shared :].to(server.shared_P)
    flat_P = torch.cat([server.shared_P, home])
    states = {n: v.to(runtime.device) for n, v in prepared.model.states.items()} | server.states
    values: dict[str, float] = {}
    central = runtime.federation.central_test()
    if central is not None and len(central[0]):
        measured = measure(runtime.trainer.crew, experiment.task, flat_P, states, *central)
        values = {f"global_{name}": value for name, value in measured.items()}
    per_client = {}
    if experiment.evaluate.per_client:
        members = prepared.members
        count = min(len(members), experiment.evaluate.clients)
        client_C = members.at(draw(count, len(members), 0, experiment.seed))
        own = runtime.federation.test(client_C, t)
        found = measure_clients(runtime.trainer.crew, experiment.task, flat_P, states, own)
        per_client = {f"client_{name}": (client_C, value_C) for name, value_C in found.items()}
    return Evaluation(t, values, per_client)


def _refuse_nan(step: Step) -> None:
    loss = step.evaluation.values.get("global_loss") if step.evaluation else None
    if loss is not None and loss != loss:
        raise Mistake(
            f"the global model's test loss is not a number after round {step.record.round}: training has diverged. Its "
            "records are kept; lower algorithm.local.optimizer.lr or algorithm.server.lr"
        )


def _restore(prepared: Prepared, folder: Path) -> tuple[int, Server, list[str]]:
    """The next round to run, the server's state and the client files: from the checkpoint, or from the beginning."""
    found = read_state(prepared, folder)
    return (0, prepared.server, []) if found is None else (found.round + 1, Server(**found.state), found.client_files)


def read_state(prepared: Prepared, folder: Path) -> Checkpoint | None:
    """The checkpoint of a run folder, with the clients' rows put back into the store; None where there is none yet."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return None
    found = read_checkpoint(path, prepared.fingerprint, prepared.runtime.device)
    try:
        prepared.runtime.store.load(folder / "clients", found.client_files)
    except (OSError, SafetensorError, KeyError) as error:
        raise Mistake(
            f"the clients' rows in {folder / 'clients'} are damaged ({error}): delete {path} and run again with "
            "--resume to start that run over"
        ) from error
    return found


def rounds_done(folder: Path) -> int:
    """How many rounds a run's checkpoint stands for; 0 without one that can be read."""
    try:
        with safe_open(folder / "checkpoint.safetensors", "pt") as file:
            return int(json.loads(file.metadata()["turnout"])["round"]) + 1
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return 0


def _save(prepared: Prepared, server: Server, folder: Path, t: int, files: list[str]) -> list[str]:
    """Client rows first, then the checkpoint that names them, then the files nothing names any more."""
    clients = folder / "clients"
    files = prepared.runtime.store.save(clients, f"{t:07d}", files)
    state = server.to_state()
    write_checkpoint(folder / "checkpoint.safetensors", Checkpoint(t, state, prepared.fingerprint, files))
    for path in clients.glob("*.safetensors"):
        if path.name not in files:
            path.unlink()
    return files


def _write_environment(prepared: Prepared, folder: Path) -> None:
    """What a result may depend on beyond the experiment: versions, device, and how the work was cut up."""
    path, trainer, runtime = folder / "environment.json", prepared.runtime.trainer, prepared.runtime
    if path.exists():
        return
    name = (
        torch.cuda.get_device_name(runtime.device) if runtime.device.type == "cuda" else platform.processor() or "cpu"
    )
    about = {
        "turnout": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": str(runtime.device),
        "device_name": name,
        "engine": type(trainer.crew.first).__name__,
        "chunk": trainer.chunk,
        "threads": trainer.crew.threads,
    }
    _write_whole(path, json.dumps(about, indent=2) + "\n")


def _write_whole(path: Path, text: str) -> None:
    """Whole or not at all: the run may be killed at any moment."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


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
    except (ValueError, KeyError) as error:
        raise Mistake(f"{path} is damaged ({error!r}): delete it to go on; sums may then round differently") from error
    if runtime.threads is None:
        runtime = replace(runtime, threads=threads)
    if runtime.chunk is None and device.startswith("cuda"):
        runtime = replace(runtime, chunk=chunk)
    return experiment.but(runtime=runtime)


def begin(experiment: Experiment, folder: Path, resume: bool, data_dir: Path | None = None) -> Prepared:
    """Make (or, with `resume`, find again) a run folder and prepare its experiment."""
    refuse_full(folder, resume)
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "experiment.toml"
    if settings.exists():
        check_same(settings, experiment)
        experiment = as_before(experiment, folder)
    prepared = prepare(experiment, data_dir)
    if not settings.exists() or not (folder / "environment.json").exists():
        _write_whole(settings, to_toml(experiment))
    return prepared


def refuse_full(folder: Path, resume: bool) -> None:
    """A folder with something in it is used again only when asked."""
    if folder.exists() and not folder.is_dir():
        raise Mistake(f"{folder} is a file, and a run needs a folder: choose another --out")
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise Mistake(
            f"{folder} is not empty: choose another --out folder, or add --resume to go on with what is in it"
        )
