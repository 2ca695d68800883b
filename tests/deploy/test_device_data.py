"""Data of devices: one encoding and one list of labels for all of them, and a clear refusal on both sides otherwise."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import turnout as to
from flower_grid import HereGrid
from turnout.cli import main
from turnout.data import ImageFolder, Table
from turnout.data.columns import CategoryColumn
from turnout.data.partition import IID
from turnout.deploy.answering import ClientDevice, head_of
from turnout.deploy.apps import GridLink, parts_of
from turnout.deploy.device import DeviceSettings, make_device, open_device
from turnout.deploy.server import serve_experiment
from turnout.deploy.settings import Flower
from turnout.running.config.read import load, to_toml
from turnout.running.records.records import Records
from turnout.tasks import Standardised

JOBS = {
    "forge": ["cook,yes", "smith,no"] * 12,
    "field": ["nurse,no", "pilot,yes"] * 12,  # sorted by name, the other way round than cook and smith
}


def tables(folder: Path, rows: dict[str, list[str]], header: str = "job,buys") -> Table:
    """A table of each client in a folder of its own, and all of them together in the folder `all`."""
    for name, lines in rows.items():
        for place in (folder / name, folder / "all"):
            place.mkdir(exist_ok=True)
            (place / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    return Table(folder / "all" / "*.csv", header.rpartition(",")[2], test_share=0.0, local_test="last")


def experiment(data: Table, rounds: int = 8, **runtime) -> to.Experiment:
    settings = {"clients": 2, "start_with": 2, "round_seconds": 5.0, "request_seconds": 2.0} | runtime
    return to.Experiment(
        world=to.World(data),
        model=to.models.Logistic(),
        algorithm=to.Algorithm(to.Local(to.SGD(1.0), epochs=6, batch_size=8)),
        rounds=rounds,
        runtime=Flower(**settings),
    )


def devices(given: to.Experiment, folder: Path, *names: str, **changes) -> list[ClientDevice]:
    """Devices that hold their own table only; the server's settings are in the experiment."""
    own = replace(given.world.data, **{"labels": None, "columns": None, "target": None} | changes)
    return [
        make_device(given, DeviceSettings(client=n, folder=folder / f"disk-{n}", data=replace(own, path=folder / n)))
        for n in names
    ]


def accuracy(model: torch.nn.Module, data: Table) -> float:
    found = data.load()
    return float((model(found.x).argmax(1) == found.y).double().mean())


def refused(out: Path) -> str:
    with Records.read(out / "records.sqlite") as records:
        return "; ".join(str(words) for words in records.rounds().get("refused", []) if words)


def test_a_device_with_other_categories_is_refused_on_both_sides(tmp_path, capsys):
    data = tables(tmp_path, JOBS)
    given = experiment(data, rounds=2, start_with=1)
    serve_experiment(GridLink(HereGrid(devices(given, tmp_path, "forge", "field"))), given, tmp_path / "run")
    said = capsys.readouterr()
    words = "column 'job' has texts 'nurse', 'pilot', and the server's has texts 'cook', 'smith'"
    assert words in refused(tmp_path / "run")
    assert words in said.err  # the server's log
    assert f"the server refuses field: its {words}" in said.out  # the device's own
    assert "world.data.columns" in said.out
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        assert records.column("answered").tolist() == [1, 1]


def test_devices_use_the_columns_of_the_experiment_and_the_replay_agrees(tmp_path):
    """All devices encode by the experiment's columns: the model is right everywhere, and equals the replay's."""
    data = tables(tmp_path, JOBS)
    given = experiment(data.fixed())
    out = tmp_path / "run"
    serve_experiment(GridLink(HereGrid(devices(given, tmp_path, "forge", "field"))), given, out)
    again = to.run(load(out / "replay.toml"), tmp_path / "again", quiet=True)
    assert accuracy(to.open_run(out).model(), data) == accuracy(again.model(), data) == 1.0
    for name, value in to.open_run(out).model().state_dict().items():
        assert torch.equal(value, again.model().state_dict()[name]), name


LABELS = {
    "ward": ["0.5,cold", "2.5,flu"] * 10,  # the labels of each are ordinary data of its own
    "home": ["2.5,flu", "4.5,cough"] * 10,
}


def test_a_device_with_other_labels_is_refused_on_both_sides(tmp_path, capsys):
    given = experiment(tables(tmp_path, LABELS, "fever,ill"), rounds=1, start_with=1)
    serve_experiment(GridLink(HereGrid(devices(given, tmp_path, "ward", "home"))), given, tmp_path / "run")
    said = capsys.readouterr()
    words = "its labels are 'cough', 'flu', and the server's 'cold', 'flu'"
    assert words in refused(tmp_path / "run")
    assert f"the server refuses home: {words}" in said.out
    assert "world.data.labels" in said.out


