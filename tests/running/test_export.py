"""`turnout export`: the model in every form, the records as tables."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import turnout as to
from turnout.cli import main

Capture = pytest.CaptureFixture[str]

SMALL = """
rounds = 2
model = {kind = "mlp", hidden = [4], batch_norm = true}
evaluate.per_client = true
[world]
data = {kind = "synthetic", clients = 6, sizes = {kind = "pareto", cap = 30}}
participation = {kind = "dropout", rate = 0.3}
[[world.events]]
kind = "join"
client = 5
round = 1
[algorithm]
local = {epochs = 2, batch_size = 5}
substitution = "friends"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and a folder of four runs."""
    here = tmp_path_factory.mktemp("export")
    (here / "small.toml").write_text(SMALL)
    assert main(["run", str(here / "small.toml"), "--out", str(here / "run"), "-q"]) == 0
    grid = ["--grid", "algorithm.weighting=A,C", "--seeds", "2", "--jobs", "1"]
    assert main(["run", str(here / "small.toml"), *grid, "--out", str(here / "four"), "-q"]) == 0
    return here


def turnout(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def there(*libraries: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in libraries)


# -- the model card


def test_a_card_says_who_took_part_and_what_only_its_author_knows(folder: Path, capsys: Capture) -> None:
    log = "round,client,work\n" + "".join(f"{t},{c},{float(c != 2)}\n" for t in range(2) for c in range(6))
    (folder / "log.csv").write_text(log)
    absent = f'world.participation={{kind="turnout-log", path="{(folder / "log.csv").as_posix()}"}}'
    command = ["run", folder / "small.toml", "--set", absent, "--set", "world.events=[]", "--out", folder / "absent"]
    assert turnout(*command, "--set", 'title="a <b> | c"', "-q") == 0
    assert turnout("export", folder / "absent", "--card", folder / "card.md") == 0
    card = (folder / "card.md").read_text()
    assert card.startswith("---\nlibrary_name: turnout\n")
    assert "\n# a \\<b\\> \\| c\n" in card
    assert "- A client replied in 0.0 % to 100.0 % of the rounds in which it was asked (median 100.0 %).\n" in card
    assert "- 1 of 6 clients never replied, so the model has not seen their data: 2.\n" in card
    run = to.open_run(folder / "absent")
    assert f"| global_accuracy | {100 * run.final('global_accuracy'):.1f} % |" in card
    assert "- Input: 60 numbers (float32)\n- Output: 10 numbers" in card
    assert "| substitution | friends |" in card
    assert "- **Licence**" in card
    capsys.readouterr()
    assert turnout("export", folder / "four", "--card", folder / "card.md") == 2
    assert "holds 4 runs, and a card is of one" in capsys.readouterr().err


# -- the model


def outputs(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(7, 60, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return x, to.load_model(folder / "run")(x)


@pytest.mark.filterwarnings("ignore")
def test_a_program_needs_no_class(folder: Path) -> None:
    assert turnout("export", folder / "run", "--model", folder / "model.pt2") == 0
    x, expected = outputs(folder)
    assert torch.allclose(torch.export.load(str(folder / "model.pt2")).module()(x), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_onnx_or_what_to_install(folder: Path, capsys: Capture) -> None:
    done = turnout("export", folder / "run", "--model", folder / "model.onnx")
    if not there("onnx", "onnxscript"):
        assert done == 2
        assert "writing ONNX needs onnx, which is not installed: pip install 'turnout[onnx]'" in capsys.readouterr().err
        return
    from onnx.reference import ReferenceEvaluator

    assert done == 0
    x, expected = outputs(folder)
    (found,) = ReferenceEvaluator(str(folder / "model.onnx")).run(None, {"input": x.numpy()})
    assert torch.allclose(torch.from_numpy(found), expected, atol=1e-5)


def test_weights_of_a_client_by_number(folder: Path) -> None:
    assert turnout("export", folder / "run", "--model", folder / "c.safetensors", "--client", 3) == 0
    expected = to.load_model(folder / "run", 3).state_dict()
    found = load_file(folder / "c.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


BRANCHING = """
import torch
from torch import nn

