"""SuperLink, the server's run and devices as processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from turnout.errors import UserError

ANSWER_SECONDS = 300.0  # for a command of Flower's, or a SuperLink: a few are enough unless the machine is busy
SUPERLINK = "turnout.deploy.superlink"  # the module that runs Flower's
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


class NoAnswer(UserError):
    """A command of Flower's took too long; it may have taken effect all the same."""


def surroundings(own: dict[str, str]) -> dict[str, str]:
    """The environment of a process: Flower's programs find each other on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **QUIET, "PATH": path, **own}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def program(name: str) -> str:
    """A program of Flower's, beside the Python that runs this."""
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return str(beside)
    raise UserError(f"{name} is not installed beside {sys.executable}: pip install 'turnout[flower]'")


@dataclass
class Process:
    """A process in a session of its own, so that it can be ended with all processes it has started.

    name         what it is called
    command      its command line
    log          the file of its output
    environment  more variables of its environment
    popen        the process, once it is started
    """

    name: str
    command: Sequence[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    popen: subprocess.Popen[bytes] | None = None

    def start(self) -> Process:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as out:
            self.popen = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=surroundings(self.environment),
                start_new_session=True,
            )  # fmt: skip
        return self

    @property
    def runs(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def kill(self) -> None:
        """End it at once, with all processes it has started."""
        if self.popen is not None:
            self._signal(self.popen, signal.SIGKILL)
            self.popen.wait()

    def stop(self, seconds: float = 5.0) -> None:
        """Ask it to end; kill it if it does not."""
        if self.popen is not None:
            self._signal(self.popen, signal.SIGTERM)
            until = time.monotonic() + seconds
            while self.runs and time.monotonic() < until:
                time.sleep(0.05)
            self.kill()

    @staticmethod
    def _signal(popen: subprocess.Popen[bytes], number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(popen.pid, number)


@dataclass(frozen=True)
class Tls:
    """The server's certificate.

    folder      its files: ca.crt, server.crt, server.key
    known_keys  whether only nodes with registered keys may connect
    """

    folder: Path
    known_keys: bool = True

    def options(self) -> list[str]:
        files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.crt", "--ssl-keyfile": "server.key"}
        found = [word for option, name in files.items() for word in (option, str(self.folder / name))]
        return found + (["--enable-supernode-auth"] if self.known_keys else [])


@dataclass(frozen=True)
class ServerPlace:
    """Where a server runs.

    app        the folder of its app
    work       its working folder
    host       the address it listens on
    port       its port
    tls        its certificate; None: nothing is encrypted
    in_memory  the SuperLink keeps nothing on disk: many times faster with hundreds of devices, but if it dies it has
               forgotten its nodes, which connect again as new ones
    """

    app: Path
    work: Path
    host: str = "127.0.0.1"
    port: int = 8000
    tls: Tls | None = None
    in_memory: bool = False

    @property
    def address(self) -> str:
        """Its address on this machine."""
        return f"127.0.0.1:{self.port}" if self.host in ("0.0.0.0", "127.0.0.1") else f"{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {"FLWR_HOME": str(self.work / "flower")}

    def superlink(self) -> Process:
        """The SuperLink; its database keeps nodes and messages when it is killed."""
        kept = [] if self.in_memory else ["--database", str(self.work / "superlink.db")]
        secure = ["--insecure"] if self.tls is None else self.tls.options()
        command = [
            sys.executable, "-m", SUPERLINK, *secure, "--disable-runtime-dependency-installation",
            *kept, "--host", self.host, "--port", str(self.port),
        ]  # fmt: skip
        return Process("SuperLink", command, self.work / "superlink.log", self.environment)

    def configure(self) -> None:
        """Write the SuperLink's address where `flwr` reads it."""
        home = self.work / "flower"
        home.mkdir(parents=True, exist_ok=True)
        trust = "insecure = true" if self.tls is None else f'root-certificates = "{self.tls.folder / "ca.crt"}"'
        text = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n{trust}\n'
        (home / "config.toml").write_text(text, encoding="utf-8")

    def flwr(self, *words: str) -> dict[str, object]:
        """Run a command of Flower's; its answer, which is JSON."""
        command, name = [program("flwr"), *words, "--format", "json"], f"flwr {' '.join(words[:2])}"
        environment = surroundings(self.environment)
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=ANSWER_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise NoAnswer(f"{name} has not answered in {ANSWER_SECONDS:.0f} s") from error
        try:
            found: dict[str, object] = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError as error:
            raise UserError(f"{name} failed: {(done.stderr or done.stdout).strip()[-500:]}") from error
        if found.get("success") is False:
            raise UserError(f"{name} failed: {found.get('error-message', found)}")
        return found

    def submit(self, experiment: Path, out: Path, keys: Path | None) -> str:
        """Start the server's run; its number."""
        known = "" if keys is None else keys.absolute()
        config = f'experiment="{experiment.absolute()}" out="{out.absolute()}" keys="{known}"'
        return str(self.flwr("run", str(self.app), "here", "--run-config", config)["run-id"])

    def register(self, public_key: Path) -> None:
        """Admit the node with this key."""
        self.flwr("supernode", "register", str(public_key), "here")

    def wait(self, superlink: Process) -> None:
        """Wait until the SuperLink listens."""
        host, _, port = self.address.rpartition(":")
        until = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < until and superlink.runs:
            try:
                socket.create_connection((host, int(port)), 1.0).close()
                return
            except OSError:
                time.sleep(0.2)
        raise UserError(f"the SuperLink does not start: look at {superlink.log}")


def device_process(files: Sequence[Path], log: Path) -> Process:
    """`turnout device run` of devices' files, which ends when the connection is lost."""
    command = [sys.executable, "-m", "turnout", "device", "run", *map(str, files), "--once"]
    return Process(files[0].stem, command, log, {"OMP_NUM_THREADS": "1"})
