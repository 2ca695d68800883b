"""Real devices through Flower's messages, without its processes: the same model as in one process, to the bit."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message

import turnout as to
from flower_grid import HereGrid, devices_of
from spoilt import KINDS, Spoilt
from turnout.deploy.answering import LEAVING, LEFT
from turnout.deploy.apps import GridLink, parts_of
from turnout.deploy.device import DeviceSettings, Policy, make_device
from turnout.deploy.server import serve_experiment
from turnout.deploy.settings import Flower
from turnout.running.config.read import load
from turnout.running.records.records import Records
from turnout.runtimes import wire
from turnout.runtimes.remote import HEAD

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
    "SCAFFOLD": {"terms": [to.terms.Scaffold()], "weighting": to.weighting.ByWork()},
    "VRL-SGD": {"terms": [to.terms.VRLSGD()]},
    "MimeLite": {"terms": [to.terms.MimeLite()]},
    "APFL": {"terms": [to.terms.APFL()]},
    "ternary": {"compression": to.compression.SparseTernary(keep=0.1), "weighting": to.weighting.ByShare()},
    "8 bits": {"compression": to.compression.Quantise()},
    "friends": {"substitution": to.substitution.Friends(), "weighting": to.weighting.ByShare()},
    "stale": {"substitution": to.substitution.Stale(), "weighting": to.weighting.ByShare()},
    "elastic": {"terms": [to.terms.Elastic(strength=0.1)], "weighting": to.weighting.CompleteOnly()},
    "EFL": {
        "terms": [to.terms.Elastic(strength=0.1)],
        "compression": to.compression.SparseTernary(keep=0.1),
        "scale_at": "server",
    },
    "FedNova": {"weighting": to.weighting.FedNova()},
    "FedAMP": {"mixing": to.mixing.FedAMP(), "server": to.server.ServerAdam(lr=0.01)},
    "personal Adam": {
        "local": to.Local(to.Adam(0.01), epochs=2, batch_size=10),
        "personal": to.personal.Named("output.*"),
    },
    "include": {"terms": [to.terms.Elastic(strength=0.1)], "membership": to.Membership(leave="include")},
}
IN_C = ("plain", "ternary", "8 bits", "friends", "stale", "elastic", "EFL", "FedNova", "FedAMP", "include")


def moody(accepts: str):
    """A rule of a user's own: works where the next letter is not a dot."""
    requests = iter(accepts)
    return lambda: next(requests, "y") != "."


FAST = ("SCAFFOLD", "ternary")


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in PARTS])
def test_every_part_with_devices_that_come_and_go(name, tmp_path, monkeypatch):
    """Absences, a server that is killed twice, a device that comes anew from its disk, one that joins and one that
    leaves: the replay of what was seen gives the same model, and the same bytes."""
    monkeypatch.setattr("turnout.running.loop.CHECKPOINT_SECONDS", 0.0)  # one after every round
    experiment, disk, out = world(**PARTS[name]), tmp_path / "devices", tmp_path / "run"
    if name not in IN_C:  # sums are then the same only one client at a time
        alone = to.runtime.InProcess(device="cpu", threads=1, precision="float64", chunk=1)
        experiment = experiment.but(**{"runtime.compute": alone})
    first = devices_of(experiment, "0123", disk)
    first[3].refusal = Policy(own=moody("y..yy.yy..y")).refusal
    phases = [HereGrid(first), HereGrid([*first[1:3], *devices_of(experiment, "04", disk)])]
    for t, grid in zip((2, 5), phases, strict=True):
        serve_experiment(GridLink(grid), experiment.but(rounds=t), out)
        if t == 2:
            (disk / "2" / LEAVING).touch()
    assert (disk / "2" / LEFT).exists()  # it was told that its leaving is on record
    grid = HereGrid([first[1], *devices_of(experiment, "34", disk)])
    serve_experiment(GridLink(grid), experiment.but(rounds=7), out)
    with Records.read(out / "records.sqlite") as records:
        events = sorted((client, kind) for _, client, kind, _ in records.events())
        assert events == [(0, "join"), (1, "join"), (2, "join"), (2, "leave"), (3, "join"), (4, "join")]
        assert min(records.column("answered")) < max(records.column("asked"))
    check_replay(out)


