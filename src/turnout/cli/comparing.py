"""`turnout compare`: which of several variants is better, and how certain that is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.common import Jobs, Json, Quiet, check_json, permits_code, say, write_json
from turnout.errors import UserError

Sources = Annotated[
    list[str],
    typer.Argument(metavar="RUN|FILE...", help="Folders of runs; or experiment files and recipes to run."),
]
Target = Annotated[str | None, typer.Option(metavar="80%", help="Also the rounds, bytes and time to reach it.")]


@permits_code
def compare(
    sources: Sources,
    target: Target = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="The metric. [default: the main one]")] = None,
    seeds: Annotated[int, typer.Option(help="The number of seeds that files are run with.")] = 5,
    jobs: Jobs = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the runs of files. [default: new, under runs/]")
    ] = None,
    quiet: Quiet = False,
    json_to: Json = None,
) -> None:
    """Compare runs: the difference to the best, with an interval.

    Paired by seed. The intervals hold at 95 % for all pairs at once, so picking the best after looking is safe; where
    an interval contains zero the variant is "not distinguishable", and nothing is set in bold. Single runs that differ
    only in the seed are one variant.

    \b
    turnout compare runs/mine
    turnout compare runs/fedavg runs/scaffold --target 80%
    turnout compare a.toml b.toml --seeds 8 --json found.json
    """
    from turnout.machine.terminal import console
    from turnout.view.report.comparison import comparison, gathered

    check_json(json_to)
    wanted = None if target is None else share(target)
    folders = [Path(source) for source in sources if Path(source).is_dir()]
    if files := [source for source in sources if not Path(source).is_dir()]:
        folders.append(_run(files, seeds, jobs, out, quiet))
    found = comparison(gathered(folders), wanted, metric)
    if json_to != "-":
        console().print(found.table())
    if json_to is not None:
        write_json(found.data(), json_to)


def share(text: str) -> float:
    """A target as a number: 80% or 0.8.

    >>> share("80%"), share("0.8")
    (0.8, 0.8)
    """
    try:
        return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise UserError(f"--target {text}: write it as 80% or 0.8") from None


def _run(sources: list[str], seeds: int, jobs: int | None, out: Path | None, quiet: bool) -> Path:
    """Run files and recipes with as many seeds each; returns the folder of the runs."""
    from turnout.cli.planning import check_numbers, read_source
    from turnout.running.folder import new_folder
    from turnout.running.plan import RunPlan, planned_runs
    from turnout.running.runs import explained, run_planned
    from turnout.view import HOOKS

    check_numbers(seeds, jobs)
    variants = {}
    for source in sources:
        title, found = read_source(source)
        for name, experiment in found.items():
            called = Path(source).stem if len(found) == 1 else f"{title} {name}" if len(sources) > 1 else name
            if called in variants:
                raise UserError(f"two of these are called {called}: rename a file, or leave one out")
            variants[called] = experiment
    plan = RunPlan("compare", planned_runs(variants, range(seeds)), out or new_folder("compare"))
    if not quiet:
        say(plan.text())
    if failed := run_planned(plan, jobs=jobs, resume=out is not None, quiet=quiet, hooks=HOOKS):
        say(explained(failed, len(plan.runs)), "red")
    return plan.out
