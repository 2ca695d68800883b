"""Runs of the score track: files, kill and resume, the command line, reports, the example, the recipes."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest
import torch

import turnout as to
from example_experiments import LABELS, three_users
from killing import killed_and_resumed
from same_rows import same
from score_worlds import score_world
from turnout.cli import main
from turnout.running import loop
from turnout.running.config.read import from_table, to_toml
from turnout.running.config.variants import with_setting
from turnout.running.loop import begin, rounds_of

ROOT = Path(__file__).parents[2]


def digits(rounds: int = 6, **algorithm) -> to.Experiment:
    """Everything at once: models that change, somebody who joins and leaves, absences, distillation."""
    settings = {
        "local": to.Local(to.Adam(0.01, 0.9, 0.999), epochs=2, batch_size=5),
        "models": {1: {0: to.models.MLP(6, batch_norm=True), rounds // 2: to.models.MLP(5, activation="softmax")}},
        "distil": to.scores.Distil(epochs=1),
    } | algorithm
    return to.Experiment(
        world=to.World(
            to.data.Arriving(to.data.Digits(), LABELS, per_label=5, public=20, mix=2.0),
            to.participation.Dropout(0.2),
            [to.Join(2, 1), to.Leave(0, rounds - 2)],
        ),
        model=to.models.MLP(8),
        algorithm=to.scores.Scores(**settings),
        rounds=rounds,
        runtime=to.runtime.InProcess(device="cpu", threads=1),
    )


@pytest.mark.parametrize("make", [digits, three_users])
def test_a_file_says_everything(make):
    experiment = make()
    text = to_toml(experiment)
    assert 'kind = "scores"' in text
    assert to_toml(from_table(tomllib.loads(text))) == text


def test_a_file_by_hand():
    table = tomllib.loads("""
        rounds = 3
        [world.data]
        kind = "arriving"
        data = "digits"
        labels = [["3", "5"], ["5", "8"]]
        per_label = 5
        public = 10
        [algorithm]
        kind = "paper-literal"
        [[algorithm.models]]
        client = 1
        since = 2
        model = { kind = "mlp", hidden = [4] }
    """)
    experiment = from_table(table)
    assert (experiment.algorithm.rows, experiment.algorithm.combine) == ("labelled", "sum")
    assert experiment.algorithm.models == (to.scores.Uses(1, to.models.MLP(4), 2),)
    assert from_table({"rounds": 1}).algorithm == to.Algorithm()
    assert with_setting(experiment, "algorithm.combine=average").algorithm.combine == "average"
    assert isinstance(with_setting(experiment, "algorithm.kind=weights").algorithm, to.Algorithm)


@pytest.mark.parametrize("start", ["fresh", "carried"])
def test_stopped_anywhere_and_resumed_is_the_same(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A checkpoint after every round, stopped after the second and after the fourth."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    experiment = digits(start=start)
    for stop in (2, 2, None):
        track = begin(experiment, tmp_path / "parts", resume=True)
        for done, _ in enumerate(rounds_of(track, tmp_path / "parts"), 1):
            if done == stop:
                break
    to.run(experiment, tmp_path / "whole", quiet=True)
    assert same(tmp_path / "parts" / "records.sqlite", tmp_path / "whole" / "records.sqlite") == []
    first, second = (to.open_run(tmp_path / name).model(client=1).state_dict() for name in ("parts", "whole"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_killed_and_resumed_is_the_same(tmp_path: Path):
    """`kill -9` in the middle, `--resume`, and every record is as in a run that was never interrupted."""
    killed_and_resumed(digits(rounds=40, start="carried", distil=None), tmp_path, after=10)


def test_the_command_line_runs_reports_and_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, out = tmp_path / "e.toml", tmp_path / "run"
    file.write_text(to_toml(digits()))
    assert main(["run", str(file), "--out", str(out), "--set", "rounds=5", "--profile"]) == 0
    shown = capsys.readouterr()
    assert "scores of 4 labels on 80 public samples" in shown.err
    assert "accuracy" in shown.out
    assert "local training" in shown.out + shown.err
    page = (out / "report.html").read_text()
    assert "Global accuracy" in page
    assert "Consensus accuracy" in page
    assert "its part in the scores stays" in page
    assert (out / "turnout.csv").read_text().startswith("round,client,work")
    assert main(["export", str(out), "--model", str(tmp_path / "m.safetensors"), "--client", "1"]) == 0
    assert main(["export", str(out), "--model", str(tmp_path / "m.safetensors")]) == 2
    assert "there is no global model" in capsys.readouterr().err


def test_a_fleets_log_by_name_and_a_part_of_the_members(tmp_path: Path):
    """The same world parts as on the weight track: who is in the log was asked, and did as much as it says."""
    (tmp_path / "fleet.csv").write_text("round,client,work\n0,ann,1.0\n0,bob,0.5\n1,bob,1.0\n1,eve,0.0\n")
    log = str(tmp_path / "fleet.csv")
    data = to.data.Arriving(to.data.Digits(), LABELS, per_label=10, public=20, names=("ann", "bob", "eve"))
    algorithm = to.scores.Scores(
        local=to.Local(to.Adam(), epochs=2, batch_size=4), selection=to.selection.AsLogged(log)
    )
    experiment = to.Experiment(
        to.World(data, to.participation.FleetLog(log)), to.models.MLP(4), algorithm, rounds=2,
        runtime=to.runtime.InProcess(device="cpu", threads=1),
    )  # fmt: skip
    run = to.run(experiment, tmp_path / "run", quiet=True)
    with run.records() as records:
        rows = [(t, c, round(work, 1)) for t, c, work in records.turnout_rows()]
    assert rows == [(0, 0, 1.0), (0, 1, 0.5), (1, 1, 1.0), (1, 2, 0.0)]
    part = digits(selection=to.selection.Count(1))
    with to.run(part, tmp_path / "part", quiet=True).records() as records:
        assert set(records.column("asked").tolist()) == {1}


def test_it_stops_at_a_target(tmp_path: Path):
    experiment = digits(rounds=30).but(**{"stop.target": 0.3, "stop.metric": "consensus_accuracy"})
    run = to.run(experiment, tmp_path / "run", quiet=True)
    assert run.rounds() < 30
    assert run.stopped() == "consensus_accuracy reached 0.3"


def test_a_run_that_cannot_travel_or_be_written_is_resumed_from_python(tmp_path: Path):
    """A stream of functions: the folder names what it cannot hold."""
    experiment = score_world(rounds=2)
    run = to.run(experiment, tmp_path / "run", quiet=True)
    assert run.rounds() == 2
    longer = to.run(experiment.but(rounds=3), tmp_path / "run", resume=True, quiet=True)
    assert longer.rounds() == 3


def test_the_example_three_devices_improve_each_other(tmp_path: Path):
    """Beyond what each gains from its own earlier rounds."""
    example = runpy.run_path(str(ROOT / "examples" / "three_devices.py"))
    for together, alone in example["compare"](tmp_path).values():
        assert together[0] == alone[0]  # the same samples, the same model of the round
        assert together[1] > alone[1] > alone[0]
        assert together[2] > alone[2]
