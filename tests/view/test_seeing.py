"""Looking at runs: how they are doing, as text, as pictures."""

from __future__ import annotations

import re
import shutil
import xml.dom.minidom
from pathlib import Path

import numpy as np
import pytest

import turnout as to
from commands import SMALL, turnout
from turnout.running.folder import held
from turnout.running.state import listed_runs, state_of

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that is finished, one that failed, one that was interrupted, and four made together."""
    here = tmp_path_factory.mktemp("seeing")
    (here / "small.toml").write_text(SMALL.replace("rounds = 2", "rounds = 3"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        assert turnout("run", "small.toml", "--out", "runs/good", "-q", "--set", "evaluate.per_client=true") == 0
        assert (
            turnout("run", "small.toml", "--out", "runs/bad", "-q", "--set", "algorithm.local.optimizer.lr=1e38") == 2
        )
        experiment = to.open_run("runs/good").experiment.but(rounds=50)
        with pytest.raises(KeyboardInterrupt):
            to.run(experiment, "runs/cut", quiet=True, on_round=interrupt)
        grid = ["--grid", "algorithm.weighting=A,C", "--seeds", 2, "--jobs", 1]
        assert turnout("run", "small.toml", *grid, "--out", "runs/four", "-q") == 0
    return here


def interrupt(step: object) -> None:
    if step.record.round == 1:  # type: ignore[attr-defined]
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _there(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)


# -- the state of a run


def test_a_run_says_how_it_is_doing() -> None:
    good, bad, cut = (state_of(Path("runs", name)) for name in ("good", "bad", "cut"))
    assert (good.state, good.done, good.rounds, good.why) == ("finished", 3, 3, None)
    assert (good.metric, good.unit) == ("global_accuracy", "percent")
    assert good.value == to.open_run("runs/good").final("global_accuracy")
    assert (bad.state, bad.done) == ("failed", 0)
    assert "is not finite" in (bad.why or "")
    assert (cut.state, cut.done, cut.rounds) == ("interrupted", 2, 50)
    with held(Path("runs/cut")):
        assert state_of(Path("runs/cut")).state == "running"
    assert state_of(Path("runs/cut")).state == "interrupted"


def test_an_early_end_is_an_end_and_going_on_is_none(tmp_path: Path) -> None:
    experiment = to.open_run("runs/good").experiment.but(rounds=40, stop=to.Stop(target=0.01))
    to.run(experiment, tmp_path / "run", quiet=True)
    early = state_of(tmp_path / "run")
    assert (early.state, early.done, early.why) == ("finished", 1, "global_accuracy reached 0.01")
    with pytest.raises(KeyboardInterrupt):
        to.run(experiment.but(stop=to.Stop()), tmp_path / "run", quiet=True, resume=True, on_round=interrupt)
    assert state_of(tmp_path / "run").state == "interrupted"


def test_a_mistyped_resume_does_not_make_a_finished_run_a_failed_one(capsys: Capture) -> None:
    assert turnout("run", "small.toml", "--out", "runs/good", "--resume", "--set", "algorithm.local.epochs=9") == 2
    assert "other settings" in capsys.readouterr().err
    assert state_of(Path("runs/good")).state == "finished"


def test_a_folder_of_an_older_version_is_judged_by_its_rounds(tmp_path: Path) -> None:
    to.run(to.open_run("runs/good").experiment, tmp_path / "run", quiet=True)
    (tmp_path / "run" / "state.json").unlink()
    assert state_of(tmp_path / "run").state == "finished"


def test_a_start_that_failed_among_others_says_why(tmp_path: Path) -> None:
    first = to.open_run("runs/good").experiment
    with pytest.raises(to.UserError, match="1 of 2 runs failed"):
        to.run({"a": first, "b": first.but(**{"algorithm.selection": to.selection.Count(99)})}, tmp_path, quiet=True)
    states = [run.state.state for run in listed_runs(tmp_path, each=True)]
    assert sorted(states) == ["failed", "finished"]


# -- lists


def test_runs_lists_them_with_their_state(capsys: Capture) -> None:
    assert turnout("runs") == 0
    out = capsys.readouterr().out
    assert re.search(r"good +finished +3/3 +global_accuracy \d+\.\d %", out)
    assert re.search(r"cut +interrupted +2/50 ", out)
    assert re.search(r"bad +failed +0/3 ", out)
    assert re.search(r"four \(4 runs\) +finished +12/12 +(weighting=[AC]): global_accuracy", out)
    assert "runs/bad: the update of client" in out


def test_runs_can_be_listed_one_by_one(capsys: Capture) -> None:
    assert turnout("runs", "--all") == 0
    assert "four/weighting=C/seed-1" in capsys.readouterr().out
    assert turnout("runs", "runs/four") == 0
    assert len(re.findall(r"seed-\d +finished +3/3", capsys.readouterr().out)) == 4
    assert len(listed_runs(Path("runs"))) == 4


def test_the_best_of_several_is_named() -> None:
    (four,) = [run for run in listed_runs(Path("runs")) if run.parts]
    means = {
        scheme: np.mean(
            [to.open_run(f"runs/four/weighting={scheme}/seed-{s}").final("global_accuracy") for s in (0, 1)]
        )
        for scheme in "AC"
    }
    best = max(means, key=lambda scheme: means[scheme])
    assert (four.state.metric, four.state.value) == (f"weighting={best}: global_accuracy", pytest.approx(means[best]))


def test_no_runs_is_a_sentence(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert turnout("runs", "nowhere") == 2
    assert "there is no folder nowhere: runs are made by turnout run" in capsys.readouterr().err
    assert turnout("runs", tmp_path) == 0
    assert re.search("there are no runs in .*: `turnout run` makes one", capsys.readouterr().out)
    assert listed_runs(Path("."))[0].path.name == "four"
    monkeypatch.chdir(tmp_path)
    assert turnout("show") == 2
    assert "there are no runs in" in capsys.readouterr().err


def test_runs_outside_of_the_folder_runs_are_listed(
    capsys: Capture, tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`turnout run --out first` lies beside runs/; a file experiment.toml of one's own is not a run."""
    monkeypatch.chdir(tmp_path)
    to.run(to.open_run(made / "runs/good").experiment, "first", quiet=True)
    to.run(to.open_run(made / "runs/good").experiment, "runs/second", quiet=True)
    Path("experiment.toml").write_text(SMALL)
    assert turnout("runs") == 0
    out = capsys.readouterr().out
    assert re.search(r"^ *first +finished +3/3 ", out, re.MULTILINE)
    assert re.search(r"^ *runs/second +finished +3/3 ", out, re.MULTILINE)
    assert listed_runs(Path("."))[0].path == Path("runs/second")


