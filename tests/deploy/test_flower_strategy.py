"""A method as a strategy of Flower's: its rule is that of Turnout's parts, its settings are the experiment's."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import turnout as to
from turnout.deploy.app import TEMPLATES
from turnout.deploy.flower_strategy import strategy_settings, write_strategy
from turnout.deploy.processes import Process, ServerPlace, free_port, program
from turnout.round import run_round
from turnout.running.tracks.prepare import prepare
from turnout.server.state import Context


@pytest.fixture(scope="module")
def strategy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("strategy", TEMPLATES / "flower_strategy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["strategy"] = module
    spec.loader.exec_module(module)
    return module


WEIGHTINGS = [to.weighting.FedAvg(), to.weighting.CompleteOnly(), to.weighting.ByShare(), to.weighting.ByWork(),
              to.weighting.FedNova()]  # fmt: skip
SUBSTITUTIONS = [to.substitution.NoSubstitution(), to.substitution.Friends(), to.substitution.Stale()]


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("substitution", SUBSTITUTIONS, ids=lambda part: type(part).__name__)
def test_the_rule_gives_the_model_of_turnout_round_by_round(
    strategy: ModuleType, weighting: to.weighting.Weighting, substitution: to.substitution.Substitution, tmp_path: Path
) -> None:
    """Clients of unequal sizes, absent and partial; what the rule is given is what each client sent in Turnout.

    All are there in the first round, so that the sizes of the absent are known later.
    """
    rows = [(t, c, 1.0 if t == 0 else [0.0, 0.5, 1.0][(3 * t + c * c + t * c) % 3]) for t in range(6) for c in range(5)]
    (tmp_path / "log.csv").write_text("round,client,work\n" + "\n".join(f"{t},{c},{w}" for t, c, w in rows) + "\n")
    data = to.data.Digits(clients=5, partition=to.partition.Dirichlet(1.0))
    algorithm = to.Algorithm(
        to.Local(to.SGD(lr=0.1), epochs=2, batch_size=10), weighting=weighting, substitution=substitution
    )
    world = to.World(data, to.participation.TurnoutLog(str(tmp_path / "log.csv")))
    runtime = to.runtime.InProcess(device="cpu", precision="float64", threads=1)
    experiment = to.Experiment(world, to.models.Logistic(), algorithm, rounds=6, runtime=runtime)
    settings = strategy_settings(experiment)["rule"]
    rule = strategy.ReplyRule(settings["weighting"], settings["substitution"])
    track = prepare(experiment)
    server, changed = track.begin(), 0
    for t in range(6):
        before = server.shared_P.numpy()
        happened = run_round(server, t, Context(track.algorithm, track.runtime, experiment.seed))
        found, server = happened.total, happened.after
        turnout, replies = happened.received.turnout, []
        for client, update in zip(*(() if found is None else (found.client_R.tolist(), found.update_RP)), strict=True):
            at = turnout.client_C.tolist().index(client)
            plain = before + update.numpy() / float(weighting.client_scale(turnout)[at])
            work, steps = float(turnout.work_C[at] / turnout.full_work), float(turnout.progress_C[at])
            replies.append(strategy.Reply(client, plain, 1000 * float(happened.cohort.share_C[at]), work, steps))
        after = rule.next_weights(before, list(range(5)), replies)
        changed += not np.array_equal(before, server.shared_P.numpy())
        assert after == pytest.approx(server.shared_P.numpy(), abs=1e-9), t
    track.runtime.close()
    assert changed >= 4


def test_a_device_that_replied_in_part_or_not_at_all_has_no_vote_where_the_scheme_says_so(strategy: ModuleType) -> None:
    one, half = (strategy.Reply(n, np.array([w]), 1.0, work) for n, w, work in ((1, 2.0, 1.0), (2, 8.0, 0.5)))
    start = np.array([0.0])
    assert strategy.ReplyRule("A").next_weights(start, [1, 2], [one, half]) == pytest.approx([2 * 0.5 * 2.0])
    assert strategy.ReplyRule("C").next_weights(start, [1, 2], [one, half]) == pytest.approx([0.5 * 2.0 + 0.5 * 16.0])
    assert strategy.ReplyRule("A").next_weights(start, [1, 2], [half]) == pytest.approx([0.0])
    assert strategy.ReplyRule("B").next_weights(start, [1, 2, 3], [one]) == pytest.approx([2.0 / 3])  # a usual size


def test_settings_are_those_of_the_experiment(tmp_path: Path) -> None:
    local = to.Local(to.SGD(lr=0.3, momentum=0.5), epochs=3, batch_size=8, schedule=to.InverseClock())
    algorithm = to.Algorithm(
        local, terms=(to.terms.Proximal(0.1),), selection=to.selection.Count(4), closing=to.closing.Deadline(20.0)
    )
    experiment = to.Experiment(to.World(to.data.Digits(clients=9)), algorithm=algorithm, rounds=3)
    write_strategy(tmp_path, experiment, 3600.0, "FedProx is best")
    assert tomllib.loads((tmp_path / "settings.toml").read_text()) == {
        "rounds": 3,
        "round-seconds": 20.0,
        "ask": {"count": 4, "least-connected": 4},
        "rule": {"weighting": "fedavg", "substitution": "none"},
        "train": {"lr": [0.3, 0.15, pytest.approx(0.1)], "batch-size": 8, "local-epochs": 3, "momentum": 0.5,
                  "proximal-mu": 0.1},
    }  # fmt: skip
    lines = (tmp_path / "strategy.py").read_text().splitlines()
    assert not any(line.startswith(("import turnout", "from turnout")) for line in lines)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"terms": (to.terms.Scaffold(),)}, "Scaffold needs code on the devices"),
        ({"compression": to.compression.Quantise()}, "algorithm.compression needs code on the devices"),
        ({"substitution": to.substitution.Friends(min_common=3)}, "has no form as a strategy"),
        ({"closing": to.closing.Buffered(size=4)}, "Flower closes a round after all replies or a time"),
    ],
)
def test_a_method_that_needs_code_on_devices_is_refused(part: dict[str, object], words: str) -> None:
    with pytest.raises(to.UserError, match=words):
        strategy_settings(to.Experiment(algorithm=to.Algorithm(**part)))


PROJECT = """[project]
name = "other-app"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
out = "{out}"
"""
SERVER = """import json, sys
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from strategy import AdvisedStrategy