def test_no_rounds_go_by_while_all_decline(tmp_path, monkeypatch):
    """In hours in which nobody works a run waits; who declined is asked now and then, and training goes on."""
    monkeypatch.setattr("turnout.deploy.devices.CHECK_IN_SECONDS", 0.2)
    experiment = world().but(rounds=3, **{"runtime.start_with": 2})
    devices = devices_of(experiment, "01", tmp_path / "devices")
    for device in devices:
        device.refusal = Policy(own=moody("." * 12)).refusal
    serve_experiment(GridLink(HereGrid(devices)), experiment, tmp_path / "run")
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        answered = records.column("answered").tolist()
    assert answered[0] == 0
    assert sum(answered[1:]) >= 2, answered


def test_a_server_that_loses_rounds_finds_the_rows_of_its_checkpoint(tmp_path):
    """It is killed after rounds that no checkpoint has: devices go back to the rows they had then."""
    experiment, out = world(compression=to.compression.SparseTernary(keep=0.1)), tmp_path / "run"
    grid = HereGrid(devices_of(experiment, "012", tmp_path / "devices"))
    serve_experiment(GridLink(grid), experiment.but(rounds=2), out)
    shutil.copytree(out, tmp_path / "old")
    serve_experiment(GridLink(grid), experiment, out)
    assert (tmp_path / "devices" / "0" / "rows").rglob("0000003.safetensors")
    shutil.rmtree(out)
    shutil.copytree(tmp_path / "old", out)
    again = HereGrid(devices_of(experiment, "012", tmp_path / "devices"))
    serve_experiment(GridLink(again), experiment, out)
    check_replay(out)


def test_work_ends_in_time_and_counts_as_what_it_is(tmp_path):
    """A slow device stops at a step boundary; scheme C scales by what it did, and the replay does the same."""
    experiment = world(weighting=to.weighting.ByWork()).but(rounds=2, **{"runtime.round_seconds": 2.0})
    devices = devices_of(experiment, "012", tmp_path / "devices")
    devices[1].tasks.slowness = 1.1
    serve_experiment(GridLink(HereGrid(devices)), experiment, tmp_path / "run")
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        found = records.clients()
        part = [w for c, w in zip(found["client"], found["work"], strict=True) if c == 1]
        assert all(0 < w < 1 for w in part)
    check_replay(tmp_path / "run")


def test_a_bad_message_costs_its_node_the_turn_and_is_recorded(tmp_path):
    experiment = world().but(rounds=2, **{"runtime.most_bytes": 2_000_000, "runtime.clients": 12})
    experiment = experiment.but(**{"world.data": to.data.Digits(clients=12)})
    names = [str(i) for i in range(2 + len(KINDS))]
    devices = devices_of(experiment, names, tmp_path / "devices")
    good, bad = devices[:2], [Spoilt(d, kind) for d, kind in zip(devices[2:], KINDS, strict=True)]
    grid = HereGrid([*good, *bad])
    serve_experiment(GridLink(grid), experiment.but(**{"runtime.start_with": 12}), tmp_path / "run")
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        assert records.column("answered").tolist() == [2, 2]
        said = str(records.rounds()["refused"][0])
    for words in ("cannot be read", "most_bytes", "steps", "another client", "not finite", "(1, 609)", "float64"):
        assert words in said, (words, said)


def test_a_node_that_cannot_say_yet_who_it_is_is_asked_again(tmp_path, monkeypatch):
    """A device that is slow to start, or a message that was lost on the way, does not make a stranger of it."""
    monkeypatch.setattr("turnout.deploy.enrolment.AGAIN_SECONDS", 0.1)
    grid = HereGrid(devices_of(world(), "012", tmp_path / "devices"))
    grid.failing = {101: 2}
    serve_experiment(GridLink(grid), world().but(rounds=1), tmp_path / "run")
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        assert records.column("answered").tolist() == [3]
        assert "not now" in str(records.rounds()["failed"][0])