def test_devices_with_label_sets_of_their_own_train_where_the_experiment_lists_all(tmp_path):
    data = tables(tmp_path, LABELS, "fever,ill")
    given = experiment(replace(data.fixed(), labels=("flu", "cough", "cold")))
    out = tmp_path / "run"
    serve_experiment(GridLink(HereGrid(devices(given, tmp_path, "ward", "home"))), given, out)
    assert refused(out) == ""
    again = to.run(load(out / "replay.toml"), tmp_path / "again", quiet=True)
    assert to.open_run(out).model().state_dict().keys() == again.model().state_dict().keys()
    for name, value in again.model().state_dict().items():
        assert torch.equal(value, to.open_run(out).model().state_dict()[name]), name
    found = given.world.data.load()
    assert found.y.unique().tolist() == [0, 1, 2]
    assert found.y[0] == 0  # home's first row: flu


@pytest.mark.parametrize(
    ("rows", "header", "words"),
    [
        ({"a": ["1,x", "3,y"], "b": ["1,x", "5,y"]}, "n,k", "column 'n' has numbers with mean 3, shift 3, scale 2"),
        ({"a": ["1,x", "3,y"], "b": ["u,x", "v,y"]}, "n,k", "'n' has texts 'u', 'v', and the server's has numbers"),
        ({"a": ["1,1.5", "2,2.5"], "b": ["1,1.5", "2,3.5"]}, "n,k", "its target is standardised by"),
        ({"a": ["1,x", "3,y"], "b": ["1,x", ",y"]}, "n,k", "gaps marked"),
    ],
)
def test_means_and_gaps_and_targets_must_agree_too(rows, header, words, tmp_path):
    rows = {name: lines * 4 for name, lines in rows.items()}
    for name in rows:
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.csv").write_text("\n".join([header, *rows[name]]) + "\n")
    data = Table(tmp_path / "a", "k", test_share=0.0)
    given = experiment(data, rounds=1, start_with=1)
    if "1.5" in rows["a"][0]:
        given = given.but(task=to.tasks.Regression())
    serve_experiment(GridLink(HereGrid(devices(given, tmp_path, "a", "b"))), given, tmp_path / "run")
    assert words in refused(tmp_path / "run")


def test_the_servers_own_data_says_what_devices_must_hold(tmp_path):
    """The device that answers first holds other categories than the server: it is the one that is refused."""
    given = experiment(tables(tmp_path, JOBS), rounds=1, start_with=1, server_data=True)
    (alone,) = devices(given, tmp_path, "forge")
    whole = make_device(given, DeviceSettings(client="field", folder=tmp_path / "disk"))  # the experiment's data
    serve_experiment(GridLink(HereGrid([alone, whole])), given, tmp_path / "run")
    assert "has texts 'cook', 'smith', and the server's has texts 'cook', 'nurse'" in refused(tmp_path / "run")
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        assert records.column("answered").tolist() == [1]


def test_a_text_or_a_label_that_the_experiment_does_not_list_is_named(tmp_path):
    data = tables(tmp_path, JOBS).fixed()
    (tmp_path / "forge" / "forge.csv").write_text("job,buys\ncook,yes\nbaker,no\n")
    with pytest.raises(to.UserError, match=r"line 3, column 'job': 'baker' is not among the categories"):
        devices(experiment(data), tmp_path, "forge")
    (tmp_path / "forge" / "forge.csv").write_text("job,buys\ncook,maybe\n")
    with pytest.raises(to.UserError, match=r"line 2, column 'buys': 'maybe' is not among the labels \(no, yes\)"):
        devices(experiment(data), tmp_path, "forge")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"labels": ("a", "a")}, "every class of the target once"),
        ({"labels": ()}, "every class of the target once"),
        ({"labels": ("a",), "regression": True}, "leave one of them out"),
        ({"columns": (CategoryColumn("k", ("x",)),)}, "is the label and also among the features"),
        ({"columns": (CategoryColumn("n", ("x",)),), "features": ("m",)}, "list the same columns"),
        ({"columns": ()}, "list the same columns"),
        ({"target": Standardised(0.0, 1.0), "standardise": False}, "set regression and standardise"),
    ],
)
def test_settings_of_a_table_that_contradict_each_other_are_refused(settings, words):
    with pytest.raises(to.UserError, match=words):
        Table("t.csv", "k", **settings)


