"""Compiled kernels in the cache folder are loaded only if they are whole and ours; and what a run that goes on does
without them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from turnout.cli import main
from turnout.engine.kernels import native
from turnout.machine import compiler
from turnout.machine.checksums import is_whole
from turnout.machine.compiler import Unavailable, compiled, function, trouble

Capture = pytest.CaptureFixture[str]
SOURCE = "#include <stdint.h>\nint64_t twice(int64_t n) { return 2 * n; }\n"
SMALL = """
rounds = 2
[world]
data = {kind = "synthetic", clients = 6, sizes = {kind = "pareto", cap = 30}}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def _anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Functions that are asked for anew."""
    monkeypatch.setattr(compiler, "_trouble", {})
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "twice.c").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    function.cache_clear()
    yield
    function.cache_clear()


def twice() -> object:
    function.cache_clear()
    found = function(Path("twice.c"), "twice", (compiler.whole,))
    return None if found is None else found(21)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("damaged", [lambda own: own[:0], lambda own: own[:5000], lambda own: own[:-1] + b"?"])
def test_a_damaged_library_is_compiled_anew(damaged: Callable[[bytes], bytes]) -> None:
    """Loaded, a truncated one would end the process with a bus error."""
    path = compiled(Path("twice.c"))
    path.write_bytes(damaged(path.read_bytes()))
    assert not is_whole(path)
    assert twice() == 42
    assert is_whole(path)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("others", [0o020, 0o002])
@pytest.mark.parametrize("folder", [False, True])
def test_what_others_could_have_written_is_not_loaded(folder: bool, others: int) -> None:
    """Also if only this user's own group could have: its members may be other users."""
    path = compiled(Path("twice.c"))
    place = path.parent if folder else path
    assert not place.stat().st_mode & 0o022
    place.chmod(0o755 | others)
    assert twice() is None
    assert f"{place} belongs to another user or can be written by others, so it is not loaded" in str(trouble())
    place.chmod(0o755)
    assert twice() == 42


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("folder", [False, True])
def test_what_belongs_to_another_user_is_not_loaded(folder: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compiled(Path("twice.c"))
    if os.geteuid():
        monkeypatch.setattr("os.geteuid", lambda: 12345)
    else:
        os.chown(path.parent if folder else path, 12345, -1)
    assert twice() is None
    assert "belongs to another user" in str(trouble())


def test_a_compiler_that_hangs_is_not_waited_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = cache / "slow-cc"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CC", str(slow))
    monkeypatch.setattr(compiler, "COMPILE_SECONDS", 0.2)
    assert twice() is None
    assert "slow-cc did not answer in 0 s" in str(trouble())
    with pytest.raises(Unavailable, match="did not answer"):
        compiled(Path("twice.c"))


def test_a_compiler_that_does_not_know_this_processor_compiles_for_any(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "clang: error: the clang compiler does not support '-march=native'"
    plain = cache / "plain-cc"
    plain.write_text(f'#!/bin/sh\ncase "$*" in *-march=native*) echo "{words}" >&2; exit 1;; esac\nexec cc "$@"\n')
    plain.chmod(0o755)
    monkeypatch.setenv("CC", str(plain))
    assert twice() == 42
    assert trouble() is None


def test_a_run_says_which_engine_it_has_and_goes_on_with_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    if native.train_function(torch.float32) is None and "the cache folder cannot be used" in str(trouble()):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # a home folder that cannot be written
        function.cache_clear()
        compiler._trouble.clear()
    if native.train_function(torch.float32) is None:
        pytest.fail("this test needs a C compiler")
    assert main(["run", "small.toml", "--out", "out", "--set", "runtime.device=cpu"]) == 0
    assert "native engine on cpu" in capsys.readouterr().err
    more = ["run", "--out", "out", "--resume", "--set", "rounds=3"]
    with monkeypatch.context() as patch:
        patch.setenv("CC", "no-such-compiler")
        patch.setenv("PATH", "")
        function.cache_clear()
        assert main([*more, "-q"]) == 2
        err = capsys.readouterr().err
        assert "native engine on cpu" in err
        assert "by hand engine" in err
        assert "no C compiler" in err
        assert "--other-engine" in err
        assert main([*more, "--other-engine"]) == 0
        assert "by-hand engine (no C compiler: cc, gcc, clang or $CC) on cpu" in capsys.readouterr().err
    function.cache_clear()
    compiler._trouble.clear()
    assert main(["run", "--out", "out", "--resume", "--set", "rounds=4"]) == 0  # a compiler again, and it is not used
    assert "by-hand engine on cpu" in capsys.readouterr().err
