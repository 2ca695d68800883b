"""`turnout fleet`: what it finds in a log that was made up, what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import turnout as to
from turnout.cli import main
from turnout.fleet import ParticipationLog, Reading, read_fleet
from turnout.fleet.diagnosis import Diagnosis, diagnose, parts_to_try
from turnout.fleet.diagnosis_page import sentences
from turnout.fleet.example import ExampleFleet
from turnout.running.config.variants import with_setting

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    ExampleFleet().write(folder / "checkins.csv")
    return folder


@pytest.fixture(scope="module")
def fleet(folder: Path) -> ParticipationLog:
    return read_fleet(folder / "checkins.csv", Reading(every="1h"))


@pytest.fixture(scope="module")
def found(fleet: ParticipationLog) -> Diagnosis:
    return diagnose(fleet)


def test_the_diagnosis_finds_what_was_put_in(found: Diagnosis) -> None:
    """What ExampleFleet says happens to its devices."""
    assert len(found.joined) == len(found.left) == 8
    assert len(found.hardly_there) == 8
    assert found.hardly_mass == pytest.approx(8 * 600 / ExampleFleet().examples().sum())
    assert [one.kind for one in found.findings] == ["outage", "outage", "empty rounds", "rhythm"]
    down = "The whole fleet was out at the same time, for 12 rounds (12 h), from 2026-03-11 17:00 to 2026-03-12 05:00."
    assert down in sentences(found)  # the server was down
    assert [len(one.hours) for one in found.comes_when] == [1, 1]
    (shore_from, _), (hill_from, _) = (found.comes_when[g].hours[0] for g in (0, 1))
    assert (hill_from - shore_from) % 24 == pytest.approx(4, abs=1)  # evening is four hours later in "hill"
    assert len(found.groups) == 2
    for town, group in zip(("shore", "hill"), found.groups, strict=True):
        assert sum(name.startswith(town) for name in group.clients) >= 0.9 * len(group.clients)
    shore, hill = found.groups
    assert shore.outages is None
    assert hill.outages is not None
    cut = ExampleFleet().power_cuts()
    assert 0.75 * cut.sum() < hill.outages.rounds < 1.1 * cut.sum()
    assert 3 <= found.turnout_by_hour.index(max(found.turnout_by_hour)) <= 8  # between the towns' two nights
    assert max(found.turnout_by_weekday[5:]) < min(found.turnout_by_weekday[:5])
    assert found.mass is not None
    assert found.mass < found.turnout  # the rare ones hold the most
    assert found.away.at_least[0] == 1.0


def test_the_parts_to_try_are_settings_that_exist(found: Diagnosis) -> None:
    settings = [part.setting for part in parts_to_try(found)]
    assert 'algorithm.weighting = "C"' in settings
    assert 'algorithm.membership.join = "fast-reboot"' in settings
    experiment = to.Experiment(to.World(to.data.Synthetic(clients=4)), to.models.MLP(4, batch_norm=True))
    for setting in settings:
        path, _, value = setting.partition(" = ")
        assert isinstance(with_setting(experiment, f"{path}={value}"), to.Experiment)  # else it is a UserError


def test_a_fleet_that_always_comes_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("round,client\n" + "".join(f"{t},{c}\n" for t in range(20) for c in range(5)))
    (only,) = parts_to_try(diagnose(read_fleet(tmp_path / "log.csv")))
    assert only.setting == 'algorithm.weighting = "fedavg"'


def test_the_command_prints_and_writes(folder: Path, capsys: Capture) -> None:
    page, data, csv = (folder / name for name in ("fleet.html", "fleet.json", "turnout.csv"))
    arguments = ["--every", "1h", "--out", page, "--json", data, "--csv", csv]
    ExampleFleet(devices=40, days=14).write(folder / "fewer.csv")
    assert main(["fleet", str(folder / "fewer.csv"), *map(str, arguments)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "clients: 40 rounds: 336 a round is: 1 h" in said
    assert "assumed: the log never has a 0" in said
    assert 'algorithm.weighting = "C"' in said
    html = page.read_text()
    assert "<svg" in html
    assert "Turnout by hour of the day" in html
    assert "http://" not in html.replace("http://www.w3.org", "")
    found = json.loads(data.read_text())
    assert found["clients"] == 40
    again = read_fleet(csv)
    assert again.missing == "not-asked"  # absences are rows of 0 now
    assert diagnose(again).turnout == pytest.approx(found["turnout"], abs=1e-9)


def test_a_run_has_a_fleet_too(tmp_path: Path, capsys: Capture) -> None:
    world = to.World(to.data.Synthetic(clients=12), to.participation.Dropout(0.3))
    to.run(to.Experiment(world, rounds=6), str(tmp_path / "run"), quiet=True)
    assert main(["fleet", str(tmp_path / "run")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "clients: 12 rounds: 6" in said
    assert "examples that turn up" in said


def test_the_example_and_what_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert main(["fleet", "--example", str(tmp_path / "made.csv")]) == 0
    assert (tmp_path / "made.csv").read_text().startswith("checked_in_at,device,share_done,examples\n")
    assert main(["fleet"]) == 2
    assert "give a log, or --example FILE" in capsys.readouterr().err
    (tmp_path / "bad.csv").write_text("round,client,work\n0,a,x\n1,,1\n")
    assert main(["fleet", str(tmp_path / "bad.csv")]) == 2
    assert "has 2 faults; correct them:\n  line 2:" in capsys.readouterr().err
    assert main(["fleet", str(tmp_path / "made.csv"), "--missing", "gone"]) == 2
    assert "known are absent, not-asked" in capsys.readouterr().err