def test_a_slow_node_is_left_alone_and_its_late_reply_is_discarded(tmp_path):
    experiment = world().but(**{"runtime.round_seconds": 0.5, "runtime.request_seconds": 0.3})
    devices = devices_of(experiment, "012", tmp_path / "devices")
    grid = HereGrid(devices)
    serve_experiment(GridLink(grid), experiment.but(rounds=1), tmp_path / "run")
    before = len([node for node, _ in grid.sent if node == 101])
    again = HereGrid(devices)
    again.waits = {101: 8}  # it answers its first message, but the second only when the next round has begun
    serve_experiment(GridLink(again), experiment.but(rounds=4), tmp_path / "run")
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        rounds = records.rounds()
        assert rounds["answered"].tolist()[1] == 2
        assert 1.0 in rounds["late"].tolist()
    assert len([node for node, _ in again.sent if node == 101]) <= before + 2


class Restarted(HereGrid):
    """Node 100 dies when it gets work, and its device comes back as node 200. The link reports the loss of the first
    work once the second is out, which node 200 takes a while for."""

    def __init__(self, devices):
        super().__init__(devices)
        self.worked = dict[int, float]()  # when a node got its last work

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            if wire.unpack(parts_of(message.content)[HEAD])["what"] == "work":
                self.worked[message.metadata.dst_node_id] = time.monotonic()
        if 100 in self.worked:
            self.devices[200] = self.devices[100]
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = [key for key in message_ids if key in self.out and self._ready(self.out[key].metadata.dst_node_id)]
        return super().pull_messages(ready)

    def _ready(self, node: int) -> bool:
        if node == 100 and 100 in self.worked:
            self.failing[100] = 1
            return 200 in self.worked
        return node != 200 or time.monotonic() - self.worked.get(200, 0.0) > 1.0


def test_a_restarted_device_is_not_taken_for_its_old_node(tmp_path):
    experiment = world().but(rounds=3, **{"runtime.round_seconds": 3.0, "runtime.least": 3})
    serve_experiment(
        GridLink(Restarted(devices_of(experiment, "012", tmp_path / "devices"))), experiment, tmp_path / "run"
    )
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        assert records.column("counted").tolist() == [2, 3, 3]
        assert not {"late", "unreachable"} & records.rounds().keys()


def test_the_replay_leaves_out_clients_of_the_data_that_never_came(tmp_path):
    """The server's data has five clients, it expects three, and three come."""
    experiment = world(weighting=to.weighting.ByShare()).but(rounds=2, **{"runtime.clients": 3})
    serve_experiment(GridLink(HereGrid(devices_of(experiment, "012", tmp_path / "d"))), experiment, tmp_path / "run")
    check_replay(tmp_path / "run")


