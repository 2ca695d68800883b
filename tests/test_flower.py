"""Real devices through Flower's messages, without its processes: the same model as in one process, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import turnout as to
from flower_grid import HereGrid, devices_of
from turnout.config.read import load
from turnout.deploy.server import serve_experiment
from turnout.records.records import Records
from turnout.runtimes.flower.device import LEAVING
from turnout.runtimes.flower.grid import GridLink
from turnout.runtimes.flower.policy import Policy
from turnout.runtimes.flower.settings import Flower

QUICK = {"clients": 5, "start_with": 3, "round_seconds": 5.0, "request_seconds": 2.0, "server_data": True}


def world(**algorithm) -> to.Experiment:
    settings = {"local": to.Local(to.SGD(0.1), epochs=2, batch_size=10)} | algorithm
    return to.Experiment(
        world=to.World(to.data.Digits(clients=5)),
        model=to.models.MLP(8),
        algorithm=to.Algorithm(**settings),
        rounds=4,
        runtime=Flower(**QUICK),
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return to.open_run(folder).model().state_dict()


def check_replay(out: Path) -> None:
    """The replay of what was seen has the same model to the bit, and the same records but for times."""
    again = out.parent / f"{out.name}-again"
    to.run(load(out / "replay.toml"), again, quiet=True)
    for name, value in weights(out).items():
        assert torch.equal(value, weights(again)[name]), name
    with Records.read(out / "records.sqlite") as a, Records.read(again / "records.sqlite") as b:
        for name in ("asked", "answered", "counted", "bytes_up", "bytes_down"):
            assert a.column(name).tolist() == b.column(name).tolist(), name


PARTS = {
    "plain": {},
    "SCAFFOLD": {"terms": [to.Scaffold()], "weighting": to.ByWork()},
    "ternary": {"compression": to.SparseTernary(keep=0.1), "weighting": to.ByShare()},
    "friends": {"substitution": to.Friends(), "weighting": to.ByShare()},
    "elastic": {"terms": [to.Elastic(strength=0.1)], "weighting": to.CompleteOnly()},
    "FedAMP": {"mixing": to.FedAMP(), "server": to.ServerAdam(lr=0.01)},
}


def moody(accepts: str):
    """A rule of a user's own: works where the next letter is not a dot."""
    letters = iter(accepts)
    return lambda: next(letters, "y") != "."


@pytest.mark.parametrize("name", PARTS)
def test_every_part_with_devices_that_come_and_go(name, tmp_path):
    """Absences, a server that is killed twice, a device that comes anew from its disk, one that joins and one that
    leaves: the replay of what was seen gives the same model, and the same bytes."""
    experiment, disk, out = world(**PARTS[name]), tmp_path / "devices", tmp_path / "run"
    if name == "SCAFFOLD":  # not in C: sums are the same only one client at a time
        alone = to.InProcess(device="cpu", threads=1, precision="float64", chunk=1)
        experiment = experiment.but(**{"runtime.compute": alone})
    first = devices_of(experiment, "0123", disk)
    first[3].policy = Policy(own=moody("y..yy.yy..y"))
    phases = [HereGrid(first), HereGrid([*first[1:3], *devices_of(experiment, "04", disk)])]
    for t, grid in zip((2, 4), phases, strict=True):
        serve_experiment(GridLink(grid), experiment.but(rounds=t), out)
        if t == 2:
            (disk / "2" / LEAVING).touch()
    grid = HereGrid([first[1], *devices_of(experiment, "34", disk)])
    serve_experiment(GridLink(grid), experiment.but(rounds=6), out)
    with Records.read(out / "records.sqlite") as records:
        assert {(client, kind) for _, client, kind, _ in records.events()} == {
            *((c, "join") for c in range(5)), (2, "leave"),
        }  # fmt: skip
        assert min(records.column("answered")) < max(records.column("asked"))
    check_replay(out)
