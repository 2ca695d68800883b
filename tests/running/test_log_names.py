"""A log and data are brought together by the clients' names: what matches is counted, and no match is an error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import turnout as to
from turnout.cli import main
from turnout.errors import UserError
from turnout.fleet import Reading, read_fleet
from turnout.fleet.fleet_participation import FleetLog
from turnout.running.config.read import from_table, load, to_toml
from turnout.running.config.write import to_table
from turnout.running.tracks.prepare import prepare
from turnout.testing.examples import example_enrolment
from turnout.world.enrolment import Enrolment
from turnout.world.log import write_turnout

MODES = ("replay", "blocks", "fitted")
WORK = {"ann": 0.1, "bob": 0.5, "cyd": 0.9}


def enrolled(clients: int, names: tuple[str, ...] | None = None) -> Enrolment:
    return replace(example_enrolment(clients), names=names)


def log_of(folder: Path, names: tuple[str, ...], rounds: int = 12, **settings: Any) -> FleetLog:
    """A log in which each client always does the same work, so that the work says whose it is: 0.1, 0.2, ..."""
    rows = [(t, name, WORK.get(name, (i + 1) / 10)) for t in range(rounds) for i, name in enumerate(names)]
    write_turnout(folder / "log.csv", rows)
    return FleetLog(str(folder / "log.csv"), **settings)


def works(log: FleetLog, clients: int, t: int = 3, seed: int = 4) -> list[float]:
    return log.fraction(torch.arange(clients), t, 5, seed).tolist()


@pytest.mark.parametrize("mode", MODES)
def test_a_log_of_other_clients_is_refused_in_every_mode(tmp_path: Path, mode: str) -> None:
    log = log_of(tmp_path, ("ann", "bob", "cyd"), mode=mode)
    with pytest.raises(UserError, match=r"none of the 3 clients in the log owns data.*'ann'.*'dan'.*owners"):
        log.tied_to_clients(enrolled(3, ("dan", "eve", "flo")), 1)
    with pytest.raises(UserError, match="none of the 3 clients"):  # numbers are not names
        log_of(tmp_path, ("0", "1", "2"), mode=mode).tied_to_clients(enrolled(3, ("dan", "eve", "flo")), 1)


@pytest.mark.parametrize("mode", MODES)
def test_all_names_match(tmp_path: Path, mode: str) -> None:
    log = log_of(tmp_path, ("ann", "bob", "cyd"), mode=mode).tied_to_clients(enrolled(3, ("cyd", "ann", "bob")), 1)
    assert works(log, 3) == [0.9, 0.1, 0.5]
    assert log.match.sentence() == "3 of 3 clients in the log own data"
    assert not log.match.is_partial


@pytest.mark.parametrize("mode", MODES)
def test_names_that_match_in_part_count_and_the_rest_is_a_warning(tmp_path: Path, mode: str) -> None:
    """`bobb` of the log owns nothing, and dan and eve of the data are not in the log."""
    log = log_of(tmp_path, ("ann", "bobb", "cyd"), mode=mode)
    log = log.tied_to_clients(enrolled(4, ("cyd", "dan", "ann", "bob")), 1)
    assert log.match.is_partial
    for words in ("2 of 3 clients in the log own data", "'bobb' (line 3) does not", "did you mean 'bob'"):
        assert words in log.match.sentence()
    assert "2 of the data's 4 clients are not in the log" in log.match.sentence()
    for seed in range(4):
        found = works(log, 4, seed=seed)
        assert (found[0], found[2]) == (0.9, 0.1)
        if mode == "replay":
            assert (found[1], found[3]) == (0.0, 0.0)
            assert log.asked(0).tolist() == [0, 2]
        else:
            assert {found[1], found[3]} <= {0.1, 0.2, 0.9}


def test_numbers_of_a_log_are_those_of_clients_without_names(tmp_path: Path) -> None:
    """All of the log's numbers are the data's, or all of the data's are the log's."""
    for mode in MODES:
        own = log_of(tmp_path, ("0", "1", "2"), mode=mode).tied_to_clients(enrolled(3), 1)
        assert works(own, 3) == [0.1, 0.2, 0.3]
        assert (own.match.is_partial, own.match.sentence()) == (False, "3 of 3 clients in the log own data")
        fewer = log_of(tmp_path, ("0", "1", "2"), mode=mode).tied_to_clients(enrolled(2), 1)
        assert works(fewer, 2) == [0.1, 0.2]
        assert "2 of 3 clients in the log own data: '2' (line 4) does not" in fewer.match.sentence()
        more = log_of(tmp_path, ("0", "2", "1"), mode=mode).tied_to_clients(enrolled(9), 1)
        assert works(more, 3) == [0.1, 0.3, 0.2]
        assert "6 of the data's 9 clients are not in the log" in more.match.sentence()
        assert more.match.is_partial == (mode != "replay")  # in a replay, no row means not asked


@pytest.mark.parametrize("names", [("1", "2", "3"), ("ann", "bob", "cyd"), ("900", "901", "0")])
def test_other_numbers_and_names_are_dealt_to_clients_without_names(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Clients 0, 1, 2 are none of these: each takes after one of them at random, and that is a warning."""
    for mode in ("blocks", "fitted"):
        log = log_of(tmp_path, names, mode=mode).tied_to_clients(enrolled(3), 1)
        assert log.match.is_partial
        assert "the data's 3 clients have no names" in log.match.sentence()
        assert "at random" in log.match.sentence()
        assert len({tuple(works(log, 3, seed=seed)) for seed in range(9)}) > 1
    with pytest.raises(UserError, match="unknown client"):
        log_of(tmp_path, names).tied_to_clients(enrolled(3), 1)


