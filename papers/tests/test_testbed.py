"""Study `testbed`: what it makes of times; and, over real deployments, that these are the times that were observed."""

from __future__ import annotations

import fnmatch
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import turnout as to
from turnout.cli import main
from turnout.deploy.runtime import reported_times
from turnout.experiment import Experiment
from turnout.running.records.records import Records
from turnout.running.result import open_run
from turnout_papers.devices import ShapedLink, can_shape, replay
from turnout_papers.recipes.multitask import BATCH
from turnout_papers.studies import testbed
from turnout_papers.studies.published import TABLE_2_TESTBED
from turnout_papers.studies.running import Findings, run_study
from turnout_papers.studies.study import Curve, Curves

PARTS = {"download": 1.0, "training": 5.0, "upload": 1.0, "server": 1.0}


def seen(times: dict[str, float], accuracy: list[float]) -> dict[str, np.ndarray]:
    """What a look at a run finds: the same times in every round but for the first, which is not counted."""
    last = len(accuracy) - 1
    rounds = {phase: np.array([99.0] + [took] * (last - 1) + [math.nan]) for phase, took in times.items()}
    return rounds | {
        "training": np.array([99.0] + [times["training"]] * last),
        "accuracy": np.array(accuracy), "last": np.array(accuracy[-1:]), "shaped": np.ones(1),
        "bytes": np.full(len(accuracy), 2e6),
    }  # fmt: skip


def curves(mtfl_rounds: int) -> Curves:
    slow = {name: seconds + 2.0 * (name in ("download", "upload")) for name, seconds in PARTS.items()}  # 12 s, not 8
    fast = {name: 0.0 if name in ("download", "upload") else seconds for name, seconds in PARTS.items()}
    reached = [0.5] * (mtfl_rounds - 1) + [0.91] * (13 - mtfl_rounds)
    looks = {
        testbed.FEDAVG: {s: seen(PARTS, [0.5] * 9 + [0.92, 0.85 + 0.01 * s, 0.95]) for s in range(3)},
        testbed.MTFL: {s: seen(slow, reached) for s in range(3)},
        testbed.ALONE: {s: seen(fast, [0.95] * 4) for s in range(3)},
    }
    rates = {testbed.tuned(rate): {100: Curve(np.arange(2), np.array([0.2, rate]))} for rate in (0.03, 0.1, 0.3, 1.0)}
    return Curves(rates, looks=looks)


@pytest.mark.parametrize(("rounds", "outcome"), [(4, "holds"), (9, "refuted")])
def test_extra_seconds_are_outweighed_by_rounds_or_not(rounds: int, outcome: str):
    """FedAvg: 10 rounds of 8 s. MTFL: rounds of 12 s, so that it needs fewer than 80 / 12 of them."""
    made = testbed.STUDY.decide("small", curves(rounds))
    assert [claim.outcome for claim in made] == ["holds", "holds", "holds", outcome, "holds"]
    rows = {(row.case, row.metric): row for row in testbed.rows("small", curves(rounds))}
    assert rows["MTFL", "s a round"].ours == pytest.approx(12.0)
    assert rows["MTFL", "s to target"].ours == pytest.approx(12.0 * rounds)
    assert rows["FedAvg", "rounds to target"].ours == 10
    assert rows["FedAvg", "training, %"].ours == pytest.approx(100 * 5 / 8)
    assert rows["FedAvg", "training, %"].published == 88
    assert rows["all", "FedAvg's learning rate"].ours == 1.0
    assert "testbed.svg" in testbed.pictures("small", curves(rounds))


def on_cifar(**changed: dict[str, float]) -> Curves:
    """Rounds of 20 s of FedAvg, 26 of MTFL and 16 of independent devices, but for what is changed of a method."""
    seconds = {
        "FedAvg": {"download": 1.0, "training": 15.0, "upload": 1.0, "server": 3.0},
        "MTFL": {"download": 4.0, "training": 15.0, "upload": 4.0, "server": 3.0},
        "Independent": {"download": 0.0, "training": 15.0, "upload": 0.0, "server": 1.0},
    }
    looks = {
        f"CIFAR-10 {method}": {s: seen(times | changed.get(method, {}), [0.1] * 6) for s in range(3)}
        for method, times in seconds.items()
    }
    return Curves({}, {testbed.FEDAVG: "left out"}, looks=looks)


@pytest.mark.parametrize(
    ("changed", "refuted"),
    [
        ({}, None),
        ({"MTFL": {"download": 0.5, "upload": 0.5}}, 0),
        ({"Independent": {"server": 9.0}}, 1),
        ({"FedAvg": {"server": 0.5, "training": 2.0, "upload": 14.0}}, 2),
        ({"MTFL": {"upload": 8.5}}, 3),
    ],
)
def test_claims_on_cifar_are_about_seconds_of_a_round(changed: dict[str, dict[str, float]], refuted: int | None):
    """Each is refuted by times that say the opposite, and by no others."""
    made = testbed.STUDY.decide("paper", on_cifar(**changed))
    outcomes = [claim.outcome for claim in made if claim.claim.startswith("CIFAR-10")]
    assert outcomes == ["refuted" if i == refuted else "holds" for i in range(4)]
    assert {claim.outcome for claim in made[:5]} == {"not run"}


