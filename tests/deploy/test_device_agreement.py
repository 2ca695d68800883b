"""Devices that hold texts number them alike, and devices build the server's model; others are refused on both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_device_data import experiment, refused
from torch import Tensor, nn

import turnout as to
from flower_grid import HereGrid
from turnout.cli import main
from turnout.data import Characters, Sentences, Synthetic
from turnout.deploy.apps import GridLink
from turnout.deploy.device import DeviceSettings, make_device
from turnout.deploy.server import serve_experiment
from turnout.running.config.read import load, to_toml
from turnout.running.records.records import Records

TEXTS = {
    "shop": ["good bread,yes", "bad milk,no"] * 8,
    "café": ["good tea,yes", "bad cake,no"] * 8,  # bad, good and two words of its own, as many as the shop has
}


def texts(folder: Path, **settings) -> Sentences:
    """Texts of each client in a file of its own, and of all of them in all.csv."""
    for name, lines in TEXTS.items():
        (folder / f"{name}.csv").write_text("\n".join(["text,target,who", *(f"{line},{name}" for line in lines)]))
    rows = [f"{line},{name}" for name, lines in TEXTS.items() for line in lines]
    (folder / "all.csv").write_text("\n".join(["text,target,who", *rows]))
    settings |= {"test_share": 0.0, "local_test": "last"}  # rows in the order of the file
    return Sentences(folder / "all.csv", owner_column="who", length=3, vocabulary=8, **settings)


def served(given: to.Experiment, folder: Path, **own) -> Path:
    """The folder of a run with a device for each file of texts, which holds that file only."""
    data = replace(given.world.data, labels=None, **own)
    files = [DeviceSettings(client=n, folder=folder / n, data=replace(data, path=folder / f"{n}.csv")) for n in TEXTS]
    nodes = [make_device(given, file) for file in files]
    serve_experiment(GridLink(HereGrid(nodes)), given, folder / "run")
    return folder / "run"


def of_words(data: Sentences, rounds: int = 1, **runtime) -> to.Experiment:
    return experiment(data, rounds, **runtime).but(model=to.models.SentenceLSTM(8, embedding=4, hidden=4, layers=1))


def answered(out: Path) -> list[int]:
    with Records.read(out / "records.sqlite") as records:
        return records.column("answered").tolist()


def test_a_device_with_other_words_is_refused_on_both_sides(tmp_path, capsys):
    out = served(of_words(texts(tmp_path), start_with=1), tmp_path)
    said, words = capsys.readouterr(), "its words are numbered by another list than the server's"
    assert words in refused(out)
    assert words in said.err  # the server's log
    assert f"the server refuses café: {words}" in said.out  # the device's own
    assert "world.data.words" in said.out
    assert answered(out) == [1]


def test_devices_use_the_words_of_the_experiment_and_the_replay_agrees(tmp_path):
    given = of_words(texts(tmp_path).fixed(), rounds=2)
    assert given.world.data.words == ("bad", "good", "bread", "cake", "milk", "tea")  # by frequency, then by letters
    out = served(given, tmp_path, words=None)
    assert refused(out) == ""
    assert answered(out) == [2, 2]
    again = to.run(load(out / "replay.toml"), tmp_path / "again", quiet=True)
    for name, value in to.open_run(out).model().state_dict().items():
        assert torch.equal(value, again.model().state_dict()[name]), name


def test_a_device_that_lists_words_of_its_own_is_refused_from_the_first_round_on(tmp_path):
    """The experiment lists the words, so the device that comes first is held against them too."""
    given = of_words(texts(tmp_path).fixed(), start_with=1)
    right = make_device(given, DeviceSettings(client="café", folder=tmp_path / "right"))
    own = replace(given.world.data, path=tmp_path / "shop.csv", words=("good", "bad", "bread", "cake", "milk", "tea"))
    wrong = make_device(given, DeviceSettings(client="shop", folder=tmp_path / "wrong", data=own))
    serve_experiment(GridLink(HereGrid([wrong, right])), given, tmp_path / "run")
    assert "its words are numbered by another list" in refused(tmp_path / "run")
    assert answered(tmp_path / "run") == [1]


def test_an_app_for_texts_lists_their_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(to_toml(of_words(texts(tmp_path)).but(runtime=to.runtime.InProcess())))
    assert main(["deploy", "init", "app", "own.toml"]) == 0
    data = load(tmp_path / "app" / "experiment.toml").world.data
    assert (data.labels, data.words) == (("no", "yes"), ("bad", "good", "bread", "cake", "milk", "tea"))


def test_devices_with_other_characters_train_where_the_experiment_lists_all(tmp_path, capsys):
    found = texts(tmp_path)
    data = Characters(found.path, "text", "who", length=6, test_share=0.0)
    model = to.models.CharacterLSTM(embedding=4, hidden=4, layers=1)
    changes = {"model": model, "task": to.tasks.NextCharacter()}
    alone = experiment(data, 1, start_with=1).but(**changes)
    assert "its labels are" in refused(served(alone, tmp_path))
    assert "the server refuses café: its labels are" in capsys.readouterr().out
    (tmp_path / "again").mkdir()
    texts(tmp_path / "again")
    given = experiment(data.fixed(), 1).but(**changes)
    every = "good bread bad milk good tea bad cake\n"
    assert given.world.data.labels == tuple(sorted(set(every)))
    out = served(given, tmp_path / "again")
    assert (refused(out), answered(out)) == ("", [2])


def test_listed_labels_words_and_characters_number_the_samples(tmp_path):
    data = texts(tmp_path, labels=("yes", "maybe", "no"), words=("tea", "good"))
    found = data.load()
    assert (found.classes, found.y[:2].tolist()) == (3, [0, 2])
    assert found.x[-2].tolist() == [0, 3, 2]  # padding, good, tea
    assert found.x[0].tolist() == [0, 3, 1]  # bread is not listed
    with pytest.raises(to.UserError, match=r"line 2, column 'target': 'yes' is not among the labels \(no\)"):
        replace(data, labels=("no",)).load()
    requests = Characters(data.path, owner_column="who", length=6, labels=tuple("\n zyxwvutsrqponmlkjihgfedcba"))
    pool = requests.read()
    assert "".join(pool.labels[i] for i in pool.x[:3].flatten().tolist()) == "good tea\nbad cake\n"  # the café's
    with pytest.raises(to.UserError, match=r"the text of 'café' has the character ' '"):
        replace(requests, labels=tuple("\nabcdefghijklmnopqrstuvwxyz")).read()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"words": ("a", "a")}, "once"),
        ({"words": ()}, "once"),
        ({"words": ("Good",)}, "'Good' is never found"),
        ({"words": ("two words",)}, "'two words' is never found"),
        ({"words": ("a", "b"), "vocabulary": 3}, "room for 1"),
        ({"labels": ("a", "a")}, "once"),
    ],
)
def test_lists_of_words_that_cannot_be_used_are_refused(settings, words):
    with pytest.raises(to.UserError, match=words):
        Sentences("t.csv", **settings)


def test_lists_of_characters_that_cannot_be_used_are_refused():
    for labels in (("a", "a"), (), ("ab",)):
        with pytest.raises(to.UserError, match="every character once"):
            Characters("t.csv", labels=labels)


class Based(nn.Module):
    """A frozen base, a buffer that is no state, and a head that is trained."""

    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.base, self.head = nn.Linear(inputs, 6), nn.Linear(6, classes)
        self.base.requires_grad_(False)
        self.register_buffer("table", torch.zeros(6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x).tanh() + self.table)


class Changing:
    """A model whose values depend on what is installed where it is built; the experiment's settings do not."""

    added: tuple[str, ...] = ()

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        made = Based(input_shape[0], classes)
        with torch.no_grad():
            for name in self.added:
                made.get_parameter(name).add_(1e-3) if "." in name else made.get_buffer(name).add_(1e-3)
        return made


