"""`turnout deploy init | server | demo` and `turnout device run | leave`: training on real devices through Flower."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli.common import permits_code, say
from turnout.errors import UserError

if TYPE_CHECKING:
    from turnout.experiment import Experiment

App = Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder, as turnout deploy init wrote it.")]
Source = Annotated[str, typer.Argument(metavar="[EXPERIMENT]", help="A recipe or a file; as for turnout run.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder (DIR/run).")]
Host = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all of this machine's.")]
Port = Annotated[int, typer.Option(help="The port to listen on.")]
Certificates = Annotated[
    Path | None, typer.Option(metavar="DIR", help="ca.crt, server.crt and server.key: the connection is encrypted.")
]
InMemory = Annotated[
    bool, typer.Option("--in-memory", help="Keep nothing of the SuperLink on disk: much faster with many devices.")
]
AnyNode = Annotated[bool, typer.Option("--any-node", help="With TLS: accept nodes whose keys were not registered.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The device's file, such as device.toml.")]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of devices, such as device.toml.")]
Once = Annotated[bool, typer.Option("--once", help="End when the connection is lost, instead of starting again.")]
Shortcuts = Annotated[
    bool, typer.Option("--shortcuts", help="Through the inside of Flower's package: several times as fast.")
]
Pause = Annotated[float, typer.Option(help="Seconds until a lost device is started again.", hidden=True)]
Rounds = Annotated[int, typer.Option(help="Rounds to train.")]

DEPLOY = """Train on real devices through Flower (pip install 'turnout[flower]').

\b
turnout deploy demo                        a server and five devices on this machine, with every kind of failure
turnout deploy init app                    write an app: server, device, certificates, units for a supervisor
turnout deploy server app --host 0.0.0.0   start the server; devices: turnout device run app/device.toml
turnout export digits --flower-app fl      write a Flower app, for flwr run on any SuperLink
"""
DEVICE = """Run a device of such a training.

\b
turnout device run device.toml             work for the server in the file until it ends the training
turnout device leave device.toml           leave for good: the server forgets this client
"""
deploy = typer.Typer(no_args_is_help=True, help=DEPLOY, rich_markup_mode=None)
device = typer.Typer(no_args_is_help=True, help=DEVICE, rich_markup_mode=None)


@deploy.command("init")
@permits_code
def init(folder: App, experiment: Source = "digits") -> None:
    """Write a ready app: experiment, device, certificates script, supervisor units, and what Flower reads.

    \b
    turnout deploy init app
    turnout deploy init app my.toml
    """
    from turnout.deploy.app import write_app

    for path in write_app(folder, agreed_experiment(experiment, folder)):
        say(str(path))
    say(f"turnout deploy server {folder} starts the server, turnout device run {folder}/device.toml a device")


@deploy.command("server")
@permits_code
def server(
    folder: App,
    out: Out = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    certificates: Certificates = None,
    any_node: AnyNode = False,
    in_memory: InMemory = False,
    shortcuts: Shortcuts = False,
) -> None:
    """Start the server, and restart it if it dies; it resumes the run in the folder.

    Public keys in DIR/devices are accepted as they appear (with --certificates).

    \b
    turnout deploy server app
    turnout deploy server app --host 0.0.0.0 --certificates app/certificates
    turnout deploy server app --in-memory --shortcuts      hundreds of devices
    """
    check_extra()
    from turnout.deploy import shortcuts as inside
    from turnout.deploy.processes import LOOK, ServerPlace, Serving

    root, secure = folder.absolute(), certificates and certificates.absolute()
    place = ServerPlace(
        root / "app", root / "server", host, port, secure, any_node, in_memory, inside.chosen(shortcuts, say)
    )
    keys = None if any_node else folder / "devices"
    serving = Serving(place, folder / "experiment.toml", out or folder / "run", keys, say)
    try:
        serving.start()
        while not serving.watch():
            time.sleep(LOOK)
        say(f"done: turnout show {serving.out}; its report is {serving.out / 'report.html'}")
    finally:
        serving.stop()


@deploy.command("demo")
def demo(
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Its folder (new under runs/).")] = None,
    rounds: Rounds = 12,
    shortcuts: Shortcuts = False,
) -> None:
    """Run a server and five devices on this machine, with a real SuperLink and nodes.

    One is sometimes absent, one is killed and restarted, one is slow, one joins late. Afterwards the table, the report,
    and the replay in one process, which gives the same model.

    \b
    turnout deploy demo
    turnout deploy demo --shortcuts --rounds 20 --out runs/demo
    """
    check_extra()
    from turnout.deploy import shortcuts as inside
    from turnout.deploy.demo import play
    from turnout.running.folder import new_folder

    play((out or new_folder("demo")).absolute(), rounds, inside.chosen(shortcuts, say), say)


@device.command("run")
@permits_code
def run_device(files: Files, once: Once = False, shortcuts: Shortcuts = False, pause: Pause = 3.0) -> None:
    """Work for the server in the device's file, with Flower's own SuperNode; restarts when the connection is lost.

    \b
    turnout device run device.toml
    turnout device run device.toml --shortcuts            one process that stays, instead of one for every message
    turnout device run one.toml two.toml --shortcuts      several devices in one process
    """
    check_extra()
    from turnout.deploy import shortcuts as inside
    from turnout.deploy.device import keep_running

    short = inside.chosen(shortcuts, say)
    if once and short:
        inside.run_devices(files)
        return
    keep_running(files, pause, short, once)
    if not once:
        say("the server has ended the training")


@device.command("leave")
def leave(file: File) -> None:
    """Leave for good: the next message tells the server, which then forgets this client.

    \b
    turnout device leave device.toml
    """
    from turnout.deploy.device import ask_to_leave

    folder = ask_to_leave(file)
    say(f"the server learns it with its next request; {folder / 'left'} exists once it knows")


def agreed_experiment(source: str, folder: Path) -> Experiment:
    """The experiment of a recipe or a file, with what devices must share; a hint if the data is not at hand."""
    from turnout.cli.planning import one_experiment
    from turnout.deploy.app import with_columns

    given = one_experiment(source)
    try:
        return with_columns(given)
    except UserError as mistake:  # the data may be only on the devices
        shared = "devices must share labels, and columns or words"
        say(f"{mistake}; {shared}: add them to world.data in {folder}/experiment.toml")
        return given


def check_extra() -> None:
    """Refuse with the command to install where Flower is missing."""
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise UserError("real devices are reached through Flower: pip install 'turnout[flower]'") from error
