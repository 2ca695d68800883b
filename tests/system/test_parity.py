"""The same experiment has the same results on every runtime: each recipe, shrunk, on each of a list of runtimes.

A runtime is one test that goes through the recipes, so that what it starts (a Ray cluster, processes) is started once.
A new runtime is one more entry of `RUNTIMES`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import parity
import turnout as to
from bytes_runtime import BytesOnly, Process
from parity import ONE_PER_PART, Elsewhere, RuntimeComparison, acceptable, small_recipes
from turnout.recipes import cook, recipes
from turnout.runtimes.crew import WORKERS

RUNTIMES = [*parity.RUNTIMES, "bytes only"]


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest) -> Iterator[Elsewhere]:
    """A runtime by its name, and what it has started until the end of the test."""
    if request.param in parity.RUNTIMES:
        with WORKERS.reused():
            yield parity.RUNTIMES[request.param]
        return
    started = (Process(), Process())
    yield Elsewhere(lambda here: BytesOnly(started, here))  # of the weight track: test_scores_bytes.py has the other
    for process in started:
        process.close()


def cooked() -> dict[str, dict[str, to.Experiment]]:
    return {name: cook(name) for name in recipes()}


@cache
def comparisons() -> dict[str, RuntimeComparison]:
    return {name: RuntimeComparison(experiment) for name, experiment in small_recipes(cooked()).items()}


def check(names: Iterable[str], elsewhere: Elsewhere) -> None:
    if isinstance(elsewhere.settings(to.runtime.InProcess()), BytesOnly):
        names = [name for name in names if not name.startswith("labels/")]
    found = {name: comparisons()[name].with_(elsewhere) for name in names}
    assert {name: str(d) for name, d in found.items() if not acceptable(d, elsewhere)} == {}


@pytest.mark.parametrize("elsewhere", RUNTIMES, indirect=True)
def test_one_recipe_per_part(elsewhere):
    """Those of the recipes that are installed."""
    check([name for name in ONE_PER_PART if name in comparisons()], elsewhere)


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", RUNTIMES, indirect=True)
def test_every_other_recipe(elsewhere):
    check(comparisons().keys() - set(ONE_PER_PART), elsewhere)


@pytest.mark.slow
def test_flowers_simulation():
    """Our apps under `flwr.simulation`, and what was seen in one process; a recipe that only a simulation can do."""
    pytest.importorskip("turnout_papers")
    support = Path(parity.__file__).parent  # workers of Ray import the devices' own rule from there
    command = [sys.executable, str(support / "flower_simulation.py"), "baselines/SCAFFOLD", "friends/Friends"]
    path = os.pathsep.join([str(support), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr[-2000:]
    assert "baselines/SCAFFOLD: equal" in done.stdout
    assert "friends/Friends: evaluate.substitution" in done.stdout  # what the missing would have sent


def test_a_difference_is_found():
    """Of another seed, and of other numbers: the comparison can fail."""
    comparison = RuntimeComparison(small_recipes(cooked())["participation/C"])
    louder = Elsewhere(lambda here: to.runtime.InProcess(device="cpu", threads=1, precision="float64"))
    assert not acceptable(comparison.with_(louder), louder)
