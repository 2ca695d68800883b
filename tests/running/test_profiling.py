"""Where the time goes: a profiled run is the same run, and its stages add up to its time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import turnout as to
from same_rows import same
from turnout.cli import main
from turnout.running.profile import STAGES, read_profiles


def everything(rounds: int = 4) -> to.Experiment:
    """Every stage has something to do."""
    return to.Experiment(
        to.World(
            to.data.Synthetic(clients=8, sizes=to.data.Equal(20)),
            to.participation.Dropout(0.4, when_up=to.participation.Traces(first=5)),
            (to.Join(7, 2),),
        ),
        to.models.MLP(6, batch_norm=True),
        to.Algorithm(
            to.Local(to.SGD(0.1), epochs=2, batch_size=5),
            terms=(to.terms.Proximal(),),
            personal=to.personal.batch_norm,
            substitution=to.substitution.Friends(),
            compression=to.compression.SparseTernary(keep=0.5),
        ),
        rounds=rounds,
    )


def test_a_profiled_run_is_the_same_run_and_its_stages_are_its_time(tmp_path: Path):
    to.run(everything(), tmp_path / "plain", quiet=True)
    start = time.perf_counter()
    to.run(everything(), tmp_path / "timed", quiet=True, profile=True)
    wall = time.perf_counter() - start
    assert same(tmp_path / "plain" / "records.sqlite", tmp_path / "timed" / "records.sqlite") == []
    assert read_profiles([tmp_path / "plain"]) == (0, {})
    rounds, seconds = read_profiles([tmp_path / "timed"])
    assert rounds == 4
    assert seconds.keys() == STAGES.keys() - {"mixing"}  # all clients start from the shared parameters
    total = sum(seconds.values())
    assert 0 < total < wall
    with to.open_run(tmp_path / "timed").records() as records:
        recorded = float(records.rounds()["seconds"].sum())
    inside = total - seconds["evaluate"] - seconds["records"]
    assert 0.8 * inside < recorded < 1.2 * (total - seconds["records"])  # evaluation is a part of it


def test_the_command_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    small = ["--set", "rounds=3", "--set", "world.data.clients=5", "--seeds", "1", "--quiet", "--jobs", "1"]
    main(["run", *small, "--out", str(tmp_path / "runs"), "--profile"])
    printed = capsys.readouterr().out
    assert "s in 18 rounds" in printed  # six variants
    for stage in ("participation", "local training", "aggregate", "evaluate"):
        assert stage in printed
    assert len(list((tmp_path / "runs").rglob("profile.json"))) == 6
