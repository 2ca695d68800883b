"""A Turnout experiment as an ordinary Flower app: exported, run by `flwr run` with Flower's own programs only."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from turnout.cli import main
from turnout.deploy.demo import demo_experiment, same_model
from turnout.deploy.processes import Process, ServerPlace, free_port, program
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