class Branching(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(shape[0], classes)

    def forward(self, x):
        return self.layer(x) if float(x.sum()) == 0.0 else -self.layer(x)
"""


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_looks_at_its_samples_is_not_written_wrong(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "my_branching.py").write_text(BRANCHING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert (
        turnout("run", folder / "small.toml", "--set", "model=my_branching:Branching", "--out", tmp_path / "run") == 0
    )
    capsys.readouterr()
    assert turnout("export", tmp_path / "run", "--model", tmp_path / "model.pt2") == 2
    assert "this model cannot be written as .pt2" in (said := capsys.readouterr().err)
    assert "Traceback" not in said
    assert not list(tmp_path.glob("model*"))


# -- the records


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_records_of_a_run_as_csv(folder: Path, capsys: Capture) -> None:
    assert turnout("export", folder / "run", "--csv", folder / "csv") == 0
    assert "rounds.csv: 2 rows" in capsys.readouterr().out
    with to.open_run(folder / "run").records() as records:
        rounds, clients, events = records.rounds(), records.clients(), records.events()
        measured = records.curve("global_accuracy")
        per_client = records.client_evaluation("client_accuracy")
    found = rows(folder / "csv" / "rounds.csv")
    assert [float(row["train_loss"]) for row in found] == rounds["train_loss"].tolist()
    assert [int(row["bytes_up"]) for row in found] == rounds["bytes_up"].tolist()
    extra = next(name for name in rounds if name not in ("skipped", "round") and name in found[0] and "_" in name)
    assert extra in found[0]
    found = rows(folder / "csv" / "clients.csv")
    assert [(int(row["round"]), int(row["client"])) for row in found] == list(
        zip(clients["round"].tolist(), clients["client"].tolist(), strict=True)
    )
    assert [float(row["work"]) for row in found] == clients["work"].tolist()
    found = rows(folder / "csv" / "evaluations.csv")
    assert [(int(r["round"]), float(r["global_accuracy"])) for r in found] == list(
        zip(*(column.tolist() for column in measured), strict=True)
    )
    found = [row for row in rows(folder / "csv" / "client_evaluations.csv") if row["round"] == "1"]
    assert [(int(r["client"]), float(r["client_accuracy"])) for r in found if r["client_accuracy"]] == [
        (c, v) for c, v in zip(*(column.tolist() for column in per_client), strict=True) if v == v
    ]
    assert [(int(r["round"]), int(r["client"]), r["kind"]) for r in rows(folder / "csv" / "events.csv")] == [
        event[:3] for event in events
    ]


def test_the_records_of_several_runs_are_one_table(folder: Path) -> None:
    assert turnout("export", folder / "four", "--csv", folder / "csv4") == 0
    found = rows(folder / "csv4" / "evaluations.csv")
    assert list(found[0])[:3] == ["variant", "seed", "round"]
    assert len(found) == 4 * 3
    last = [row for row in found if row["variant"] == "weighting=C" and row["seed"] == "1"][-1]
    expected = to.open_run(folder / "four" / "weighting=C" / "seed-1").final("global_accuracy")
    assert float(last["global_accuracy"]) == expected


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("", "say what to write: --model FILE, --card FILE, --csv DIR"),
        ("--client 3 --csv x", "--client chooses a model"),
        ("--model model.bin", "model.bin: a model's file ends in .safetensors, .pt2, .onnx"),
        ("--model m.pt2 --client bob", "there is no client 'bob': they are 0 to 5"),
        ("--csv small.toml", "small.toml is a file, and several tables are written"),
        ("--mlflow nonsense://x", "needs mlflow" if not there("mlflow") else "cannot be used"),
    ],
)
def test_what_cannot_be_exported_is_a_sentence(
    arguments: str, sentence: str, folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert turnout("export", "run", *arguments.split()) == 2
    assert sentence in (said := capsys.readouterr().err)
    assert len(said.splitlines()) == 1


def test_several_runs_have_no_one_model(folder: Path, capsys: Capture) -> None:
    assert turnout("export", folder / "four", "--model", folder / "x.pt2") == 2
    assert "holds several runs: name one of the folders in it" in capsys.readouterr().err
