"""Fleet logs: what is written is read, replayed, and drawn from in stretches of rounds."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import turnout as to
from turnout.errors import UserError
from turnout.fleet import Reading, read_fleet
from turnout.fleet.fleet_participation import FleetLog
from turnout.parts.selection import AsLogged, Count
from turnout.running.tracks.prepare import prepare
from turnout.testing.examples import example_enrolment
from turnout.world.enrolment import Enrolment
from turnout.world.log import write_turnout
from turnout.world.members import Members
from turnout.world.participation import Traces

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
        log = read_fleet(Path(folder) / "log.csv")
    assert {(t, name): work for t, name, work in log.rows()} == rows


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
    log = FleetLog(str(tmp_path / "log.csv")).tied_to_clients(enrolled(2, ("hall, left", "kitchens")), 1)
    assert "'kitchen' (line 2) does not (did you mean 'kitchens'" in log.match.sentence()
    assert log.fraction(torch.arange(2), 0, 5, 0).tolist() == [1.0, 0.0]


def test_stretches_of_the_log_follow_each_other(tmp_path: Path) -> None:
    """Work is client + round / 100, so each number says where in the log it comes from."""
    work = {(t, c): (c + t / 100) / 4 for t in range(40) for c in range(3)}
    write_turnout(tmp_path / "log.csv", [(t, c, w) for (t, c), w in work.items()])
    place = {round(w, 6): key for key, w in work.items()}
    log = FleetLog(str(tmp_path / "log.csv"), mode="blocks", length=8).tied_to_clients(enrolled(3000, None), 1)
    found = [[place[round(w, 6)] for w in log.fraction(torch.arange(6), t, 5, seed=1).tolist()] for t in range(32)]
    for t, row in enumerate(found):
        assert [c for _, c in row] == [c for _, c in found[0]]  # a client takes after one client for good
        assert sorted(c for _, c in row[:3]) == [0, 1, 2]  # and each is taken once before any is taken twice
        assert len({at for at, _ in row}) == 1  # the same rounds for the whole fleet
        assert t % 8 == 0 or row[0][0] == (found[t - 1][0][0] + 1) % 40
    assert len({found[t][0][0] for t in range(0, 32, 8)}) > 1


def test_stretches_of_a_client_are_its_own(tmp_path: Path) -> None:
    write_turnout(tmp_path / "log.csv", [(t, c, t / 100) for t in range(100) for c in range(2)])
    log = FleetLog(str(tmp_path / "log.csv"), mode="blocks", of="client", length=5)
    first = log.fraction(torch.arange(1000), 0, 5, seed=1)
    assert len(first.unique()) == 100
    assert float(first.mean()) == pytest.approx(0.495, abs=0.04)
    assert torch.equal(log.fraction(torch.tensor([7]), 12, 5, seed=1), log.fraction(torch.arange(9), 12, 5, 1)[7:8])


def test_a_log_of_those_who_came_has_absences(tmp_path: Path) -> None:
    """Four clients, each there every fourth round: a turnout of 25 %, not of 100 %."""
    (tmp_path / "log.csv").write_text("round,client\n" + "".join(f"{t},{t % 4}\n" for t in range(400)))
    log = FleetLog(str(tmp_path / "log.csv"), mode="blocks")
    work = torch.cat([log.fraction(torch.arange(40), t, 5, seed=0) for t in range(100)])
    assert float(work.mean()) == pytest.approx(0.25, abs=0.01)


def test_a_client_not_asked_is_as_in_the_nearest_round_it_was(tmp_path: Path) -> None:
    write_turnout(tmp_path / "log.csv", [(0, "a", 0.1), (4, "a", 0.5), (9, "a", 0.0), (9, "b", 1.0)])
    log = FleetLog(str(tmp_path / "log.csv"), mode="blocks", of="client", length=1)
    log = log.tied_to_clients(enrolled(1, ("a",)), 1)
    counts = torch.stack([log.fraction(torch.tensor([0]), t, 5, seed=0) for t in range(2000)]).flatten()
    share = {round(float(w), 1): float((counts == w).double().mean()) for w in counts.unique()}
    # rounds 0, 1, 2 are nearest to 0 (2 is as near to 4: the earlier), 3 .. 6 to 4, and 7, 8, 9 to 9
    assert share == pytest.approx({0.1: 0.3, 0.5: 0.4, 0.0: 0.3}, abs=0.04)


def test_clients_that_the_log_names_take_after_themselves(tmp_path: Path) -> None:
    write_turnout(tmp_path / "log.csv", [(t, name, w) for t in range(9) for name, w in (("a", 0.1), ("b", 0.9))])
    log = FleetLog(str(tmp_path / "log.csv"), mode="blocks").tied_to_clients(enrolled(2, ("b", "a")), 1)
    assert log.fraction(torch.arange(2), 3, 5, seed=4).tolist() == [0.9, 0.1]


def test_stretches_keep_the_hour_and_stand_in_for_those_not_yet_there(tmp_path: Path) -> None:
    """Clients come at one hour of the day only; half of them join at half time. Nobody comes at another hour."""
    lines = [f"{t * 3600},{c}\n" for t in range(24 * 26) for c in range(20) if t % 24 == 6 and (c < 10 or t >= 24 * 13)]
    (tmp_path / "log.csv").write_text("time,client\n" + "".join(lines))
    log = FleetLog(str(tmp_path / "log.csv"), mode="blocks", length=30, reading=Reading(every="1h"))
    assert log.log.start_T is not None
    first = int(log.log.start_T[0] // 3600)  # the log begins at the first check-in
    came = torch.stack([log.fraction(torch.arange(20), t, 5, seed=0) for t in range(480)])
    hour = (torch.arange(480) + first) % 24
    assert float(came[hour != 6].sum()) == 0
    assert float(came[hour == 6].mean()) == 1


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.xlsx").write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(UserError, match=r"neither a CSV text .* nor a file of Parquet"):
        read_fleet(tmp_path / "log.xlsx")


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
        ("0,1,1\n0,01,1\n", r"unknown client '01'"),
    ],
)
def test_clients_the_data_does_not_have_are_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "log.csv").write_text("round,client,work\n" + text)
    with pytest.raises(UserError, match=says):
        FleetLog(str(tmp_path / "log.csv")).tied_to_clients(enrolled(5, None), 1)


def test_beyond_the_log_is_a_mistake_not_silence(path: str) -> None:
    says = r"ends with round 3, and 5 rounds are asked for.*at most 4 rounds"
    with pytest.raises(UserError, match=says):
        FleetLog(path).fraction(torch.arange(3), 4, 5, 0)
    for part in ({"world.participation": FleetLog(path)}, {"algorithm.selection": to.selection.AsLogged(path)}):
        experiment = to.Experiment(to.World(to.data.Synthetic(clients=5)), rounds=5).but(**part)
        with pytest.raises(UserError, match=says):  # before the first round
            prepare(experiment)
    prepare(to.Experiment(to.World(to.data.Synthetic(clients=5), FleetLog(path, mode="blocks")), rounds=5))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FleetLog("x.csv", mode="repaly"), "did you mean 'replay'"),
        (lambda: FleetLog("x.csv", mode="blocks", of="clients"), "did you mean 'client'"),
        (lambda: FleetLog("x.csv", of="client"), "set mode='blocks'"),
        (lambda: FleetLog("x.csv", mode="blocks", length=0), "1 round or more"),
        (lambda: FleetLog("no/such/file.csv").asked(0), "cannot read no/such/file.csv: No such file"),
    ],
)
def test_impossible_settings_are_refused(make: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()  # type: ignore[operator]
