"""Tables as people have them: texts, gaps, owners, a file per owner, numbers to predict; and what is refused."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import turnout as to
from turnout.data import ClientFiles, Table
from turnout.data.columns import Encoding
from turnout.data.partition import IID
from turnout.data.text_table import read_tables
from turnout.errors import UserError
from turnout.running.config.read import from_table
from turnout.running.config.write import to_toml
from turnout.tasks import InOwnUnit

PEOPLE = """name,town,age,job,income
ann,Ulm,30,cook,20.5
bob,Ulm,,smith,30.5
cyd,Bonn,50,,10.5
dee,Bonn,40,cook,40.25
"""


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.fixture
def people(tmp_path: Path) -> Path:
    return written(tmp_path, PEOPLE)


def test_a_table_of_numbers(tmp_path):
    path = written(tmp_path, "id,a,b,kind\nx,1,2,yes\ny,3,4,no\nx,5,6,yes\n")
    data = Table("t.csv", label="kind", owner="id", standardise=False, test_share=0).load(0, tmp_path)
    assert (data.names, data.labels, data.input_shape) == (("x", "y"), ("no", "yes"), (2,))
    assert data.x.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert data.y.tolist() == [1, 0, 1]
    assert data.standardised is None
    pool = Table(path, label="b", features=("a",), regression=True, clients=2).read()
    assert (pool.classes, pool.labels) == (1, ())
    for values in (pool.x, pool.y):
        assert values.mean().abs() < 1e-6
        assert values.std(correction=0).item() == pytest.approx(1)


def test_texts_are_one_hot_and_gaps_are_filled_and_marked(people):
    data = Table(people, "income", "town", leave_out=("name",), standardise=False, test_share=0).load()
    assert data.names == ("Bonn", "Ulm")
    # age, whether age is missing; then job: missing, cook, smith
    assert data.x.tolist() == [
        [30, 0, 0, 1, 0],
        [40, 1, 0, 0, 1],  # the mean of 30, 50 and 40
        [50, 0, 1, 0, 0],
        [40, 0, 0, 1, 0],
    ]
    assert data.y.tolist() == [[20.5], [30.5], [10.5], [40.25]]


def test_numbers_and_the_target_are_standardised_over_the_training_rows(people):
    data = Table(people, "income", "town", leave_out=("name",), test_share=0).load()
    ages = torch.tensor([30.0, 50.0, 40.0])
    std = ages.std(correction=0)
    assert torch.allclose(data.x[:, 0], torch.tensor([-10.0, 0, 10, 0]) / std)
    incomes = torch.tensor([20.5, 30.5, 10.5, 40.25])
    assert data.standardised is not None
    assert (data.standardised.mean, data.standardised.std) == pytest.approx(
        (incomes.mean().item(), incomes.std(correction=0).item())
    )
    assert torch.allclose(data.y[:, 0] * data.standardised.std + data.standardised.mean, incomes)


def test_what_is_learnt_of_columns_comes_from_training_rows_only(tmp_path):
    rows = [f"{i % 2},{i},{'rare' if i == 0 else 'common'},{i % 2}" for i in range(40)]
    path = written(tmp_path, "owner,a,b,label\n" + "\n".join(rows) + "\n")
    for seed in range(20):  # a seed whose test samples hold the only row with a rare text
        data = Table(path, "label", "owner").load(seed)
        train = set(data.train_rows.row_R.tolist())
        a = torch.tensor(sorted(train), dtype=torch.float64)
        column = (torch.arange(40) - a.mean()) / a.std(correction=0)
        assert torch.allclose(data.x[:, 0].double(), column, atol=1e-6)
        if 0 not in train:
            assert data.x.shape == (40, 2)
            assert data.x[0, 1] == 0  # unseen in training: no category is on
            return
    pytest.fail("no seed held the first row out")


def test_another_files_rows_are_encoded_as_the_training_rows_were(people, tmp_path):
    data = Table(people, "income", "town", leave_out=("name",), standardise=False, test_share=0)
    new = written(tmp_path, "job,age,more\ncook,20,1\nbaker,,2\n", "new.csv")
    assert data.encode(new).tolist() == [[20, 0, 0, 1, 0], [40, 1, 0, 0, 0]]  # a baker was never seen
    with pytest.raises(UserError, match=r"new2.csv has no column 'age'"):
        data.encode(written(tmp_path, "job\ncook\n", "new2.csv"))
    with pytest.raises(UserError, match=r"new3.csv, line 2, column 'age': 'old' is not a finite number"):
        data.encode(written(tmp_path, "job,age\ncook,old\n", "new3.csv"))


def test_what_was_learnt_of_columns_can_be_kept_in_a_file(people):
    data = Table(people, "income", "town", leave_out=("name",), test_share=0)
    found = data.load()
    kept = Encoding.from_plain(json.loads(json.dumps(asdict(found.encoding))))
    assert kept == found.encoding
    assert torch.equal(kept.encode(read_tables(people, None)), found.x)


def test_what_was_done_is_said_in_a_sentence(people):
    note = Table(people, "income", "town", leave_out=("name",), test_share=0).load().note
    assert "age as numbers" in note
    assert "gaps (age) are filled with the mean" in note
    assert "job has 3 categories" in note
    assert "5 inputs" in note
    assert "'income' is a number, standardised (mean 25.4" in note
    assert "own unit" in note
    plain = written(people.parent, "a,kind\n1,x\n2,y\n", "plain.csv")
    note = Table(plain, "kind", clients=1).load().note
    assert "gaps" not in note
    assert "'kind' has 2 classes" in note


def test_a_target_with_fractions_is_a_number_and_whole_numbers_are_classes(tmp_path):
    path = written(tmp_path, "a,f,w\n1,0.5,3\n2,1.0,7\n3,2,3\n")
    assert Table(path, "f", clients=1).load().labels == ()
    assert Table(path, "w", clients=1).load().labels == ("3", "7")
    assert Table(path, "w", regression=True, clients=1).load().labels == ()
    assert Table(path, "f", regression=False, clients=1).load().labels == ("0.5", "1.0", "2")


def test_metrics_and_the_model_are_in_the_targets_own_unit(tmp_path):
    g = torch.Generator().manual_seed(1)
    size = torch.rand(200, generator=g) * 100
    price = 3000 + 50 * size + 200 * torch.randn(200, generator=g)
    rows = [f"{i % 4},{a:.4f},{b:.4f}\n" for i, (a, b) in enumerate(zip(size.tolist(), price.tolist(), strict=True))]
    data = Table(written(tmp_path, "town,size,price\n" + "".join(rows), "houses.csv"), "price", "town")
    algorithm = to.Algorithm(to.Local(to.SGD(lr=0.1), epochs=2))
    experiment = to.Experiment(to.World(data), to.models.MLP(8), algorithm, to.tasks.Regression(), rounds=15)
    run = to.run(experiment, tmp_path / "run", quiet=True)
    first, last = run.curve("global_mae")[1][0], run.final("global_mae")
    assert 500 < first < 3000  # prices are between 3000 and 8000
    assert 50 < last < 300
    assert run.final("global_loss") < 0.1  # of standardised targets
    predicted = run.model()(data.encode(data.path)).squeeze(1)
    tested = data.load(0).test(torch.arange(4)).row_R
    mse = (predicted - price)[tested].square().mean().item()
    assert run.final("global_mse") == pytest.approx(mse, rel=1e-3)
    assert json.loads((run.folder / "environment.json").read_text())["engine"] in ("native", "by hand")
    stop = experiment.but(stop=to.Stop(target=2 * last, metric="global_mae"))
    assert to.run(stop, tmp_path / "stop", quiet=True).stopped() == f"global_mae reached {2 * last:g}"


def test_a_task_in_its_own_unit_can_travel_as_a_file():
    task = InOwnUnit(to.tasks.Regression(), mean=3.0, std=2.0)
    assert from_table(tomllib.loads(to_toml(to.Experiment(task=task)))).task == task


def test_own_metrics_are_computed_in_the_targets_own_unit(tmp_path):
    path = written(tmp_path, "a,y\n" + "".join(f"{i},{1000.5 + i}\n" for i in range(40)))
    tenth = {
        "within": to.tasks.Metric(lambda out, y: ((out - y).abs() < 0.1 * y.abs()).float().squeeze(1), unit="percent")
    }
    task = to.tasks.Task(lambda out, y: (out - y).square().squeeze(1), tenth, main="within")
    experiment = to.Experiment(to.World(Table(path, "y", clients=2)), to.models.MLP(), task=task, rounds=1)
    run = to.run(experiment, tmp_path / "run", quiet=True)
    assert run.final("global_within") == 1.0  # everything is within 4 % of the mean


def test_a_file_per_client(tmp_path):
    for town, first in (("bonn", 1), ("ulm", 3)):
        written(tmp_path, f"a,b,kind\n{first},x,no\n{first + 1},y,yes\n", f"towns/{town}.csv")
    for data in (
        Table(tmp_path / "towns/*.csv", "kind", test_share=0),
        Table(tmp_path / "towns", "kind", test_share=0),
        Table("towns/*.csv", "kind", test_share=0),
    ):
        found = data.load(0, tmp_path)
        assert (found.names, found.labels, found.input_shape) == (("bonn", "ulm"), ("no", "yes"), (3,))
        assert found.train(torch.tensor([1])).of(0)[0].shape == (2, 3)
    assert Table(tmp_path / "towns/*.csv", "kind", owner="b", test_share=0).load().names == ("x", "y")
    assert Table(tmp_path / "towns/*.csv", "kind", clients=3, partition=IID(), test_share=0).load().clients == 3


def test_files_that_differ_are_refused(tmp_path):
    written(tmp_path, "a,kind\n1,no\n", "towns/bonn.csv")
    written(tmp_path, "a,kinds\n1,no\n", "towns/ulm.csv")
    with pytest.raises(UserError, match=r"ulm.csv has no column 'kind', which .*bonn.csv has"):
        Table(tmp_path / "towns", "kind").load()
    written(tmp_path, "a,kind\nx y,no\n", "towns/ulm.csv")
    with pytest.raises(
        UserError, match=r"ulm.csv, line 2, column 'a': 'x y' is not a number, as others of the column are"
    ):
        Table(tmp_path / "towns", "kind").load()
    with pytest.raises(UserError, match="no files"):
        Table(tmp_path / "towns/*.tsv", "kind").load()
    with pytest.raises(UserError, match="CSV files are read by Table"):
        ClientFiles(tmp_path / "towns", "*.csv").load()


def test_numbers_that_are_names_and_too_many_names(tmp_path):
    rows = "".join(f"{10000 + i % 3},person {i},{i % 2}\n" for i in range(120))
    path = written(tmp_path, "zip,who,label\n" + rows)
    for fields in ({}, {"max_categories": 120}, {"categories": ("who",), "test_share": 0}):
        with pytest.raises(
            UserError, match=r"column 'who' has \d+ different texts in \d+ training.*leave_out=\('who',\)"
        ):
            Table(path, "label", clients=1, **fields).load()
    data = Table(path, "label", leave_out=("who",), categories=("zip",), clients=1, test_share=0).load()
    assert data.input_shape == (3,)
    named = Table(path, "label", categories=("who",), max_categories=120, clients=1, test_share=0)
    assert named.load().input_shape == (121,)
    for wrong in ({"categories": ("zap",)}, {"leave_out": ("zap",)}, {"features": ("zap",)}):
        with pytest.raises(UserError, match=r"no column 'zap': did you mean 'zip'"):
            Table(path, "label", clients=1, **wrong).load()
    with pytest.raises(UserError, match="'zip' is a feature and also left out"):
        Table(path, "label", features=("zip",), leave_out=("zip",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,kind\n1,x\nsix,y\n", r"line 3, column 'a': 'six' is not a number, as others of the column are"),
        ("a,kind\n1,x\ninf,y\n", "line 3, column 'a': 'inf' is not a number"),
        ("a,b,kind\n1,,x\n2,NA,y\n", r"column 'b' has no values.*leave_out=\('b',\)"),
        ("a,kind\n1984-05-02,x\n,y\n", r"line 2, column 'a': '1984-05-02' is a date.*leave_out=\('a',\)"),
        ("a,kind\n2.5.1984,x\n13.12.2001,y\n", "'2.5.1984' is a date"),
        ("a,kind\n5/2/84 10:30,x\n", "is a date"),
        ("a,kind\n2024-01-31T10:00:00Z,x\n", "is a date"),
        ('a,kind\n"1,234",x\n"5,5",y\n', r"line 2, column 'a': '1,234' is a number with a comma.*with a point"),
        ("a,kind\n1,x\n2,\n", "line 3, column 'kind': the target is missing"),
        ("a,kind\n1\n2,y\n", "line 2: .*2 columns.* 1"),
        ("a,kind\n\n1,x\n1,2,3\n", "line 4: .*2 columns.* 3"),
        ("a,kind\n", "no rows"),
        ("", "is empty"),
        ("kind\nx\n", "no feature columns"),
        ("a,b,a,kind\n1,2,3,x\n", "has two columns with the name 'a'"),
        ("a,kinds\n1,x\n", "no column 'kind': did you mean 'kinds'"),
    ],
)
def test_what_a_table_cannot_hold_is_refused_with_its_place(tmp_path, text, words):
    with pytest.raises(UserError, match=r"t\.csv.*" + words):
        Table(written(tmp_path, text), label="kind", clients=1).load(0)


def test_a_number_to_predict_and_an_owner_must_be_there(tmp_path):
    path = written(tmp_path, "who,a,y\nann,1,0.5\n,2,many\n")
    with pytest.raises(UserError, match="line 3, column 'who': the owner is missing"):
        Table(path, "a", "who").load()
    with pytest.raises(UserError, match="line 3, column 'y': 'many' is not a finite number"):
        Table(path, "y", regression=True, clients=1).load()


def test_files_from_a_spreadsheet(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfkind;a;b\r\nx;1; up \r\ny;2;up\r\n")
    data = Table(path, "kind", clients=1, test_share=0, standardise=False).load()
    assert data.x.tolist() == [[1, 1], [2, 1]]
    (tmp_path / "tabs.csv").write_text("kind\ta\nx\t1\ny\t2\n")
    assert Table(tmp_path / "tabs.csv", "kind", clients=1).load().input_shape == (1,)


def test_lines_are_those_of_the_file_also_after_texts_of_several_lines(tmp_path):
    path = written(tmp_path, 'b,a,kind\n"two\nlines",1,x\n\nplain,oops,y\n')
    with pytest.raises(UserError, match="line 5, column 'a': 'oops'"):
        Table(path, "kind", clients=1).load()


def test_the_sentence_is_printed_once_at_the_start(people, tmp_path, capsys):
    data = Table(people, "income", "town", leave_out=("name",))
    experiment = to.Experiment(to.World(data), task=to.tasks.Regression(), rounds=2)
    to.run(experiment, tmp_path / "run")
    assert capsys.readouterr().err.count("gaps (age) are filled") == 1


def test_regression_of_whole_numbers_says_what_to_write(tmp_path):
    path = written(tmp_path, "a,y\n1,100\n2,250\n3,300\n")
    experiment = to.Experiment(to.World(Table(path, "y", clients=1)), task=to.tasks.Regression(), rounds=1)
    with pytest.raises(UserError, match="regression=True"):
        to.run(experiment, tmp_path / "run", quiet=True)


def test_another_encoding_is_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"a,kind\n1,caf\xe9\n")
    with pytest.raises(UserError, match="UTF-8"):
        Table("t.csv", label="kind", clients=1).load(0, tmp_path)


def test_the_label_is_not_a_feature():
    with pytest.raises(UserError, match="'y' is the label and also among the features"):
        Table("t.csv", label="y", features=("a", "y"), clients=1)
