"""A Turnout experiment as an ordinary Flower app: exported, run by `flwr run` with Flower's own programs only."""

from __future__ import annotations

import subprocess
import time
import zipfile
from pathlib import Path

import pytest

import turnout as to
from turnout.cli import main
from turnout.deploy.apps import client_of
from turnout.deploy.demo import demo_experiment, same_model
from turnout.deploy.processes import Process, ServerPlace, free_port, program, surroundings
from turnout.deploy.server import FINISHED, beside
from turnout.errors import UserError
from turnout.running.config.read import load, to_toml
from turnout.running.records.records import Records
from turnout.running.runs import run


def exported(folder: Path, rounds: int, seconds: float = 60.0) -> Path:
    """The app of a small experiment."""
    settings = {"clients": 3, "start_with": 3, "round_seconds": seconds, "request_seconds": seconds}
    given = demo_experiment(rounds).but(**{f"runtime.{name}": value for name, value in settings.items()})
    (folder / "my.toml").write_text(to_toml(given))
    assert main(["export", str(folder / "my.toml"), "--flower-app", str(folder / "app")]) == 0
    return folder / "app"


def test_flower_takes_the_app_with_its_experiment(tmp_path: Path) -> None:
    app = exported(tmp_path, rounds=2)
    environment = surroundings({"FLWR_HOME": str(tmp_path / "home")})
    subprocess.run([program("flwr"), "build", "--app", str(app)], cwd=tmp_path, env=environment, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.fab"))) as bundle:
        assert {"pyproject.toml", "turnout_app.py", "experiment.toml"} <= {*bundle.namelist()}
        assert bundle.read("experiment.toml").decode() == (tmp_path / "my.toml").read_text()


def test_a_run_s_folder_is_exported_too(tmp_path: Path) -> None:
    given = to.Experiment(world=to.World(to.data.Digits(clients=4)), model=to.models.MLP(8), rounds=1)
    run(given, tmp_path / "mine", quiet=True)
    assert main(["export", str(tmp_path / "mine"), "--flower-app", str(tmp_path / "app")]) == 0
    found = load(tmp_path / "app" / "experiment.toml")
    assert (found.runtime.kind, getattr(found.runtime, "clients", 0), found.rounds) == ("flower", 4, 1)
    assert main(["export", str(tmp_path / "mine"), "--flower-app", str(tmp_path / "app")]) == 2  # it is there already


def test_a_node_says_which_client_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    assert client_of({"partition-id": 2, "num-partitions": 3}) == ("2", tmp_path / "turnout" / "2")
    assert client_of({"client": "kitchen", "folder": "disk"}) == ("kitchen", Path("disk"))
    with pytest.raises(UserError, match="flower-supernode --node-config 'client="):
        client_of({"num-partitions": 3})


@pytest.mark.slow
def test_the_app_runs_on_a_stock_superlink_whose_third_node_is_killed(tmp_path: Path) -> None:
    app, out, rounds = exported(tmp_path, rounds=5), tmp_path / "run", 5
    place = ServerPlace(app, tmp_path, port=free_port())  # writes FLWR_HOME's configuration, and calls `flwr`
    place.configure()
    link = [program("flower-superlink"), "--insecure", "--port", str(place.port)]
    superlink = Process("superlink", link, tmp_path / "superlink.log", place.environment).start()
    nodes = list[Process]()
    try:
        place.wait(superlink)
        for i, config in enumerate(("partition-id=0 num-partitions=3", 'client="1"', 'client="2"')):
            node = [program("flower-supernode"), "--insecure", "--superlink", place.address]
            node += ["--port", str(free_port()), "--node-config", config]
            nodes.append(Process(f"node {i}", node, tmp_path / f"node-{i}.log", place.environment).start())
        place.flwr("run", str(app), "here", "--run-config", f'out="{out}"')
        until = time.monotonic() + 900
        while not beside(out, FINISHED).exists():
            assert time.monotonic() < until, (tmp_path / "superlink.log").read_text()[-3000:]
            if nodes[2].runs and rounds_of(out) >= 2:
                nodes[2].kill()
            time.sleep(0.5)
    finally:
        for process in (*nodes, superlink):
            process.kill()
    with Records.read(out / "records.sqlite") as records:
        answered = records.column("answered").tolist()
        assert sorted(client for _, client, kind, _ in records.events() if kind == "join") == [0, 1, 2]
        print("answered", answered, "seconds", [round(s, 1) for s in records.column("seconds").tolist()])
    assert len(answered) == rounds
    assert answered[0] == 3
    assert answered[-1] == 2
    assert same_model(out, run(load(out / "replay.toml"), tmp_path / "replay", quiet=True))


def rounds_of(out: Path) -> int:
    try:
        with Records.read(out / "records.sqlite") as records:
            return len(records.column("round"))
    except UserError:  # not begun
        return 0