def test_a_file_says_which_owner_a_client_of_the_log_is(tmp_path: Path) -> None:
    (tmp_path / "owners.csv").write_text("client,owner\nphone-1,ann\nphone-2,bob\nphone-1,cyd\n")
    reading = Reading(owners=str(tmp_path / "owners.csv"))
    for mode in MODES:
        log = log_of(tmp_path, ("phone-0", "phone-1", "phone-2"), mode=mode, reading=reading)
        log = log.tied_to_clients(enrolled(3, ("ann", "bob", "cyd")), 1)
        assert works(log, 3) == [0.2, 0.3, 0.2]  # phone-1 stands for two owners
        assert "3 of 4 clients in the log own data: 'phone-0'" in log.match.sentence()
        numbered = replace(log, names=None)
        (tmp_path / "numbers.csv").write_text("client,owner\nphone-0,1\nphone-1,0\nphone-2,2\n")
        numbered = replace(numbered, reading=Reading(owners=str(tmp_path / "numbers.csv")))
        assert works(numbered.tied_to_clients(enrolled(3), 1), 3) == [0.2, 0.1, 0.3]
    later = log_of(tmp_path, ("phone-1", "phone-2", "phone-0"), reading=reading)
    later = later.tied_to_clients(enrolled(3, ("ann", "bob", "cyd")), 1)
    assert "'phone-0' (line 4) does not" in later.match.sentence()  # of the log, after three names that its file gives
    log_of(tmp_path, ("phone-0", "phone-1", "phone-2"))
    fleet = read_fleet(tmp_path / "log.csv", reading)
    assert fleet.names == ("phone-0", "ann", "cyd", "bob")
    assert sorted(fleet.rows()[:4]) == [(0, "ann", 0.2), (0, "bob", 0.3), (0, "cyd", 0.2), (0, "phone-0", 0.1)]
    assert any("2 of the log's 3 clients" in words for words in fleet.assumed)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name,owner\nphone,ann\n", r"owners\.csv: its first line must be client,owner"),
        ("client,owner\nphone,ann\ntablet,ann\n", r"line 3: the owner 'ann' is on line 2 already"),
        ("client,owner\nphone,\n", r"line 2: .*is empty"),
        ("client,owner\ntablet,ann\n", r"none of its clients is in the log"),
        ("client,owner\nphone,other\n", r"two clients of the log would be 'other'"),
    ],
)
def test_a_file_of_owners_that_cannot_be_right_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "owners.csv").write_text(text)
    write_turnout(tmp_path / "log.csv", [(0, "phone", 1.0), (0, "other", 1.0)])
    with pytest.raises(UserError, match=says):
        read_fleet(tmp_path / "log.csv", Reading(owners=str(tmp_path / "owners.csv")))


