"""A device's file, and the device made from it.

experiment = "experiment.toml"     # the server's file: model, algorithm, task and seed must be its own
client = "kitchen"                 # the client's name (or its number, where the data numbers its clients)
superlink = "192.0.2.7:8000"
[data]                             # this device's own data; without, that of the experiment
[policy]                           # when it works: least_battery, only_charging, unmetered, quiet, own
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from turnout.data.agreement import as_agreed
from turnout.data.enrolling import described, enrolment_of
from turnout.data.federation import DataSpec
from turnout.data.renumbered import alone
from turnout.deploy.flower.answering import LEAVING, LEFT, Device, Identity
from turnout.deploy.flower.device import WeightDevice
from turnout.deploy.flower.introductions import digest_of
from turnout.deploy.flower.policy import Policy
from turnout.deploy.processes import free_port, program, surroundings
from turnout.engine.trainers import place_of
from turnout.errors import UserError
from turnout.experiment import Algorithm, Experiment, World
from turnout.running.config.read import build, load
from turnout.running.config.text import parse_table
from turnout.running.tracks.first_values import FirstValues
from turnout.running.tracks.prepare import settled
from turnout.runtimes.clients import ClientPool
from turnout.runtimes.setup import Setup
from turnout.scores.devices import ScoreDevice
from turnout.scores.prepare import set_up
from turnout.scores.settings import Scores
from turnout.world.events import Calendar


@dataclass(frozen=True)
class DeviceFile:
    """What a device's file says; paths are relative to the file.

    experiment  the server's experiment file
    client      its client's name
    superlink   where the server is: host:port
    folder      where its rows are kept
    data        its own data; without, that of the experiment, which also fixes labels and columns of a table
    policy      when it works
    key         its private key, for a server that knows its devices by their keys
    root        the certificate of whoever signed the server's: without, nothing is encrypted
    look        seconds between two looks for a message: with hundreds of devices, more
    slowness    seconds added whenever training looks at the clock, to try what slow devices do
    step_seconds  that a step of training takes at least, to the same end
    down_mbps   how fast messages come at most, to try what thin links do (0: as fast as they can), and up_mbps go
    """

    experiment: Path = Path("experiment.toml")
    client: str = ""
    superlink: str = "127.0.0.1:8000"
    folder: Path = Path("device")
    data: DataSpec | None = None
    policy: Policy = field(default_factory=Policy)
    key: Path | None = None
    root: Path | None = None
    look: float = 0.2
    slowness: float = 0.0
    step_seconds: float = 0.0
    down_mbps: float = 0.0
    up_mbps: float = 0.0


def read_device(path: Path) -> DeviceFile:
    """A device's file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the device's file {path}: {error.strerror}; turnout deploy init DIR writes one"
                      ) from error  # fmt: skip
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    table = parse_table(text, str(path))
    found: DeviceFile = build(DeviceFile, table | {"client": str(table.get("client", ""))}, "")
    if not found.client:
        raise UserError(f'{path} does not say whose device this is: client = "a name of its own"')
    paths = {
        n: path.parent / p for n in ("experiment", "folder", "key", "root") if (p := getattr(found, n)) is not None
    }
    return replace(found, **paths)


def open_device(path: Path) -> Device:
    """The device of such a file, with its data loaded."""
    said = read_device(path)
    experiment = load(said.experiment)
    return make_device(experiment, said)


def make_device(experiment: Experiment, said: DeviceFile, data_dir: Path | None = None) -> Device:
    """A device for one client of an experiment."""
    data = as_agreed(said.data, experiment.world.data)
    federation = alone(data.load(experiment.seed, data_dir), said.client)
    given = experiment.but(world=World(data), runtime=experiment.runtime.compute)
    enrolment = enrolment_of(federation)
    if isinstance(given.algorithm, Scores):
        clients = getattr(experiment.runtime, "clients", enrolment.clients)  # models are planned for all of them
        setup = set_up(given, federation, replace(enrolment, clients=clients))
        named = Identity(said.client, described(enrolment, "").text(), digest_of(setup.experiment), said.key)
        return ScoreDevice(named, setup, said.folder, said.policy)
    prepared, template, model = settled(given, enrolment)
    assert isinstance(prepared.algorithm, Algorithm)
    place = place_of(prepared.runtime.compute)
    clients = ClientPool(Setup(prepared, prepared.algorithm, federation, model, Calendar(), place))
    values = "".join(FirstValues.of(template, model.layout).marks().values())
    identity = Identity(said.client, described(enrolment, "").text(), digest_of(prepared), said.key, values)
    device = WeightDevice(identity, clients, said.folder, said.policy)
    device.slowness, device.step_seconds = said.slowness, said.step_seconds
    return device


def run_once(paths: Sequence[Path]) -> None:
    """Be these devices, a thread each, until they have left, or their connections are lost for good."""
    devices = [(open_device(path), read_device(path)) for path in paths]
    threads = [threading.Thread(target=stay_as, args=own, daemon=True) for own in devices[1:]]
    for thread in threads:
        thread.start()
    stay_as(*devices[0])
    for thread in threads:
        thread.join()


def stay_as(device: Device, said: DeviceFile) -> None:
    """Be this device, reached the way its file says, until it has left or its connection is lost for good."""
    from turnout.deploy.flower.warm import Way, stay

    stay(device, said.superlink, said.root, said.key, Way(said.look, said.down_mbps, said.up_mbps))


def stock_command(path: Path, port: int) -> list[str]:
    """A stock SuperNode for this device; it starts a process for every message, and needs a port of its own."""
    said = read_device(path)
    secure = ["--insecure"] if said.root is None else ["--root-certificates", str(said.root)]
    keyed = [] if said.key is None else ["--auth-supernode-private-key", str(said.key)]
    return [
        program("flower-supernode"), *secure, *keyed, "--superlink", said.superlink, "--port", str(port),
        "--node-config", f'device="{path.absolute()}"',
    ]  # fmt: skip


def keep_running(paths: Sequence[Path], pause: float, stock: bool = False) -> None:
    """Be these devices, in a process that is started again when it dies, until all of them have left."""
    if stock and len(paths) > 1:
        raise UserError("a stock node is one device: start one for each file")
    while staying := [path for path in paths if not (read_device(path).folder / LEFT).exists()]:
        own = [sys.executable, "-m", "turnout", "device", "run", *map(str, staying), "--once"]
        subprocess.run(stock_command(paths[0], free_port()) if stock else own, env=surroundings({}), check=False)
        time.sleep(pause)


def ask_to_leave(path: Path) -> Path:
    """Have the device say goodbye; its folder."""
    folder = read_device(path).folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LEAVING).touch()
    return folder
