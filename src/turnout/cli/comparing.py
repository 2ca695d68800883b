"""`turnout compare`: which of several is better, and how sure that is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.permitting import permits_code
from turnout.errors import UserError

Sources = Annotated[
    list[str],
    typer.Argument(metavar="RUN|FILE...", help="Folders of runs; or experiment files and recipes, to be run."),
]
Target = Annotated[
    str | None, typer.Option(metavar="80%", help="Also what it took to get there: rounds, bytes and time.")
]
Metric = Annotated[str | None, typer.Option(metavar="NAME", help="What to compare by. [default: the main metric]")]
Seeds = Annotated[int, typer.Option(help="With how many seeds files are run.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs side by side. [default: one a core]")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Where files are run. [default: a new one under runs/]")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE|-", help="Write the result as JSON; - prints nothing else on stdout."),
]


@permits_code
def compare(
    sources: Sources,
    target: Target = None,
    metric: Metric = None,
    seeds: Seeds = 5,
    jobs: Jobs = None,
    out: Out = None,
    quiet: Quiet = False,
    json_to: Json = None,
) -> None:
    """Compare runs: the difference to the best, with an interval.

    Paired by seed. The intervals hold at 95 % for all pairs at once, so it does no harm that the best was picked by
    looking; where an interval reaches zero the variant is "not distinguishable", and nothing is set in bold. Single
    runs that differ in the seed only are one variant.

    \b
    turnout compare runs/mine
    turnout compare runs/fedavg runs/scaffold --target 80%
    turnout compare a.toml b.toml --seeds 8 --json found.json
    """
    from turnout.cli.outcome import check_json
    from turnout.cli.screen import console
    from turnout.view.report.comparison import comparison, gathered

    check_json(json_to)
    wanted = None if target is None else share(target)
    folders = [Path(source) for source in sources if Path(source).is_dir()]
    files = [source for source in sources if not Path(source).is_dir()]
    if files:
        folders.append(_run(files, seeds, jobs, out, quiet))
    found = comparison(gathered(folders), wanted, metric)
    if json_to != "-":
        console().print(found.table())
    if json_to is not None:
        text = json.dumps(found.data(), indent=2, allow_nan=False) + "\n"
        sys.stdout.write(text) if json_to == "-" else Path(json_to).write_text(text, encoding="utf-8")


def share(said: str) -> float:
    """A target as a number: 80% or 0.8.

    >>> share("80%"), share("0.8")
    (0.8, 0.8)
    """
    try:
        return float(said.strip().removesuffix("%")) / (100 if said.strip().endswith("%") else 1)
    except ValueError:
        raise UserError(f"--target {said}: write it as 80% or 0.8") from None


def _run(sources: list[str], seeds: int, jobs: int | None, out: Path | None, quiet: bool) -> Path:
    """Run what the files say, each with as many seeds; the folder they are in."""
    from turnout.cli.outcome import say_failures
    from turnout.cli.planning import check_numbers, read_source
    from turnout.cli.screen import say
    from turnout.running.folder import new_folder
    from turnout.running.plan import RunPlan, planned_runs
    from turnout.running.planned import run_planned
    from turnout.view import HOOKS

    check_numbers(seeds, None)
    variants = {}
    for source in sources:
        title, found = read_source(source)
        alone = len(found) == 1
        for name, experiment in found.items():
            called = Path(source).stem if alone else f"{title} {name}" if len(sources) > 1 else name
            if called in variants:
                raise UserError(f"two of these are called {called}: rename a file, or leave one out")
            variants[called] = experiment
    plan = RunPlan("compare", planned_runs(variants, range(seeds)), out or new_folder("compare"))
    if not quiet:
        say(plan.text())
    failed = run_planned(plan, jobs=jobs, resume=out is not None, quiet=quiet, hooks=HOOKS)
    if failed:
        say_failures(failed, len(plan.runs))
    return plan.out