app = ServerApp()

@app.main()
def main(grid, context):
    result = AdvisedStrategy.from_file().run(grid, ArrayRecord([np.zeros(3)]))
    found = {"weights": result.arrays.to_numpy_ndarrays()[0].tolist(), "turnout": "turnout" in sys.modules,
             "alone": [m["alone"] for m in result.train_metrics_clientapp.values()]}
    with open(context.run_config["out"], "w") as file:
        json.dump(found, file)
"""
CLIENT = """import sys
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    own, config = context.node_config["own"], message.content["config"]
    start = message.content["arrays"].to_numpy_ndarrays()[0]
    work = 0.5 if own == 2 else 1.0
    step = config["lr"] * config["local-epochs"] * work * np.array([own, 1.0, -own])
    metrics = {"num-examples": own, "work": work, "node": own, "alone": float("turnout" not in sys.modules)}
    content = RecordDict({"arrays": ArrayRecord([start + step]), "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)
"""


@pytest.mark.slow
def test_it_runs_in_a_deployment_of_flower_without_turnout(tmp_path: Path) -> None:
    """Flower's SuperLink and two SuperNodes with an app that is not ours: scheme C makes up for the half work of one.

    Each of three rounds adds Σ n_c / 3 · lr · E · (own, 1, -own), with n = (1, 2), lr = 0.1 and E = 2.
    """
    app = tmp_path / "app"
    local = to.Local(to.SGD(lr=0.1), epochs=2)
    algorithm = to.Algorithm(local, weighting=to.weighting.ByWork())
    write_strategy(app, to.Experiment(algorithm=algorithm, rounds=3), 120.0, "scheme C is best")
    out = tmp_path / "found.json"
    files = {"pyproject.toml": PROJECT.format(out=out), "server_app.py": SERVER, "client_app.py": CLIENT}
    for name, content in files.items():
        (app / name).write_text(content)
    place = ServerPlace(app, tmp_path / "server", port=free_port(), in_memory=True)
    place.work.mkdir()
    place.configure()
    superlink, nodes = place.superlink(), list[Process]()
    without = {"PYTHONPATH": "", "FLWR_HOME": str(place.work / "flower")}
    superlink.environment = {**superlink.environment, **without}
    try:
        superlink.start()
        place.wait(superlink)
        for own in (1, 2):
            command = [program("flower-supernode"), "--insecure", "--superlink", place.address, "--port",
                       str(free_port()), "--node-config", f"own={own}"]  # fmt: skip
            home = {**without, "FLWR_HOME": str(tmp_path / f"node-{own}")}
            nodes.append(Process(f"node {own}", command, tmp_path / f"node-{own}.log", home).start())
        place.flwr("run", str(app), "here")
        until = time.monotonic() + 240
        while not out.exists() and time.monotonic() < until:
            time.sleep(0.5)
        time.sleep(0.5)
        assert out.exists(), superlink.log.read_text()[-3000:] + "".join(n.log.read_text()[-1500:] for n in nodes)
        found = json.loads(out.read_text())
    finally:
        for node in nodes:
            node.kill()
        superlink.kill()
    each = 0.1 * 2 * np.array([(1 * 1 + 2 * 2) / 3, 1.0, -(1 * 1 + 2 * 2) / 3])
    assert found["weights"] == pytest.approx((3 * each).tolist())
    assert (found["turnout"], found["alone"]) == (False, [1.0] * 3)
