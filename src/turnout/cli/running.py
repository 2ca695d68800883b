"""`turnout run`: plan the runs, run them, show the results."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnout.cli.common import DataDir, Jobs, Json, Quiet, check_json, permits_code, say, write_json
from turnout.errors import UserError

if TYPE_CHECKING:
    from turnout.running.display import Failed
    from turnout.running.plan import RunPlan

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[RECIPE|FILE.toml]",
        help="A recipe of `turnout list`, an experiment file, or a recipe of yours as package.module:function.",
        show_default="absence",
    ),
]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change one setting; repeatable.")]
Grid = Annotated[
    list[str] | None,
    typer.Option("--grid", metavar="A.B=1,2,3", help="Run a variant for each value; repeatable."),
]
Seeds = Annotated[
    int | None, typer.Option(help="Repeat with N seeds. [default: 3 to compare variants, 1 for a single one]")
]
Processes = Annotated[
    int | None,
    typer.Option("--processes", help="Train each round's clients in N processes, each on its own GPU if possible."),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder. [default: a new one under runs/]")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out, or start one there.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete the run in --out first.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="WHERE",
        help="Also send the numbers elsewhere, as rounds end: tensorboard[:DIR], mlflow[:URI], wandb[:PROJECT], or "
        "your own as package.module:Name; repeatable.",
    ),
]
Profile = Annotated[bool, typer.Option("--profile", help="Show where the time goes: seconds by stage of the round.")]
OtherEngine = Annotated[
    bool,
    typer.Option("--other-engine", help="Resume with another engine than before; it rounds differently."),
]


@permits_code
def run(
    source: Source = None,
    settings: Settings = None,
    grid: Grid = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    processes: Processes = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    json_to: Json = None,
    data_dir: DataDir = None,
    profile: Profile = False,
    track: Track = None,
    other_engine: OtherEngine = False,
) -> None:
    """Run an experiment, or compare several.

    Without arguments: the recipe absence, what absence costs and which methods help, on digits. Ends with a table
    (mean ± deviation over seeds), a report and a picture. A run can be stopped at any moment and resumed.

    \b
    turnout run
    turnout run digits --set algorithm.local.optimizer.lr=0.05 --set rounds=100
    turnout run my.toml --grid algorithm.weighting=A,B,C --seeds 5 --out runs/mine
    turnout run --out runs/mine --resume
    turnout run digits --out runs/mine --overwrite
    turnout run digits --set algorithm.terms='[{kind="proximal", mu=0.1}]' --json result.json
    turnout run digits --set algorithm.local.epochs=none --set algorithm.local.steps=10
    turnout run digits --track tensorboard --track mlflow:http://localhost:5000
    turnout run my.toml --processes 4
    torchrun --nproc-per-node 4 -m turnout run my.toml
    turnout run fleet.toml --grid algorithm.closing.seconds=0.1,0.3 --set stop.target=0.8
    """
    from turnout.cli import planning
    from turnout.machine.terminal import console
    from turnout.running.profile import profile_table, read_profiles
    from turnout.running.runs import explained, print_table, run_planned, say_warnings, say_where
    from turnout.runtimes.processes import follow_torchrun
    from turnout.view import HOOKS, make_table

    start = time.monotonic()
    if planning.follows():
        raise typer.Exit(follow_torchrun())
    planning.check_numbers(seeds, jobs)
    check_json(json_to)
    if resume and overwrite:
        raise UserError("--resume continues the run in --out, and --overwrite deletes it: leave one of them out")
    if overwrite and out is None:
        raise UserError("--overwrite deletes the run in a folder: name it with --out")
    plan = planning.make_plan(source, settings or [], grid or [], seeds, out, resume, track or [])
    plan = planning.with_processes(plan, processes, jobs)
    if not quiet:
        say(plan.text())
    try:
        with planning.joined():
            failed = run_planned(
                plan, jobs=jobs, resume=resume, overwrite=overwrite, quiet=quiet, data_dir=data_dir, profile=profile,
                other_engine=other_engine, hooks=HOOKS,
            )  # fmt: skip
    except KeyboardInterrupt:
        say(f"\ninterrupted; resume with: {shlex.join(['turnout', 'run', '--out', str(plan.out), '--resume'])}")
        raise typer.Exit(130) from None
    if json_to is not None:
        write_json(_as_json(plan, failed, time.monotonic() - start), json_to)
    if len(plan.runs) == len(failed) == 1 and failed[0].mistake:
        if failed[0].began:
            say_where(plan.out, stderr=True)
        raise UserError(failed[0].why)
    if json_to != "-":
        print_table(make_table, plan.out)
        if profile:
            console().print(profile_table(*read_profiles(plan.out / run.path for run in plan.runs)))
        say_where(plan.out)
    say_warnings(plan.out)
    if failed:
        say(explained(failed, len(plan.runs)), "red")
        raise typer.Exit(2 if len(failed) == len(plan.runs) and all(f.mistake for f in failed) else 1)
    if sys.stdout is not None:  # None if the caller closed it
        sys.stdout.flush()


def _as_json(plan: RunPlan, failed: Sequence[Failed], seconds: float) -> dict[str, Any]:
    """All runs that have records, the rows of the table, and which runs failed."""
    import numpy as np

    from turnout.running.records.finding import find_runs
    from turnout.running.records.runs import Runs
    from turnout.running.records.warnings import warnings_of
    from turnout.running.result import Run

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

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
            "final": {metric: finite(run.final(metric)) for metric in runs.metrics},
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
            numbers = {"mean": finite(float(values.mean())), "spread": finite(spread), "seeds": len(values)}
            table.append({"variant": name, "metric": metric, **numbers})
    why = [{"run": f.name, "why": f.why} for f in failed]
    return {"title": plan.title, "runs": listed, "table": table, "failed": why, "command_seconds": round(seconds, 3)}
