"""Trackers and callbacks: what they hear of a run, live, resumed and afterwards; the libraries, where they are."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import turnout as to
from turnout.cli import main
from turnout.running.loop import FinishedRound
from turnout.running.plan import RunPlan, planned_runs
from turnout.running.runs import run_planned
from turnout.running.tracking import TrackedRun
from turnout.view.trackers import make_tracker


def small(**changes: object) -> to.Experiment:
    data = to.data.Synthetic(clients=6, sizes=to.data.Pareto(cap=30))
    local = to.Local(to.SGD(lr=0.1), epochs=2, batch_size=5)
    return to.Experiment(to.World(data), algorithm=to.Algorithm(local), rounds=3, title="small").but(**changes)


def there(*libraries: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in libraries)


class Book:
    """A tracker of one's own: it writes everything down. `breaks`: it fails at that step."""

    def __init__(self, breaks: int | None = None):
        self.breaks = breaks
        self.runs: list[TrackedRun] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.ends: list[str] = []

    def begin(self, run: TrackedRun) -> str:
        self.runs.append(run)
        return f"page {len(self.runs)}"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.breaks:
            raise ConnectionError("the ink has run out\nand the pen is lost")
        self.rows.append((step, dict(values)))

    def end(self, state: str) -> None:
        self.ends.append(state)


def test_a_tracker_hears_every_round_and_what_was_before_the_first(tmp_path: Path) -> None:
    book = Book()
    run = to.run(small(evaluate=to.Evaluate(every=2)), tmp_path / "run", quiet=True, trackers=[book])
    assert [step for step, _ in book.rows] == [0, 1, 2, 3]
    with run.records() as records:
        rounds, values = records.curve("global_accuracy")
        loss = records.column("train_loss").tolist()
    measured = {step: row["global_accuracy"] for step, row in book.rows if "global_accuracy" in row}
    assert measured == dict(zip((rounds + 1).tolist(), values.tolist(), strict=True))
    assert [row["round/train_loss"] for _, row in book.rows[1:]] == loss
    assert (book.runs[0].name, book.runs[0].group, book.ends) == ("small", "small", ["finished"])
    assert book.runs[0].settings["algorithm.local.optimizer.lr"] == "0.1"


def test_a_resumed_run_goes_on_where_it_was_told(tmp_path: Path) -> None:
    first, second, late = Book(), Book(), Book()
    late.__class__ = type("Late", (Book,), {})
    to.run(small(), tmp_path / "run", quiet=True, trackers=[first])
    more = small(rounds=5)
    to.run(more, tmp_path / "run", quiet=True, trackers=[second, late], resume=True)
    assert (second.runs[0].before, second.runs[0].first) == ("page 1", 3)
    assert [step for step, _ in second.rows] == [4, 5]
    assert (late.runs[0].before, [step for step, _ in late.rows]) == (None, [0, 1, 2, 3, 4, 5])
    whole = Book()
    to.run(more, tmp_path / "whole", quiet=True, trackers=[whole])
    assert without_times(late.rows) == without_times(whole.rows)


def test_a_tracker_that_comes_after_the_end_is_told_all_of_it(tmp_path: Path) -> None:
    to.run(small(), tmp_path / "run", quiet=True)
    book, other = Book(), Book()
    to.run(small(), tmp_path / "run", quiet=True, resume=True, trackers=[book, other])
    assert [step for step, _ in book.rows] == [step for step, _ in other.rows] == [0, 1, 2, 3]
    assert list(json.loads((tmp_path / "run" / "tracking.json").read_text())) == ["Book", "Book 2", "checksum"]


@pytest.mark.parametrize("track", [5, ["tensorboard", 5], None])
def test_a_tracker_is_named_by_a_text(track: object) -> None:
    with pytest.raises(to.UserError, match='track is a text such as "tensorboard", or a list of them'):
        to.Experiment(track=track)  # type: ignore[arg-type]


def without_times(rows: list[tuple[int, dict[str, float]]]) -> list[tuple[int, dict[str, float]]]:
    return [(step, {n: v for n, v in row.items() if "seconds" not in n}) for step, row in rows]


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = Book(breaks=2)
    run = to.run(small(), tmp_path / "run", trackers=[book])
    assert run.rounds() == 3
    assert [step for step, _ in book.rows] == [0, 1]
    assert "Book has failed and is left out from now on: the ink has run out" in capsys.readouterr().err


def test_a_tracker_hears_that_a_run_failed(tmp_path: Path) -> None:
    book = Book()
    diverges = small(**{"algorithm.local.optimizer.lr": 1e38})
    with pytest.raises(to.UserError, match="not finite"):
        to.run(diverges, tmp_path / "run", quiet=True, trackers=[book])
    assert book.ends == ["failed"]


def test_a_function_hears_every_finished_round(tmp_path: Path) -> None:
    heard: list[FinishedRound] = []
    run = to.run(small(), tmp_path / "run", quiet=True, on_round=heard.append)
    assert [step.record.round for step in heard] == [0, 1, 2]
    assert heard[-1].evaluation is not None
    assert heard[-1].evaluation.values["global_accuracy"] == run.final("global_accuracy")
    both = {"a": small(rounds=1), "b": small(rounds=1)}
    heard.clear()
    to.run(both, tmp_path / "both", seeds=2, quiet=True, on_round=heard.append)
    assert [step.run for step in heard] == ["a seed 0", "b seed 0", "a seed 1", "b seed 1"]


