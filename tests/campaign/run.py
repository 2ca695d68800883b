"""A campaign against the program: kills, failing disks, damage, nonsense, sanitizers; with counts at the end.

    python tests/campaign/run.py --kills 1000 --messages 10000000 --jobs 16 --out campaign.json

Each job is a process with its own folders and seed. A C compiler makes the shim that kills at operations on files and
the sanitized kernels; without one these parts are left out, and it says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = ("tests/test_native.py", "tests/test_codec.py", "tests/test_data_synthetic.py")
SANITIZED = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g"


def share(whole: int, part: int, parts: int) -> int:
    """One job's part of a number."""
    return whole // parts + (part < whole % parts)


def work(options: argparse.Namespace) -> None:
    """One job: its part of everything, as a line of JSON."""
    import faults
    import fuzz
    import groups

    part, parts, seed = options.part, options.jobs, options.seed * 1000 + options.part
    counts, until = faults.Counts(), time.monotonic() + options.seconds
    bench = faults.Bench(seed)
    if bench.shim is not None:
        places = range(bench.operations())[part::parts]
        faults.killed_at_operations(bench, counts, (at for at in places[:: options.stride]))
        faults.failing_disk(bench, counts, (at for at in places[:: options.stride]))
    faults.killed_at_random(bench, counts, share(options.kills, part, parts))
    faults.stopped(bench, counts, share(options.stops, part, parts))
    faults.damaged(bench, counts, max(1, share(options.damages, part, parts)))
    groups.killed_groups(counts, seed, share(options.groups, part, parts))
    fuzz.tables(counts, seed, share(options.files, part, parts))
    fuzz.files(counts, seed, share(options.files, part, parts), until)
    fuzz.messages(counts, seed, share(options.messages, part, parts), until)
    bench.close()
    print(json.dumps({"tried": counts.tried, "wrong": counts.wrong}))


def shim(folder: Path, compiler: str | None) -> Path | None:
    if compiler is None:
        print("no C compiler (cc, gcc or clang): no kills at operations on files, no failing disk, no sanitizers")
        return None
    made = folder / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(HERE / "shim.c"), "-ldl"], check=True)
    return made


def sanitized(compiler: str | None) -> dict[str, object]:
    """The tests of the C code, with kernels that check every access and every operation."""
    if compiler is None:
        return {"tried": {}, "wrong": []}
    with tempfile.TemporaryDirectory() as home:
        wrapper = Path(home) / "sanitized-cc"
        wrapper.write_text(f'#!/bin/sh\nexec {compiler} "$@" -O1 {SANITIZED}\n')
        wrapper.chmod(0o755)
        names = [
            subprocess.run([compiler, f"-print-file-name={lib}"], capture_output=True, text=True).stdout.strip()
            for lib in ("libasan.so", "libubsan.so")
        ]
        environment = os.environ | {
            "CC": str(wrapper), "XDG_CACHE_HOME": home, "LD_PRELOAD": " ".join(names), "OMP_NUM_THREADS": "1",
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1",
        }  # fmt: skip
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SOURCES]
        done = subprocess.run(tests, env=environment, cwd=HERE.parent.parent, capture_output=True, text=True)
        kernels = Path(home) / "turnout" / "kernels"
        made, failed = len(list(kernels.glob("*.so"))), len(list(kernels.glob("*.failed")))
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    wrong = (
        [f"sanitized kernels: {done.stdout[-1500:]}{done.stderr[-1500:]}"]
        if done.returncode or failed or not made
        else []
    )
    print(f"sanitizers over {made} kernels: {last}")
    return {"tried": {"sanitized kernels": made}, "wrong": wrong}


def together(found: Sequence[dict[str, object]]) -> dict[str, object]:
    tried: dict[str, int] = {}
    for one in found:
        for name, count in dict(one["tried"]).items():  # type: ignore[call-overload]
            tried[name] = tried.get(name, 0) + count
    return {"tried": tried, "wrong": [words for one in found for words in list(one["wrong"])]}  # type: ignore[call-overload]


def main() -> int:
    options = arguments()
    if options.part is not None:
        work(options)
        return 0
    start, compiler = time.monotonic(), next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    with tempfile.TemporaryDirectory() as home:
        preload = shim(Path(home), compiler)
        environment = os.environ | {"OMP_NUM_THREADS": "1", **({"LD_PRELOAD": str(preload)} if preload else {})}
        own = [sys.executable, __file__, *sys.argv[1:], "--part"]
        jobs = [
            subprocess.Popen([*own, str(i)], env=environment, stdout=subprocess.PIPE, text=True)
            for i in range(options.jobs)
        ]
        found: list[dict[str, object]] = [sanitized(compiler)] if options.sanitize else []
        for i, job in enumerate(jobs):
            out, _ = job.communicate()
            lines = out.strip().splitlines()
            broken = {"tried": {}, "wrong": [f"job {i} ended with {job.returncode}: {out[-500:]}"]}
            found.append(json.loads(lines[-1]) if job.returncode == 0 and lines else broken)
    whole = together(found) | {"seconds": round(time.monotonic() - start), "jobs": options.jobs}
    for name, count in sorted(dict(whole["tried"]).items()):  # type: ignore[call-overload]
        print(f"{count:12,}  {name}")
    wrong = list(whole["wrong"])  # type: ignore[call-overload]
    print(f"{len(wrong):12,}  went wrong, in {whole['seconds']} s")
    print("\n".join(str(words) for words in wrong[:20]))
    if options.out:
        Path(options.out).write_text(json.dumps(whole, indent=2) + "\n")
    return 1 if wrong else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="kills at random moments")
    parser.add_argument("--groups", type=int, default=60, help="kills of parents, workers and groups of processes")
    parser.add_argument("--stops", type=int, default=50, help="runs that are stopped for a moment")
    parser.add_argument("--damages", type=int, default=200, help="damages of each file of a folder")
    parser.add_argument("--files", type=int, default=20_000, help="fuzzed files of each kind")
    parser.add_argument("--messages", type=int, default=10_000_000, help="fuzzed messages")
    parser.add_argument("--stride", type=int, default=1, help="every how manieth operation on a file")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which fuzzing ends")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sanitize", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", help="write the counts as JSON")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
