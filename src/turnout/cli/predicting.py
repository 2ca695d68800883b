"""`turnout predict`: what a run's model says of the rows of a table."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.permitting import permits_code
from turnout.machine.files import check_destination, write_whole

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
Table = Annotated[
    Path, typer.Argument(metavar="DATA.csv", help="Rows like those it was trained on; a label is not needed.")
]
Client = Annotated[str | None, typer.Option(metavar="N", help="By that client's own model: its number or name.")]
Module = Annotated[
    str | None,
    typer.Option(
        metavar="PATH:NAME",
        help="The class or function of the model (package.module:Name), for a run whose file cannot name it.",
    ),
]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="The CSV file to write. [default: print it]")]
DataDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Where data files are.")]


@permits_code
def predict(
    run: Run, data: Table, client: Client = None, module: Module = None, out: Out = None, data_dir: DataDir = None
) -> None:
    """Predict the rows of a table by a run's model.

    Writes the table's own columns and the prediction (of classes also its probability). A run on a table finds its
    columns by name, and fills gaps and codes texts as it did for training; any other takes numbers in order. The
    training data is not needed. Where the table has the column that was to be learned, how often it was right is said.

    \b
    turnout predict runs/mine new-people.csv
    turnout predict runs/mine new-people.csv --client Ulm --out predicted.csv
    turnout predict runs/mine new-people.csv --module package.module:Name
    """
    from turnout.cli.screen import say
    from turnout.running.prediction import predict as predicted
    from turnout.running.result import label_of, open_one
    from turnout.running.trained import module_named

    if out is not None:
        check_destination("--out", out)
    opened, given = open_one(run, data_dir), module_named(module)
    if client is None and getattr(opened.experiment.algorithm, "personal", None) is not None:
        say("Personal parameters have their first values here (their average, if shared): --client N has trained ones.")
    model = opened.model(client, given)
    found = predicted(model, opened.data(), data, label_of(run), data_dir)
    text = io.StringIO()
    found.write(text)
    if out is None:
        sys.stdout.write(text.getvalue())
    else:
        write_whole(out, text.getvalue())
        say(f"{out}: {len(found.table):,} rows", stderr=False)
    if found.score is not None:
        say(found.score)
