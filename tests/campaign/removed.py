"""Does the core work without the satellites and the papers? Tests of the core in a copy from which one of them is gone.

    python tests/campaign/removed.py                     each in turn, with all tests of the core
    python tests/campaign/removed.py view papers --tests tests/test_round.py

A test file that imports what was removed is about both, and is left out; the output names how many.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SATELLITES = ("scores", "fleet", "view", "deploy", "testing", "papers")
OF_SATELLITES = {*SATELLITES, "cli", "system", "campaign", "support"}  # folders of tests that are not the core's
NOT_INSTALLED = """
import importlib.metadata as metadata, sys
found = metadata.distributions
metadata.distributions = lambda **which: [one for one in found(**which) if one.name != "turnout-papers"]
sys.modules["turnout_papers"] = None
"""  # the start-up module of a Python that has the papers installed, as if it had not
STARTUP = "sitecustomize"


def core_tests(tests: Path) -> list[Path]:
    return [path for path in sorted(tests.rglob("test_*.py")) if path.relative_to(tests).parts[0] not in OF_SATELLITES]


def about(room: str, path: Path, support: Path) -> bool:
    """Whether a test, or a helper that it imports, names the room."""
    text = path.read_text(encoding="utf-8")
    named = "turnout_papers" if room == "papers" else rf"turnout\.{room}\b|turnout import {room}\b|to\.{room}\b"
    named += {"fleet": r"|to\.advise", "view": r"|\.report\(|\.curves\("}.get(room, "")
    helpers = [support / f"{name}.py" for name in re.findall(r"^from (\w+) import", text, re.MULTILINE)]
    helpers = [helper for helper in helpers if helper.exists() and helper != path]
    return bool(re.search(named, text)) or any(about(room, helper, support) for helper in helpers)


def without(room: str, chosen: list[str], options: list[str]) -> int:
    """Run the core's tests in a copy without a room; the exit code of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests", "examples", "docs", "pyproject.toml", *(() if room == "papers" else ("papers",))):
            source = ROOT / name
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "campaign")
            shutil.copytree(source, copy / name, ignore=ignore) if source.is_dir() else shutil.copy(source, copy / name)
        if room != "papers":
            shutil.rmtree(copy / "src" / "turnout" / room)
        everything = [copy / name for name in chosen] or core_tests(copy / "tests")
        kept = [path for path in everything if not about(room, path, copy / "tests" / "support")]
        print(f"without {room}: {len(kept)} of {len(everything)} files of tests", flush=True)
        places = [str(copy / "src"), str(copy if room == "papers" else copy / "papers")]
        (copy / f"{STARTUP}.py").write_text(NOT_INSTALLED)
        blocked = ["-p", "no:cacheprovider", "-o", f"pythonpath={copy / 'tests' / 'support'}"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        if not kept:
            return 0
        command = [sys.executable, "-m", "pytest", *blocked, *options, *map(str, kept)]
        return subprocess.run(command, cwd=copy, env=environment, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", default=SATELLITES, help="which to remove, one at a time")
    parser.add_argument("--tests", nargs="+", default=[], help="files of tests, instead of all of the core's")
    parser.add_argument("--jobs", default="2", help="processes of pytest")
    options = parser.parse_args()
    failed = [room for room in options.rooms if without(room, options.tests, ["-n", options.jobs, "-q"])]
    print(f"failed without: {', '.join(failed)}" if failed else f"passed without each of {', '.join(options.rooms)}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
