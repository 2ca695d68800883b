"""This computer: files in one step, the lock of a folder, ordered threads, the stopwatch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from turnout.engine.kernels import native
from turnout.errors import UserError
from turnout.machine.compiler import Unavailable, compiled
from turnout.machine.files import replacing, write_whole
from turnout.machine.profiling import Stopwatch, stage, staged
from turnout.machine.threads import ordered_map
from turnout.running import folder as folders
from turnout.running.config.dotted import usual_code
from turnout.running.folder import contents, held, refuse_full

# -- files


def test_a_file_is_replaced_by_text_or_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content, expected in (("old ±\n", "old ±\n".encode()), (b"\x00new", b"\x00new")):
        write_whole(path, content)
        assert path.read_bytes() == expected
    assert [found.name for found in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("shared", [False, True])
def test_an_error_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException], shared: bool
) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "old")

    def interrupted() -> None:
        with replacing(path, shared) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "a.txt", "text")


# -- the lock

HOLD = """
import sys, time
from pathlib import Path
from turnout.running.folder import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_holder_leaves_nothing_that_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LOCK_SECONDS", 0.2)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"is running in {tmp_path}, process {holder.pid} on"), held(tmp_path):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    for _ in range(2):  # and it can be taken again by who has let it go
        with held(tmp_path):
            pass


def test_the_lock_waits_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LOCK_SECONDS", 30.0)
    entered, done = threading.Event(), []

    def first() -> None:
        with held(tmp_path):
            entered.set()
            time.sleep(0.3)
            done.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with held(tmp_path):
        done.append("second")
    thread.join()
    assert done == ["first", "second"]


def test_a_folder_with_nothing_but_its_lock_is_empty(tmp_path: Path) -> None:
    with held(tmp_path):
        pass
    assert contents(tmp_path) == []
    refuse_full(tmp_path, resume=False)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UserError, match="is not empty"):
        refuse_full(tmp_path, resume=False)
    with pytest.raises(UserError, match=r"notes\.txt"):
        refuse_full(tmp_path, resume=True)


# -- threads


def test_results_come_in_order_and_few_are_pending() -> None:
    begun: list[int] = []

    def work(n: int) -> int:
        begun.append(n)
        time.sleep(0.02 if n == 0 else 0.0)
        return n

    found = ordered_map(work, range(50), threads=3)
    assert next(found) == 0
    assert len(begun) <= 4  # one more than there are threads
    assert list(found) == list(range(1, 50))


def test_an_error_in_a_thread_is_raised_where_its_result_is_due() -> None:
    found = ordered_map(lambda n: 1 // n, [1, 0, 1], threads=2)
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)


# -- the clock


def test_a_stage_within_another_stops_the_others_time() -> None:
    watch, start = Stopwatch(), time.perf_counter()
    with watch.running("rest"):
        time.sleep(0.02)
        with stage("outer"):
            with stage("inner"):
                time.sleep(0.03)
            with stage("inner"):
                time.sleep(0.03)
    wall = time.perf_counter() - start
    assert watch.seconds["rest"] >= 0.02
    assert watch.seconds["inner"] >= 0.06
    assert sum(watch.seconds.values()) <= wall


def test_a_function_can_be_a_stage() -> None:
    @staged("work")
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    watch = Stopwatch()
    assert double(1) == 2
    with watch.running("rest"):
        assert double(number=3) == 6
    assert sorted(watch.seconds) == ["rest", "work"]
    assert double.__doc__ == "Twice the number."


def test_stages_count_only_in_the_thread_and_the_block_of_a_running_stopwatch() -> None:
    watch = Stopwatch()
    with stage("before"):
        pass

    def elsewhere() -> None:
        with stage("in another thread"):
            pass

    start = time.perf_counter()
    with ThreadPoolExecutor(1) as pool, watch.running("rest"):
        pool.submit(elsewhere).result()
    time.sleep(0.05)
    with pytest.raises(ValueError), watch.running("rest"), stage("failing"):
        raise ValueError
    assert watch.seconds.keys() == {"rest", "failing"}
    assert sum(watch.seconds.values()) <= time.perf_counter() - start - 0.05  # not what went by between the blocks


# -- products

ALIGNMENTS = """
import turnout, torch
torch.manual_seed(0)
torch.set_num_threads(1)
for batch, m, k, n in [(1, 1, 60, 10), (3, 5, 17, 62), (8, 20, 200, 10)]:
    x, y = torch.randn(batch, m, k), torch.randn(batch, n, k)
    def shifted(value, by):
        return torch.empty(value.numel() + 32)[by : by + value.numel()].copy_(value.flatten()).view(value.shape)
    products = {torch.bmm(shifted(x, by), shifted(y, by).mT).numpy().tobytes() for by in range(32)}
    print(len(products))
"""


def test_a_product_does_not_depend_on_where_its_operands_lie_in_memory() -> None:
    """Without MKL_CBWR these give four results each on an AMD EPYC."""
    env = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    done = subprocess.run([sys.executable, "-c", ALIGNMENTS], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.split() == ["1", "1", "1"]


@pytest.mark.parametrize("home", [None, "/dev/null"])  # a user without a home folder, as services have one
def test_without_a_home_folder_files_are_read_and_the_reason_for_slower_kernels_is_given(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if home is None:
        monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    else:
        monkeypatch.setenv("HOME", home)
    monkeypatch.chdir(tmp_path)
    theirs = tmp_path / "~" / ".config" / "turnout" / "config.toml"  # of a stranger, in the current folder
    theirs.parent.mkdir(parents=True)
    theirs.write_text('allow = ["os"]\n')
    assert usual_code().allow == frozenset()
    with pytest.raises(Unavailable, match="the cache folder cannot be used"):
        compiled(native.SOURCE)
