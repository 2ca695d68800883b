"""Runs side by side share the memory that is free: a run that does not fit beside the others waits for one to end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import turnout as to
from same_rows import same
from turnout.machine.lock import holder_of
from turnout.running.display import Began, Ended, Failed, Message, Note
from turnout.running.folder import LOCK_FILE
from turnout.running.memory import GO_ON, LOOK_AGAIN, Need, Room
from turnout.running.messages import RunPlace, in_order
from turnout.running.side_by_side import side_by_side
from turnout.running.state import is_held, state_of
from turnout.running.tracks.prepare import prepare

PATIENCE = 120.0  # seconds until a run that nobody lets go on is a failure


def need(whole: int, free: int | None, there: int = 0) -> Need:
    return Need("cpu", whole, there, free)


def looked(room: Room, name: str, seen: Need) -> list[tuple[str, bool]]:
    """What is said once a run that is told to look again has done so."""
    assert list(room.words()) == [(name, LOOK_AGAIN)]
    room.asks(name, seen)
    return list(room.words())


def begun(room: Room, name: str, seen: Need) -> None:
    room.asks(name, seen)
    assert looked(room, name, seen)[0] == (name, GO_ON)


def test_what_others_have_taken_is_not_counted_twice() -> None:
    """As on a GPU with 42 GB, where the fourth to tenth of ten runs of 4 GB were refused once others were at work."""
    room = Room()
    for i in range(10):
        begun(room, f"run {i}", need(4, free=42 - 4 * i))
    room.asks("late", need(4, free=2))
    assert looked(room, "late", need(4, free=2)) == []
    assert room.waits() == "late"
    room.left("run 3")
    assert looked(room, "late", need(4, free=6)) == [("late", GO_ON)]
    assert room.waits() is None


def test_what_others_will_still_take_is_not_given_away() -> None:
    room = Room()
    begun(room, "a", need(6, free=10))
    room.asks("b", need(6, free=10))  # "a" has not taken anything yet
    assert looked(room, "b", need(6, free=10)) == []
    room.left("a")
    assert looked(room, "b", need(6, free=10)) == [("b", GO_ON)]


def test_what_somebody_else_has_taken_is_not_there() -> None:
    room = Room()
    begun(room, "a", need(2, free=10))
    room.asks("b", need(6, free=3))
    assert looked(room, "b", need(6, free=3)) == []


def test_data_is_in_memory_when_it_is_seen_what_is_free() -> None:
    """Three runs of 5, of which 3 are data: all their data leave 6 of 15, and each takes 2 more."""
    room, seen = Room(), need(5, free=6, there=3)
    begun(room, "a", seen)  # when nobody knows yet what part of the 9 that are not free is other runs' data
    room.asks("b", seen)
    room.asks("c", seen)
    assert looked(room, "b", seen) == [("b", GO_ON), ("c", LOOK_AGAIN)]
    room.asks("c", need(5, free=4, there=3))
    assert list(room.words()) == [("c", GO_ON)]


def test_data_of_those_who_wait_is_counted() -> None:
    room = Room()
    begun(room, "a", need(5, free=12))
    room.asks("b", need(6, free=12))
    room.asks("c", need(4, free=9, there=3))
    assert looked(room, "b", need(6, free=9)) == []  # 5 and 6 and the 3 of the last are more than 12
    room.left("c")
    assert looked(room, "b", need(6, free=12)) == [("b", GO_ON)]


def test_nobody_overtakes() -> None:
    room = Room()
    begun(room, "a", need(8, free=10))
    room.asks("large", need(9, free=2))
    assert looked(room, "large", need(9, free=2)) == []
    room.asks("small", need(1, free=2))
    assert looked(room, "large", need(9, free=2)) == []
    room.left("a")
    assert looked(room, "large", need(9, free=10)) == [("large", GO_ON), ("small", LOOK_AGAIN)]


def test_who_is_alone_goes_on_whatever_it_needs_and_says_itself_that_it_does_not_fit() -> None:
    room = Room()
    begun(room, "a", need(99, free=10))
    room.asks("b", need(1, free=10))
    assert looked(room, "b", need(1, free=10)) == []
    room.left("a")
    assert looked(room, "b", need(1, free=10)) == [("b", GO_ON)]


def test_what_is_free_is_seen_anew_when_nobody_is_at_work() -> None:
    room = Room()
    begun(room, "a", need(4, free=100))
    room.left("a")
    begun(room, "b", need(4, free=10))  # somebody else has taken the rest
    begun(room, "c", need(4, free=10))
    room.asks("d", need(4, free=10))
    assert looked(room, "d", need(4, free=10)) == []


def test_what_was_seen_before_something_was_freed_does_not_count() -> None:
    """An answer may be on its way while another run ends."""
    room = Room()
    begun(room, "a", need(8, free=10))
    room.asks("b", need(8, free=2))
    assert list(room.words()) == [("b", LOOK_AGAIN)]
    room.left("a")
    assert list(room.words()) == []
    room.asks("b", need(8, free=2))
    assert looked(room, "b", need(8, free=10)) == [("b", GO_ON)]


def test_who_ends_while_it_waits_or_looks_holds_up_nobody() -> None:
    room = Room()
    begun(room, "a", need(8, free=10))
    for name in "bcd":
        room.asks(name, need(8, free=2))
    assert list(room.words()) == [("b", LOOK_AGAIN)]
    room.left("c")
    room.left("b")
    assert looked(room, "d", need(8, free=2)) == []
    room.left("a")
    assert looked(room, "d", need(8, free=10)) == [("d", GO_ON)]


def test_where_nobody_knows_what_is_free_nobody_waits() -> None:
    room = Room()
    for name in "abc":
        begun(room, name, need(10**15, free=None))


# -- real processes


@pytest.fixture(autouse=True)
def not_for_ever() -> Iterator[None]:
    """A pool in which nobody goes on is a failure."""

    def give_up(*_: object) -> None:
        raise TimeoutError("runs wait for ever")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(int(2 * PATIENCE))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def waiting(folder: Path, lr: float, clock: int) -> float:
    """A learning rate that is there once somebody lets the runs go on."""
    end = time.monotonic() + PATIENCE
    while not (folder / "go").exists():
        if time.monotonic() > end:
            raise TimeoutError("nobody let it go on")
        time.sleep(0.01)
    return lr


def wrong(folder: Path, lr: float, clock: int) -> float:
    waiting(folder, lr, clock)
    raise to.UserError("it cannot go on")


def raising(folder: Path, lr: float, clock: int) -> float:
    waiting(folder, lr, clock)
    raise KeyError("no rate")


def digits(schedule: Callable[[float, int], float]) -> to.Experiment:
    local = to.Local(to.SGD(lr=0.1), epochs=1, batch_size=10, schedule=to.schedules.Custom(schedule))
    world = to.World(to.data.Digits(clients=10))
    return to.Experiment(world, to.models.MLP(8), algorithm=to.Algorithm(local), rounds=2).but(
        runtime=to.runtime.InProcess(device="cpu", threads=1)
    )


def bytes_for(runs: float, folder: Path) -> int:
    """Memory for so many runs at a time."""
    estimate = prepare(digits(partial(waiting, folder))).memory()
    return int(runs * sum(count for name, count in estimate.items() if name != "client state"))


def heard(messages: Iterator[Message], allowed: int, then: Callable[[str, list[str]], object]) -> list[Message]:
    """All messages; once so many are at work and another waits, `then` is called with that one's name and theirs."""
    found: list[Message] = []
    called = False
    for message in messages:
        found.append(message)
        if not called and notes(found) and len(activity(found)) == allowed:
            called = True
            then(notes(found)[0].name, activity(found))
    assert called
    return found