def test_runs_made_together_are_running_before_the_first_of_them_has_begun(tmp_path: Path) -> None:
    shutil.copytree("runs/four", tmp_path / "four")
    for part in (tmp_path / "four").glob("*/seed-*"):
        for name in ("records.sqlite", "state.json", "checkpoint.safetensors", "environment.json"):
            (part / name).unlink()
    assert listed_runs(tmp_path)[0].state.state == "waiting"
    with held(tmp_path / "four"):
        assert listed_runs(tmp_path)[0].state.state == "running (4 waiting)"


# -- as text


def test_show_has_results_and_curves(capsys: Capture) -> None:
    assert turnout("show", "runs/good", "--metric", "global_accuracy", "--metric", "bytes_up") == 0
    out = capsys.readouterr().out
    assert "data synthetic" in out
    assert re.search(r"^global_accuracy: \S+ \S+ % to \S+ %$", out, re.MULTILINE)
    assert re.search(r"^bytes_up: \S+ ", out, re.MULTILINE)
    assert "client_accuracy of 6 clients" in out
    assert max(map(len, out.splitlines())) <= 120


def test_a_metric_has_one_name_from_the_progress_to_the_picture(capsys: Capture, tmp_path: Path) -> None:
    """The name that `run.final` takes: in the progress, the table, the list, the comparison; and no shorter one."""
    assert turnout("run", "small.toml", "--out", tmp_path / "run") == 0
    said = capsys.readouterr()
    assert re.search(r"3 rounds in .*, global_accuracy \d+\.\d %", said.err)
    assert "global_accuracy" in said.out
    assert turnout("compare", "runs/four") == 0
    assert "global_accuracy" in capsys.readouterr().out
    for arguments in (["show", "runs/good"], ["plot", "runs/good", "--out", "x.svg"], ["compare", "runs/four"]):
        assert turnout(*arguments, "--metric", "accuracy") == 2
        assert "did you mean 'global_accuracy'" in capsys.readouterr().err


def test_show_without_a_name_shows_the_last(capsys: Capture) -> None:
    assert turnout("show") == 0
    out = capsys.readouterr().out
    assert "global_accuracy, weighting=A: " in out
    assert "runs/four" in out


def test_show_says_what_is_not_there(capsys: Capture) -> None:
    assert turnout("show", "runs/good", "--metric", "accurcy") == 2
    assert "nothing called 'accurcy' was measured here" in (said := capsys.readouterr().err)
    assert "global_accuracy" in said
    assert turnout("show", "runs") == 0  # what lies below it
    assert turnout("show", "nowhere") == 2


# -- pictures


def test_a_picture_of_several_folders(capsys: Capture, tmp_path: Path) -> None:
    out = tmp_path / "both.svg"
    assert (
        turnout("plot", "runs/good", "runs/four", "--metric", "global_accuracy", "--metric", "train_loss", "--out", out)
        == 0
    )
    assert "both.svg: global_accuracy, train_loss" in capsys.readouterr().out
    picture = xml.dom.minidom.parse(str(out))
    words = [text.firstChild.data for text in picture.getElementsByTagName("text") if text.firstChild]  # type: ignore[union-attr]
    assert {"Global accuracy", "Train loss", "good", "four weighting=A", "four weighting=C"} <= set(words)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("runs/good --out x.jpg", "x.jpg: a picture's file ends in .svg"),
        ("runs/good --out nowhere/x.svg", "there is no folder nowhere"),
        ("nowhere --out x.svg", "no records in nowhere"),
        ("runs/good --metric skipped --out x.svg", "nothing called 'skipped' was measured here"),
    ],
)
def test_what_cannot_be_drawn_is_a_sentence(arguments: str, sentence: str, capsys: Capture) -> None:
    assert turnout("plot", *arguments.split()) == 2
    assert sentence in (said := capsys.readouterr().err)
    assert len(said.splitlines()) == 1
    assert not Path("x.svg").exists()


def test_a_run_that_is_just_beginning_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text("rounds = 3\n")
    (tmp_path / "records.sqlite").touch()
    with held(tmp_path):
        assert state_of(tmp_path).state == "running"
    state = state_of(tmp_path)
    assert (state.state, "not the records of a run" in (state.why or "")) == ("failed", True)
