"""A real deployment on this machine: SuperLink, ServerApp, nodes, certificates, keys; and everything is killed."""

from __future__ import annotations

import sys
import time

import pytest
from test_device_data import JOBS, accuracy, experiment, refused, tables

import turnout as to
from deployments import Deployment, deployed
from turnout.cli import main
from turnout.deploy.demo import play
from turnout.deploy.processes import device_process
from turnout.running.config.read import load, to_toml
from turnout.running.records.records import Records

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shortcuts", [False, True])
def test_the_demonstration(shortcuts, tmp_path):
    """Devices absent, killed, slow, late, leaving, and a server that dies: the replay has the same model."""
    said = list[str]()
    play(tmp_path / "demo", 8, shortcuts, said.append)
    assert ("shortcuts through" in said[0]) == shortcuts
    assert said[-1].endswith("gives the same model, to the bit"), "\n".join(said)
    with Records.read(tmp_path / "demo" / "run" / "records.sqlite") as records:
        kinds = [(client, kind) for _, client, kind, _ in records.events()]
        assert (4, "join") in kinds
        work = records.clients()["work"]
    if shortcuts:  # on a busy machine a slow stock node's reply may come after the round
        assert any(0 < w < 1 for w in work.tolist())
    assert any(w == 0 for w in work.tolist())


def test_certificates_and_keys(tmp_path):
    """Two registered keys get in; a stranger's key does not, nor a registered one that takes another's name; the
    SuperLink is killed and the run goes on."""
    deployment = Deployment(tmp_path / "app", tls=True, rounds=6, start_with=2)
    deployment.let_in("0", "1", "thief")
    deployment.certify("device", "stranger")
    with deployed(deployment):
        stranger = deployment.start(deployment.device("2", "stranger"))
        for name in ("0", "1"):
            deployment.start(deployment.device(name, name))
        deployment.until(2)
        assert not stranger.runs  # it was refused
        assert "Failed to activate SuperNode" in (deployment.folder / "device-stranger.0.log").read_text()
        deployment.start(deployment.device("0", "thief"))  # a known key, but not that of client 0
        deployment.until(3)
        assert deployment.serving.superlink is not None
        deployment.serving.superlink.kill()
        deployment.until(6)
    with Records.read(deployment.folder / "run" / "records.sqlite") as records:
        assert max(records.column("asked")) == 2
        assert [client for _, client, kind, _ in records.events() if kind == "join"] == [0, 1]
        words = "its key is registered for 'thief', and it calls itself '0'"
        assert any(words in str(found) for found in records.rounds()["refused"].tolist())
    assert f"the server refuses 0: {words}" in (deployment.folder / "device-thief.3.log").read_text()


def test_devices_with_a_table_each(tmp_path):
    """Jobs of one device are none of the other's: they train by the experiment's columns as the replay does. A device
    with an experiment file of its own, without them, is refused, and both logs say why."""
    deployment = Deployment(tmp_path / "app", tls=False, rounds=6, start_with=2, server_data=False)
    data = tables(tmp_path, JOBS)
    given = experiment(data.fixed(), rounds=6, round_seconds=40.0, request_seconds=30.0)
    (deployment.folder / "experiment.toml").write_text(to_toml(given))
    (deployment.folder / "without.toml").write_text(to_toml(given.but(**{"world.data": data})))
    with deployed(deployment):
        for name, file in (("field", "without.toml"), ("forge", "experiment.toml"), ("field", "experiment.toml")):
            text = deployment.device(name).read_text().replace("experiment.toml", file).replace("disk-", f"{file}-")
            path = deployment.folder / f"{name}-{file}"
            settings = f'kind = "table"\npath = "{tmp_path / name}"\nlabel = "buys"\ntest_share = 0.0\n'
            path.write_text(f'{text}[data]\n{settings}local_test = "last"\n')
            deployment.start(path)
        deployment.until(7)  # until the run is complete: its replay is written after the last round
    out, words = deployment.folder / "run", "its column 'job' has texts"
    assert words in refused(out)
    assert f"the server refuses field: {words}" in (deployment.folder / "field-without.0.log").read_text()
    again = to.run(load(out / "replay.toml"), tmp_path / "again", quiet=True)
    assert accuracy(to.open_run(out).model(), data) == accuracy(again.model(), data) == 1.0


def test_stock_programs_with_keys_and_a_device_that_leaves(tmp_path):
    """Flower's SuperLink and SuperNodes, and a device with the shortcuts among them; the stock one that leaves ends."""
    deployment = Deployment(tmp_path / "app", tls=True, rounds=4, shortcuts=False, start_with=2)
    deployment.let_in("0", "1")
    files = {name: deployment.device(name, name) for name in "01"}
    with deployed(deployment):
        stock = deployment.start(files["0"])
        deployment.start(files["1"], [*device_process([files["1"]], tmp_path / "log", shortcuts=True).command])
        deployment.until(2, seconds=240)
        assert main(["device", "leave", str(files["0"])]) == 0
        deployment.until(5, seconds=240)
        end = time.monotonic() + 30
        while stock.runs and time.monotonic() < end:
            time.sleep(0.5)
        assert not stock.runs
    with Records.read(deployment.folder / "run" / "records.sqlite") as records:
        assert records.column("answered").tolist()[:2] == [2, 2]
        assert [client for _, client, kind, _ in records.events() if kind == "leave"] == [0]


def test_a_superlink_in_memory_may_die_too(tmp_path):
    """It has forgotten nodes and keys: keys are registered again, and devices come back as other nodes."""
    deployment = Deployment(tmp_path / "app", tls=True, rounds=5, in_memory=True, start_with=2, least=2)
    deployment.let_in("0", "1")
    with deployed(deployment):
        for name in ("0", "1"):
            file = deployment.device(name, name)
            watched = [sys.executable, "-m", "turnout", "device", "run", str(file), "--pause", "1", "--shortcuts"]
            deployment.start(file, watched)
        deployment.until(2)
        assert deployment.serving.superlink is not None
        deployment.serving.superlink.kill()
        deployment.until(5)
    assert not (deployment.folder / "server" / "superlink.db").exists()
    with Records.read(deployment.folder / "run" / "records.sqlite") as records:
        assert [client for _, client, kind, _ in records.events() if kind == "join"] == [0, 1]
        assert records.column("answered").tolist()[-1] == 2
