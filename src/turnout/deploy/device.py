"""A device's file, when it accepts work, and the device made from it.

experiment = "experiment.toml"     # the server's file: model, algorithm, task and seed must be the same
client = "kitchen"                 # the client's name (or its number, if the data numbers its clients)
superlink = "192.0.2.7:8000"
[data]                             # this device's own data; by default that of the experiment
[policy]                           # when it works: least_battery, only_charging, quiet, own
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from pathlib import Path

from turnout.data.description import described, enrolment_of
from turnout.data.federation import DataSpec
from turnout.deploy.agreement import as_agreed
from turnout.deploy.answering import LEAVING, LEFT, ClientDevice, WeightTasks
from turnout.deploy.enrolment import digest_of
from turnout.deploy.processes import LOOK, free_port, program, surroundings
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

BEHIND, AHEAD = -300.0, 5.0  # seconds that a node's clock may be off, by Flower's constants
POWER = Path("/sys/class/power_supply")
OwnRule = Callable[[], bool]


# -- when it works: what the platform reports is read; a check that cannot be made passes


@dataclass(frozen=True)
class PolicyConditions:
    """The state of a device; None: not known.

    battery   part of its battery that is left
    charging  whether it is charging
    hour      of the day, such as 13.5
    """

    battery: float | None = None
    charging: bool | None = None
    hour: float = 12.0


@dataclass(frozen=True)
class Policy:
    """When a device works.

    least_battery   not with less of its battery than this part, unless it is charging
    only_charging   only while it is charging
    quiet           hours in which it does not work: "22-7", "12-13"; several with commas
    own             the user's own function without arguments, True to work: "package.module:name" in files
    """

    least_battery: float = 0.0
    only_charging: bool = False
    quiet: str = ""
    own: OwnRule | None = None

    def __post_init__(self) -> None:
        quiet_hours(self.quiet)

    def refusal(self, now: PolicyConditions | None = None) -> str | None:
        """Why the device declines; None: it accepts.

        >>> Policy(least_battery=0.3).refusal(PolicyConditions(battery=0.2, charging=False))
        'battery at 20 %'
        >>> Policy(quiet="22-7").refusal(PolicyConditions(hour=23.5)), Policy().refusal(PolicyConditions())
        ('quiet hours', None)
        """
        now = now or conditions()
        if now.battery is not None and now.battery < self.least_battery and not now.charging:
            return f"battery at {100 * now.battery:.0f} %"
        if self.only_charging and now.charging is False:
            return "not charging"
        for first, last in quiet_hours(self.quiet):
            if first <= now.hour < last if first <= last else now.hour >= first or now.hour < last:
                return "quiet hours"
        return None if self.own is None or self.own() else "the user's own rule"


def quiet_hours(text: str) -> list[tuple[float, float]]:
    """The hours of such a text.

    >>> quiet_hours("22-7, 12-13")
    [(22.0, 7.0), (12.0, 13.0)]
    """
    try:
        return [(float(a), float(b)) for a, b in (part.split("-") for part in text.split(",") if part.strip())]
    except ValueError as error:
        raise UserError(f'quiet = {text!r}: hours are written as "22-7", several as "22-7, 12-13"') from error


def conditions() -> PolicyConditions:
    """The state of this machine (Linux: /sys/class/power_supply)."""
    now = datetime.datetime.now()
    battery, charging = None, None
    for supply in sorted(POWER.glob("*")) if POWER.is_dir() else ():
        kind, capacity, status, online = (_read(supply / name) for name in ("type", "capacity", "status", "online"))
        if kind == "Battery" and capacity.isdecimal():
            battery, charging = int(capacity) / 100, status in ("Charging", "Full", "Not charging")
        elif kind == "Mains" and online in ("0", "1"):
            charging = online == "1" or bool(charging)
    return PolicyConditions(battery, charging, now.hour + now.minute / 60)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


# -- its file


@dataclass(frozen=True)
class DeviceSettings:
    """The settings in a device's file; paths are relative to the file.

    experiment    the server's experiment file; by default the app's own, or experiment.toml beside this file
    client        its client's name
    superlink     the server's address: host:port
    folder        where its rows are kept
    data          its own data; by default that of the experiment, which also fixes labels and columns of a table
    policy        when it works
    key           its private key, for a server that knows its devices by their keys
    root          certificate of the authority that signed the server's: without, nothing is encrypted
    look          seconds between two looks for a message, with the shortcuts: more with hundreds of devices
    slowness      seconds added whenever training checks the time, to simulate a slow device
    step_seconds  seconds that a step of training takes at least, for the same purpose
    down_mbps     speed limit of incoming messages, with the shortcuts, to simulate a slow link (0: no limit)
    up_mbps       the same of outgoing ones
    """

    experiment: Path | None = None
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
        table = parse_table(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    found: DeviceSettings = build(DeviceSettings, table | {"client": str(table.get("client", ""))}, "")
    if not found.client:
        raise UserError(f'{path} does not name its client: client = "a name of its own"')
    paths = {
        n: path.parent / p for n in ("experiment", "folder", "key", "root") if (p := getattr(found, n)) is not None
    }
    return replace(found, **paths)


def open_device(path: Path, experiment: Path | None = None) -> ClientDevice:
    """The device of such a file, with its data loaded; `experiment`: what the app has if the file names none."""
    settings = read_device(path)
    return make_device(load(settings.experiment or experiment or path.parent / "experiment.toml"), settings)


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
    return ClientDevice(
        settings.client, description, digest, tasks, settings.folder, settings.policy.refusal, settings.key
    )


def stock_command(path: Path, port: int) -> list[str]:
    """Flower's own SuperNode for this device; it starts a process for every message, and needs a port of its own."""
    settings = read_device(path)
    if settings.down_mbps or settings.up_mbps:
        raise UserError(
            f"{path}: Flower's own SuperNode has no speed limit: leave down_mbps and up_mbps out, or --shortcuts"
        )
    secure = ["--insecure"] if settings.root is None else ["--root-certificates", str(settings.root)]
    keyed = [] if settings.key is None else ["--auth-supernode-private-key", str(settings.key)]
    return [
        program("flower-supernode"), *secure, *keyed, "--superlink", settings.superlink, "--port", str(port),
        "--node-config", f'device="{path.absolute()}"',
    ]  # fmt: skip


