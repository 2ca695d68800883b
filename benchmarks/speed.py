"""How many times faster is Turnout? One command that runs it and its peers in turn and prints a table of ratios.

    python benchmarks/speed.py [--case a b c d e f g h] [--repeats 5] [--peers flower,pfl,loop,loops,central]

Each repeat runs every side once, as a fresh process that warms up and then times several rounds; so a machine that
slows down for a while slows everybody. A side's time in a repeat is the median over its rounds, its ratio is taken
within the repeat, and the table gives the median over the repeats and, in brackets, the range.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from cases import CASES

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Side:
    """A program that times rounds, the packages it needs beside torch, and the settings that might suit it best."""

    name: str
    script: str
    packages: tuple[str, ...] = ()
    environment: str = ""  # its own virtual environment, "" for the one this runs in
    settings: tuple[str, ...] = ("--threads=1", "--threads=2")
    rounds: int = 5
    warmup: int = 3


FLOWER = ("flwr[simulation]==1.41.0",)
PFL = ("pfl==0.6.0",)
SIDES = {
    side.name: side
    for side in (
        Side("turnout", "turnout_side.py", settings=("",), rounds=20, warmup=5),
        Side("loop", "peers/loop_peer.py"),
        Side("loops", "peers/loops_peer.py", settings=("--processes=2",)),
        Side("central", "peers/central_peer.py"),
        Side("flower", "peers/flower_peer.py", FLOWER, ".venv-flower"),
        Side("pfl", "peers/pfl_peer.py", PFL, ".venv-pfl"),
        Side("pfl-processes", "peers/pfl_peer.py", PFL, ".venv-pfl", settings=("--threads=1 --processes=2",)),
    )
}


def pinned_torch() -> str:
    """The torch every side gets, from the file the library itself is installed with."""
    lines = (HERE.parent / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def interpreter(side: Side, shared: bool) -> str:
    """The side's Python; its virtual environment is made on first use."""
    if shared or not side.environment:
        return sys.executable
    folder = HERE / side.environment
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        print(f"installing {', '.join(side.packages)} into {folder.name} (once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", pinned_torch()]
        subprocess.run(install, check=True)  # alone and first: an unpinned torch may bring gigabytes
        subprocess.run([*install, *side.packages], check=True)
        ready.touch()
    return str(python)


@dataclass(frozen=True)
class Bench:
    """What holds for every run: the device, the cores, and whether the peers live in this very environment."""

    device: str
    cores: tuple[int, ...]
    shared: bool
    quick: bool = False

    def rounds(self, side: Side, case: str, setting: str, rounds: int) -> list[float]:
        """Milliseconds of each timed round of one fresh process."""
        # The child inherits the cores, and so do the processes it starts.
        command = ["taskset", "-c", ",".join(map(str, self.cores))]
        command += [
            interpreter(side, self.shared),
            str(HERE / side.script),
            f"--case={case}",
            *setting.split(),
        ]
        rounds, warmup = (2, 1) if self.quick and self.device == "cpu" else (rounds, side.warmup)
        command += [f"--device={self.device}", f"--rounds={rounds}", f"--warmup={warmup}"]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"peer"')]
        if done.returncode or not lines:
            sys.exit(f"{side.name} failed on case {case}:\n{' '.join(command)}\n{done.stderr[-3000:]}")
        line = json.loads(lines[-1])
        if line["torch"] != torch.__version__:
            sys.exit(f"{side.name} has torch {line['torch']} and this environment {torch.__version__}: not comparable")
        return line["ms_per_round"]

    def best_setting(self, side: Side, case: str) -> str:
        """The setting with the fastest round of two short runs, the settings taking turns.

        The fastest, not the median: a burst of other load during the trial must not choose a peer's worse setting.
        """
        if len(side.settings) == 1 or self.quick:
            return side.settings[-1]
        fastest = dict.fromkeys(side.settings, float("inf"))
        for setting in 2 * side.settings:
            fastest[setting] = min(fastest[setting], *self.rounds(side, case, setting, rounds=3))
        return min(fastest, key=fastest.__getitem__)


def measure(bench: Bench, sides: list[Side], case: str, repeats: int) -> dict[str, list[float]]:
    """For each side its time in each repeat, the sides taking turns."""
    settings = {side.name: bench.best_setting(side, case) for side in sides}
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for repeat in range(repeats):
        for side in sides:
            times[side.name].append(median(bench.rounds(side, case, settings[side.name], side.rounds)))
        latest = ", ".join(f"{name} {values[-1]:.4g} ms" for name, values in times.items())
        print(f"case {case}, repeat {repeat + 1} of {repeats}: {latest}", flush=True)
    print(
        "settings:",
        ", ".join(f"{name} {setting or 'its own'}" for name, setting in settings.items()),
        flush=True,
    )
    return times


def with_range(values: list[float], digits: int = 3) -> str:
    """The median, and the range in brackets.

    >>> with_range([3.0, 1.0, 2.0])
    '2 [1, 3]'
    """
    low, middle, high = (f"{value:.{digits}g}" for value in (min(values), median(values), max(values)))
    return f"{middle} [{low}, {high}]"


def table(results: dict[str, dict[str, list[float]]], base: str) -> str:
    """Markdown: for each case and side the milliseconds of a round, and how many times the base's time that is."""
    rows = ["| case | side | ms a round | times the time of " + base + " |", "|---|---|---|---|"]
    for case, times in results.items():
        for name, values in times.items():
            ratios = [value / own for value, own in zip(values, times[base], strict=True)]
            shown = "1" if name == base else with_range(ratios)
            rows.append(f"| {case}: {CASES[case].what} | {name} | {with_range(values, 4)} | {shown} |")
    return "\n".join(rows)


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list("abcdefgh"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", default="pfl,pfl-processes,loop,loops,central", help="of " + ", ".join(SIDES))
    parser.add_argument("--base", choices=SIDES, default="turnout", help="the side that the ratios compare with")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--cores", type=int, default=2, help="CPU cores that everybody gets")
    parser.add_argument("--here", action="store_true", help="the peers are importable here: make no environments")
    parser.add_argument("--quick", action="store_true", help="two rounds a side on a CPU; no trial of settings")
    parser.add_argument("--json", type=Path, help="also write the times to this file")
    given = parser.parse_args()
    unknown = set(given.peers.split(",")) - set(SIDES)
    if unknown:
        parser.error(f"no peer {', '.join(sorted(unknown))}: choose from {', '.join(SIDES)}")
    return given


def main() -> None:
    """Measure every case, then print the table."""
    given = read_arguments()
    cores = tuple(sorted(os.sched_getaffinity(0))[: given.cores])
    bench = Bench(given.device, cores, given.here, given.quick)
    names = list(dict.fromkeys([given.base, *given.peers.split(",")]))
    sides = [SIDES[name] for name in names]
    results = {case: measure(bench, sides, case, given.repeats) for case in given.case}
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))
    print(f"\n{given.device}, {len(cores)} cores, torch {torch.__version__}, {given.repeats} repeats\n")
    print(table(results, given.base))


if __name__ == "__main__":
    main()