def with_owners(folder: Path, owners: tuple[str, ...], rounds: int = 2) -> to.Experiment:
    rows = [f"{i % 5},{i % 3},{owners[i % len(owners)]},{i % 2}" for i in range(60)]
    (folder / "data.csv").write_text("a,b,who,y\n" + "\n".join(rows) + "\n")
    data = to.data.Table(str(folder / "data.csv"), label="y", owner="who")
    return to.Experiment(
        to.World(data), to.models.MLP(4), rounds=rounds, runtime=to.runtime.InProcess(device="cpu", threads=1)
    )


def test_a_run_says_how_many_clients_match_and_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_of(tmp_path, ("ann", "bob", "cyd"), mode="blocks")
    experiment = with_owners(tmp_path, ("ann", "bob", "cyd")).but(**{"world.participation": log})
    (tmp_path / "mine.toml").write_text(to_toml(experiment))
    assert main(["run", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "run")]) == 0
    assert "3 of 3 clients in the log own data" in "".join(capsys.readouterr())
    assert not any("the log" in words for words in to.open_run(tmp_path / "run").warnings())
    inside = to.participation.Dropout(0.0, when_up=log)
    part = with_owners(tmp_path, ("ann", "dan")).but(**{"world.participation": inside})
    run = to.run(part, tmp_path / "part", quiet=True)
    assert any("1 of 3 clients in the log own data" in words for words in run.warnings())
    selected = with_owners(tmp_path, ("ann", "dan")).but(**{"algorithm.selection": to.selection.AsLogged(log.path)})
    assert any("1 of 3 clients in the log own data" in words for words in prepare(selected).warnings)
    with pytest.raises(UserError, match="none of the 3 clients"):
        prepare(with_owners(tmp_path, ("dan", "eve")).but(**{"world.participation": log}))


def test_a_run_of_scores_warns_too(tmp_path: Path) -> None:
    log = log_of(tmp_path, ("ann", "dan"), mode="blocks")
    data = to.data.Arriving(to.data.Digits(), [("1", "2"), ("2", "3")], per_label=5, public=9, names=("ann", "bob"))
    track = prepare(to.Experiment(to.World(data, log), to.models.MLP(4), to.scores.Scores(), rounds=1))
    assert any("1 of 2 clients in the log own data" in words for words in track.warnings)


def advise(folder: Path, out: str, *more: str) -> int:
    only = [word for name in ("FedAvg", "scheme B") for word in ("--only", name)]
    asked = ["advise", str(folder / "log.csv"), str(folder / "mine.toml"), "--seeds", "4", "--no-tune", "--jobs", "1"]
    return main([*asked, *only, *more, "--out", str(folder / out)])


def test_advice_says_how_many_clients_match(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_of(tmp_path, ("ann", "bob", "cyd"))
    (tmp_path / "mine.toml").write_text(to_toml(with_owners(tmp_path, ("ann", "bob", "cyd"))))
    assert advise(tmp_path, "all") == 0
    assert "3 of 3 clients in the log own data" in capsys.readouterr().err
    assert "3 of 3 clients in the log own data" in (tmp_path / "all" / "advice.html").read_text()
    (tmp_path / "mine.toml").write_text(to_toml(with_owners(tmp_path, ("ann", "dan"))))
    assert advise(tmp_path, "part", "--quiet") == 0
    assert "warning: " in (said := capsys.readouterr().err)
    assert "1 of 3 clients in the log own data" in said
    assert "1 of 3 clients" in json.loads((tmp_path / "part" / "advice.json").read_text())["warnings"][0]
    assert "1 of 3 clients" in (tmp_path / "part" / "advice.html").read_text()
    (tmp_path / "mine.toml").write_text(to_toml(with_owners(tmp_path, ("dan", "eve"))))
    assert advise(tmp_path, "none") == 2
    assert "none of the 3 clients in the log owns data" in capsys.readouterr().err
    (tmp_path / "owners.csv").write_text("client,owner\nann,dan\nbob,eve\n")
    assert advise(tmp_path, "mapped", "--quiet", "--owners", str(tmp_path / "owners.csv")) == 0
    assert "2 of 3 clients in the log own data: 'cyd' (line 4) does not" in capsys.readouterr().err
    recommended = load(tmp_path / "mapped" / "recommended.toml")
    assert recommended.world.participation.reading.owners == str(tmp_path / "owners.csv")
    assert from_table(to_table(recommended)) == recommended
