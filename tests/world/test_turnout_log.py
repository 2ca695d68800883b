"""The core's own log: turnout.csv of a run is read and replayed without any reader of fleets' logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import turnout as to
from turnout.errors import UserError
from turnout.fleet import read_fleet
from turnout.running.config.read import from_table
from turnout.running.config.write import to_table
from turnout.testing.examples import example_enrolment
from turnout.world.log import read_turnout, write_turnout
from turnout.world.turnout_log import TurnoutLog

ROWS = [(0, 1, 1.0), (0, 4, 0.25), (1, 4, 0.0), (1, 0, 0.6), (3, 2, 1e-05)]


def test_the_core_reads_what_it_writes_as_fleets_readers_do(tmp_path: Path) -> None:
    write_turnout(tmp_path / "turnout.csv", ROWS)
    (tmp_path / "records.sqlite").touch()  # a run's folder: no row means not asked
    log, other = read_turnout(tmp_path), read_fleet(tmp_path)
    assert sorted(log.rows()) == sorted((t, str(c), w) for t, c, w in ROWS)
    assert log.rows() == other.rows()
    assert (log.names, log.rounds) == (other.names, other.rounds)
    assert log.line_M.tolist() == other.line_M.tolist()  # type: ignore[union-attr]
    assert other.missing == "not-asked"


def test_replay(tmp_path: Path) -> None:
    path = str(tmp_path / "turnout.csv")
    write_turnout(path, ROWS)
    log = TurnoutLog(path)
    assert log.fraction(torch.arange(6), 0, 5, seed=0).tolist() == [0, 1.0, 0, 0, 0.25, 0]
    assert [log.asked(t).tolist() for t in range(4)] == [[1, 4], [0, 4], [], [2]]
    named = replace(example_enrolment(2), names=("ann", "bob"))
    write_turnout(path, [(t, name, work) for t in range(9) for name, work in (("bob", 0.9), ("ann", 0.1))])
    assert TurnoutLog(path).tied_to_clients(named, 9).fraction(torch.arange(2), 3, 5, 4).tolist() == [0.1, 0.9]
    with pytest.raises(UserError, match="ends with round 8, and 10 rounds are asked for"):
        TurnoutLog(path).tied_to_clients(named, 10)


def test_it_has_a_kind_in_files(tmp_path: Path) -> None:
    experiment = to.Experiment(to.World(participation=TurnoutLog("turnout.csv")))
    table = to_table(experiment)
    assert table["world"]["participation"]["kind"] == "turnout-log"
    assert from_table(table) == experiment


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("round,client\n0,1\n", "has the columns round, client, not round,client,work.*fleet-log"),
        ("round,client,work\n", "has no rows"),
        ("round,client,work\n0,1,1\n0,1,0.5\n", "line 3: round 0 of client 1 is on line 2 already"),
        ("round,client,work\nx,1,1\n0,,1\n0,2,7\n1\n", "(?s)4 faults.*line 2: round.*line 3: client.*line 4: work.*5:"),
    ],
)
def test_faulty_files_are_refused_with_their_lines(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(UserError, match=says):
        read_turnout(tmp_path / "log.csv")
