"""SuperLink, the server's run and devices as processes of this machine; `turnout deploy server` watches the first two,
and restarts one that dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnout.deploy.server import FINISHED, PID, beside
from turnout.errors import UserError
from turnout.machine.files import write_whole
from turnout.running.records.records import Records

ANSWER_SECONDS = 300.0  # for a command of Flower's, or a SuperLink: a few are enough unless the machine is busy
SUPERLINKS = ("turnout.deploy.shortcuts", "flower-superlink")  # the module that runs Flower's, and Flower's own
LOOK = 1.0  # seconds between two looks
SUPERLINK_PID = "superlink.pid"  # in the server's working folder
DEATHS = 3  # in the same round, after which a run is not restarted
PATIENCE = 60.0  # seconds within which a submitted run must have begun; doubled each time it has not
PROC = Path("/proc")  # Linux; elsewhere `ps` knows the processes
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


Say = Callable[[str], None]


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
    found = shutil.which(name, path=Path(sys.executable).parent)  # on Windows it ends in .exe
    if found is not None:
        return found
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
        if not hasattr(os, "killpg"):
            why = "needs process groups, which Windows does not have"
            raise UserError(f"{self.name} {why}: run it on Linux or macOS, or in WSL")
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
class ServerPlace:
    """Where a server runs.

    app           the folder of its app
    work          its working folder
    host          the address it listens on
    port          its port
    certificates  folder of its certificate (ca.crt, server.crt, server.key); None: nothing is encrypted
    any_node      whether nodes may connect whose keys are not registered
    in_memory     the SuperLink keeps nothing on disk: many times faster with hundreds of devices, but if it dies it
                  has forgotten its nodes, which connect again as new ones
    shortcuts     whether SuperLink and server take those of shortcuts.py
    """

    app: Path
    work: Path
    host: str = "127.0.0.1"
    port: int = 8000
    certificates: Path | None = None
    any_node: bool = False
    in_memory: bool = False
    shortcuts: bool = False

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
        secure = ["--insecure"]
        if self.certificates is not None:
            files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.crt", "--ssl-keyfile": "server.key"}
            secure = [word for option, name in files.items() for word in (option, str(self.certificates / name))]
            secure += [] if self.any_node else ["--enable-supernode-auth"]
        short, stock = SUPERLINKS
        start = [sys.executable, "-P", "-m", short] if self.shortcuts else [program(stock)]
        command = [
            *start, *secure, "--disable-runtime-dependency-installation",
            *kept, "--host", self.host, "--port", str(self.port),
        ]  # fmt: skip
        return Process("SuperLink", command, self.work / "superlink.log", self.environment)

    def configure(self) -> None:
        """Write the SuperLink's address where `flwr` reads it."""
        home, root = self.work / "flower", self.certificates
        home.mkdir(parents=True, exist_ok=True)
        trust = "insecure = true" if root is None else f'root-certificates = "{root / "ca.crt"}"'
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


def device_process(files: Sequence[Path], log: Path, shortcuts: bool = False) -> Process:
    """`turnout device run` of devices' files, which ends when the connection is lost."""
    command = [sys.executable, "-P", "-m", "turnout", "device", "run", *map(str, files), "--once"]
    command += ["--shortcuts"] if shortcuts else []
    return Process(files[0].stem, command, log, {"OMP_NUM_THREADS": "1"})


# -- the server, watched