@pytest.mark.parametrize("changed", [("base.weight",), ("table",), ("base.bias", "table")])
def test_a_device_whose_model_has_other_frozen_values_is_refused_on_both_sides(changed, tmp_path, monkeypatch, capsys):
    given = experiment(Synthetic(clients=2), rounds=1, start_with=1).but(model=Changing())
    right = make_device(given, DeviceSettings(client="0", folder=tmp_path / "0"))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(Changing, "added", changed)
        wrong = make_device(given, DeviceSettings(client="1", folder=tmp_path / "1"))
    serve_experiment(GridLink(HereGrid([right, wrong])), given, tmp_path / "run")
    said, words = capsys.readouterr(), f"its model begins with other values in {', '.join(changed)}"
    assert words in refused(tmp_path / "run")
    assert words in said.err
    assert f"the server refuses 1: {words}" in said.out
    assert answered(tmp_path / "run") == [1]


def test_devices_train_adapters_on_a_base_that_no_message_carries(tmp_path):
    torch.manual_seed(2)
    save_file(to.models.MLP(500).build((60,), 10).state_dict(), tmp_path / "base.safetensors")
    adapter = to.LoRA(rank=2, targets="linear1")
    model = to.models.Adapted(to.models.MLP(500), adapter, str(tmp_path / "base.safetensors"))
    given = experiment(Synthetic(clients=2), rounds=2).but(model=model, **{"algorithm.local.optimizer.lr": 0.001})
    grid = HereGrid(make_device(given, DeviceSettings(client=name, folder=tmp_path / name)) for name in ("0", "1"))
    serve_experiment(GridLink(grid), given, tmp_path / "run")
    assert (refused(tmp_path / "run"), answered(tmp_path / "run")) == ("", [2, 2])
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        assert records.column("bytes_down").tolist() == [2 * 4 * 2 * (60 + 500)] * 2
    assert 4 * 2 * (60 + 500) < max(size for _, size in grid.sent) < 4 * 60 * 500  # less than the base's first layer
    last = to.open_run(tmp_path / "run").weights()
    assert last["linear1.lora_B.weight"].any()


def test_a_device_takes_part_whose_first_values_differ_in_what_the_server_sends(tmp_path, monkeypatch):
    """Another processor may round a draw otherwise; what is trained and shared comes with every download."""
    given = experiment(Synthetic(clients=2), rounds=1).but(model=Changing())
    nodes = []
    for name, added in {"0": (), "1": ("head.weight",)}.items():
        monkeypatch.setattr(Changing, "added", added)
        nodes.append(make_device(given, DeviceSettings(client=name, folder=tmp_path / name)))
    monkeypatch.setattr(Changing, "added", ())
    serve_experiment(GridLink(HereGrid(nodes)), given, tmp_path / "run")
    assert (refused(tmp_path / "run"), answered(tmp_path / "run")) == ("", [2])


def test_a_device_whose_model_has_more_parameters_is_refused(tmp_path, monkeypatch):
    given = experiment(Synthetic(clients=2), rounds=1, start_with=1).but(model=Changing())
    right = make_device(given, DeviceSettings(client="0", folder=tmp_path / "0"))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(Changing, "build", lambda self, shape, classes: nn.Linear(shape[0], classes))
        wrong = make_device(given, DeviceSettings(client="1", folder=tmp_path / "1"))
    serve_experiment(GridLink(HereGrid([right, wrong])), given, tmp_path / "run")
    assert "its model has 2 parameters and buffers, and the server's 5" in refused(tmp_path / "run")
