"""Reading any fleet's log: forms, guesses, what is assumed, and every fault at once."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import numpy as np
import pytest

from turnout.errors import UserError
from turnout.fleet import ParticipationLog, Reading, read_fleet


def read(folder: Path, text: str, **settings: object) -> ParticipationLog:
    (folder / "log.csv").write_text(text)
    return read_fleet(folder / "log.csv", Reading(**settings))  # type: ignore[arg-type]


def test_columns_by_their_usual_names_and_a_decimal_comma(tmp_path: Path) -> None:
    fleet = read(tmp_path, "Server-Round;cid;Done;note\n1;b;0,5;x\n1;a;40%;\n2;b;ok;\n")
    assert fleet.rows() == [(0, "b", 0.5), (0, "a", 0.4), (1, "b", 1.0)]
    assert (
        "columns by their names: 'Server-Round' is the round, 'cid' is the client, 'Done' is the work" in fleet.assumed
    )
    assert "rounds are counted from 1, the first in the log" in fleet.assumed


def test_columns_as_said(tmp_path: Path) -> None:
    text = "t,who,epochs,client\n0,a,5,old\n1,b,2,old\n"
    fleet = read(tmp_path, text, client="who", work="epochs", full_work=5)
    assert fleet.rows() == [(0, "a", 1.0), (1, "b", 0.4)]
    with pytest.raises(UserError, match=r"no column 'whom' for client: did you mean 'who'"):
        read(tmp_path, text, client="whom")


def test_check_ins_become_rounds_at_full_hours(tmp_path: Path) -> None:
    text = "timestamp,device\n2026-03-01T10:05Z,a\n2026-03-01T11:45:00+01:00,a\n2026-03-01 12:59:59,b\n"
    fleet = read(tmp_path, text, every="1h")
    assert fleet.rows() == [(0, "a", 1.0), (2, "b", 1.0)]
    assert fleet.is_calendar
    assert fleet.start_T is not None
    assert (fleet.start_T % 3600 == 0).all()
    assert np.isnan(fleet.work(1)).sum() == 0
    assert fleet.work(1).tolist() == [0.0, 0.0]
    said = " ".join(fleet.assumed)
    assert "1 check-ins of clients that had come in the same round already count once" in said
    assert "every client that came did all of it" in said
    assert "never has a 0, so a client without a row was absent" in said
    assert "no client came in 1 of 3 rounds: all were absent" in said


def test_a_few_check_ins_without_work_do_not_make_the_others_not_asked(tmp_path: Path) -> None:
    rows = [f"2026-03-01T{hour:02}:05,{who},{1 if who else 0.5}\n" for hour in range(24) for who in (0, 1)]
    text = "timestamp,device,work\n" + "".join(rows)
    few = read(tmp_path, text + "2026-03-02T03:05,0,0\n", every="1h")
    assert few.missing == "absent"
    assert "work is 0 in 1 of 49 rows of check-ins, so a client without a row was absent" in " ".join(few.assumed)
    many = read(tmp_path, text + "2026-03-02T03:05,0,0\n2026-03-02T04:05,0,0\n2026-03-02T05:05,0,0\n", every="1h")
    assert many.missing == "not-asked"
    assert "work is 0 in 3 of 51 rows, so a client without a row was not asked" in " ".join(many.assumed)


def test_days_without_anybody_are_an_outage_or_holes_in_the_log(tmp_path: Path) -> None:
    text = "timestamp,device\n" + "".join(f"2026-03-0{day}T{hour:02}:05,a\n" for day in (1, 4) for hour in (3, 6, 21))
    out, skipped = (read(tmp_path, text, every="1h", gaps=gaps) for gaps in ("outage", "skip"))
    assert (out.rounds, skipped.rounds) == (91, 43)
    assert [t for t, *_ in skipped.rows()] == [0, 3, 18, 24, 27, 42]  # from 3:00 of the first day to 21:00 of the other
    assert skipped.start_T is not None
    assert out.start_T is not None
    assert skipped.start_T[24] == out.start_T[72]
    assert "no client came in 85 of 91 rounds: all were absent (--gaps skip removes whole days" in " ".join(out.assumed)
    assert "no client came in 48 of 91 rounds, which are removed" in " ".join(skipped.assumed)
    numbered = read(tmp_path, "round,client\n0,a\n5,a\n", gaps="skip")
    assert numbered.rows() == [(0, "a", 1.0), (1, "a", 1.0)]


@pytest.mark.parametrize("first", [1_772_359_500, 1_772_359_500_000, 1_772_359_500_000_000])
def test_times_since_1970_in_any_part_of_a_second(tmp_path: Path, first: int) -> None:
    unit = first // 1_772_359_500
    fleet = read(tmp_path, f"time,client\n{first},a\n{first + 7200 * unit},b\n", every="1h")
    assert fleet.rows() == [(0, "a", 1.0), (2, "b", 1.0)]
    assert fleet.is_calendar


def test_the_length_of_a_round_is_guessed_and_said(tmp_path: Path) -> None:
    fleet = read(tmp_path, "time,client\n2026-03-01,a\n2026-03-08,b\n")
    assert (fleet.every, fleet.rounds) == (3600.0, 7 * 24 + 1)
    assert "a round is 1 h (--every sets another length)" in fleet.assumed


def test_a_form_of_times_that_is_said(tmp_path: Path) -> None:
    text = "time,client\n01/02/2026 10:00,a\n02/02/2026 10:00,b\n"
    assert read(tmp_path, text, time_format="%d/%m/%Y %H:%M", every="1d").rows() == [(0, "a", 1.0), (1, "b", 1.0)]
    with pytest.raises(UserError, match=r"(?s)2 faults.*line 2: time must be .*--time-format.*line 3"):
        read(tmp_path, text)


def test_intervals_give_the_share_of_each_round(tmp_path: Path) -> None:
    """a: 30 min of round 0, and 4000..9000 s: 3200 s of round 1 and 1800 of round 2. b: from round 1 on, to the end."""
    fleet = read(tmp_path, "client,start,end\na,0,1800\nb,3600,\na,4000,9000\n", every="1h")
    works = {(t, name): work for t, name, work in fleet.rows()}
    assert works == pytest.approx({(0, "a"): 0.5, (1, "a"): 3200 / 3600, (1, "b"): 1, (2, "a"): 0.5, (2, "b"): 0.5})
    assert not fleet.is_calendar
    assert "1 stays without an end last to the end of the log" in fleet.assumed


def test_a_stay_that_begins_with_the_last_round_is_in_it(tmp_path: Path) -> None:
    """b comes at 7200 s, where round 2 begins, and the log ends with that."""
    fleet = read(tmp_path, "client,start,end,work\na,0,1800,1\nb,7200,,0.5\n", every="1h")
    assert (fleet.rounds, fleet.rows()) == (3, [(0, "a", 1.0), (2, "b", 0.5)])


def test_rounds_with_times(tmp_path: Path) -> None:
    fleet = read(tmp_path, "round,client,time\n0,a,1000\n0,b,900\n2,a,2900\n")
    assert fleet.start_T is not None
    assert fleet.start_T.tolist() == [900, 1900, 2900]  # round 1 has no row: between its neighbours
    assert fleet.every == 1000


def test_what_a_missing_row_means(tmp_path: Path) -> None:
    zeros, none = "round,client,work\n0,a,1\n0,b,0\n1,a,1\n", "round,client\n0,a\n0,b\n1,a\n"
    assert read(tmp_path, zeros).missing == "not-asked"
    assert read(tmp_path, none).missing == "absent"
    assert read(tmp_path, zeros, missing="absent").work(1).tolist() == [1.0, 0.0]
    assert read(tmp_path, none, missing="not-asked").asked(1).tolist() == [0]


def test_clients_that_join_and_leave_are_not_absent(tmp_path: Path) -> None:
    """steady comes in every other round; late only does so from round 60 on, gone before round 40."""
    rows = [(t, "steady") for t in range(0, 100, 2)]
    rows += [(t, "late") for t in range(60, 100, 2)] + [(t, "gone") for t in range(0, 40, 2)]
    rows += [(0, "rare"), (1, "rare"), (2, "rare")]  # one visit says too little
    fleet = read(tmp_path, "round,client\n" + "".join(f"{t},{name}\n" for t, name in rows))
    spans = {name: (int(fleet.joined_M[i]), int(fleet.left_M[i])) for i, name in enumerate(fleet.names)}
    assert spans == {"steady": (0, 99), "late": (60, 99), "gone": (0, 39), "rare": (0, 99)}
    assert fleet.asked(50).tolist() == [fleet.names.index(name) for name in ("steady", "rare")]
    assert any("1 clients that are first seen late had not joined" in words for words in fleet.assumed)


def test_every_fault_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, "round,client,work\n0,1,1\nx,2,1\n0,1,1\n-1,,most\n1,3\n" + "2,9,7\n" * 8)
    said = str(caught.value).splitlines()
    assert said[0].endswith("has 21 faults; correct them:")
    assert said[1:6] == [
        "  line 3: round must be a whole number, got 'x'",
        "  line 4: round 0 of client 1 is on line 2 already",
        "  line 5: client is empty: which client is it?",
        "  line 5: rounds are counted from 0, got -1",
        "  line 5: work must be the share finished, 0 to 1 or in %, got 'most'",
    ]
    assert "  line 6: the header has 3 columns, this row has 2" in said
    assert "  and 4 more faults like this: lines 11, 12, 13, 14" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty, or its first line is"),
        ("a,b\n1,2\n", r"which column is the client\? Set --client NAME; and which is the round.*are 'a', 'b'"),
        ("when,id\n2.3.2026 04:05,a\n25.3.2026 04:05,a\n", r"--time-format, here '%d.%m.%Y %H:%M'\)"),
        ("when,id\n2/3/2026,a\n", r"--time-format, here '%d/%m/%Y' or '%m/%d/%Y'\)"),
        ("client,b\n1,2\n", r"which column is the round, or the time\?"),
        ("round,client,work\n", "no rows"),
        ("round,client,client\n", "two columns with the name 'client'"),
        ("time,client\n0,a\n1970-01-01,b\n", r"line 3: time must be a time as a number, like the first of the log"),
        ("client,start,end\na,5,1\n", "line 2: the end is before the start"),
        ("time,client\n1e300,a\n1,b\n", r"has .*e\+28. of them: is this time right\? 1e\+291 s since 1970"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read(tmp_path, text)


def test_a_wrong_clock_is_shown_where_it_makes_too_many_rounds(tmp_path: Path) -> None:
    text = "time,client\n1970-01-01,a\n2026-01-01 00:00:01,b\n"
    assert read(tmp_path, text).every == 86400  # 20,454 days are fine, 29 million minutes are not
    with pytest.raises(UserError, match=r"(?s)line 2: with rounds of 1 min the log has 29,453,761.*1970.*line 3"):
        read(tmp_path, text, every="1min")


def test_settings_that_cannot_be_are_refused() -> None:
    for settings, says in (
        ({"every": "1 fortnight"}, "not a duration"),
        ({"missing": "abset"}, "did you mean 'absent'"),
        ({"gaps": "skipped"}, "did you mean 'skip'"),
        ({"full_work": 0}, "above 0"),
    ):
        with pytest.raises(UserError, match=says):
            Reading(**settings)  # type: ignore[arg-type]


def test_times_of_a_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    rows = "(TIMESTAMP '2026-03-01 10:05:00', 'a', 0.5), (TIMESTAMP '2026-03-01 12:30:00', 'b', 1.0)"
    duckdb.sql(f"COPY (FROM (VALUES {rows}) t(seen, client, work)) TO '{path}' (FORMAT parquet)")
    assert read_fleet(path, Reading(every="1h")).rows() == [(0, "a", 0.5), (2, "b", 1.0)]
    duckdb.sql(f"COPY (FROM (VALUES {rows}, (NULL, 'c', 1.0)) t(seen, client, work)) TO '{path}' (FORMAT parquet)")
    with pytest.raises(UserError, match="row 3: seen must be a time"):
        read_fleet(path)


def test_without_duckdb_csv_is_read_and_other_formats_say_what_to_install(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(sys.modules, "duckdb", None)
    (tmp_path / "log.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"reading Parquet files needs duckdb, .*turnout\[tables\]"):
        read_fleet(tmp_path / "log.parquet")
    assert read(tmp_path, "round,client\n0,a\n").rows() == [(0, "a", 1.0)]


def test_a_run_folder_is_its_turnout(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "turnout.csv").write_text("round,client,work\n1,0,0.5\n")
    assert read_fleet(tmp_path / "run").rows() == [(1, "0", 0.5)]  # rounds of our own form are counted from 0
    with pytest.raises(UserError, match=r"it holds runs, name one of them, such as .*run"):
        read_fleet(tmp_path)