def test_rows_of_cifar_are_beside_those_of_the_table():
    rows = {(row.case, row.metric): row for row in testbed.rows("paper", on_cifar())}
    found = rows["CIFAR-10 MTFL", "s a round"]
    assert (found.ours, found.published) == (pytest.approx(26.0), 136)
    found = rows["CIFAR-10 FedAvg", "training, %"]
    assert (found.ours, found.published) == (pytest.approx(75.0), 86)
    assert rows["CIFAR-10 Independent", "s a round"].published == 100
    assert ("CIFAR-10 FedAvg", "s to target") not in rows
    assert rows["FedAvg", "s a round"].ours == rows["all", "FedAvg's learning rate"].ours == "not run"
    assert not any("CIFAR" in row.case for row in testbed.rows("small", on_cifar()))


def test_cifar_has_the_tables_ratio_of_training_to_transfer():
    """By arithmetic, of FedAvg: what is scaled is time, not how it is divided."""
    size, published = testbed.TIMED, TABLE_2_TESTBED["CIFAR-10 FedAvg"]
    values = testbed.timed().variants["CIFAR-10 FedAvg"].model.build((3, 32, 32), 10).parameters()
    assert pytest.approx(sum(value.numel() for value in values) * 32 / 1e6) == testbed.MEGABITS
    training = size.samples / BATCH * size.bed.step_seconds
    assert training / published["round"] == pytest.approx(published["training"] / 100 / 6, rel=0.01)
    assert testbed.MEGABITS / size.bed.mbps / training == pytest.approx(
        published["download"] / published["training"], rel=0.01
    )


def test_each_data_set_can_be_run_alone():
    tuning, devices = testbed.plan("paper").parts
    names = [*tuning.variants, *devices.variants]
    assert fnmatch.filter(names, "CIFAR-10*") == [*testbed.ON_CIFAR]
    assert testbed.deployed("paper", Curves({}, looks=on_cifar().looks)) == []  # nothing on digits follows
    assert fnmatch.filter(names, "FedAvg lr=*") == [*tuning.variants]
    assert not fnmatch.filter(testbed.METHODS, "FedAvg lr=*")  # so all of them follow
    assert [part.name for part in testbed.plan("small").parts] == ["tuning"]


def test_seconds_that_were_not_measured_are_not_recorded():
    found = reported_times({})
    assert list(found) == ["training_seconds", "download_seconds", "upload_seconds"]
    assert all(math.isnan(seconds) for seconds in found.values())
    assert reported_times({"upload": 2})["upload_seconds"] == 2.0


# -- over real deployments


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> tuple[Path, Findings]:
    """The study in its smallest form: three deployments of two devices."""
    out = tmp_path_factory.mktemp("testbed") / "study"
    return out, run_study(testbed.STUDY, "smoke", out, quiet=True)


@pytest.mark.slow
def test_the_study_over_real_deployments(played):
    findings = played[1]
    rows = {(row.case, row.metric): row.ours for row in findings.rows}
    for method in testbed.METHODS:
        assert sum(rows[method, f"{phase}, %"] for phase in testbed.PHASES) == pytest.approx(100.0)
        assert rows[method, "training, %"] > 0
    assert rows["MTFL", "MB a round"] > 2.5 * rows["FedAvg", "MB a round"]
    assert rows["Independent", "MB a round"] == 0
    assert rows["all", "links shaped by"] == ("tc" if can_shape() else "the devices themselves")
    assert findings.claims[-1].holds  # devices and replay measure the same
    assert ShapedLink(0, 8.0).ends[0] not in Path("/proc/net/dev").read_text()  # the cables are gone


@pytest.mark.slow
@pytest.mark.parametrize("method", [testbed.FEDAVG, testbed.MTFL])
def test_a_simulated_round_takes_what_was_observed(played, method: str, tmp_path: Path):
    place = played[0] / "devices" / method / "seed-0"
    assert main(["fleet", str(place / "run"), "--devices", str(tmp_path / "fleet.csv")]) == 0
    observed, simulated = times(place, tmp_path)
    assert simulated == pytest.approx(observed, rel=0.2)


@pytest.mark.slow
def test_a_replay_measures_after_every_round_or_in_the_end_only(played, tmp_path: Path):
    place = played[0] / "devices" / testbed.MTFL / "seed-0"
    shutil.copytree(place / "run", tmp_path / "run")
    measured = []
    for folder in (place / "replay", replay(tmp_path, every_round=False).folder):
        with Records.read(folder / "records.sqlite") as records:
            measured.append(records.curve("personal_accuracy"))
    (every_T, first), (last_T, second) = measured
    assert every_T.tolist() == [0, 1, 2, 3]
    assert last_T.tolist() == [3]
    assert first[-1] == second[-1]


def times(place: Path, folder: Path) -> tuple[float, float]:
    """Seconds of a usual round: of the slowest reply of real devices, and of devices that are read back from them."""
    with Records.read(place / "run" / "records.sqlite") as records:
        found = records.clients()
    slowest = [np.nanmax(found["reply_seconds"][found["round"] == t]) for t in np.unique(found["round"])]
    given = open_run(place / "run").experiment
    assert isinstance(given, Experiment)
    world = replace(given.world, devices=to.devices.DeviceFile(str(folder / "fleet.csv")))
    again = to.run(given.but(world=world, runtime=given.runtime.compute), out=folder / "run", quiet=True)
    with again.records() as records:
        return float(np.median(slowest)), float(np.median(records.column("simulated_seconds")))
