"""`turnout run`: plan the runs, run them, show what came out."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.permitting import permits_code
from turnout.errors import UserError

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[RECIPE|FILE.toml]",
        help="A recipe of `turnout list`, an experiment file, or a recipe of yours as package.module:function.",
        show_default="participation",
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change one setting; may be given again.")
]
Grid = Annotated[
    list[str] | None,
    typer.Option("--grid", metavar="A.B=1,2,3", help="Run a variant for each value; may be given again."),
]
Seeds = Annotated[
    int | None, typer.Option(help="Repeat with N seeds. [default: 3 to compare variants, 1 for a single one]")
]
Jobs = Annotated[int | None, typer.Option(help="Runs side by side. [default: one a core, or one at a time on a GPU]")]
Ranks = Annotated[
    int | None,
    typer.Option("--processes", help="Train each round's clients in N processes, each on its own GPU where it can."),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder. [default: a new one under runs/]")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, or start one there.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete the run in --out first.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE|-", help="Write the result as JSON; - prints nothing else on stdout."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="WHERE",
        help="Show the numbers elsewhere too, as rounds end: tensorboard[:DIR], mlflow[:URI], wandb[:PROJECT], or your "
        "own as package.module:Name; may be given again.",
    ),
]
Deadlines = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="30,60,120",
        help="Run a variant for each deadline of a round, in simulated seconds (needs world.devices); none for none.",
    ),
]
Profile = Annotated[bool, typer.Option("--profile", help="Show where the time goes: seconds by stage of the round.")]
OtherEngine = Annotated[
    bool, typer.Option("--other-engine", help="Resume though the run's engine is not here; another rounds differently.")
]
DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where data files are. [default: TURNOUT_DATA, or a cache folder]")
]


@permits_code
def run(
    source: Source = None,
    settings: Settings = None,
    grid: Grid = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    processes: Ranks = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    json_to: Json = None,
    data_dir: DataDir = None,
    profile: Profile = False,
    track: Track = None,
    other_engine: OtherEngine = False,
    deadline: Deadlines = None,
) -> None:
    """Run an experiment, or compare several.

    Without arguments: schemes A, B and C of paper 000 on SYNTHETIC(1,1), 50 devices, five traces. Ends with a table
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
    turnout run digits --set world.devices.kind=tiers --deadline 0.1,0.3,none --set stop.target=0.8
    """
    from turnout.cli import outcome, planning, ranks
    from turnout.cli.screen import say
    from turnout.running.planned import run_planned
    from turnout.running.reported import print_table, say_warnings, say_where
    from turnout.view import HOOKS, make_table

    start = time.monotonic()
    if ranks.follows():
        raise typer.Exit(ranks.follow())
    planning.check_numbers(seeds, jobs)
    outcome.check_json(json_to)
    if resume and overwrite:
        raise UserError("--resume goes on with the run in --out, and --overwrite deletes it: leave one of them out")
    if overwrite and out is None:
        raise UserError("--overwrite deletes the run in a folder: name it with --out")
    plan = planning.make_plan(source, settings or [], grid or [], seeds, out, resume, track or [], deadline)
    plan = ranks.with_processes(plan, processes, jobs)
    if not quiet:
        say(plan.text())
    try:
        with ranks.joined():
            failed = run_planned(
                plan, jobs=jobs, resume=resume, overwrite=overwrite, quiet=quiet, data_dir=data_dir, profile=profile,
                other_engine=other_engine, hooks=HOOKS,
            )  # fmt: skip
    except KeyboardInterrupt:
        say(f"\ninterrupted; go on with: {shlex.join(['turnout', 'run', '--out', str(plan.out), '--resume'])}")
        raise typer.Exit(130) from None
    if json_to is not None:
        outcome.write_json(plan, failed, time.monotonic() - start, json_to)
    if len(plan.runs) == len(failed) == 1 and failed[0].mistake:
        if failed[0].began:
            say_where(plan.out, stderr=True)
        raise UserError(failed[0].why)
    if json_to != "-":
        print_table(make_table, plan.out)
        if deadline is not None:
            outcome.say_fastest(plan.out)
        if profile:
            outcome.show_profile(plan)
        say_where(plan.out)
    say_warnings(plan.out)
    if failed:
        outcome.say_failures(failed, len(plan.runs))
        raise typer.Exit(2 if len(failed) == len(plan.runs) and all(f.mistake for f in failed) else 1)
    if sys.stdout is not None:  # None if the caller closed it
        sys.stdout.flush()
