"""A real deployment on this machine: SuperLink, ServerApp, nodes, certificates, keys; and everything is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_device_data import JOBS, accuracy, experiment, refused, tables

import turnout as to
from deployments import Deployment, deployed
from turnout.cli import main
from turnout.deploy.demo import compare, play
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


CAMPAIGN = Path(__file__).parents[1] / "campaign"
DISK = """
import ctypes, sys
ctypes.CDLL(None).shim_arm(sys.argv[1].encode(), ctypes.c_long(12), int(sys.argv[2]), ctypes.c_long(12))
from turnout.cli import main
sys.exit(main(["device", "run", sys.argv[3], "--once", "--shortcuts"]))
"""
FULL, FAILING = "2", "3"  # as shim.c counts them


def test_disks_that_fail_a_file_that_changes_and_a_clock_that_is_wrong(tmp_path):
    """Device 0's rows are changed while it is off: it begins anew. The disks of 1 and 2 are full, and fail, for some
    operations: they are absent, and take part again. The clock of 3 is a month ahead: Flower refuses it; it says so."""
    for name in ("shim", "clock"):
        library = ["-shared", "-fPIC", "-O1", str(CAMPAIGN / f"{name}.c"), "-o", str(tmp_path / f"{name}.so"), "-ldl"]
        subprocess.run(["cc", *library], check=True)
    deployment, rounds = Deployment(tmp_path / "app", tls=False, rounds=12, clients=4, start_with=3, least=2), 12
    given = load(deployment.folder / "experiment.toml")
    kept = given.but(**{"algorithm.compression": to.compression.SparseTernary(keep=0.1)})  # the rest is kept on disk
    (deployment.folder / "experiment.toml").write_text(to_toml(kept))
    files = {name: deployment.device(name) for name in "0123"}
    disks = {name: deployment.folder / f"disk-{name}-None" for name in files}
    with deployed(deployment):
        first = deployment.start(files["0"])
        for name, what in (("1", FULL), ("2", FAILING)):
            words = [sys.executable, "-c", DISK, str(disks[name]), what, str(files[name])]
            deployment.start(files[name], ["env", f"LD_PRELOAD={tmp_path / 'shim.so'}", *words])
        wrong = device_process([files["3"]], tmp_path / "log", shortcuts=True).command
        deployment.start(files["3"], ["env", f"LD_PRELOAD={tmp_path / 'clock.so'}", *wrong])
        deployment.until(4)
        first.kill()
        for path in (disks["0"] / "rows").rglob("*.safetensors"):
            content = bytearray(path.read_bytes())
            content[-3] ^= 4
            path.write_bytes(content)
        deployment.start(files["0"])
        deployment.until(rounds + 1, seconds=300.0)
    said = list[str]()
    with Records.read(deployment.folder / "run" / "records.sqlite") as records:
        assert records.last_round() == rounds - 1
        refused = "; ".join(str(words) for words in records.rounds()["refused"].tolist())
        columns, events = records.clients(), [event[:3] for event in records.events()]
    rows = list(zip(*(columns[name].tolist() for name in ("client", "round", "work")), strict=True))
    for name, words in (("1", "No space left on device"), ("2", "Input/output error")):
        assert f"{name}: its disk failed ({words})" in refused
        assert max(t for client, t, work in rows if client == int(name) and work > 0) > 4
    assert 3 not in {client for client, _, _ in rows}
    words = "seconds ahead of the SuperLink's: Flower accepts 5 ahead and 300 behind"
    assert words in (deployment.folder / "device-3.3.log").read_text()
    assert [kind for t, client, kind in events if client == 0] == ["join", "leave", "join"]
    compare(deployment.folder / "run", said.append)
    assert said[-1].endswith("gives the same model, to the bit"), said


REPLAYING = """
import sys
from pathlib import Path
from turnout.deploy import shortcuts

send, before = shortcuts._reply, []

def replayed(device, answer, *more):
    send(device, answer, *more)
    for old in (answer, *before):
        try:
            send(device, old, *more)
            print("sent again", flush=True)
        except Exception as error:
            print(f"not sent again: {type(error).__name__}", flush=True)
    before[:] = [*before, answer][-3:]

shortcuts._reply = replayed
shortcuts.run_devices([Path(sys.argv[1])])
"""


def test_replies_that_are_sent_again_change_nothing(tmp_path):
    """A device with a registered key sends each reply twice, and the last three again; the replay is the same."""
    deployment, rounds = Deployment(tmp_path / "app", tls=True, rounds=6, clients=2, start_with=2), 6
    deployment.let_in("0", "1")
    file = deployment.device("1", "1")
    with deployed(deployment):
        deployment.start(deployment.device("0", "0"))
        deployment.start(file, [sys.executable, "-c", REPLAYING, str(file)])
        deployment.until(rounds + 1)
    said = list[str]()
    assert (deployment.folder / "device-1.1.log").read_text().count("sent again") > 3 * rounds
    with Records.read(deployment.folder / "run" / "records.sqlite") as records:
        assert records.column("answered").tolist() == [2] * rounds
    compare(deployment.folder / "run", said.append)
    assert said[-1].endswith("gives the same model, to the bit"), said
