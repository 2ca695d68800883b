"""Fleet logs: what is written is read, replayed and resampled; what is wrong is named with its line."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import turnout as to
from turnout.errors import Mistake
from turnout.parts.selection import AsLogged, Count
from turnout.testing.examples import example_enrolment
from turnout.tracks.prepare import prepare
from turnout.world.enrolment import Enrolment
from turnout.world.fleet_log import FleetLog
from turnout.world.members import Members
from turnout.world.participation import Traces
from turnout.world.turnout_csv import read_turnout, write_turnout

ROWS = [(0, 1, 1.0), (0, 4, 0.25), (1, 4, 0.0), (1, 0, 0.6), (3, 2, 0.1)]


def enrolled(clients: int, names: tuple[str, ...] | None) -> Enrolment:
    return replace(example_enrolment(clients), names=names)


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_turnout(tmp_path / "log.csv", ROWS)
    return str(tmp_path / "log.csv")


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 30), st.one_of(st.integers(0, 50).map(str), st.text("ab,\" '-é", min_size=1))),
        st.floats(0, 1),
        min_size=1,
    )
)
def test_what_is_written_is_read(rows: dict[tuple[int, str], float]) -> None:
    rows = {(t, name.strip() or "x"): work for (t, name), work in rows.items()}
    with tempfile.TemporaryDirectory() as folder:
        write_turnout(Path(folder) / "log.csv", [(t, name, work) for (t, name), work in rows.items()])
        log = read_turnout(Path(folder) / "log.csv")
    names = [log.labels[code] for code in log.code_N]
    assert dict(zip(zip(log.round_N.tolist(), names, strict=True), log.work_N.tolist(), strict=True)) == rows


def test_replay_gives_the_row_and_absence_without_one(path: str) -> None:
    log = FleetLog(path)
    assert log.fraction(torch.arange(6), 0, 5, seed=0).tolist() == [0, 1.0, 0, 0, 0.25, 0]
    assert log.fraction(torch.tensor([4, 0]), 1, 5, seed=9).tolist() == [0.0, 0.6]
    assert log.fraction(torch.arange(6), 2, 5, seed=0).tolist() == [0] * 6
    assert [log.asked(t).tolist() for t in range(4)] == [[1, 4], [0, 4], [], [2]]


def test_selection_follows_the_log(path: str) -> None:
    assert AsLogged(path).choose(Members(6), 1, seed=0).tolist() == [0, 4]
    assert AsLogged(path).choose(Members(6).leave(4), 1, seed=0).tolist() == [0]
    assert AsLogged(path).tied_to_clients(enrolled(5, None), 1).choose(Members(5), 0, seed=3).tolist() == [1, 4]


def test_a_run_exported_and_replayed_is_the_same_run(tmp_path: Path) -> None:
    """Selection and participation of a run, written as its log, come back exactly from that log."""
    members, traces = Members(1000), Traces(first=8)
    cohorts = [Count(30).choose(members, t, seed=5) for t in range(20)]
    works = [traces.fraction(c, t, 5, seed=5) for t, c in enumerate(cohorts)]
    rows = [
        (t, c, w)
        for t, (cohort, work) in enumerate(zip(cohorts, works, strict=True))
        for c, w in zip(cohort.tolist(), work.tolist(), strict=True)
    ]
    write_turnout(tmp_path / "run.csv", rows)
    log = FleetLog(str(tmp_path / "run.csv")).tied_to_clients(enrolled(1000, None), 1)
    for t in range(20):
        asked = AsLogged(log.path).choose(members, t, seed=0)
        assert torch.equal(asked, cohorts[t])
        assert torch.equal(log.fraction(asked, t, 5, seed=0), works[t])


def test_clients_by_name(tmp_path: Path) -> None:
    write_turnout(tmp_path / "log.csv", [(0, "kitchen", 0.5), (0, "hall, left", 1.0)])
    log = FleetLog(str(tmp_path / "log.csv")).tied_to_clients(enrolled(3, ("hall, left", "attic", "kitchen")), 1)
    assert log.asked(0).tolist() == [0, 2]
    assert log.fraction(torch.arange(3), 0, 5, 0).tolist() == [1.0, 0.0, 0.5]
    with pytest.raises(Mistake, match=r"line 2: unknown client 'kitchen'; did you mean 'kitchens'"):
        FleetLog(str(tmp_path / "log.csv")).tied_to_clients(enrolled(2, ("hall, left", "kitchens")), 1)


def test_resampling_gives_each_client_one_logged_client_for_good(tmp_path: Path) -> None:
    rows = [(t, name, work) for name, work in [("a", 0.0), ("b", 0.5), ("c", 1.0)] for t in range(4)]
    write_turnout(tmp_path / "log.csv", [*rows, (9, "b", 0.5)])
    log = FleetLog(str(tmp_path / "log.csv"), mode="resample").tied_to_clients(enrolled(3000, None), 1)
    rounds = torch.stack([log.fraction(torch.arange(3000), t, 5, seed=1) for t in range(30)])
    assert (rounds == rounds[0]).all()
    share = torch.tensor([(rounds[0] == w).double().mean() for w in (0.0, 0.5, 1.0)])
    assert (share - 1 / 3).abs().max() < 4 * math.sqrt(2 / 9 / 3000)


@pytest.mark.parametrize(("by", "mean"), [("client", 0.5), ("fleet", 0.25)])
def test_resampling_draws_rows_alike(tmp_path: Path, by: str, mean: float) -> None:
    """a: three absences. b: one complete round. By client the mean is (0 + 1) / 2, by rows 1 / 4."""
    write_turnout(tmp_path / "log.csv", [(0, "a", 0), (1, "a", 0), (2, "a", 0), (0, "b", 1)])
    log = FleetLog(str(tmp_path / "log.csv"), mode="resample", by=by)
    work = torch.cat([log.fraction(torch.arange(10_000), t, 5, seed=0) for t in range(4)])
    assert float(work.mean()) == pytest.approx(mean, abs=0.02)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"line 1: the header must be `round,client,work`, got ``"),
        ("client,round,work\n0,1,1\n", r"line 1: the header must be"),
        ("round,client,work\n", "no rows"),
        ("round,client,work\n0,1,1\n0,2\n", r"line 3: a row has 3 values.*has 2"),
        ("round,client,work\n0,1,1\n\n0,2,1\n", r"line 3: a row has 3 values.*has 0"),
        ("round,client,work\n0,1,1\nx,2,1\n", r"line 3: round must be a whole number, got 'x'"),
        ("round,client,work\n1.5,2,1\n", r"line 2: round must be a whole number, got '1.5'"),
        ("round,client,work\n0,1,1\n0,2,most\n", r"line 3: work must be a number, got 'most'"),
        ("round,client,work\n0,1,1\n0,2,50\n", r"line 3: work is the fraction finished, 0 to 1, got 50"),
        ("round,client,work\n0,2,-0.1\n", r"line 2: work is the fraction"),
        ("round,client,work\n0,2,nan\n", r"line 2: work is the fraction"),
        ("round,client,work\n-1,2,1\n", r"line 2: rounds are counted from 0"),
        ("round,client,work\n0,2,1\n1,2,1\n0,3,1\n1,2,0.5\n", r"line 5: round 1 of client 2 is on line 3"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(Mistake, match=says):
        read_turnout(tmp_path / "log.csv")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.xlsx").write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(Mistake, match="not a CSV text"):
        read_turnout(tmp_path / "log.xlsx")


def test_spreadsheets_leave_marks_that_do_not_matter(tmp_path: Path) -> None:
    """A byte-order mark, carriage returns, spaces and empty last lines."""
    (tmp_path / "log.csv").write_bytes(b"\xef\xbb\xbfround, client, work\r\n0, 1, 0.5\r\n\r\n\r\n")
    assert FleetLog(str(tmp_path / "log.csv")).fraction(torch.arange(2), 0, 5, 0).tolist() == [0.0, 0.5]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0,1,1\n0,7,1\n", r"line 3: unknown client '7'; the data has clients 0..4"),
        ("0,1,1\n0,porch,1\n", r"line 3: unknown client 'porch'; the clients of this data have no names"),
        ("0,1,1\n0,-1,1\n", r"line 3: unknown client '-1'"),
        ("0,1,1\n0,01,1\n", r"written in two ways"),
    ],
)
def test_clients_the_data_does_not_have_are_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "log.csv").write_text("round,client,work\n" + text)
    with pytest.raises(Mistake, match=says):
        FleetLog(str(tmp_path / "log.csv")).tied_to_clients(enrolled(5, None), 1)


def test_beyond_the_log_is_a_mistake_not_silence(path: str) -> None:
    says = r"ends with round 3, and 5 rounds are asked for.*at most 4 rounds"
    with pytest.raises(Mistake, match=says):
        FleetLog(path).fraction(torch.arange(3), 4, 5, 0)
    for part in ({"world.participation": FleetLog(path)}, {"algorithm.selection": to.selection.AsLogged(path)}):
        experiment = to.Experiment(to.World(to.data.Synthetic(clients=5)), rounds=5).but(**part)
        with pytest.raises(Mistake, match=says):  # before the first round
            prepare(experiment)
    resampled = FleetLog(path, mode="resample")
    prepare(to.Experiment(to.World(to.data.Synthetic(clients=5), resampled), rounds=5))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FleetLog("x.csv", mode="repaly"), "did you mean 'replay'"),
        (lambda: FleetLog("x.csv", mode="resample", by="clients"), "did you mean 'client'"),
        (lambda: FleetLog("x.csv", by="fleet"), "set mode='resample'"),
        (lambda: FleetLog("no/such/file.csv").asked(0), "cannot read the log no/such/file.csv: No such file"),
    ],
)
def test_impossible_settings_are_refused(make: object, says: str) -> None:
    with pytest.raises(Mistake, match=says):
        make()  # type: ignore[operator]
