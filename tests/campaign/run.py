"""A campaign against the program: kills, failing disks, damage, memory, nonsense, sanitizers, devices; with counts.

    python tests/campaign/run.py --kills 1000 --messages 1000000 --jobs 16 --out campaign.json

Each job is a process with its own folders and seed; sanitizers and devices have one of their own. The counts are
written as it goes on. A C compiler makes the shim that kills at operations on files and the sanitized kernels; without
one these parts are left out, and it says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import compiled
import faults

from turnout.machine.files import write_whole

SANITIZERS, DEVICES = "sanitizers", "devices"
LOOK = 2.0  # seconds between two looks at what the jobs have found
LAST = 60.0  # seconds that a job may take after its time is over


def share(whole: int, part: int, parts: int) -> int:
    """One job's part of a number."""
    return whole // parts + (part < whole % parts)


def work(options: argparse.Namespace) -> None:
    """One job; what it finds is in its file as it goes on, also why it could not go on."""
    counts = faults.Counts(path=Path(options.found), until=time.monotonic() + options.seconds)
    try:
        part_of(options, counts)
    except Exception:
        counts.wrong.append(f"job {options.part} cannot go on: {traceback.format_exc()[-1500:]}")
    counts.keep()


def part_of(options: argparse.Namespace, counts: faults.Counts) -> None:
    if options.part == SANITIZERS:
        compiled.sanitized(counts)
    elif options.part == DEVICES:
        import devices

        devices.campaign(counts, options.seed, options.devices)
    else:
        numbered(options, counts, int(options.part), options.jobs)


def numbered(options: argparse.Namespace, counts: faults.Counts, part: int, parts: int) -> None:
    """One job's share of everything that can be shared."""
    import damage
    import fuzz
    import groups
    import limits

    def mine(whole: int) -> int:
        return share(whole, part, parts)

    seed = options.seed * 1000 + part
    bench = faults.Bench(seed)
    if bench.shim is not None:
        places = range(bench.operations())[part::parts][:: options.stride]
        faults.killed_at_operations(bench, counts, iter(places))
        faults.failing_disk(bench, counts, iter(places))
    faults.killed_at_random(bench, counts, mine(options.kills))
    fuzz.messages(counts, seed, mine(options.messages))
    faults.stopped(bench, counts, mine(options.stops))
    damage.damaged(bench, counts, mine(options.damages))
    limits.too_little_memory(bench, counts, mine(options.memory))
    groups.killed_groups(counts, seed, mine(options.groups))
    fuzz.tables(counts, seed, mine(options.files))
    fuzz.files(counts, seed, mine(options.files))
    bench.close()


def start(part: str, home: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    own = [sys.executable, __file__, *sys.argv[1:], "--part", part, "--found", str(home / f"{part}.json")]
    return subprocess.Popen(own, env=environment, stdout=sys.stderr, text=True)


def together(home: Path, jobs: dict[str, subprocess.Popen[str]]) -> dict[str, Any]:
    """What all jobs have found so far; one that has died is something wrong."""
    tried: dict[str, int] = {}
    wrong: list[str] = []
    for part, job in jobs.items():
        path = home / f"{part}.json"
        found = json.loads(path.read_text()) if path.exists() else {"tried": {}, "wrong": []}
        wrong += found["wrong"]
        wrong += [f"job {part} ended with {job.returncode}"] if job.poll() else []
        for name, count in found["tried"].items():
            tried[name] = tried.get(name, 0) + count
    return {"tried": dict(sorted(tried.items())), "wrong": wrong}


def campaign(options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Start the jobs, and write what they find until they have ended."""
    began, preload = time.monotonic(), compiled.shim(home)
    bare = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    armed = bare | ({"LD_PRELOAD": str(preload)} if preload else {})
    jobs = {str(i): start(str(i), home, armed) for i in range(options.jobs)}
    more = ([SANITIZERS] if options.sanitize else []) + ([DEVICES] if options.devices else [])
    jobs |= {part: start(part, home, bare) for part in more}
    try:
        while True:
            running = [job for job in jobs.values() if job.poll() is None]
            seconds = time.monotonic() - began
            found = together(home, jobs) | {
                "seconds": round(seconds),
                "running": len(running),
                "options": vars(options),
            }
            if options.out:
                write_whole(Path(options.out), json.dumps(found, indent=2) + "\n")
            if not running or seconds > options.seconds + LAST:
                return found
            time.sleep(min(LOOK, 0.1 + seconds / 10))
    finally:
        for job in jobs.values():
            job.kill()
            job.wait()


def main() -> int:
    options = arguments()
    if options.part is not None:
        work(options)
        return 0
    with tempfile.TemporaryDirectory() as home:
        found = campaign(options, Path(home))
    for name, count in found["tried"].items():
        print(f"{count:12,}  {name}")
    print(f"{len(found['wrong']):12,}  went wrong, in {found['seconds']} s")
    show(found["wrong"][:20])
    return 1 if found["wrong"] or found["running"] else 0


def show(wrong: Sequence[str]) -> None:
    print("\n".join(wrong), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="kills at random moments")
    parser.add_argument("--groups", type=int, default=60, help="kills of parents, workers and groups of processes")
    parser.add_argument("--stops", type=int, default=50, help="runs that are stopped for a moment")
    parser.add_argument("--damages", type=int, default=200, help="damages of each file of a folder")
    parser.add_argument("--memory", type=int, default=60, help="runs that get too little memory")
    parser.add_argument("--devices", type=int, default=1, help="times through the faults of a real deployment")
    parser.add_argument("--files", type=int, default=20_000, help="fuzzed files of each kind")
    parser.add_argument("--messages", type=int, default=1_000_000, help="fuzzed answers of devices, of each kind")
    parser.add_argument("--stride", type=int, default=1, help="every how manieth operation on a file")
    parser.add_argument("--seconds", type=float, default=7200.0, help="after which nothing more is begun")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sanitize", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", help="write the counts as JSON, as it goes on")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--found", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
