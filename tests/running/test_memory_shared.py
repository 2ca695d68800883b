"""Runs side by side: as many at a time as fit into memory by the first one's estimate; others wait for them to end."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

import turnout as to
from same_rows import same
from turnout.running import side_by_side as pool
from turnout.running.messages import Began, Ended, Failed, Message, Note, RunPlace, in_order
from turnout.running.side_by_side import at_a_time, side_by_side
from turnout.running.state import is_held, state_of


def digits() -> to.Experiment:
    local = to.Local(to.SGD(lr=0.1), epochs=1, batch_size=10)
    world = to.World(to.data.Digits(clients=10))
    return to.Experiment(world, to.models.MLP(8), algorithm=to.Algorithm(local), rounds=2).but(
        runtime=to.runtime.InProcess(device="cpu", threads=1)
    )


def places(folder: Path, names: str) -> dict[str, RunPlace]:
    return {name: RunPlace(name, folder / name, threads=1) for name in names}


def most_at_work(messages: list[Message]) -> int:
    began = [sum(isinstance(m, Began) for m in messages[:i]) for i in range(len(messages) + 1)]
    gone = [sum(isinstance(m, Ended | Failed) for m in messages[:i]) for i in range(len(messages) + 1)]
    return max(b - g for b, g in zip(began, gone, strict=True))


def test_runs_at_a_time_are_those_that_fit_and_at_least_one() -> None:
    assert [at_a_time(4, Began("a", 1, 0, "", alike)) for alike in (None, 0, 2, 9)] == [4, 1, 2, 4]


def test_as_many_are_at_work_as_fit_and_all_end_as_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "at_a_time", lambda jobs, first: 2)
    found = list(side_by_side([(digits(), place) for place in places(tmp_path / "some", "abcdef").values()], 3))
    assert {message.name for message in found if isinstance(message, Ended)} == set("abcdef")
    assert most_at_work(found) <= 2
    assert [note.words for note in found if isinstance(note, Note)] == [
        "2 runs at a time: there is not enough memory for 3"
    ]
    list(in_order([(digits(), place) for place in places(tmp_path / "one", "a").values()]))
    for name in "abcdef":
        assert same(*(tmp_path / part / "records.sqlite" for part in (f"some/{name}", "one/a"))) == []


def test_a_caller_that_stops_early_leaves_no_process(tmp_path: Path) -> None:
    messages = side_by_side([(digits().but(rounds=10_000), place) for place in places(tmp_path, "abc").values()], 3)
    assert any(isinstance(message, Began) for message in messages)
    messages.close()  # type: ignore[attr-defined]
    assert not any(is_held(tmp_path / name) for name in "abc")


def running_out(tried: Path, how: str, lr: float, clock: int) -> float:
    """A schedule that runs out of memory in the second round, once."""
    if clock == 1 and not tried.exists():
        tried.touch()
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError
    return lr


def after(tried: Path, lr: float, clock: int) -> float:
    """A schedule that waits until the other run has run out of memory."""
    while not tried.exists() or is_held(tried.parent / "b"):
        time.sleep(0.01)
    return lr


@pytest.mark.parametrize("how", ["raises", "killed"])
def test_one_that_runs_out_of_memory_beside_others_is_run_again_when_they_have_ended(how: str, tmp_path: Path) -> None:
    small, large = (
        digits().but(rounds=100, **{"algorithm.local.schedule": to.schedules.Custom(schedule)})
        for schedule in (partial(after, tmp_path / "tried"), partial(running_out, tmp_path / "tried", how))
    )
    found = list(side_by_side(list(zip([small, large, small], places(tmp_path, "abc").values(), strict=True)), 3))
    assert not [message for message in found if isinstance(message, Failed)]
    ended = [message.name for message in found if isinstance(message, Ended)]
    assert (set(ended), ended[-1]) == (set("abc"), "b")
    assert [note.words for note in found if isinstance(note, Note)] == [
        "waits for the other runs to end: there is not enough memory beside them"
    ]


def test_one_that_is_too_large_fails_and_the_others_end(tmp_path: Path) -> None:
    data = to.data.Synthetic(clients=50_000, sizes=to.data.Pareto(cap=40))
    huge = digits().but(**{"world.data": data, "model": to.models.MLP(3000, 3000, 3000)})
    settings = [huge if name == "b" else digits() for name in "abcd"]
    found = list(side_by_side(list(zip(settings, places(tmp_path, "abcd").values(), strict=True)), 3))
    (failed,) = [message for message in found if isinstance(message, Failed)]
    assert (failed.name, failed.mistake, failed.began) == ("b", True, False)
    assert "this run needs about " in failed.why
    assert "are free here: run fewer side by side (--jobs 1), ask fewer clients a round" in failed.why
    assert {message.name for message in found if isinstance(message, Ended)} == set("acd")
    assert state_of(tmp_path / "d").state == "finished"