def notes(messages: list[Message]) -> list[Note]:
    return [message for message in messages if isinstance(message, Note)]


def activity(messages: list[Message]) -> list[str]:
    ended = {message.name for message in messages if isinstance(message, Ended | Failed)}
    return [message.name for message in messages if isinstance(message, Began) and message.name not in ended]


def most_at_work(messages: list[Message]) -> int:
    return max(len(activity(messages[:i])) for i in range(len(messages) + 1))


def ended(messages: list[Message]) -> set[str]:
    return {message.name for message in messages if isinstance(message, Ended)}


def places(folder: Path, names: str) -> dict[str, RunPlace]:
    return {name: RunPlace(name, folder / name, threads=1, side_by_side=3) for name in names}


def killed(folder: Path) -> None:
    holder = holder_of(folder / LOCK_FILE)
    assert holder is not None
    os.kill(holder.process, signal.SIGKILL)


def test_as_many_are_at_work_as_fit_and_all_end_as_one_after_another(tmp_path: Path) -> None:
    experiment, go = digits(partial(waiting, tmp_path)), tmp_path / "go"
    work = [(experiment, place) for place in places(tmp_path / "some", "abcdef").values()]
    found = heard(side_by_side(work, 3, bytes_for(2.5, tmp_path)), 2, lambda waits, busy: go.touch())
    assert ended(found) == set("abcdef")
    assert most_at_work(found) == 2
    assert [note.words for note in notes(found)] == [
        "waits for memory until one of the 2 runs at work has ended: there is not enough for 3 at a time"
    ]
    alone = list(in_order([(experiment, place) for place in places(tmp_path / "one", "a").values()]))
    assert ended(alone) == {"a"}
    for name in "abcdef":
        assert same(*(tmp_path / part / "records.sqlite" for part in (f"some/{name}", "one/a"))) == []


