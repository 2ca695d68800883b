"""`turnout predict`: a table's rows by a run's model, without the training data."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import torch

import turnout as to
from score_worlds import score_world
from turnout.cli import main

Capture = pytest.CaptureFixture[str]
TOWNS, JOBS = ("Ulm", "Bonn", "Köln"), ("cook", "smith", "")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = ["town,age,job,income,buys"]
    for i in range(120):
        age, job = 20 + i % 40, JOBS[i % 3]
        shown = "" if i % 11 == 0 else age
        rows.append(f"{TOWNS[i % 3]},{shown},{job},{1000.5 + 50 * age},{'yes' if age > 40 else 'no'}")
    Path("people.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    Path("new.csv").write_text('job,age,note\ncook,25,a\nsmith,,b\npilot,58,"c, d"\n', encoding="utf-8")


def turnout(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def train(label: str, out: str = "run", **changes: object) -> to.Run:
    leave = ("income",) if label == "buys" else ("buys",)
    data = to.data.Table("people.csv", label=label, owner="town", leave_out=leave)
    task = to.tasks.Classification() if label == "buys" else to.tasks.Regression()
    local = to.Local(to.SGD(lr=0.1), epochs=3, batch_size=10)
    experiment = to.Experiment(to.World(data), to.models.MLP(8), to.Algorithm(local), task=task, rounds=15)
    return to.run(experiment.but(**changes), out, quiet=True)


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_classes_by_name_with_gaps_and_unknown_texts_and_without_the_training_data(capsys: Capture) -> None:
    run = train("buys")
    x = run.experiment.world.data.encode("new.csv", run.experiment.seed)  # type: ignore[attr-defined]
    with torch.no_grad():
        chance, best = run.model()(x).softmax(1).max(1)
    Path("people.csv").unlink()
    assert turnout("predict", "run", "new.csv") == 0
    out, err = capsys.readouterr()
    rows = table(out)
    assert list(rows[0]) == ["job", "age", "note", "prediction", "probability"]
    assert [row["note"] for row in rows] == ["a", "b", "c, d"]
    assert [row["prediction"] for row in rows] == [("no", "yes")[i] for i in best.tolist()]
    assert [float(row["probability"]) for row in rows] == pytest.approx(chance.tolist(), abs=1e-5)
    assert rows[0]["prediction"] == "no"
    assert rows[2]["prediction"] == "yes"
    assert err == ""


def test_numbers_come_in_their_own_unit_and_are_compared_where_they_are_known(capsys: Capture) -> None:
    train("income")
    assert turnout("predict", "run", "people.csv", "--out", "predicted.csv") == 0
    out, err = capsys.readouterr()
    assert out == "predicted.csv: 120 rows\n"
    rows = table(Path("predicted.csv").read_text(encoding="utf-8"))
    errors = [abs(float(row["prediction"]) - float(row["income"])) for row in rows]
    assert f"by {sum(errors) / len(errors):.4g} on average" in err
    assert sum(errors) / len(errors) < 400


def test_a_client_by_its_own_model(capsys: Capture) -> None:
    model = to.models.MLP(8, batch_norm=True)
    run = train("buys", model=model, **{"algorithm.personal": to.personal.batch_norm})
    x = run.experiment.world.data.encode("new.csv", run.experiment.seed)  # type: ignore[attr-defined]
    found = {}
    for said, client in (("Köln", "Köln"), ("0", 0)):
        assert turnout("predict", "run", "new.csv", "--client", said) == 0
        found[said] = [float(row["probability"]) for row in table(capsys.readouterr().out)]
        with torch.no_grad():
            expected = run.model(client)(x).softmax(1).max(1).values
        assert found[said] == pytest.approx(expected.tolist(), abs=1e-5)
    assert found["Köln"] != found["0"]
    assert turnout("predict", "run", "new.csv") == 0
    assert "--client N has trained ones" in capsys.readouterr().err


def test_how_often_it_was_right_is_said(capsys: Capture) -> None:
    run = train("buys")
    assert turnout("predict", "run", "people.csv") == 0
    out, err = capsys.readouterr()
    right = sum(row["prediction"] == row["buys"] for row in table(out))
    assert err == f"{right} of 120 predictions are as in column 'buys' ({100 * right / 120:.1f} %)\n"
    assert right > 80
    assert run.rounds() == 15


def test_other_data_is_numbers_in_order(capsys: Capture) -> None:
    to.run(to.Experiment(to.World(to.data.Digits(clients=5)), to.models.MLP(8), rounds=1), "digits", quiet=True)
    federation = to.data.Digits(clients=5).load(0)
    x, _ = federation.central_test() or (torch.empty(0), torch.empty(0))
    few = x[:4].flatten(1)
    lines = [",".join(f"p{i}" for i in range(few.shape[1])), *(",".join(map(str, row)) for row in few.tolist())]
    Path("digits.csv").write_text("\n".join(lines) + "\n")
    assert turnout("predict", "digits", "digits.csv") == 0
    with torch.no_grad():
        expected = to.load_model("digits")(x[:4]).argmax(1).tolist()
    assert [int(row["prediction"]) for row in table(capsys.readouterr().out)] == expected
    assert turnout("predict", "digits", "new.csv") == 2
    assert "new.csv has 3 columns" in (capsys.readouterr().err)


def test_several_labels_a_row_are_the_outputs_as_they_are(capsys: Capture) -> None:
    from torch.nn.functional import binary_cross_entropy_with_logits

    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    data = to.data.Own(x, (x > 0).long(), owner=[i % 3 for i in range(30)], classes=3)
    task = to.tasks.Task(loss=lambda out, y: binary_cross_entropy_with_logits(out, y.float(), reduction="none").mean(1))
    run = to.run(to.Experiment(to.World(data), to.models.MLP(4), task=task, rounds=2), "several", quiet=True)
    Path("x.csv").write_text("a,b,c\n" + "\n".join(",".join(map(str, row)) for row in x[:4].tolist()) + "\n")
    assert turnout("predict", "several", "x.csv") == 0
    rows = table(capsys.readouterr().out)
    with torch.no_grad():
        expected = run.model()(x[:4])[:, 1].tolist()
    assert [float(row["output 1"]) for row in rows] == pytest.approx(expected, abs=1e-4)


def test_a_column_of_that_name_stays(capsys: Capture) -> None:
    train("buys")
    Path("again.csv").write_text("job,age,prediction\ncook,25,rain\n")
    assert turnout("predict", "run", "again.csv") == 0
    (row,) = table(capsys.readouterr().out)
    assert row["prediction"] == "rain"
    assert row["prediction by turnout"] in ("yes", "no")


def test_what_cannot_be_predicted_is_a_sentence(capsys: Capture) -> None:
    train("buys")
    Path("other.csv").write_text("age,hat\n3,red\n")
    for arguments, sentence in (
        ("run other.csv", "other.csv has no column 'job'"),
        ("run nowhere.csv", "there is no nowhere.csv"),
        ("run new.csv --client Rom", "there is no client 'Rom': they are 0 to 2 (known are Bonn, Köln, Ulm)"),
        ("run new.csv --out nowhere/x.csv", "there is no folder nowhere"),
        ("nowhere new.csv", "nowhere is not a run folder"),
    ):
        assert turnout("predict", *arguments.split()) == 2
        out, err = capsys.readouterr()
        assert sentence in err
        assert (out, len(err.splitlines())) == ("", 1)


def test_clients_with_labels_of_their_own_are_for_python(capsys: Capture) -> None:
    run = to.run(score_world(), "scores", quiet=True)
    wide = run.data().input_shape[0]
    Path("few.csv").write_text(",".join(f"x{i}" for i in range(wide)) + "\n" + ",".join(["0"] * wide) + "\n")
    assert turnout("predict", "scores", "few.csv", "--client", 0) == 2
    assert "use it in Python, to.load_model(folder, client)" in capsys.readouterr().err


def test_weights_of_a_model_of_numbers_can_be_begun_from(capsys: Capture) -> None:
    run = train("income")
    assert turnout("export", "run", "--model", "m.safetensors") == 0
    assert "their mean and deviation are in the file's metadata" in capsys.readouterr().out
    again = train("income", "again", start="m.safetensors")
    assert again.curve("global_mse")[1][0] == pytest.approx(run.final("global_mse"), rel=1e-4)
