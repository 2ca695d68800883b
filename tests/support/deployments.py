"""A deployment on this machine, for tests: a SuperLink, the server's run, devices, certificates and keys."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turnout.data import Digits
from turnout.deploy.app import write_app
from turnout.deploy.demo import DEVICES, demo_experiment
from turnout.deploy.processes import Process, ServerPlace, Serving, device_process, free_port
from turnout.deploy.settings import Flower
from turnout.running.config.read import to_toml


class Deployment:
    """An app in a folder, with a server and any devices; `host`: another address that devices may use."""

    def __init__(
        self, folder: Path, tls: bool, rounds: int, host: str | None = None, in_memory: bool = False,
        shortcuts: bool = True, **settings: Any,
    ):  # fmt: skip
        self.folder, self.processes, self.shortcuts = folder, list[Process](), shortcuts
        given = {"clients": 3, "server_data": True, "round_seconds": 40.0, "request_seconds": 30.0} | settings
        data = Digits(clients=max(DEVICES, given["clients"]))
        experiment = demo_experiment(rounds).but(runtime=Flower(**given), **{"world.data": data})
        write_app(folder, experiment)
        assert (folder / "experiment.toml").read_text() == to_toml(experiment)
        if tls:
            self.certify("server", host or "127.0.0.1")
        certificates = folder / "certificates" if tls else None
        listens = "127.0.0.1" if host is None else "0.0.0.0"
        self.place = ServerPlace(
            folder / "app", folder / "server", listens, free_port(), certificates,
            in_memory=in_memory, shortcuts=shortcuts,
        )  # fmt: skip
        self.serving = Serving(self.place, folder / "experiment.toml", folder / "run", folder / "devices")

    def certify(self, *words: str) -> None:
        subprocess.run(["sh", "certificates.sh", *words], cwd=self.folder, check=True, capture_output=True)

    def let_in(self, *names: str) -> None:
        """Make keys, and let the nodes that have them in."""
        (self.folder / "devices").mkdir(exist_ok=True)
        for name in names:
            self.certify("device", name)
            public = self.folder / "certificates" / f"{name}.key.pub"
            (self.folder / "devices" / f"{name}.pub").write_text(public.read_text())

    def device(self, name: str, key: str | None = None, superlink: str | None = None) -> Path:
        """The file of a device; with a key, which makes it one that was made by the script."""
        path = self.folder / f"device-{key or name}.toml"
        secure = f'root = "certificates/ca.crt"\nkey = "certificates/{key}.key"\n' if key else ""
        path.write_text(
            f'experiment = "experiment.toml"\nclient = "{name}"\nsuperlink = "{superlink or self.place.address}"\n'
            f'folder = "disk-{name}-{key}"\n{secure}'
        )
        return path

    def start(self, path: Path, command: list[str] | None = None) -> Process:
        log = path.with_suffix(f".{len(self.processes)}.log")
        process = Process(path.stem, command, log) if command else device_process([path], log, self.shortcuts)
        self.processes.append(process.start())
        return process

    def until(self, rounds: int, seconds: float = 150.0) -> None:
        end = time.monotonic() + seconds
        while not self.serving.watch() and self.serving.rounds_done() < rounds:
            assert time.monotonic() < end, (self.folder / "server" / "superlink.log").read_text()[-3000:]
            time.sleep(0.5)


@contextmanager
def deployed(deployment: Deployment) -> Iterator[Deployment]:
    try:
        deployment.serving.start()
        yield deployment
    finally:
        for process in deployment.processes:
            process.kill()
        deployment.serving.stop()
