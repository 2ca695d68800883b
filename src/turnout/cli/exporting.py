"""`turnout export`: a run's model and its records as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.permitting import permits_code
from turnout.errors import UserError
from turnout.machine.files import check_destination

Source = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder; for records also a folder of runs.")]
Model = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The trained model: .safetensors (weights), .pt (TorchScript), .pt2 (torch.export) or .onnx.",
    ),
]
Client = Annotated[
    str | None, typer.Option(metavar="N", help="That client's own model, personal parameters included: number or name.")
]
Module = Annotated[
    str | None,
    typer.Option(
        metavar="PATH:NAME",
        help="The class or function of the model (package.module:Name), for a run whose file cannot name it.",
    ),
]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="DIR", help="The records as CSV files, one a table.")]
Parquet = Annotated[Path | None, typer.Option(metavar="DIR", help="The records as Parquet files (needs pyarrow).")]
TensorBoard = Annotated[
    Path | None, typer.Option("--tensorboard", metavar="DIR", help="The curves as TensorBoard event files.")
]
MLflow = Annotated[str | None, typer.Option("--mlflow", metavar="URI", help="The curves and settings to MLflow.")]
Devices = Annotated[
    Path | None,
    typer.Option("--devices", metavar="FILE", help="The times its clients took, as devices for `world.devices`."),
]
DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where data files are; only a run of an older version needs them.")
]


@permits_code
def export(
    run: Source,
    model: Model = None,
    client: Client = None,
    module: Module = None,
    csv: Csv = None,
    parquet: Parquet = None,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
    devices: Devices = None,
    data_dir: DataDir = None,
) -> None:
    """Write a run's trained model, or its records, for other programs.

    The model needs neither the training data nor, but for .safetensors, this library. The weights alone
    (.safetensors) do not need the model's class either; a program needs it, and --module names it where the run's
    model was a lambda or an object. Of a folder of runs, the tables of records have the columns variant and seed.

    \b
    turnout export runs/mine --model model.safetensors
    turnout export runs/mine --model client-3.onnx --client 3
    turnout export runs/mine --model model.pt --module package.module:Name
    turnout export runs/mine --csv tables
    turnout export runs/mine --parquet tables --tensorboard board
    turnout export runs/mine --mlflow http://localhost:5000
    turnout export runs/deployment --devices fleet.csv
    """
    if model is csv is parquet is tensorboard is mlflow is devices is None:
        raise UserError(
            "say what to write: --model FILE, --csv DIR, --parquet DIR, --tensorboard DIR, --mlflow URI or "
            "--devices FILE"
        )
    if module is not None and model is None:
        raise UserError("--module builds the model that is written: it goes with --model FILE")
    if client is not None and model is None:
        raise UserError("--client chooses a model: it goes with --model FILE")
    if model is not None:
        _model(run, model, client, module, data_dir)
    if csv is not None or parquet is not None:
        _tables(run, csv, parquet)
    if tensorboard is not None:
        _replay(run, f"tensorboard:{tensorboard}", f"tensorboard --logdir {tensorboard} shows")
    if mlflow is not None:
        _replay(run, f"mlflow:{mlflow}", f"{mlflow} has")
    if devices is not None:
        write_devices(run, devices)


def write_devices(run: Path, path: Path) -> None:
    """The devices that a run's times make, and how to use them."""
    from turnout.cli.screen import say
    from turnout.running.observed_times import write_observed_devices

    check_destination("--devices", path)
    found = write_observed_devices(run, path)
    noise = f", noise={found.noise:.2g}" if found.noise > 0.005 else ""
    say(f"{path}: {len(found.rows)} devices; use them with", stderr=False)
    say(f'  --set \'world.devices={{kind="device-file", path="{path}"{noise}}}\'', stderr=False)


def _model(run: Path, path: Path, client: str | None, module: str | None, data_dir: Path | None) -> None:
    from turnout.cli.screen import say
    from turnout.running.charts.units import size
    from turnout.running.model_files import WEIGHTS, check_form, write_program, write_weights
    from turnout.running.result import open_one
    from turnout.running.trained import module_named

    check_destination("--model", path)
    check_form(path)
    opened, given = open_one(run, data_dir), module_named(module)
    if client is None and getattr(opened.experiment.algorithm, "personal", None) is not None:
        say("Personal parameters have their first values here (their average, if shared): --client N has trained ones.")
    if path.suffix == WEIGHTS:
        what = write_weights(opened.weights(client, given), opened.data().standardised, path)
    else:
        what = write_program(opened.model(client, given), path, opened.data().sample(2))
    say(f"{path}: {what}, {size(path.stat().st_size)}", stderr=False)


def _tables(run: Path, csv: Path | None, parquet: Path | None) -> None:
    from turnout.cli.screen import say
    from turnout.view.report.export import write_csv, write_parquet

    for folder, write in ((csv, write_csv), (parquet, write_parquet)):
        if folder is not None:
            for name, rows in write(run, folder).items():
                say(f"{folder / name}: {rows:,} rows", stderr=False)


def _replay(run: Path, tracker: str, where: str) -> None:
    from turnout.cli.screen import say
    from turnout.view.trackers import replay

    outbox = replay(run, tracker)
    say(f"{where} {len(outbox)} run{'s' * (len(outbox) > 1)}: {', '.join(list(outbox)[:6])}", stderr=False)