@pytest.mark.parametrize("bad", [wrong, raising])
def test_one_that_fails_on_the_way_leaves_its_memory_to_the_next(bad: Callable[..., float], tmp_path: Path) -> None:
    one_by_one = bytes_for(1.5, tmp_path)
    work = [(digits(partial(bad, tmp_path)), place) for place in places(tmp_path, "abc").values()]
    work += [(digits(partial(waiting, tmp_path)), place) for place in places(tmp_path, "de").values()]
    found = heard(side_by_side(work, 3, one_by_one), 1, lambda waits, busy: (tmp_path / "go").touch())
    assert {message.name for message in found if isinstance(message, Failed)} == set("abc")
    assert ended(found) == set("de")
    assert most_at_work(found) == 1


@pytest.mark.parametrize("whom", ["the one at work", "the one that waits"])
def test_a_killed_one_leaves_its_memory_to_the_next(whom: str, tmp_path: Path) -> None:
    one_by_one, lost = bytes_for(1.5, tmp_path), list[str]()

    def kill(waits: str, busy: list[str]) -> None:
        lost.append(waits if whom == "the one that waits" else busy[0])
        killed(tmp_path / lost[0])
        (tmp_path / "go").touch()

    work = [(digits(partial(waiting, tmp_path)), place) for place in places(tmp_path, "abcd").values()]
    found = heard(side_by_side(work, 3, one_by_one), 1, kill)
    failed = [message for message in found if isinstance(message, Failed)]
    assert [message.name for message in failed] == lost
    assert "ended from outside" in failed[0].why
    assert ended(found) == set("abcd") - set(lost)
    assert most_at_work(found) == 1


def test_who_stops_listening_ends_those_that_wait_too(tmp_path: Path) -> None:
    work = [(digits(partial(waiting, tmp_path)), place) for place in places(tmp_path, "abc").values()]
    messages = side_by_side(work, 3, bytes_for(1.5, tmp_path))
    assert any(isinstance(message, Note) for message in messages)
    messages.close()
    assert not any(is_held(tmp_path / name) for name in "abc")


def test_one_that_is_too_large_alone_fails_and_the_others_end(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    experiment = digits(partial(waiting, tmp_path))
    data = to.data.Synthetic(clients=50_000, sizes=to.data.Pareto(cap=40))
    huge = experiment.but(**{"world.data": data, "model": to.models.MLP(3000, 3000, 3000)})
    settings = [huge if name == "b" else experiment for name in "abcd"]
    found = list(side_by_side(list(zip(settings, places(tmp_path, "abcd").values(), strict=True)), 3))
    (failed,) = [message for message in found if isinstance(message, Failed)]
    assert (failed.name, failed.mistake, failed.began) == ("b", True, False)
    assert "this run needs about " in failed.why
    assert "are free here: ask fewer clients a round" in failed.why
    assert ended(found) == set("acd")
    assert state_of(tmp_path / "d").state == "finished"
