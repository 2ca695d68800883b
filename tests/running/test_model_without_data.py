"""A run's model without its data: from the folder alone, the same as with the data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import turnout as to
from score_worlds import score_world
from turnout.running.loop import read_state
from turnout.running.tracks.prepare import prepare


def with_data(run: to.Run, client: int | None) -> dict[str, Tensor]:
    """The model as the run itself has it."""
    track = prepare(run.experiment)
    found = read_state(track, run.folder)
    assert found is not None
    return dict(track.module(track.unpack(found.state), client).state_dict())


def assert_same(ours: nn.Module, theirs: dict[str, Tensor]) -> None:
    found = ours.state_dict()
    assert found.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(found[name], value), name


def small(**changes: object) -> to.Experiment:
    data = to.data.Synthetic(clients=6, sizes=to.data.Pareto(cap=30))
    local = to.Local(to.SGD(lr=0.1), epochs=2, batch_size=5)
    world = to.World(data, to.participation.Dropout(0.3), events=[to.Join(client=5, round=1)])
    return to.Experiment(world, to.models.MLP(6, batch_norm=True), to.Algorithm(local), rounds=3).but(**changes)


WAYS: dict[str, dict[str, object]] = {
    "plain": {},
    "personal": {"algorithm.personal": to.personal.batch_norm},
    "newcomers": {
        "algorithm.personal": to.personal.batch_norm,
        "algorithm.share_personal": True,
        "algorithm.newcomers": "average",
    },
    "mixing": {"model": to.models.MLP(4), "algorithm.mixing": to.mixing.FedAMP()},
    "second model": {"model": to.models.MLP(4), "algorithm.terms": (to.terms.APFL(),)},
    "moments": {"algorithm.local.optimizer": to.Adam(lr=0.01), "algorithm.personal": to.personal.batch_norm},
    "told": {"model": to.models.MLP(4), "algorithm.terms": (to.terms.FedGATE(),)},
    "exact": {"runtime": to.runtime.InProcess(precision="float64"), "algorithm.personal": to.personal.batch_norm},
    "watched": {"evaluate": to.Evaluate(activations=True), "algorithm.local.epochs": 1},
    "some": {"algorithm.selection": to.selection.Count(3)},
    "calibrated": {
        "algorithm.personal": to.personal.batch_norm,
        "algorithm.newcomers": "calibrated",
        "algorithm.selection": to.selection.Count(1),
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_model_that_was_trained(way: str, tmp_path: Path) -> None:
    run = to.run(small(**WAYS[way]), tmp_path / "run", quiet=True)
    for client in (None, 0, 3, 5):
        expected = with_data(run, client)
        assert_same(run.model(client), expected)
        assert_same(to.load_model(tmp_path / "run", client), expected)


def test_clients_that_exchange_scores_have_their_models_too(tmp_path: Path) -> None:
    run = to.run(score_world(), tmp_path / "run", quiet=True)
    for client in range(3):
        assert_same(to.load_model(run.folder, client), with_data(run, client))
    with pytest.raises(to.UserError, match="name a client"):
        to.load_model(run.folder)


def table(path: Path) -> to.Experiment:
    rows = [f"{i % 3},{i % 5},{['ann', 'bob', 'cyd'][i % 3]},{i % 2}" for i in range(60)]
    path.write_text("a,b,who,y\n" + "\n".join(rows) + "\n")
    return to.Experiment(to.World(to.data.Table(str(path), label="y", owner="who")), to.models.MLP(4), rounds=2)


def test_data_and_logs_may_be_gone(tmp_path: Path) -> None:
    experiment = table(tmp_path / "data.csv")
    (tmp_path / "log.csv").write_text("round,client,work\n0,ann,1\n1,bob,1\n")
    log = to.participation.FleetLog(str(tmp_path / "log.csv"))
    run = to.run(experiment.but(**{"world.participation": log}), tmp_path / "run", quiet=True)
    expected = with_data(run, None)
    (tmp_path / "data.csv").unlink()
    (tmp_path / "log.csv").unlink()
    assert_same(to.open_run(tmp_path / "run").model(), expected)
    assert_same(to.load_model(tmp_path / "run", "bob"), expected)
    with pytest.raises(to.UserError, match="'dan'"):
        to.load_model(tmp_path / "run", "dan")
    kept = json.loads((tmp_path / "run" / "data.json").read_text())
    assert (kept["labels"], kept["names"], kept["input_shape"]) == (["0", "1"], ["ann", "bob", "cyd"], [2])


def test_data_in_memory_is_not_needed_to_build_a_model_that_a_file_can_name(tmp_path: Path) -> None:
    data = to.data.Own(torch.randn(30, 4), torch.randn(30), owner=[i % 3 for i in range(30)])
    task = to.tasks.Task(loss=lambda output, target: (output - target).square().mean(1))
    run = to.run(to.Experiment(to.World(data), to.models.MLP(4), task=task, rounds=2), tmp_path / "run", quiet=True)
    with pytest.raises(to.UserError, match="an object of your own"):
        prepare(to.open_run(tmp_path / "run").experiment)
    assert_same(to.load_model(tmp_path / "run"), with_data(run, None))


MODULE = """
from torch import nn

class Two(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.frozen = nn.Linear(shape[0], 3)
        self.frozen.requires_grad_(False)
        self.free = nn.Linear(3, classes)

    def forward(self, x):
        return self.free(self.frozen(x).relu())
"""


def test_a_module_of_ones_own_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_two_layers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    from turnout.running.config.read import from_table

    experiment = from_table({"rounds": 2, "model": "my_two_layers:Two"}).but(world=small().world)
    run = to.run(experiment, tmp_path / "run", quiet=True)
    assert_same(to.load_model(tmp_path / "run"), with_data(run, None))


def test_a_module_that_only_the_program_has_needs_the_program(tmp_path: Path) -> None:
    run = to.run(small(model=lambda shape, classes: nn.Linear(shape[0], classes)), tmp_path / "run", quiet=True)
    with pytest.raises(to.UserError, match="model was an object of your own"):
        to.load_model(tmp_path / "run")
    assert_same(to.open_run(tmp_path / "run", experiment=run.experiment).model(), with_data(run, None))
    with pytest.raises(to.UserError, match="weight is missing"):
        to.open_run(tmp_path / "run", experiment=run.experiment.but(model=to.models.MLP(9))).model()


def test_a_folder_of_an_older_version_is_read_with_its_data(tmp_path: Path) -> None:
    run = to.run(small(), tmp_path / "run", quiet=True)
    (tmp_path / "run" / "data.json").unlink()
    assert_same(to.load_model(tmp_path / "run", 2), with_data(run, 2))
    (tmp_path / "run" / "data.json").write_text("{}")
    with pytest.raises(to.UserError, match=r"data\.json is damaged"):
        to.load_model(tmp_path / "run")
