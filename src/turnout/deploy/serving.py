"""`turnout deploy server`: a SuperLink and the server's run, watched, and restarted if one of them dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnout.deploy.processes import SUPERLINK, NoAnswer, Process, ServerPlace
from turnout.deploy.server import FINISHED, PID, beside
from turnout.errors import UserError
from turnout.machine.files import write_whole
from turnout.running.records.records import Records

LOOK = 1.0  # seconds between two looks
SUPERLINK_PID = "superlink.pid"  # in the server's working folder
DEATHS = 3  # in the same round, after which a run is not restarted
PATIENCE = 60.0  # seconds within which a submitted run must have begun; doubled each time it has not

Say = Callable[[str], None]


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
        for file, word in ((self.place.work / SUPERLINK_PID, SUPERLINK), (beside(self.out, PID), "flwr-serverapp")):
            pid = _number_in(file)
            if pid is None:
                continue
            with suppress(OSError):
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    while alive(pid):
                        time.sleep(0.1)

    def submit(self) -> None:
        beside(self.out, PID).unlink(missing_ok=True)
        try:
            self.run = self.place.submit(self.experiment, self.out, self.keys)
            self.say(f"Flower's run {self.run} has begun")
        except NoAnswer as error:  # it may begin all the same; if it does not, it is submitted again
            self.say(str(error))
        self.began = time.monotonic()

    def register(self) -> None:
        """Register the public keys that are new in the folder."""
        paths = sorted(self.keys.glob("*.pub")) if self.keys and self.keys.is_dir() else ()
        for path in (path for path in paths if path.name not in self._registered):
            try:
                self.place.register(path)
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
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return not Path("/proc/self").exists()
