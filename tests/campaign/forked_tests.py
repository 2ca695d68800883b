"""Pytest in a copy of the tree, in a fork of this process."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def warm_up() -> None:
    """Import what most tests wait for, before the forks; never the program itself, whose text changes."""
    os.environ.setdefault("MKL_CBWR", "AUTO")  # as `import turnout` sets it, before torch is loaded
    for module in ("torch", "scipy.stats", "pandas"):
        importlib.import_module(module)


class Tracer:
    """Pytest plugin: writes the lines of the program that each test executes; those of a wider fixture once a file."""

    def __init__(self, tree: Path, out: Path) -> None:
        self.prefix, self.file = f"{tree}/src/turnout/", out.open("a")
        self.hits: set[tuple[str, int]] = set()
        self.bad: set[str] = set()

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if (
            not code.co_filename.startswith(self.prefix) or not code.co_flags & 1
        ):  # 1: a function, not a module or class
            return None
        if event == "line":
            self.hits.add((code.co_filename, frame.f_lineno))
        return self

    def write(self, test: str, seconds: float) -> None:
        lines: dict[str, list[int]] = {}
        for path, line in self.hits:
            lines.setdefault(path.removeprefix(self.prefix), []).append(line)
        self.hits = set()
        if test not in self.bad:
            self.file.write(json.dumps({"test": test, "seconds": round(seconds, 3), "lines": lines}) + "\n")
            self.file.flush()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        before, self.hits = self.hits, set()
        try:
            return (yield)
        finally:
            if fixturedef.scope == "function":
                self.hits |= before
            else:
                self.write(request.node.nodeid.split("::")[0], 0.0)
                self.hits = before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        self.hits, begin = set(), time.monotonic()  # without what ran while files were imported
        try:
            return (yield)
        finally:
            self.write(item.nodeid, time.monotonic() - begin)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.passed:
            self.bad.add(report.nodeid)


class First:
    """Pytest plugin: writes the first test that fails."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.out.exists():
            self.out.write_text(report.nodeid)


def pytest_here(tree: Path, arguments: list[str], plugin: Any) -> int:
    places = [str(tree / "src"), str(tree / "papers")]
    sys.path[:0] = places
    os.environ.update(PYTHONPATH=os.pathsep.join(places), PYTHONDONTWRITEBYTECODE="1")
    if isinstance(plugin, Tracer):
        threading.settrace(plugin)
        sys.settrace(plugin)
    quiet = ["-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={tree.parent / 'tmp'}"]
    return int(pytest.main([*quiet, *arguments], plugins=[plugin]))


def forked(tree: Path, arguments: list[str], plugin: Callable[[], Any], limit: float) -> int | None:
    """Exit status of pytest in a copy of the tree; None when it ran past the limit."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.setsid()
            os.chdir(tree)
            log = os.open(tree.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            status = pytest_here(tree, arguments, plugin())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    end = time.monotonic() + limit
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid or time.monotonic() > end:
            break
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # also what its tests have left running
    if not pid:
        os.waitpid(child, 0)
        return None
    return os.waitstatus_to_exitcode(status)


def copied(folder: Path) -> Path:
    """A copy of the tree with compiled files that are valid by content: a mutant never meets its original's."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(lambda name: (ROOT / name).is_file(), names.stdout.decode().splitlines()):
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / "tree" / name)
    compiled = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "src"]
    subprocess.run([sys.executable, *compiled], cwd=folder / "tree", check=True)
    return folder / "tree"