@dataclass
class Serving:
    """A deployment's server while it is watched.

    place       where it runs
    experiment  the experiment's file
    out         the run's folder
    keys        a folder of public keys, which are registered as they appear
    say         prints a line
    superlink   the SuperLink's process, once it is started
    run         Flower's number of the run
    began       when the run was submitted
    """

    place: ServerPlace
    experiment: Path
    out: Path
    keys: Path | None = None
    say: Say = print
    superlink: Process | None = None
    run: str = ""
    began: float = 0.0
    _registered: set[str] = field(default_factory=set)
    _last: int = -1  # the last round that was reported
    _deaths: list[int] = field(default_factory=list)  # the round in which the run died, each time
    _patience: float = PATIENCE

    def start(self) -> None:
        """Start the SuperLink and the run."""
        self.place.work.mkdir(parents=True, exist_ok=True)
        beside(self.out, FINISHED).unlink(missing_ok=True)
        with suppress(UserError), Records.read(self.out / "records.sqlite") as records:
            self._last = max(records.column("round").tolist(), default=-1)
        if self.rounds_done():
            self.say(f"{self.out} has {self.rounds_done()} rounds already (--out DIR begins another run)")
        self.place.configure()
        self._end_orphans()
        self._start_superlink()
        self.say(f"the SuperLink listens at {self.place.host}:{self.place.port}")
        self.register()
        self.submit()

    def _start_superlink(self) -> None:
        self.superlink = self.place.superlink().start()
        assert self.superlink.popen is not None
        write_whole(self.place.work / SUPERLINK_PID, str(self.superlink.popen.pid))
        self.place.wait(self.superlink)

    def _end_orphans(self) -> None:
        """End processes of an earlier server of this folder that was killed."""
        superlink, run = self.place.work / SUPERLINK_PID, beside(self.out, PID)
        for file, words in ((superlink, SUPERLINKS), (run, ("flwr-serverapp",))):
            pid = _number_in(file)
            if pid is None:
                continue
            if any(word in _seen(pid, "cmdline", "command") for word in words):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                while alive(pid):
                    time.sleep(0.1)

    def submit(self) -> None:
        beside(self.out, PID).unlink(missing_ok=True)
        try:
            known = "" if self.keys is None else self.keys.absolute()
            config = f'experiment="{self.experiment.absolute()}" out="{self.out.absolute()}" keys="{known}"'
            config += " shortcuts=true" * self.place.shortcuts
            self.run = str(self.place.flwr("run", str(self.place.app), "here", "--run-config", config)["run-id"])
            self.say(f"Flower's run {self.run} has begun")
        except NoAnswer as error:  # it may begin all the same; if it does not, it is submitted again
            self.say(str(error))
        self.began = time.monotonic()

    def register(self) -> None:
        """Register the public keys that are new in the folder."""
        paths = sorted(self.keys.glob("*.pub")) if self.keys and self.keys.is_dir() else ()
        for path in (path for path in paths if path.name not in self._registered):
            try:
                self.place.flwr("supernode", "register", str(path), "here")
                self.say(f"{path.name} may connect")
            except NoAnswer as error:
                self.say(f"{error}: {path.name} is tried again")
                continue
            except UserError:  # it was registered before the SuperLink was restarted
                pass
            self._registered.add(path.name)

    def watch(self) -> bool:
        """Look once, and restart processes that have died; whether the run is complete."""
        self.report()
        if beside(self.out, FINISHED).exists():
            return True
        assert self.superlink is not None
        if not self.superlink.runs:
            self.say("the SuperLink has died: it is restarted")
            self._registered.clear()
            self._start_superlink()
            self.end_run()
            self.submit()
        elif self.dead() and not beside(self.out, FINISHED).exists():
            self._resubmit()
        self.register()
        return False

    def _resubmit(self) -> None:
        """Restart the run, unless it has died several times without a round in between."""
        self._deaths = [t for t in self._deaths if t == self._last] + [self._last]
        if len(self._deaths) > DEATHS:
            raise UserError(
                f"the server's run has died {DEATHS + 1} times in the same round: {self.place.work / 'superlink.log'} "
                "has the reason"
            )
        self._patience = 2 * self._patience if self.pid() is None else PATIENCE
        self.say("the server's run has died: it resumes from its last checkpoint")
        with suppress(UserError):
            self.place.flwr("stop", self.run, "here")
        self.submit()

    def dead(self) -> bool:
        """Whether the run's process is gone, or never began."""
        pid = self.pid()
        if pid is None:
            return time.monotonic() - self.began > self._patience
        return not alive(pid)

    def pid(self) -> int | None:
        return _number_in(beside(self.out, PID))

    def end_run(self) -> None:
        """Kill the run's process; finished rounds are in its folder."""
        pid = self.pid()
        if pid is not None and alive(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def report(self) -> None:
        """Print a line for every round that has ended since."""
        with suppress(UserError), Records.read(self.out / "records.sqlite") as records:
            rounds = records.rounds()
            for i, t in enumerate(rounds["round"].tolist()):
                if t > self._last:
                    value: dict[str, Any] = {name: column[i] for name, column in rounds.items()}
                    counts = {n: value[n] for n in ("late", "unreachable") if n in value and value[n] == value[n]}
                    words = [f", {n} {count:.0f}" for n, count in counts.items() if count]
                    why = ("declined", "refused", "skipped")
                    words += [f", {n}: {value[n]}" for n in why if isinstance(value.get(n), str)]
                    answered = f"{value['answered']} of {value['asked']} answered, {value['seconds']:.1f} s"
                    self.say(f"round {t}: {answered}" + "".join(words))
            for t, client, kind, detail in records.events():
                if t > self._last:
                    self.say(f"  client {client}: {kind} ({detail})")
            self._last = int(rounds["round"].max()) if len(rounds["round"]) else -1

    def rounds_done(self) -> int:
        return self._last + 1

    def stop(self) -> None:
        self.end_run()
        if self.superlink is not None:
            self.superlink.stop()


def _number_in(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    state = _seen(pid, "stat", "stat").rpartition(")")[2].strip()
    return state != "" and not state.startswith("Z")


def _seen(pid: int, file: str, column: str) -> str:
    """A file of a process in /proc, or the column of `ps` that has the same; empty if there is no such process."""
    with suppress(OSError):
        return (PROC / str(pid) / file).read_text(errors="replace")
    if (PROC / "self").exists():
        return ""
    command = ["ps", "-ww", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