def keep_running(paths: Sequence[Path], pause: float, shortcuts: bool, once: bool = False) -> None:
    """Run these devices in processes that are restarted when they die (but for `once`), until all have left."""
    if not shortcuts and len(paths) > 1:
        raise UserError("Flower's own SuperNode is one device: start one for each file, or use --shortcuts")
    while staying := _staying(paths):
        own = [sys.executable, "-P", "-m", "turnout", "device", "run", *map(str, staying), "--once", "--shortcuts"]
        command = own if shortcuts else stock_command(paths[0], free_port())
        if not shortcuts:
            report_wrong_clock(read_device(paths[0]))
        with subprocess.Popen(command, env=surroundings({})) as process:
            try:
                while process.poll() is None and _staying(paths):
                    time.sleep(LOOK)
            finally:
                process.terminate()
        if once:
            return
        time.sleep(pause)


def report_wrong_clock(settings: DeviceSettings) -> None:
    """Print a sentence if the SuperLink's clock is another than this device's: Flower ends the node without one.

    Every request of a node carries its time, with or without a registered key. The answer is not verified: by a wrong
    clock a certificate may have expired, and nothing but its date is read.
    """
    import httpx  # with flwr

    scheme = "http" if settings.root is None else "https"
    try:
        answer = httpx.get(f"{scheme}://{settings.superlink}/", timeout=5.0, verify=False)
        ahead = time.time() - parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (httpx.HTTPError, KeyError, ValueError):
        return  # connecting says what is wrong
    if not BEHIND <= ahead <= AHEAD:
        print(
            f"the clock of {settings.client} is {abs(ahead):.0f} seconds {'ahead of' if ahead > 0 else 'behind'} the "
            f"SuperLink's: Flower accepts {AHEAD:.0f} ahead and {-BEHIND:.0f} behind, and refuses this device until a "
            "clock is set", flush=True,
        )  # fmt: skip


def _staying(paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if not (read_device(path).folder / LEFT).exists()]


def ask_to_leave(path: Path) -> Path:
    """Make a device ask the server to leave; returns its folder."""
    folder = read_device(path).folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LEAVING).touch()
    return folder
