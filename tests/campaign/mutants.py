"""Mutation run: does a test fail when one line of the program is wrong?

    python tests/campaign/mutants.py --number 200 --out mutants-out [parts server ...]

Draws mutations (mutations.py) of packages and modules of src/turnout with a fixed seed. A first pass over the tests of
the library and of the papers (or those of --tests) finds which of them execute which line; a mutant then runs only the
tests that execute its line, fastest first, until one fails. A mutant of a module's or class's own lines (a default, a
table) runs those that execute any line of the module. The folder --out keeps that map and the results for these
sources: test files are traced again when they changed, and no mutant runs twice but survivors with --again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import pytest
from forked_tests import ROOT, First, Tracer, copied, forked, warm_up
from mutations import Mutation, mutations

PACKAGES = ("parts", "server", "world", "fleet", "statistics.py")
TESTS = ("src", "tests/**/test_*.py", "papers/tests/test_*.py")  # src: the examples in docstrings
MOST_SECONDS = 900.0  # for tracing one file of tests
Covering = dict[str, dict[int, set[tuple[float, str]]]]  # file → line → the tests that execute it, with their seconds


def side_by_side(jobs: int, todo: list, work: Callable[[list], None]) -> int:
    """Share a list out over forked processes; how many of them failed."""
    children = []
    for job in range(jobs):
        children.append(os.fork())
        if children[-1] == 0:
            work(todo[job::jobs])
            os._exit(0)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


def trace(todo: list[tuple[Path, Path]]) -> None:
    """Run files of tests and write which lines each of their tests executes."""
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder))
        for path, kept in todo:
            part = Path(folder) / "map"
            part.write_text("")
            status = forked(tree, [str(path.relative_to(ROOT))], lambda part=part: Tracer(tree, part), MOST_SECONDS)
            print(f"{path.relative_to(ROOT)}: traced, exit status {status}", flush=True)
            shutil.move(part, kept)


def traced(out: Path, source: str, tests_of: Sequence[str], jobs: int) -> Covering:
    """Which tests execute which line; files that were traced before are not run again."""
    covering: Covering = defaultdict(lambda: defaultdict(set))
    maps: dict[Path, Path] = {}
    for path in [path for pattern in tests_of for path in sorted(ROOT.glob(pattern))]:
        text = source + (path.read_text() if path.is_file() else "")
        maps[path] = out / f"{path.stem}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    side_by_side(jobs, [(path, kept) for path, kept in maps.items() if not kept.exists()], trace)
    for kept in maps.values():
        rows = [json.loads(line) for line in kept.read_text().splitlines()]
        tests = {(row["seconds"], row["test"]) for row in rows if "::" in row["test"]}
        for row in rows:
            for file, lines in row["lines"].items():
                for line in lines:
                    covering[file][line] |= {(row["seconds"], row["test"])} if "::" in row["test"] else tests
    return covering


def batches(mutation: Mutation, covering: dict[int, set[tuple[float, str]]], budget: float) -> list[list[str]]:
    """The tests to run, fastest first, as many as fit the budget: a few at first, as most mutants die at once."""
    tests = sorted(set().union(*(covering[line] for line in mutation.lines or list(covering))))
    spent = list(accumulate(took for took, _ in tests))
    chosen = [test for i, (_, test) in enumerate(tests) if i == 0 or spent[i] < budget]
    return [batch for batch in (chosen[:12], chosen[12:100], chosen[100:]) if batch]


def tried(tree: Path, file: str, mutation: Mutation, runs: list[list[str]], limit: float) -> tuple[str, str]:
    """What became of a mutant, killed, out of time, survived or not executed by any test; and the test that failed."""
    place, first = tree / "src/turnout" / file, tree.parent / "first"
    source = place.read_bytes()
    place.write_bytes(mutation.apply(source))
    try:
        for tests in runs:
            first.unlink(missing_ok=True)
            status = forked(tree, ["-x", *tests], lambda: First(first), limit)
            if status == pytest.ExitCode.USAGE_ERROR:  # a test is named after what the mutant changes: whole files
                status = forked(tree, ["-x", *{test.split("::")[0] for test in tests}], lambda: First(first), limit)
            if status != 0:
                by = first.read_text() if first.exists() else f"exit {status}"
                return ("out of time" if status is None else "killed"), by
        return ("survived" if runs else "not executed"), ""
    finally:
        place.write_bytes(source)


def work(todo: list[tuple[str, str, Mutation]], covering: Covering, seconds: float, out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, out.open("a") as results:
        tree = copied(Path(folder))
        for name, file, mutation in todo:
            begin, runs = time.monotonic(), batches(mutation, covering[file], seconds)
            fate, by = tried(tree, file, mutation, runs, 2 * seconds + 60)
            row = {"mutant": name, "fate": fate, "by": by, "tests": sum(map(len, runs)), "text": mutation.text[:200]}
            results.write(json.dumps(row | {"took": round(time.monotonic() - begin, 1)}) + "\n")
            results.flush()
            print(f"{fate:12} {name} {by}", flush=True)


def sources(packages: Sequence[str]) -> list[Path]:
    """The modules of packages of src/turnout; a name may also be that of a module ("statistics.py")."""
    found: set[Path] = set()
    for package in packages:
        place = ROOT / "src/turnout" / package
        if not place.exists():
            sys.exit(f"src/turnout has no {package}: name packages such as {', '.join(PACKAGES)}")
        found |= {place} if place.is_file() else set(place.rglob("*.py"))
    return sorted(found)


def summary(rows: dict[str, dict]) -> str:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for name, row in rows.items():
        for package in (name.split(":")[0].split("/")[0], "all"):
            table[package][row["fate"]] += 1
    fates = ("killed", "out of time", "survived", "not executed")
    lines = [f"{'':14}{'mutants':>14}" + "".join(f"{fate:>14}" for fate in fates)]
    for package, counts in sorted(table.items(), key=lambda item: (item[0] == "all", item[0])):
        lines.append(f"{package:14}{counts.total():14}" + "".join(f"{counts[fate]:14}" for fate in fates))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0, help="of tests for a mutant, as they took when traced")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files or patterns, instead of all tests")
    parser.add_argument("--again", action="store_true", help="run survivors again")
    parser.add_argument("--out", type=Path, default=Path("mutants-out"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    warm_up()
    drawn: list[tuple[str, str, Mutation]] = []
    for path in sources(options.packages):
        if path.stem.endswith("_kernel") and not sys.modules["torch"].cuda.is_available():
            continue
        file = str(path.relative_to(ROOT / "src/turnout"))
        for number, mutation in enumerate(mutations(path.read_bytes())):
            drawn.append((f"{file}:{mutation.line} {mutation.kind} #{number}", file, mutation))
    drawn = random.Random(options.seed).sample(drawn, min(options.number, len(drawn)))
    source = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((ROOT / "src").rglob("*.py")))).hexdigest()
    results = options.out / f"results.{source[:12]}.jsonl"
    results.touch()
    rows = {row["mutant"]: row for row in map(json.loads, results.read_text().splitlines())}
    again = ("survived", "not executed") if options.again else ()
    covering = traced(options.out, source, options.tests, options.jobs)
    todo = [mutant for mutant in drawn if mutant[0] not in rows or rows[mutant[0]]["fate"] in again]
    failed = side_by_side(options.jobs, todo, lambda part: work(part, covering, options.seconds, results))
    rows = {row["mutant"]: row for row in map(json.loads, results.read_text().splitlines())}
    print(summary({name: rows[name] for name, _, _ in drawn if name in rows}))
    sys.exit(f"{failed} jobs failed" if failed else 0)


if __name__ == "__main__":
    main()
