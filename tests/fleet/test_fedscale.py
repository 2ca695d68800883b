"""FedScale's traces: read without unpickling; what a device finishes while it is there."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from turnout.errors import UserError
from turnout.fleet import Reading, read_fleet
from turnout.fleet.fedscale import plain_data

HOUR = 3600
BEHAVE = {
    1: {"duration": 1, "active": [0, 2 * HOUR], "inactive": [HOUR, 4 * HOUR], "finish_time": 4 * HOUR, "model": "A"},
    2: {"duration": 1, "active": [HOUR], "inactive": [HOUR // 2], "finish_time": 2 * HOUR, "model": "B"},
}


def pickled(path: Path, data: Any, protocol: int = 2) -> Path:
    path.write_bytes(pickle.dumps(data, protocol))
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    same = [1, 2]
    data = {
        "a": [1, -7, 2**40, 0.5, None, True],
        "é": {"x": (1,), "y": (1, 2, 3, 4), "z": ()},
        3: [same, same],
        "b": "b",
    }
    assert plain_data(pickled(tmp_path / "p", data, protocol)) == data


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_code_is_refused_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"mkdir, which could run code"):
        read_fleet(pickled(tmp_path / "p", {1: Evil()}, protocol), Reading(every="1h"))
    assert not Path("ran").exists()


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    whole = pickle.dumps(BEHAVE, 2)
    for broken in (
        whole[: len(whole) // 2],
        b"\x80\x02a.",
        b"\x80\x02]K\x01u.",
        b"\x80\x04\x8d" + b"\xff" * 7 + b"\x1f.",
    ):
        (tmp_path / "p").write_bytes(broken)
        with pytest.raises(UserError, match="complete pickle file"):
            read_fleet(tmp_path / "p")


def test_availability_becomes_rounds(tmp_path: Path) -> None:
    """Client 2 is there until 0:30 and from 1:00 on, and its two hours come again."""
    fleet = read_fleet(pickled(tmp_path / "p", BEHAVE), Reading(every="1h"))
    works = {(t, name): work for t, name, work in fleet.rows()}
    one = {(0, "1"): 1.0, (2, "1"): 1.0, (3, "1"): 1.0}
    assert works == one | {(0, "2"): 0.5, (1, "2"): 1.0, (2, "2"): 0.5, (3, "2"): 1.0}
    assert (fleet.rounds, fleet.is_calendar, fleet.missing) == (4, False, "absent")


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    for data, says in (
        ([1, 2], "not a FedScale trace"),
        ({1: {"active": []}}, "client 1: a trace of availability has .* no inactive, finish_time"),
        ({1: BEHAVE[1] | {"finish_time": 0}}, "entry 1: finish_time of client 1 must be a number above 0"),
        ({1: BEHAVE[1] | {"active": ["x"]}}, "active of client 1 must be a list of seconds"),
    ):
        with pytest.raises(UserError, match=says):
            read_fleet(pickled(tmp_path / "p", data))
