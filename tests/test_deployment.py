"""A real deployment on this machine: SuperLink, ServerApp, nodes, certificates, keys; and everything is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from turnout.cli import main
from turnout.config.read import to_toml
from turnout.deploy.app import write_app
from turnout.deploy.demo import demo_experiment, play
from turnout.deploy.device import stock_command
from turnout.deploy.processes import Process, ServerPlace, Tls, device_process, free_port
from turnout.deploy.serving import Serving
from turnout.records.records import Records
from turnout.runtimes.flower.settings import Flower

pytestmark = pytest.mark.slow


def test_the_demonstration(tmp_path):
    """Devices absent, killed, slow, late, leaving, and a server that dies: the replay has the same model."""
    said = list[str]()
    play(tmp_path / "demo", 8, said.append)
    assert said[-1].endswith("gives the same model, to the bit"), "\n".join(said)
    with Records.read(tmp_path / "demo" / "run" / "records.sqlite") as records:
        kinds = [(client, kind) for _, client, kind, _ in records.events()]
        assert (4, "join") in kinds
        work = records.clients()["work"]
    assert any(0 < w < 1 for w in work.tolist())
    assert any(w == 0 for w in work.tolist())


class Deployment:
    """An app in a folder, with a server and any devices."""

    def __init__(self, folder: Path, tls: bool, rounds: int, in_memory: bool = False, **settings):
        self.folder, self.processes = folder, list[Process]()
        experiment = demo_experiment(rounds).but(
            runtime=Flower(clients=3, server_data=True, round_seconds=40.0, request_seconds=30.0, **settings)
        )
        write_app(folder, experiment)
        assert (folder / "experiment.toml").read_text() == to_toml(experiment)
        if tls:
            self.certify("server", "127.0.0.1")
        certificates = Tls(folder / "certificates") if tls else None
        self.place = ServerPlace(
            folder / "app", folder / "server", port=free_port(), tls=certificates, in_memory=in_memory
        )
        self.serving = Serving(self.place, folder / "experiment.toml", folder / "run", folder / "devices")

    def certify(self, *words: str) -> None:
        subprocess.run(["sh", "certificates.sh", *words], cwd=self.folder, check=True, capture_output=True)

    def device(self, name: str, key: str | None = None) -> Path:
        """The file of a device; with a key, which makes it one that was made by the script."""
        path = self.folder / f"device-{name}.toml"
        secure = f'root = "certificates/ca.crt"\nkey = "certificates/{key}.key"\n' if key else ""
        path.write_text(
            f'experiment = "experiment.toml"\nclient = "{name}"\nsuperlink = "{self.place.address}"\n'
            f'folder = "disk-{name}-{key}"\n{secure}'
        )
        return path

    def start(self, path: Path, command: list[str] | None = None) -> Process:
        log = path.with_suffix(f".{len(self.processes)}.log")
        process = device_process([path], log) if command is None else Process(path.stem, command, log)
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


def test_certificates_and_keys(tmp_path):
    """Two registered keys get in; a stranger's key does not, nor a registered one that takes another's name; the
    SuperLink is killed and the run goes on."""
    deployment = Deployment(tmp_path / "app", tls=True, rounds=6, start_with=2)
    (deployment.folder / "devices").mkdir()
    for name in ("0", "1", "thief"):
        deployment.certify("device", name)
        public = deployment.folder / "certificates" / f"{name}.key.pub"
        (deployment.folder / "devices" / f"{name}.pub").write_text(public.read_text())
    deployment.certify("device", "stranger")
    with deployed(deployment):
        stranger = deployment.start(deployment.device("2", "stranger"))
        for name in ("0", "1"):
            deployment.start(deployment.device(name, name))
        deployment.until(2)
        assert not stranger.runs  # it was refused
        assert "Failed to activate SuperNode" in (deployment.folder / "device-2.0.log").read_text()
        deployment.start(deployment.device("0", "thief"))  # a known key, but not that of client 0
        deployment.until(3)
        assert deployment.serving.superlink is not None
        deployment.serving.superlink.kill()
        deployment.until(6)
    with Records.read(deployment.folder / "run" / "records.sqlite") as records:
        assert max(records.column("asked")) == 2
        assert [client for _, client, kind, _ in records.events() if kind == "join"] == [0, 1]
        assert any("bound to another key" in str(words) for words in records.rounds()["refused"].tolist())


def test_a_stock_node_works_too(tmp_path):
    deployment = Deployment(tmp_path / "app", tls=False, rounds=2, start_with=2)
    with deployed(deployment):
        stock = deployment.device("0")
        deployment.start(stock, stock_command(stock, free_port()))
        warm = deployment.start(deployment.device("1"))
        deployment.until(2, seconds=240)
        assert main(["device", "leave", str(deployment.device("1"))]) == 0
        assert warm.runs
    with Records.read(deployment.folder / "run" / "records.sqlite") as records:
        assert records.column("answered").tolist() == [2, 2]


def test_a_superlink_in_memory_may_die_too(tmp_path):
    """It has forgotten nodes and keys: keys are registered again, and devices come back as other nodes."""
    deployment = Deployment(tmp_path / "app", tls=True, rounds=5, in_memory=True, start_with=2, least=2)
    (deployment.folder / "devices").mkdir()
    for name in ("0", "1"):
        deployment.certify("device", name)
        public = deployment.folder / "certificates" / f"{name}.key.pub"
        (deployment.folder / "devices" / f"{name}.pub").write_text(public.read_text())
    with deployed(deployment):
        for name in ("0", "1"):
            file = deployment.device(name, name)
            watched = [sys.executable, "-m", "turnout", "device", "run", str(file), "--pause", "1"]
            deployment.start(file, watched)
        deployment.until(2)
        assert deployment.serving.superlink is not None
        deployment.serving.superlink.kill()
        deployment.until(5)
    assert not (deployment.folder / "server" / "superlink.db").exists()
    with Records.read(deployment.folder / "run" / "records.sqlite") as records:
        assert [client for _, client, kind, _ in records.events() if kind == "join"] == [0, 1]
        assert records.column("answered").tolist()[-1] == 2
