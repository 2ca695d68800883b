"""In a notebook: experiments and runs as short HTML, mistakes as a sentence, one clear choice for a used folder."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch

import turnout as to
from example_experiments import run_many
from turnout.cli import main
from turnout.running.config.read import to_toml
from turnout.running.records.export import client_columns, round_columns
from turnout.running.records.records import Records
from turnout.view.report.short import runs_html, scoped_style


def small(**changes: object) -> to.Experiment:
    data = to.data.Synthetic(clients=6, sizes=to.data.Pareto(cap=40))
    local = to.Local(to.SGD(lr=0.1), epochs=2, batch_size=5)
    world = to.World(data, to.participation.Dropout(0.4))
    return to.Experiment(world, algorithm=to.Algorithm(local=local), rounds=3).but(**changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> to.Run:
    experiment = small(title="a <b> & c", **{"evaluate.per_client": True})
    return to.run(experiment, tmp_path_factory.mktemp("runs") / "one", quiet=True)


def parsed(text: str) -> ET.Element:
    """HTML that is also XML, so that no tag is left open and nothing is unescaped."""
    return ET.fromstring(text.replace("&nbsp;", " ").replace("&middot;", "·"))


# -- what is shown


def test_a_run_shows_its_numbers_and_curves(run):
    text = run._repr_html_()
    page = parsed(text)
    words = " ".join(page.itertext())
    assert "a <b> & c" in words
    assert "3 rounds" in words
    assert "6 clients" in words
    assert re.search(r"global_accuracy \d+\.\d %", words)
    assert len(page.findall(".//{http://www.w3.org/2000/svg}path")) >= 2  # curves
    assert len(text) < 30_000
    assert "script" not in text
    assert str(run.folder) in words


def test_a_comparison_shows_a_row_for_each_variant(tmp_path):
    variants = {"one": small(rounds=2), "<two>": small(rounds=2, **{"algorithm.local.epochs": 1})}
    run_many(variants, [0, 1], tmp_path / "runs", jobs=1, quiet=True)
    page = parsed(runs_html(tmp_path / "runs"))
    words = " ".join(page.itertext())
    assert "<two>" in words
    assert "±" in words
    assert len(page.findall(".//tr")) == 3
    assert page.find(".//{http://www.w3.org/2000/svg}path") is not None


def test_a_run_without_records_says_so(tmp_path):
    text = to.Run(tmp_path / "nothing", small())._repr_html_()
    assert "no records" in " ".join(parsed(text).itertext())


def test_the_style_of_the_curves_reaches_nothing_else_in_the_notebook():
    selectors = re.findall(r"(?:^|\})\s*([^{}@]+)\{", re.sub(r"/\*.*?\*/", "", scoped_style(), flags=re.DOTALL))
    selectors += re.findall(r"@media[^{]*\{\s*([^{}]+)\{", scoped_style())
    assert len(selectors) > 15
    assert all(one.strip().startswith(".turnout") for selector in selectors for one in selector.split(","))


# -- a mistake


def test_a_mistake_is_one_sentence_in_a_notebook():
    shown = to.UserError("rounds is 'many': give a number")._render_traceback_()
    assert len(shown) == 1
    assert "rounds is 'many': give a number" in shown[0]
    assert "Traceback" not in shown[0]


# -- a used folder


def test_the_same_cell_again_names_three_choices(tmp_path):
    folder = tmp_path / "run"
    to.run(small(), folder, quiet=True)
    with pytest.raises(to.UserError) as caught:
        to.run(small(), folder, quiet=True)
    for choice in ("is not empty", "another folder", "resume=True", "overwrite=True"):
        assert choice in str(caught.value)
    assert to.run(small(rounds=5), folder, quiet=True, resume=True).rounds() == 5


def test_overwrite_deletes_the_run_first(tmp_path):
    folder = tmp_path / "run"
    to.run(small(), folder, quiet=True)
    again = to.run(small(**{"algorithm.local.epochs": 1}), folder, quiet=True, overwrite=True)
    assert again.rounds() == 3
    assert to.open_run(folder).experiment.algorithm.local.epochs == 1
    assert to.run(small(), tmp_path / "new", quiet=True, overwrite=True).rounds() == 3  # nothing was there
    with pytest.raises(to.UserError, match="resume=True and overwrite=True"):
        to.run(small(), folder, quiet=True, resume=True, overwrite=True)


def test_overwrite_of_several_runs(tmp_path):
    folder = tmp_path / "runs"
    to.run([small(title="a"), small(title="b")], folder, quiet=True, jobs=1)
    with pytest.raises(to.UserError, match="rounds"):
        to.run([small(title="a", rounds=-1)], folder, seeds=2, quiet=True, jobs=1, overwrite=True)
    assert (folder / "b" / "seed-0" / "records.sqlite").exists(), "a wrong setting has deleted the old runs"
    again = to.run([small(title="c")], folder, seeds=2, quiet=True, jobs=1, overwrite=True)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["c"]
    assert "<svg" in again._repr_html_()


def test_overwrite_on_the_command_line(tmp_path, capsys):
    to.run([small(title="a"), small(title="b")], tmp_path / "run", quiet=True, jobs=1)
    (tmp_path / "small.toml").write_text(to_toml(small()))
    command = ["run", str(tmp_path / "small.toml"), "--quiet", "--out", str(tmp_path / "run")]
    assert main(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--resume"]) == 2
    assert main([*command, "--overwrite"]) == 0
    assert to.open_run(tmp_path / "run").rounds() == 3
    assert main([*command[:3], "--overwrite"]) == 2


def test_overwrite_deletes_nothing_that_no_run_wrote(tmp_path):
    folder = tmp_path / "run"
    to.run(small(), folder, quiet=True)
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("dear diary")
    with pytest.raises(to.UserError, match=r"notes.mine.txt, which no run wrote"):
        to.run(small(), folder, quiet=True, overwrite=True)
    assert (folder / "records.sqlite").exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "photo.jpg").write_bytes(b"")
    with pytest.raises(to.UserError, match="holds no run"):
        to.run(small(), tmp_path / "home", quiet=True, overwrite=True)


def test_overwrite_leaves_a_run_that_is_going_on_alone(tmp_path, monkeypatch):
    from turnout.running import folder as folders

    monkeypatch.setattr(folders, "LOCK_SECONDS", 0.1)
    to.run(small(), tmp_path / "run", quiet=True)
    with folders.held(tmp_path / "run"), pytest.raises(to.UserError, match="another process is running"):
        to.run(small(), tmp_path / "run", quiet=True, overwrite=True)
    assert (tmp_path / "run" / "records.sqlite").exists()


def test_a_mistake_before_the_first_round_leaves_the_old_run(tmp_path):
    to.run(small(), tmp_path / "run", quiet=True)
    with pytest.raises(to.UserError):
        to.run(small(model=torch.nn.Linear(3, 2)), tmp_path / "run", quiet=True, overwrite=True)
    assert to.open_run(tmp_path / "run").rounds() == 3


# -- frames


def test_rounds_as_columns_have_the_metrics_beside_them(run):
    with run.records() as records:
        columns = round_columns(records)
    assert columns["round"].tolist() == [-1, 0, 1, 2]
    assert columns["global_accuracy"].tolist() == run.curve("global_accuracy")[1]
    assert np.isnan(columns["train_loss"][0])
    assert columns["asked"][1:].tolist() == [6, 6, 6]
    assert len({len(column) for column in columns.values()}) == 1


def test_clients_as_columns_have_their_metrics_beside_them(run):
    with run.records() as records:
        columns = client_columns(records)
        rows = list(zip(columns["round"].tolist(), columns["client"].tolist(), strict=True))
        assert rows == [(t, c) for t in range(-1, 3) for c in range(6)]
        assert columns["client_accuracy"][-6:].tolist() == records.client_evaluation("client_accuracy")[1].tolist()
    work = dict(zip(rows, columns["work"].tolist(), strict=True))
    assert np.isnan(work[-1, 0])
    assert all(0 <= work[t, c] <= 1 for t in range(3) for c in range(6))


def test_a_frame_without_pandas_says_what_to_install(run, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(to.UserError, match=r"needs pandas.*pip install"):
        run.frame()


def test_records_of_a_run_that_has_not_begun_are_empty_columns(tmp_path):
    with Records.open(tmp_path / "records.sqlite") as records:
        assert round_columns(records)["round"].tolist() == []
        assert client_columns(records)["round"].tolist() == []


def test_the_folder_of_a_run_is_shown_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = to.run(small(rounds=1), "here", quiet=True)
    assert run.folder == Path("here")
    assert 'href="here/report.html"' in run._repr_html_()


# -- a real notebook (make test-slow installs what it needs)


@pytest.mark.slow
def test_a_notebook_runs_headless(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(Path(__file__).parents[2] / "examples" / "first_hour.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = ["\n".join(_output(o) for o in cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    experiment, ran, frame, turnout, again, more, people = shown
    assert "Digits(clients=20" in experiment
    assert "done: 40 rounds" in ran
    assert "<svg" in ran
    assert "global_accuracy" in frame
    assert "mean" in turnout
    assert again.startswith("UserError: two-digits is not empty: ")
    assert len(again.splitlines()) == 1
    assert "60 rounds" in more
    assert "gaps (age) are filled with the mean" in people
    assert not [o for cell in notebook.cells for o in cell.get("outputs", []) if o.output_type == "stream"]


def _output(output: dict) -> str:
    """An output as a reader sees it."""
    if output["output_type"] == "error":
        return "\n".join(output["traceback"])
    data = output.get("data", {})
    return data.get("text/html") or data.get("text/plain") or output.get("text", "")


@pytest.mark.slow
def test_frames_of_pandas(run):
    rounds, clients = run.frame(), run.frame(clients=True)
    assert rounds.index.name == "round"
    assert rounds["global_accuracy"].tolist() == run.curve("global_accuracy")[1]
    assert "skipped" not in rounds  # nothing was
    assert clients.index.names == ["round", "client"]
    assert clients.loc[(2, 5), "client_accuracy"] >= 0
    assert clients.loc[0, "work"].between(0, 1).all()
