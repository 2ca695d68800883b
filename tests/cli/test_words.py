"""What people read and type: near suggestions, also in Python; words that mean one thing; lines that fit."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import turnout as to
from turnout.cli import main
from turnout.cli.planning import read_source
from turnout.errors import nearest
from turnout.recipes import recipes
from turnout.running.folder import kept_if_used
from turnout.running.plan import RunPlan, planned_runs
from turnout.running.records.finding import find_runs
from turnout.running.runs import run_planned
from turnout.view.report.results import results

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def small(**changes: object) -> to.Experiment:
    data = to.data.Synthetic(clients=6, sizes=to.data.Equal(20))
    experiment = to.Experiment(to.World(data, to.participation.Traces(first=8)), rounds=3)
    return experiment.but(**{"algorithm.local.epochs": 4, **changes})


# -- suggestions


def test_only_what_is_near_is_suggested():
    known = ["always", "dropout", "fleet-log", "homogeneous", "on-off", "stratified", "traces"]
    assert nearest("dropuot", known).startswith("did you mean 'dropout'?")
    assert nearest("Trace", known).startswith("did you mean 'traces'?")
    assert nearest("bernoulli", known) == f"known are {', '.join(known)}"
    assert nearest("only", known).startswith("known are")
    assert nearest("weighing", ["weighting", "weights", "seeding"]).startswith("did you mean 'weighting'?")


def test_known_are_is_never_empty():
    assert "known are" not in nearest("alpha", [])
    with pytest.raises(to.UserError, match=r"algorithm.weighting.alpha.* no settings$"):
        main_mistake("run", "digits", "--set", "algorithm.weighting.alpha=1")


def main_mistake(*arguments: str) -> None:
    from turnout.cli import app

    app(list(arguments), prog_name="turnout", standalone_mode=False)


def test_a_long_list_of_names_is_cut():
    said = nearest("price", [f"column {i}" for i in range(500)])
    assert "column 10" in said
    assert said.endswith("and 470 more")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("algorithm.local.optimizer.learning_rate=1", "did you mean 'lr'?"),
        ("algorithm.local.lr=1", "did you mean algorithm.local.optimizer.lr?"),
        ("algorithm.learning_rate=1", "did you mean algorithm.local.optimizer.lr or algorithm.server.lr?"),
        ("batch_size=3", "did you mean algorithm.local.batch_size?"),
        ("clients=3", "did you mean world.data.clients or evaluate.clients?"),
        ("algorithm.local.momemtum=3", "did you mean algorithm.local.optimizer.momentum?"),
    ],
)
def test_a_setting_in_the_wrong_place_is_found(setting: str, said: str, capsys: Capture):
    assert main(["run", "digits", "--set", setting]) == 2
    assert said in capsys.readouterr().err


def test_a_file_with_a_setting_in_the_wrong_place_says_where_it_goes(tmp_path: Path, capsys: Capture):
    (tmp_path / "my.toml").write_text("[algorithm]\nlr = 0.1\n")
    assert main(["run", "my.toml"]) == 2
    assert "unknown setting algorithm.lr: did you mean algorithm.local.optimizer.lr or" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typo", "said"),
    [
        (lambda: to.Algoritm, "Algorithm"),
        (lambda: to.Sgd, "SGD"),
        (lambda: to.data.Digit, "Digits"),
        (lambda: to.models.mpl, "MLP"),
        (lambda: to.participation.Dropuot, "Dropout"),
        (lambda: to.partition.Class, "Classes"),
        (lambda: to.selection.Fractions, "Fraction"),
        (lambda: to.personal.batchnorm, "batch_norm"),
        (lambda: to.terms.Elastik, "Elastic"),
        (lambda: to.terms.LocalTrem, "LocalTerm"),
        (lambda: to.aggregation.Krumm, "Krum"),
        (lambda: to.roles.Weightin, "Weighting"),
        (lambda: to.scores.Scors, "Scores"),
    ],
)
def test_a_name_mistyped_in_python_gets_a_suggestion(typo, said: str):
    with pytest.raises(AttributeError, match=f"did you mean '{said}'"):
        typo()


@pytest.mark.parametrize(
    ("typo", "said"),
    [
        (lambda: to.SGD(learning_rate=0.1), "SGD has no setting 'learning_rate': did you mean 'lr'"),
        (lambda: to.SGD(lrr=0.1), "SGD has no setting 'lrr': did you mean 'lr'"),
        (lambda: to.Local(local_epochs=3), "Local has no setting 'local_epochs': did you mean 'epochs'"),
        (lambda: to.Experiment(num_rounds=3), "Experiment has no setting 'num_rounds': did you mean 'rounds'"),
        (lambda: to.data.Digits(n_clients=3), "Digits has no setting 'n_clients': did you mean 'clients'"),
        (lambda: to.models.MLP(3, batchnorm=True), "MLP has no setting 'batchnorm': did you mean 'batch_norm'"),
        (lambda: to.participation.Traces(frist=3), "Traces has no setting 'frist': did you mean 'first'"),
        (lambda: to.Join(clint=3), "Join has no setting 'clint': did you mean 'client'"),
        (lambda: to.weighting.ByWork(alpha=3), "ByWork has no setting 'alpha': it has no settings"),
    ],
)
def test_a_setting_mistyped_in_python_gets_a_suggestion(typo, said: str):
    with pytest.raises(to.UserError, match=said):
        typo()
    with pytest.raises(TypeError):  # what Python says of an unknown argument
        typo()


def test_what_is_right_is_left_alone():
    assert to.SGD(0.3) == to.SGD(lr=0.3)
    assert to.models.MLP(3, 4, batch_norm=True).hidden == (3, 4)
    with pytest.raises(TypeError, match="positional"):
        to.SGD(1, 2, 3, 4, 5, 6, 7)  # type: ignore[call-arg]


# -- folders


def test_a_folder_named_like_a_recipe_does_not_hide_it(tmp_path: Path):
    (tmp_path / "digits").mkdir()
    (tmp_path / "participation").write_text("rounds = 3\n")
    assert list(read_source("digits")[1]) == ["digits"]
    assert list(read_source("participation")[1]) == list(recipes()["participation"]())
    assert read_source("./participation")[1]["participation"].rounds == 3


def test_a_failed_start_leaves_no_folder(tmp_path: Path, capsys: Capture):
    wrong = small(**{"algorithm.local.epochs": 1})  # traces need at least 2
    with pytest.raises(to.UserError, match="at least 2"):
        to.run(wrong)
    assert main(["run", "digits", "--set", "algorithm.local.epochs=1"]) == 2
    assert main(["run", "digits", "--set", "algorithm.local.epochs=1", "--seeds", "2", "--jobs", "1"]) == 2
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(to.UserError, match="at least 2"):
        to.run(wrong, "mine/first")
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]


def test_a_failed_start_deletes_nothing_that_is_not_a_run_s(tmp_path: Path):
    """Somebody else writes into the folder while the start fails: that stays, and what the run wrote goes."""
    with kept_if_used(tmp_path / "out"):
        (tmp_path / "out" / "a" / "seed-0").mkdir(parents=True)
        for name in ("runs.json", "a/seed-0/experiment.toml", "a/notes.txt"):
            (tmp_path / "out" / name).write_text("")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "out" / "a" / "notes.txt"]
    assert not (tmp_path / "out" / "a" / "seed-0").exists()


def test_a_start_that_fails_beside_one_that_does_not_can_be_resumed(tmp_path: Path):
    plan = RunPlan(
        "two", planned_runs({"good": small(), "bad": small(**{"algorithm.local.epochs": 1})}, [0]), tmp_path / "out"
    )
    assert [failed.name for failed in run_planned(plan, jobs=1, quiet=True)] == ["bad seed 0"]
    assert (tmp_path / "out" / "bad" / "seed-0" / "experiment.toml").exists()


def test_a_run_that_fails_later_keeps_its_folder(tmp_path: Path):
    with pytest.raises(to.UserError, match="client"):
        to.run(small(**{"algorithm.local.optimizer.lr": 1e38, "rounds": 20}), tmp_path / "out", quiet=True)
    assert (tmp_path / "out" / "records.sqlite").exists()


# -- words


def test_turnout_counts_clients_and_work_counts_work(tmp_path: Path, capsys: Capture):
    run = to.run(small(), tmp_path / "out")
    with run.records() as records:
        rounds = records.rounds()
    answered, work = rounds["answered"].sum() / rounds["asked"].sum(), rounds["work"].mean()
    assert abs(answered - work) > 0.05
    found = results(find_runs(run.folder))
    cells = dict(zip(found.header, found.rows[0], strict=True))
    assert cells["turnout"] == f"{100 * answered:.1f} %"
    assert cells["work"] == f"{100 * work:.1f} %"
    page = run.report().read_text(encoding="utf-8")
    assert f"<b>{100 * answered:.1f} %</b><span>turnout</span>" in page
    assert f"<b>{100 * work:.1f} %</b><span>work done</span>" in page


def test_time_is_one_number(tmp_path: Path, capsys: Capture):
    """The last line, the table, the report and the records say the same; evaluation is part of it."""
    task = to.tasks.Task(loss=cross_entropy, metrics={"late": slow_metric}, main="late")
    run = to.run(small(task=task), tmp_path / "out")
    with run.records() as records:
        seconds = float(records.rounds()["seconds"].sum())
    last = capsys.readouterr().err.splitlines()[-1]
    found = results(find_runs(run.folder))
    shown = dict(zip(found.header, found.rows[0], strict=True))["time"]
    assert f"done: 3 rounds in {shown}" in last
    assert f"<b>{shown}</b><span>time</span>" in run.report().read_text(encoding="utf-8")
    assert seconds > 3 * 0.05


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output, target, reduction="none")


def slow_metric(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    time.sleep(0.05)
    return torch.ones(len(target))


def test_time_goes_on_where_a_run_is_resumed(tmp_path: Path, capsys: Capture):
    to.run(small(), tmp_path / "out", quiet=True)
    run = to.run(small(rounds=5), tmp_path / "out", resume=True)
    found = results(find_runs(run.folder))
    shown = dict(zip(found.header, found.rows[0], strict=True))["time"]
    assert f"done: 5 rounds in {shown}" in capsys.readouterr().err


# -- lines that fit


def in_terminal(columns: int, *arguments: str) -> str:
    """What `turnout` shows in a terminal of that many columns."""
    here, there = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "40", "TERM": "xterm"}
    command = [sys.executable, "-m", "turnout", *arguments]
    process = subprocess.Popen(command, stdout=there, stderr=there, stdin=there, env=environment)
    os.close(there)
    shown = b""
    try:
        while chunk := os.read(here, 65536):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    assert process.wait() == 0
    os.close(here)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def test_at_80_columns_the_bar_and_the_table_stay_readable():
    grid = ["--grid", "algorithm.local.optimizer.lr=0.01,0.02", "--seeds", "1", "--jobs", "1"]
    shown = in_terminal(
        80, "run", "digits", *grid, "--set", "world.data.clients=5", "--set", "rounds=60", "--out", "out"
    )
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", shown)]
    assert all(len(line) <= 80 for line in lines if re.search("[━╸╺│]", line))
    bars = [line for line in lines if re.search(r"\d+/60", line)]
    assert bars
    for line in bars:
        assert len(re.findall("[━╸╺]", line)) >= 8, line
        assert re.search(r"(\d+:\d\d|-:--)$", line), line
    assert any("accuracy" in line for line in bars)
    assert any(line.startswith("not shown at this width: ") for line in lines)