def test_an_error_of_ones_own_function_is_not_hidden(tmp_path: Path) -> None:
    def stop(step: FinishedRound) -> None:
        if step.record.round == 1:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        to.run(small(), tmp_path / "run", quiet=True, on_round=stop)
    assert to.open_run(tmp_path / "run").rounds() == 2


OWN = """
import turnout as to

class Lines(to.roles.Tracker):
    def begin(self, run):
        self.path = run.folder / "lines.txt"
        return str(self.path)

    def log(self, step, values):
        with self.path.open("a") as file:
            file.write(f"{step} {values['global_accuracy']}\\n")

    def end(self, state):
        with self.path.open("a") as file:
            file.write(state)
"""
FILE = """
rounds = 2
track = "my_lines:Lines"
world.data = {kind = "synthetic", clients = 6, sizes = {kind = "pareto", cap = 30}}
"""


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_lines", raising=False)
    Path("my_lines.py").write_text(OWN)
    Path("my.toml").write_text(FILE)


@pytest.mark.usefixtures("_here")
def test_a_file_names_trackers_and_runs_side_by_side_have_them_too() -> None:
    assert main(["run", "my.toml", "--seeds", "2", "--jobs", "2", "--out", "out", "-q"]) == 0
    for seed in (0, 1):
        lines = Path(f"out/my/seed-{seed}/lines.txt").read_text().splitlines()
        assert [line.split()[0] for line in lines] == ["0", "1", "2", "finished"]
    assert main(["run", "--out", "out", "--resume", "--set", "rounds=3", "-q"]) == 0
    assert Path("out/my/seed-0/lines.txt").read_text().count("finished") == 2


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("track", "sentence"),
    [
        ("tensorbord", "there is no tracker 'tensorbord': did you mean 'tensorboard'"),
        ("mlflow:", "after the colon"),
        ("my_lines:Pages", "module 'my_lines' has nothing called 'Pages'"),
        ("pathlib:Path", "pathlib:Path is code of the package 'pathlib'"),
    ],
)
def test_a_tracker_that_cannot_be_is_a_sentence_before_the_first_round(
    track: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "my.toml", "--track", track, "--out", "out", "-q"]) == 2
    assert sentence in capsys.readouterr().err
    assert not Path("out/records.sqlite").exists()


def test_what_is_in_this_process_cannot_be_heard_from_others(tmp_path: Path) -> None:
    with pytest.raises(to.UserError, match="leave jobs out"):
        to.run([small()], tmp_path / "out", seeds=2, jobs=2, on_round=print)


LIBRARIES = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow",), "wandb": ("wandb",)}


@pytest.mark.parametrize("kind", LIBRARIES)
def test_a_library_that_is_not_here_is_named(kind: str) -> None:
    if there(*LIBRARIES[kind]):
        assert hasattr(make_tracker(f"{kind}:http://localhost:9"), "log")
        return
    with pytest.raises(to.UserError, match=rf"needs {kind}, which is not installed: pip install 'turnout\[{kind}\]'"):
        make_tracker(kind)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_the_curves_live_and_resumed_and_from_the_records(tmp_path: Path) -> None:
    if not there("tensorboard"):
        return
    run = to.run(small(), tmp_path / "run", quiet=True, trackers=["tensorboard"])
    assert main(["run", "--out", str(tmp_path / "run"), "--resume", "--set", "rounds=5", "-q"]) == 0
    rounds, values = run.curve("global_accuracy")
    expected = [(t + 1, pytest.approx(v)) for t, v in zip(rounds, values, strict=True)]
    assert scalars(tmp_path / "run" / "tensorboard")["global_accuracy"] == expected
    assert main(["export", str(tmp_path / "run"), "--tensorboard", str(tmp_path / "board")]) == 0
    found = scalars(tmp_path / "board" / "run")
    assert found["global_accuracy"] == expected
    assert [step for step, _ in found["round/answered"]] == [1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_curves_and_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not there("mlflow"):
        return
    import mlflow

    place = f"file:{tmp_path / 'mlruns'}"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the small client library has no other local store
    to.run(small(), tmp_path / "run", quiet=True, trackers=[f"mlflow:{place}"])
    run = to.run(small(rounds=4), tmp_path / "run", quiet=True, resume=True, trackers=[f"mlflow:{place}"])
    client = mlflow.MlflowClient(tracking_uri=place)
    (name,) = json.loads((tmp_path / "run" / "tracking.json").read_text()).values()
    found = client.get_run(name)
    assert (found.info.status, found.data.params["algorithm.local.epochs"]) == ("FINISHED", "2")
    history = [(m.step, m.value) for m in client.get_metric_history(name, "global_accuracy")]
    rounds, values = run.curve("global_accuracy")
    assert sorted(history) == [(t + 1, v) for t, v in zip(rounds, values, strict=True)]
    assert main(["export", str(tmp_path / "run"), "--mlflow", place]) == 0
    assert len(client.search_runs([client.get_experiment_by_name("run").experiment_id])) == 1


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not there("wandb"):
        return
    monkeypatch.setenv("WANDB_MODE", "offline")
    plan = RunPlan("two", planned_runs({"a": small(track="wandb:mine"), "b": small()}, [0]), tmp_path / "out")
    assert run_planned(plan, jobs=1, quiet=True) == []
    assert list((tmp_path / "out" / "a" / "seed-0").glob("wandb/offline-run-*"))
