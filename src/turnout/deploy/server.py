"""The server of a deployment: the ordinary run loop on a link to devices, and the replay of what was observed."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from turnout.data.description import read_description
from turnout.deploy.agreement import Agreeable
from turnout.deploy.enrolment import first_description
from turnout.deploy.keys import RegisteredKeys
from turnout.deploy.link import Connection, Link, connected
from turnout.deploy.renumbered import InOrder
from turnout.deploy.settings import Flower
from turnout.errors import UserError
from turnout.experiment import Experiment, World
from turnout.machine.files import replacing, write_whole
from turnout.running.config.read import load, to_toml
from turnout.running.records.export import export_events
from turnout.running.records.records import Records
from turnout.running.result import Run
from turnout.running.runs import run
from turnout.running.tracking import NO_HOOKS, Hooks
from turnout.world.events import EventLog
from turnout.world.turnout_log import TurnoutLog

PID, FINISHED = ".pid", ".finished"  # endings of files beside a run's folder: its process, and that it is complete


def serve(
    link: Link, experiment_file: Path, out: Path, keys: Path | None = None, quiet: bool = True, hooks: Hooks = NO_HOOKS
) -> Run:
    """Run an experiment on the devices of a link, or resume the run in its folder.

    If the folder `keys` has public keys (NAME.pub), every device must have the one of its client's name.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(beside(out, PID), str(os.getpid()))
    done = serve_experiment(link, load(experiment_file), out, RegisteredKeys(keys), quiet, hooks)
    write_whole(beside(out, FINISHED), "")
    return done


def beside(out: Path, ending: str) -> Path:
    """A file beside a run's folder, for processes that watch the run."""
    return out.with_name(out.name + ending)


def serve_experiment(
    link: Link,
    experiment: Experiment,
    out: Path,
    keys: RegisteredKeys | None = None,
    quiet: bool = True,
    hooks: Hooks = NO_HOOKS,
) -> Run:
    """Run an experiment on the devices of a link, and write its replay."""
    settings = experiment.runtime
    if not isinstance(settings, Flower):
        raise UserError(
            f'runtime is {settings.kind!r}: devices are served by an experiment with runtime.kind = "flower"'
        )
    keys, given = keys or RegisteredKeys(), experiment.world.data
    data = None if settings.server_data else read_description(out)
    if data is None and not settings.server_data:
        declared = given.declared() if isinstance(given, Agreeable) else None
        data = declared or first_description(link, keys, settings.most_bytes)
    with connected(Connection(link, data, keys)):
        done = run(experiment, out, resume=(out / "experiment.toml").exists(), quiet=quiet, hooks=hooks)
    write_replay(experiment, out)
    return done


def write_replay(experiment: Experiment, out: Path) -> Path | None:
    """Write an experiment that replays what was observed in one process: same turnout, same events, same numbers."""
    found = read_description(out)
    if found is None or not (out / "turnout.csv").exists():
        return None
    names, data = list(found.names or ()), experiment.world.data
    with Records.read(out / "records.sqlite") as records:
        joined = {client for _, client, kind, _ in records.events() if kind == "join"}
        if any(name != str(i) for i, name in enumerate(names)):
            names, path = names[: max(joined, default=-1) + 1], out / "names.csv"
            with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("client", "name"), *enumerate(names)])
            data = InOrder(data, str(path))
        export_events(records, out / "events.csv", names, [i for i in range(len(names)) if i not in joined])
    world = World(data, TurnoutLog(str(out / "turnout.csv")), (EventLog(str(out / "events.csv")),))
    replay = out / "replay.toml"
    write_whole(replay, to_toml(experiment.but(world=world, runtime=experiment.runtime.compute, track=())))
    return replay
