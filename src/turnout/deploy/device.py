"""A device's file, and the device made from it.

experiment = "experiment.toml"     # the server's file: model, algorithm, task and seed must be the same
client = "kitchen"                 # the client's name (or its number, if the data numbers its clients)
superlink = "192.0.2.7:8000"
[data]                             # this device's own data; by default that of the experiment
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

from turnout.data.description import described, enrolment_of
from turnout.data.federation import DataSpec
from turnout.deploy.agreement import as_agreed
from turnout.deploy.answering import LEAVING, LEFT, ClientDevice, Identity, WeightTasks
from turnout.deploy.enrolment import digest_of
from turnout.deploy.policy import Policy
from turnout.deploy.processes import free_port, program, surroundings
from turnout.deploy.renumbered import alone
from turnout.engine.trainers import place_of
from turnout.errors import UserError
from turnout.experiment import Algorithm, Experiment, World
from turnout.running.config.read import build, load, parse_table
from turnout.running.tracks.first_values import FirstValues
from turnout.running.tracks.prepare import settled, track_of
from turnout.runtimes.client_pool import ClientPool
from turnout.runtimes.remote import ClientTasks
from turnout.runtimes.setup import Setup
from turnout.world.events import Calendar


@dataclass(frozen=True)
class DeviceSettings:
    """The settings in a device's file; paths are relative to the file.

    experiment    the server's experiment file
    client        its client's name
    superlink     the server's address: host:port
    folder        where its rows are kept
    data          its own data; by default that of the experiment, which also fixes labels and columns of a table
    policy        when it works
    key           its private key, for a server that knows its devices by their keys
    root          certificate of the authority that signed the server's: without, nothing is encrypted
    look          seconds between two looks for a message: more with hundreds of devices
    slowness      seconds added whenever training checks the time, to simulate a slow device
    step_seconds  seconds that a step of training takes at least, for the same purpose
    down_mbps     speed limit of incoming messages, to simulate a slow link (0: no limit)
    up_mbps       the same of outgoing ones
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


def read_device(path: Path) -> DeviceSettings:
    """The settings of a device's file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the device's file {path}: {error.strerror}; turnout deploy init DIR writes one"
                        ) from error  # fmt: skip
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    table = parse_table(text, str(path))
    found: DeviceSettings = build(DeviceSettings, table | {"client": str(table.get("client", ""))}, "")
    if not found.client:
        raise UserError(f'{path} does not name its client: client = "a name of its own"')
    paths = {
        n: path.parent / p for n in ("experiment", "folder", "key", "root") if (p := getattr(found, n)) is not None
    }
    return replace(found, **paths)


def open_device(path: Path) -> ClientDevice:
    """The device of such a file, with its data loaded."""
    settings = read_device(path)
    return make_device(load(settings.experiment), settings)


def make_device(experiment: Experiment, settings: DeviceSettings, data_dir: Path | None = None) -> ClientDevice:
    """A device for one client of an experiment."""
    data = as_agreed(settings.data, experiment.world.data)
    federation = alone(data.load(experiment.seed, data_dir), settings.client)
    given = experiment.but(world=World(data), runtime=experiment.runtime.compute)
    enrolment = enrolment_of(federation)
    tasks: ClientTasks
    if isinstance(given.algorithm, Algorithm):
        prepared, template, model = settled(given, enrolment)
        assert isinstance(prepared.algorithm, Algorithm)
        place = place_of(prepared.runtime.compute)
        pool = ClientPool(Setup(prepared, prepared.algorithm, federation, model, Calendar(), place))
        values = "".join(FirstValues.of(template, model.layout).marks().values())
        tasks = WeightTasks(prepared, pool, settings.folder, values, settings.slowness, settings.step_seconds)
    else:
        clients = getattr(experiment.runtime, "clients", enrolment.clients)  # models are planned for all of them
        tasks = track_of(given).client_tasks(given, replace(enrolment, clients=clients), federation, settings.folder)
    description, digest = described(enrolment, "").text(), digest_of(tasks.experiment)
    identity = Identity(settings.client, description, digest, settings.key, tasks.values)
    return ClientDevice(identity, tasks, settings.folder, settings.policy)


def run_once(paths: Sequence[Path]) -> None:
    """Run these devices, a thread each, until they have left or their connections are lost for good."""
    devices = [(open_device(path), read_device(path)) for path in paths]
    threads = [threading.Thread(target=stay_as, args=own, daemon=True) for own in devices[1:]]
    for thread in threads:
        thread.start()
    stay_as(*devices[0])
    for thread in threads:
        thread.join()


def stay_as(device: ClientDevice, settings: DeviceSettings) -> None:
    """Run a device, connected as its file says, until it has left or its connection is lost for good."""
    from turnout.deploy.warm import Speed, stay

    speed = Speed(settings.look, settings.down_mbps, settings.up_mbps)
    stay(device, settings.superlink, settings.root, settings.key, speed)


def stock_command(path: Path, port: int) -> list[str]:
    """A stock SuperNode for this device; it starts a process for every message, and needs a port of its own."""
    settings = read_device(path)
    secure = ["--insecure"] if settings.root is None else ["--root-certificates", str(settings.root)]
    keyed = [] if settings.key is None else ["--auth-supernode-private-key", str(settings.key)]
    return [
        program("flower-supernode"), *secure, *keyed, "--superlink", settings.superlink, "--port", str(port),
        "--node-config", f'device="{path.absolute()}"',
    ]  # fmt: skip


def keep_running(paths: Sequence[Path], pause: float, stock: bool = False) -> None:
    """Run these devices in a process that is restarted when it dies, until all of them have left."""
    if stock and len(paths) > 1:
        raise UserError("a stock node is one device: start one for each file")
    while staying := [path for path in paths if not (read_device(path).folder / LEFT).exists()]:
        own = [sys.executable, "-m", "turnout", "device", "run", *map(str, staying), "--once"]
        subprocess.run(stock_command(paths[0], free_port()) if stock else own, env=surroundings({}), check=False)
        time.sleep(pause)


def ask_to_leave(path: Path) -> Path:
    """Make a device ask the server to leave; returns its folder."""
    folder = read_device(path).folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LEAVING).touch()
    return folder
