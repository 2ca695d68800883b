"""The results of `turnout run`: a table for people, JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnout.cli.common import say
from turnout.errors import UserError
from turnout.machine.terminal import console
from turnout.running.display import Failed
from turnout.running.plan import RunPlan
from turnout.running.profile import Profile, profile_table, read_profile
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import Runs
from turnout.running.records.warnings import warnings_of
from turnout.running.result import Run
from turnout.view.report.simulated_time import fastest


def say_fastest(out: Path) -> None:
    """Print which variant reaches the target first in simulated time."""
    if words := fastest(find_runs(out), None):
        say(words, stderr=False)


def show_profile(plan: RunPlan) -> None:
    """Print the seconds by stage of all runs together; each run has its own in its folder."""
    found = [p for run in plan.runs if (p := read_profile(plan.out / run.path)) is not None]
    if found:
        console().print(profile_table(sum(found, Profile(0, {}))))


def as_json(plan: RunPlan, failed: Sequence[Failed], seconds: float) -> dict[str, Any]:
    """All runs that have records, the rows of the table, and which runs failed."""
    try:
        runs: Runs | None = find_runs(plan.out)
    except UserError:
        runs = None
    return {
        "title": plan.title,
        "runs": [] if runs is None else [_run_row(plan, runs, i) for i in range(len(runs.runs))],
        "table": [] if runs is None else _table(plan, runs),
        "failed": [{"run": f.name, "why": f.why} for f in failed],
        "command_seconds": round(seconds, 3),
    }


def _run_row(plan: RunPlan, runs: Runs, i: int) -> dict[str, Any]:
    read = runs.runs[i]
    planned = next(run for run in plan.runs if (plan.out / run.path).resolve() == read.path.resolve())
    return {
        "variant": planned.variant,
        "seed": planned.seed,
        "folder": str(read.path),
        "final": {metric: _finite(read.final(metric)) for metric in runs.metrics},
        "rounds": len(read.rounds["round"]),
        "seconds": round(read.total("seconds"), 3),
        "warnings": warnings_of(read),
        "stopped": Run(read.path, planned.experiment).stopped(),
    }


def _table(plan: RunPlan, runs: Runs) -> list[dict[str, Any]]:
    """A row per variant and metric: mean and deviation (n - 1) over seeds; no deviation for one seed."""
    rows = []
    for variant, found in runs.variants.items():
        name = plan.runs[0].variant if len(plan.runs) == 1 else variant
        for metric in runs.metrics:
            values = np.array([run.final(metric) for run in found])
            spread = float(values.std(ddof=1)) if len(values) > 1 else math.nan
            numbers = {"mean": _finite(float(values.mean())), "spread": _finite(spread), "seeds": len(values)}
            rows.append({"variant": name, "metric": metric, **numbers})
    return rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