class LateGrid(HereGrid):
    """Node 101 answers at the sixth look, the others at the second: stock SuperNodes take seconds."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        looks, ready = self.__dict__.setdefault("looks", Counter()), []
        for key in message_ids:
            looks[key] += 1
            if key in self.out and looks[key] >= (6 if self.out[key].metadata.dst_node_id == 101 else 2):
                ready.append(key)
        return super().pull_messages(ready)


def test_a_client_that_is_still_answering_a_check_in_takes_part_in_the_round(tmp_path, monkeypatch):
    """After a long round every client is asked whether it would work; a round then waits for the slowest answer."""
    experiment = world().but(rounds=3, **{"runtime.round_seconds": 60.0, "runtime.request_seconds": 60.0})
    monkeypatch.setattr("turnout.deploy.devices.CHECK_IN_SECONDS", -1.0)
    serve_experiment(
        GridLink(LateGrid(devices_of(experiment, "012", tmp_path / "devices"))), experiment, tmp_path / "run"
    )
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        assert records.column("answered").tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"world.participation": to.participation.Dropout(0.3)}, "simulates who turns up"),
        ({"world.events": (to.Join(1, 2),)}, "leave it out"),
        ({"evaluate.substitution": True}, "only a simulation"),
        ({"runtime": to.runtime.InProcess()}, 'runtime.kind = "flower"'),
    ],
)
def test_what_only_a_simulation_can_is_refused_with_a_sentence(change, says, tmp_path):
    with pytest.raises(to.UserError, match=says):
        serve_experiment(GridLink(HereGrid([])), world().but(**change), tmp_path / "run")
    with pytest.raises(to.UserError, match="turnout deploy server"):
        to.run(world(), tmp_path / "alone", quiet=True)


def test_a_server_without_data(tmp_path):
    """It learns from the first device what the data is like; devices test the model, and their own, noise or not."""
    experiment = world(personal=to.personal.batch_norm).but(
        model=to.models.MLP(8, batch_norm=True), rounds=3, **{"runtime.server_data": False, "evaluate.every": 1}
    )
    experiment = experiment.but(**{"world.data": to.data.Noisy(to.data.Digits(clients=5), share=0.4)})
    devices = devices_of(experiment, "012", tmp_path / "devices")
    serve_experiment(GridLink(HereGrid(devices)), experiment, tmp_path / "run")
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        accuracy = records.curve("personal_accuracy")[1]
        clients, _ = records.client_evaluation("personal_accuracy")
    assert accuracy[-1] > accuracy[0]
    assert clients.tolist() == [0, 1, 2]


def test_devices_with_names_and_data_of_their_own(tmp_path):
    """The server has no data; the replay has all of it, in another order, and numbers it as the devices enrolled."""
    for i, name in enumerate(("attic", "garage", "kitchen")):
        x, y = torch.randn(40, 6, generator=torch.Generator().manual_seed(i)), torch.arange(40) % 3
        for place in (tmp_path / name, tmp_path / "all"):
            place.mkdir(exist_ok=True)
            np.savez(place / f"{name}.npz", x=(x + y[:, None]).numpy(), y=y.numpy())
    everything = to.data.ClientFiles(tmp_path / "all", classes=3, test_share=0.0)
    experiment = world(weighting=to.weighting.ByShare()).but(
        rounds=3, **{"world.data": everything, "runtime.server_data": False, "runtime.start_with": 2}
    )
    devices = [
        make_device(experiment, DeviceSettings(client=name, folder=tmp_path / f"disk-{name}",
                                           data=replace(everything, path=tmp_path / name)))
        for name in ("kitchen", "attic", "garage")
    ]  # fmt: skip
    serve_experiment(GridLink(HereGrid(devices)), experiment, tmp_path / "run")
    assert (tmp_path / "run" / "names.csv").read_text().split()[0] == "client,name"
    check_replay(tmp_path / "run")


def test_scores_on_devices(tmp_path):
    """Labels and models of their own, an absence, a device that comes anew from its disk, one that joins late."""
    sets = (("3", "5"), ("5", "8"), ("8", "9"), ("3", "5", "9"))
    local = to.Local(to.Adam(0.01), epochs=2, batch_size=5)
    alone = to.runtime.InProcess(device="cpu", threads=1, precision="float64", chunk=1)
    experiment = to.Experiment(
        world=to.World(to.data.Arriving(to.data.Digits(), sets, per_label=6, public=12)),
        model=to.models.MLP(8),
        algorithm=to.scores.Scores(
            local=local, models={1: to.models.Logistic()}, start="carried", distil=to.scores.Distil(epochs=1)
        ),
        runtime=Flower(**QUICK | {"clients": 4, "compute": alone}),
    )
    disk, out = tmp_path / "devices", tmp_path / "run"
    first = devices_of(experiment, "012", disk)
    serve_experiment(GridLink(HereGrid(first)), experiment.but(rounds=2), out)
    second = HereGrid([first[0], *devices_of(experiment, "13", disk)])
    serve_experiment(GridLink(second), experiment.but(rounds=4), out)
    to.run(load(out / "replay.toml"), tmp_path / "again", quiet=True)
    with Records.read(out / "records.sqlite") as seen, Records.read(tmp_path / "again" / "records.sqlite") as again:
        assert seen.column("answered").tolist() == again.column("answered").tolist()
        assert min(seen.column("answered")) < max(seen.column("asked"))
        assert seen.metrics() == again.metrics()
        for name in {*seen.metrics()} - {"personal_accuracy"}:  # that of the devices that can be asked
            assert seen.curve(name)[1].tolist() == again.curve(name)[1].tolist(), name
        assert seen.curve("personal_accuracy")[1][:2].tolist() == again.curve("personal_accuracy")[1][:2].tolist()