def test_a_refused_device_that_comes_again_is_asked_again(tmp_path, monkeypatch):
    """It was refused for its data, got the right table, and was started again: as the same node, it gets in."""
    monkeypatch.setattr("turnout.deploy.apps.FRESH", 0.0)
    given = experiment(tables(tmp_path, JOBS), rounds=12, start_with=1)
    right = replace(given.world.data, path=tmp_path / "forge", clients=1, partition=IID())
    mended = make_device(given, DeviceSettings(client="field", folder=tmp_path / "new", data=right))

    class Mended(HereGrid):
        """Once node 101 knows that it is refused, it is away for two rounds, and mended then."""

        rounds, back = 0, 0

        def get_node_ids(self):
            return {100} if self.rounds < self.back else super().get_node_ids()

        def _reply(self, node, message):
            what = head_of(parts_of(message.content))["what"]
            self.rounds += node == 100 and what == "work"
            reply = super()._reply(node, message)
            if what == "refused":
                self.back, self.devices[101] = self.rounds + 2, mended
            return reply

    grid = Mended(devices(given, tmp_path, "forge", "field"))
    serve_experiment(GridLink(grid), given, tmp_path / "run")
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        answered = records.column("answered").tolist()
    assert (answered[0], answered[-1]) == (1, 2)


def test_the_template_of_a_device_with_its_comments_followed_is_a_device(tmp_path, monkeypatch):
    """Every commented setting of device.toml taken out of its comment: the file is read, and the device works."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text("age,town,outcome,who\n" + "30,Ulm,well,0\n40,Bonn,ill,1\n50,Ulm,ill,1\n" * 5)
    (tmp_path / "mine.csv").write_text("age,town,outcome,who\n" + "40,Ulm,ill,0\n" * 8)  # no Bonn, nobody who is well
    data = Table("people.csv", "outcome", "who", leave_out=("who",))
    (tmp_path / "own.toml").write_text(to_toml(experiment(data).but(runtime=to.runtime.InProcess())))
    assert main(["deploy", "init", "app", "own.toml"]) == 0
    template = (tmp_path / "app" / "device.toml").read_text()
    followed = re.sub(r"(?m)^# (?=\[|\w+ = )", "", template)
    assert followed.count("\n# ") < template.count("\n# ")
    subprocess.run(["sh", "certificates.sh", "device", "device"], cwd=tmp_path / "app", check=True)
    (tmp_path / "app" / "device.toml").write_text(followed)
    device = open_device(tmp_path / "app" / "device.toml")
    given = load(tmp_path / "app" / "experiment.toml").but(rounds=1, **{"runtime.start_with": 1})
    serve_experiment(GridLink(HereGrid([device])), given, tmp_path / "run")
    assert refused(tmp_path / "run") == ""
    assert to.open_run(tmp_path / "run").model()(torch.zeros(1, 3)).shape == (1, 2)  # age, Bonn, Ulm; ill, well


def test_an_app_for_a_table_that_is_elsewhere_asks_for_its_columns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(
        to_toml(experiment(Table("gone.csv", "k", clients=2)).but(runtime=to.runtime.InProcess()))
    )
    assert main(["deploy", "init", "app", "own.toml"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "devices must share labels, and columns or words: add them to world.data in app/experiment.toml" in said
    assert load(tmp_path / "app" / "experiment.toml").world.data.columns is None


def test_folders_of_pictures_with_label_sets_of_their_own(tmp_path):
    """One device has pictures of cats and dogs, the other of dogs and owls: the experiment lists all labels."""
    for place, labels in {"one": ("cat", "dog"), "two": ("dog", "owl")}.items():
        for label, grey in zip(labels, (0, 200), strict=True):
            (tmp_path / place / label).mkdir(parents=True)
            for i in range(6):
                Image.new("L", (4, 4), grey + i).save(tmp_path / place / label / f"{i}.png")
    data = ImageFolder(tmp_path / "one", size=4, colour=False, clients=1, labels=("owl", "dog", "cat"))
    assert data.load().y.unique().tolist() == [1, 2]
    given = experiment(data, rounds=1)
    own = {name: replace(data, path=tmp_path / name, labels=None) for name in ("one", "two")}
    files = [DeviceSettings(client=name, folder=tmp_path / f"disk-{name}", data=found) for name, found in own.items()]
    nodes = [make_device(given, file) for file in files]
    serve_experiment(GridLink(HereGrid(nodes)), given, tmp_path / "run")
    assert refused(tmp_path / "run") == ""
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        assert records.column("answered").tolist() == [2]
    with pytest.raises(to.UserError, match=r"0\.png is of class 'cat', which is not among the labels \(dog\)"):
        replace(data, labels=("dog",)).load()
