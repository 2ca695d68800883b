"""`turnout advise`: which method suits a fleet, from its log."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli.permitting import permits_code
from turnout.cli.reading_a_log import AS_GUESSED, reads_a_log

if TYPE_CHECKING:
    from turnout.fleet import Reading

Log = Annotated[str, typer.Argument(metavar="LOG", help="The fleet's log: CSV or Parquet, or a run's folder.")]
File = Annotated[
    str | None,
    typer.Argument(metavar="[EXPERIMENT.toml]", help="Your data and model; its variants race too. [default: digits]"),
]
Budget = Annotated[str, typer.Option(metavar="10min", help="How long it may take.")]
For = Annotated[str, typer.Option("--for", metavar="AIM", help="accuracy, worst-tenth, personal or bytes.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Its folder; one that is there is gone on with.")]
Also = Annotated[
    list[str] | None,
    typer.Option(metavar="A.B=C", help="A further candidate, as for run --set; may be given again."),
]
Only = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these candidates; may be given again.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds of a run. [default: the experiment's]")]
Seeds = Annotated[int | None, typer.Option(min=4, help="Race no more seeds than this. [default: by the budget]")]
Tune = Annotated[bool, typer.Option("--tune/--no-tune", help="Tune the learning rate of every candidate first.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs side by side. [default: one a core]")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the answer.")]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE|-", help="Write the result as JSON; - prints nothing else on stdout."),
]
DataDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Where data files are.")]


@permits_code
@reads_a_log
def advise(
    log: Log,
    experiment: File = None,
    budget: Budget = "10min",
    aim: For = "accuracy",
    out: Out = None,
    also: Also = None,
    only: Only = None,
    rounds: Rounds = None,
    seeds: Seeds = None,
    tune: Tune = True,
    reading: Reading = AS_GUESSED,
    jobs: Jobs = None,
    quiet: Quiet = False,
    json_to: Json = None,
    data_dir: DataDir = None,
) -> None:
    """Say which method suits a fleet, from its log.

    Candidates (FedAvg, schemes, friends, stale, SCAFFOLD, FedNova, ternary messages, personal layers, ...) race under
    the log's turnout, on your experiment or on stand-ins from mild to harsh; one that is behind with 95 % confidence is
    dropped. The folder has a page, recommended.toml and all numbers. Stopped, it goes on with the same command and
    --out.

    \b
    turnout advise checkins.csv --every 1h
    turnout advise turnout.csv my.toml --for worst-tenth --budget 1h --out advice
    turnout advise turnout.csv my.toml --also algorithm.weighting=my_module:Mine
    """
    from turnout.cli.outcome import check_json
    from turnout.cli.planning import read_source
    from turnout.cli.screen import console, say
    from turnout.fleet.advice import advise as advised
    from turnout.running.folder import new_folder

    check_json(json_to)
    given = None if experiment is None else read_source(experiment)[1]
    folder = out or new_folder(f"advise-{Path(log).stem}")
    try:
        found = advised(
            log, given, aim=aim, budget=budget, out=folder, reading=reading, also=also or (), only=only or (),
            rounds=rounds, seeds=seeds, tune=tune, jobs=jobs, quiet=quiet, data_dir=data_dir,
        )  # fmt: skip
    except KeyboardInterrupt:
        again = [*sys.argv[1:], *([] if out else ["--out", str(folder)])]
        say(f"\ninterrupted; go on with: {shlex.join(['turnout', *again])}")
        raise typer.Exit(130) from None
    for words in found.warnings:
        say(f"warning: {words}", "yellow")
    if json_to is not None:
        text = json.dumps(found.data(), indent=2) + "\n"
        sys.stdout.write(text) if json_to == "-" else Path(json_to).write_text(text, encoding="utf-8")
    if json_to == "-":
        return
    screen = console()
    screen.print(found.table())
    say(found.sentence(), "bold", stderr=False)
    for heading, lines in (("it hinges on", found.hinge_sentences()), ("it costs", found.cost_sentences())):
        say(f"\n{heading}", "bold", stderr=False)
        for line in lines:
            say(f"  · {line}", stderr=False)
    say(f"\npage: {folder / 'advice.html'}", stderr=False)
    say(f"run it: turnout run {folder / 'recommended.toml'}", stderr=False)
