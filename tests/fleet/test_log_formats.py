"""Logs as they are: the same fleet from every format, large logs by DuckDB, faulty rows, server logs, public traces."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest

from turnout.cli import main
from turnout.errors import UserError
from turnout.fleet import ParticipationLog, Reading, read_fleet, read_log
from turnout.machine.table_files import open_table

ROWS = [(t, f"dev-{c}", (c + t) % 3 / 2) for t in range(12) for c in (3, 1, 2) if (t + c) % 4]
HEADER = ("round", "device", "work")


def as_csv(path: Path) -> None:
    path.write_text("round,device,work\n" + "".join(f"{t},{name},{work}\n" for t, name, work in ROWS))


def as_tsv(path: Path) -> None:
    path.write_text("round\tdevice\twork\n" + "".join(f"{t}\t{name}\t{work}\n" for t, name, work in ROWS))


def as_json(path: Path) -> None:
    path.write_text(json.dumps([dict(zip(HEADER, row, strict=True)) for row in ROWS]))


def as_json_lines(path: Path) -> None:
    path.write_text("".join(json.dumps(dict(zip(HEADER, row, strict=True))) + "\n" for row in ROWS))


def as_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE log (round INTEGER, device TEXT, work REAL)")
        database.executemany("INSERT INTO log VALUES (?, ?, ?)", ROWS)
    database.close()


def as_parquet(path: Path) -> None:
    with duckdb.connect() as database:
        database.execute("CREATE TABLE log (round INTEGER, device VARCHAR, work DOUBLE)")
        database.executemany("INSERT INTO log VALUES (?, ?, ?)", ROWS)
        database.execute(f"COPY log TO '{path}' (FORMAT parquet)")


def as_duckdb(path: Path) -> None:
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE log (round INTEGER, device VARCHAR, work DOUBLE)")
        database.executemany("INSERT INTO log VALUES (?, ?, ?)", ROWS)


WRITERS = (as_csv, as_tsv, as_json, as_json_lines, as_sqlite, as_parquet, as_duckdb)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("large", [False, True])
def test_the_same_fleet_from_every_format(
    tmp_path: Path, write: Callable[[Path], None], large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "log")  # by how the file begins, not by its name
    monkeypatch.setattr(read_log, "LARGE", 0 if large else 10**12)
    log = read_fleet(tmp_path / "log")
    assert log.names == tuple(dict.fromkeys(name for _, name, _ in ROWS))
    assert {(t, name): work for t, name, work in log.rows()} == {(t, name): work for t, name, work in ROWS}
    assert (log.line_M is None) == (large and write is not as_sqlite)  # read by DuckDB


def alike(one: ParticipationLog, other: ParticipationLog) -> bool:
    fields = ("round_N", "client_N", "work_N", "start_T", "examples_M")
    pairs = [(getattr(one, name), getattr(other, name)) for name in fields]
    same = all((a is None and b is None) or np.array_equal(a, b) for a, b in pairs)
    return same and (one.names, one.label_M, one.assumed) == (other.names, other.label_M, other.assumed)


draw = random.Random(0)
PAIRS = draw.sample([(t, c) for t in range(30) for c in range(12)], 200)
LARGE_LOGS = {
    "numbers": ("round,client,work", [f"{t},{c},{draw.random():.3f}" for t, c in PAIRS], {}),
    "zeros before numbers": ("round,client,work", [f"{t},{c:02},1" for t, c in PAIRS], {}),
    "words, examples, labels": (
        "round,device,done,examples,label",
        [f"{t + 1},dev-{c},{draw.choice(['ok', 'failed'])},{3 * c},{'ab'[c % 2]}" for t, c in PAIRS],
        {},
    ),
    "zones": (
        "when;who",
        [f"2026-03-01T{t % 24:02}:{draw.randrange(60):02}:00+01:00;x{c}" for t, c in PAIRS],
        {"every": "1h"},
    ),
    "milliseconds and epochs": (
        "time,client,work",
        [f"{1_772_359_500_000 + 1_000_000 * t},{c},{c % 6}" for t, c in PAIRS],
        {"every": "30min", "full_work": 5},
    ),
    "stays": (
        "client,start,end",
        [f"c{c},{1000 * t},{1000 * t + 2500 if c % 5 else ''}" for t, c in PAIRS],
        {"every": "1h"},
    ),
    "a form of times": (
        "time,client",
        [f"{t + 1:02}.03.2026 10:{c:02},c{c}" for t, c in PAIRS],
        {"time_format": "%d.%m.%Y %H:%M", "every": "1d"},
    ),
}


@pytest.mark.parametrize("name", LARGE_LOGS)
def test_a_large_log_is_read_as_a_small_one(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    header, rows, settings = LARGE_LOGS[name]
    (tmp_path / "log.csv").write_text("\n".join([header, *rows]) + "\n")
    small = read_fleet(tmp_path / "log.csv", Reading(**settings))  # type: ignore[arg-type]
    monkeypatch.setattr(read_log, "LARGE", 0)
    large = read_fleet(tmp_path / "log.csv", Reading(**settings))  # type: ignore[arg-type]
    assert large.line_M is None
    assert alike(small, large)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("1.5,a,1", "line 3: round must be a whole number, got '1.5'"),
        ("1,,1", "line 3: client is empty"),
        ("1,a,7", "line 3: work must be"),
        ("-1,a,1", "line 3: rounds are counted from 0"),
        ("0,a,1", "line 3: round 0 of client a is on line 2 already"),
        ("1,a", "line 3: the header has 3 columns, this row has 2"),
    ],
)
def test_faults_of_a_large_log_have_their_lines(
    tmp_path: Path, fault: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_log, "LARGE", 0)
    (tmp_path / "log.csv").write_text(f"round,client,work\n0,a,1\n{fault}\n2,b,1\n")
    with pytest.raises(UserError, match=says):
        read_fleet(tmp_path / "log.csv")
    log = read_fleet(tmp_path / "log.csv", Reading(skip_faulty=True))
    assert log.rows() == [(0, "a", 1.0), (2, "b", 1.0)]
    assert log.assumed[0].startswith("1 faulty lines are left out (--skip-faulty). The first faults: " + says)


def test_skipped_rows_are_counted_and_the_first_three_shown(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("round,client,work\n0,a,1\n" + "x,b,most\n" * 2 + "1,a,2\n" * 3 + "1,a,1\n")
    log = read_fleet(tmp_path / "log.csv", Reading(skip_faulty=True))
    assert (log.names, log.rounds) == (("a",), 2)
    assert "5 faulty lines" in log.assumed[0]
    assert log.assumed[0].count("line ") == 3
    (tmp_path / "log.csv").write_text("round,client,work\nx,b,1\n")
    with pytest.raises(UserError, match="no line is without a fault"):
        read_fleet(tmp_path / "log.csv", Reading(skip_faulty=True))


def test_a_misspelt_column_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("round,client,wrk,note\n0,a,0.5,x\n")
    with pytest.raises(UserError, match=r"is the column 'wrk' a misspelt 'work'\? .*--work wrk reads it, --work none"):
        read_fleet(tmp_path / "log.csv")
    assert read_fleet(tmp_path / "log.csv", Reading(work="wrk")).rows() == [(0, "a", 0.5)]
    assert read_fleet(tmp_path / "log.csv", Reading(work="none")).rows() == [(0, "a", 1.0)]


def test_what_is_assumed_of_the_time_zone_is_said(tmp_path: Path) -> None:
    for when, says in (
        ("2026-03-01 10:00", "times without a time zone are read as UTC"),
        ("1772359500000000000", "times since 1970 are read as UTC"),
    ):
        (tmp_path / "log.csv").write_text(f"time,client\n{when},a\n")
        assert any(says in words for words in read_fleet(tmp_path / "log.csv").assumed)
    (tmp_path / "log.csv").write_text("time,client\n5,a\n")
    assert not any("UTC" in words for words in read_fleet(tmp_path / "log.csv").assumed)


def test_since_leaves_out_what_is_before(tmp_path: Path) -> None:
    rows = [f"2026-03-0{day}T05:00,{who}" for day, who in ((1, "a"), (1, "b"), (2, "b"), (3, "c"), (4, "b"))]
    (tmp_path / "log.csv").write_text("time,client\n" + "\n".join(rows) + "\n")
    later = read_fleet(tmp_path / "log.csv", Reading(every="1d", since="2026-03-02"))
    assert later.rows() == [(0, "b", 1.0), (1, "c", 1.0), (2, "b", 1.0)]
    assert later.start_T is not None
    assert later.start_T[0] % 86400 == 0
    assert "1 of 4 rounds are before 2026-03-02 and left out (--since)" in later.assumed
    assert read_fleet(tmp_path / "log.csv", Reading(every="1d", since="1")).rows() == later.rows()
    with pytest.raises(UserError, match="no rows after that"):
        read_fleet(tmp_path / "log.csv", Reading(every="1d", since="2027-01-01"))
    with pytest.raises(UserError, match="write a time such as"):
        Reading(since="yesterday")


def test_a_database_with_several_tables(tmp_path: Path) -> None:
    as_sqlite(tmp_path / "log.db")
    with sqlite3.connect(tmp_path / "log.db") as database:
        database.execute("CREATE TABLE other (x INTEGER)")
    database.close()
    with pytest.raises(UserError, match=r"tables log, other: name the one of the log \(--table\)"):
        read_fleet(tmp_path / "log.db")
    with pytest.raises(UserError, match="no table 'lgo': did you mean 'log'"):
        read_fleet(tmp_path / "log.db", Reading(table="lgo"))
    assert len(read_fleet(tmp_path / "log.db", Reading(table="log")).rows()) == len(ROWS)


@pytest.mark.parametrize("begins", [b"PAR1", b"SQLite format 3\0", b"12345678DUCK", b'{"round": 1,'])
def test_a_broken_file_is_named(tmp_path: Path, begins: bytes) -> None:
    (tmp_path / "log").write_bytes(begins + b"\x00" * 200)
    with pytest.raises(UserError, match=r"begins like a .* but cannot be read"):
        open_table(tmp_path / "log").read()


FLOWER = """INFO flwr 2026-03-01 10:00:00,138 | fleet_handlers.py:128 | [Fleet.ActivateNode] Activated node_id=11
INFO flwr 2026-03-01 10:00:01,138 | fleet_handlers.py:128 | [Fleet.ActivateNode] Activated node_id=12
INFO flwr 2026-03-01 10:05:08,101 | fleet_handlers.py:254 | [Fleet.PushMessages] Push replies from node_id=11
INFO flwr 2026-03-01 10:15:08,101 | fleet_handlers.py:254 | [Fleet.PushMessages] Push replies from node_id=12
INFO flwr 2026-03-01 10:30:00,000 | fleet_handlers.py:147 | [Fleet.DeactivateNode] Deactivated node_id=12
"""  # as a SuperLink of flwr 1.41 writes it


def test_a_log_of_flower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = FLOWER.splitlines(keepends=True)
    (tmp_path / "superlink.log").write_text("".join(lines[3:]))
    (tmp_path / "superlink.log.2026-03-01_10").write_text("".join(lines[:3]))  # rotated
    log = read_fleet(tmp_path, Reading(source="flower", every="10min"))
    assert log.rows() == [(0, "11", 1.0), (1, "12", 1.0)]
    (tmp_path / "superlink.log").write_text("".join(lines[4:]))
    (tmp_path / "superlink.log.2026-03-01_10").write_text("".join(lines[:2]))
    stays = read_fleet(tmp_path, Reading(source="flower", every="10min"))
    assert [name for _, name, _ in stays.rows()] == ["11", "12"] * 3
    assert main(["fleet", str(tmp_path), "--from", "flower", "--every", "10min"]) == 0
    assert "ActivateNode to DeactivateNode" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "superlink.log.2026-03-01_10").write_text("INFO :      [ROUND 1/3]\n")
    (tmp_path / "superlink.log").write_text("")
    with pytest.raises(UserError, match="start flower-superlink with --log-file FILE"):
        read_fleet(tmp_path, Reading(source="flower"))
    with pytest.raises(UserError, match="did you mean 'flower'"):
        Reading(source="flwr")  # type: ignore[arg-type]


NVFLARE = """2026-03-01 10:00:00,310 - FedAvg - INFO - [run=1] - ---- Round 0 started. ----
2026-03-01 10:00:00,311 - FedAvg - INFO - [run=1] - Sampled clients: ['site-1', 'site-2']
2026-03-01 10:01:00,000 - ServerRunner - INFO - [run=1] - got result from client site-1 for task: name=train, id=7b
2026-03-01 10:05:00,310 - ScatterAndGather - INFO - [run=1] - Round 1 started.
2026-03-01 10:06:00,310 - ScatterAndGather - INFO - Contribution from site-2 ACCEPTED by the aggregator at round 1.
2026-03-01 10:06:01,310 - ScatterAndGather - INFO - Contribution from site-3 REJECTED by the aggregator at round 1.
"""


def test_a_log_of_nvflare(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(NVFLARE)
    log = read_fleet(tmp_path / "log.txt", Reading(source="nvflare"))
    assert log.rows() == [(0, "site-1", 1.0), (0, "site-2", 0.0), (1, "site-2", 1.0), (1, "site-3", 0.0)]
    assert log.every == 300


def test_a_trace_of_flash(tmp_path: Path) -> None:
    """There while locked, charging and on Wi-Fi: 22:10 to 23:40 for a, and for b to the end of its trace."""
    a = "2020-02-01 22:00:00\twifi\n2020-02-01 22:05:00\tscreen_lock\n2020-02-01 22:10:00\tbattery_charged_on\n"
    a += "2020-02-01 22:20:00\t81.0%\n2020-02-01 23:40:00\tUnknown\n"
    b = "2020-02-01 22:00:00\twifi\n2020-02-01 22:00:00\tbattery_charged_on\n2020-02-01 23:00:00\tscreen_lock\n"
    b += "2020-02-01 23:30:00\tscreen_off\n"
    (tmp_path / "trace.json").write_text(json.dumps({"a": {"messages": a, "model": "x"}, "b": {"messages": b}}))
    log = read_fleet(tmp_path / "trace.json", Reading(every="1h"))
    works = {(t, name): work for t, name, work in log.rows()}
    assert works == pytest.approx({(0, "a"): 50 / 60, (1, "a"): 40 / 60, (1, "b"): 0.5})
    (tmp_path / "trace.json").write_text(json.dumps({"a": {"messages": "yesterday\twifi\n"}}))
    with pytest.raises(UserError, match="entry 1: a message of device a begins with 'yesterday'"):
        read_fleet(tmp_path / "trace.json")
