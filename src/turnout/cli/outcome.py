"""The results of `turnout run` as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from turnout.errors import UserError
from turnout.running.messages import Failed
from turnout.running.plan import RunPlan
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import Runs
from turnout.running.records.warnings import warnings_of
from turnout.running.result import Run


def as_json(plan: RunPlan, failed: Sequence[Failed], seconds: float) -> dict[str, Any]:
    """All runs that have records, the rows of the table, and which runs failed."""
    listed: list[dict[str, Any]] = []
    table: list[dict[str, Any]] = []
    try:
        runs = find_runs(plan.out)
    except UserError:  # no records
        runs = Runs(plan.title, ())
    for run in runs.runs:
        planned = next(one for one in plan.runs if (plan.out / one.path).resolve() == run.path.resolve())
        listed.append({
            "variant": planned.variant,
            "seed": planned.seed,
            "folder": str(run.path),
            "final": {metric: _finite(run.final(metric)) for metric in runs.metrics},
            "rounds": len(run.rounds["round"]),
            "seconds": round(run.total("seconds"), 3),
            "warnings": warnings_of(run),
            "stopped": Run(run.path, planned.experiment).stopped(),
        })  # fmt: skip
    for variant, found in runs.variants.items():  # mean and deviation (n - 1) over seeds; none for one seed
        name = plan.runs[0].variant if len(plan.runs) == 1 else variant
        for metric in runs.metrics:
            values = np.array([run.final(metric) for run in found])
            spread = float(values.std(ddof=1)) if len(values) > 1 else math.nan
            numbers = {"mean": _finite(float(values.mean())), "spread": _finite(spread), "seeds": len(values)}
            table.append({"variant": name, "metric": metric, **numbers})
    why = [{"run": f.name, "why": f.why} for f in failed]
    return {"title": plan.title, "runs": listed, "table": table, "failed": why, "command_seconds": round(seconds, 3)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
