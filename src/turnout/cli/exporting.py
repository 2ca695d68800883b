"""For other programs: `turnout export` writes a run's model and records, or an experiment as a Flower app; `turnout
predict` applies a run's model."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli.common import PERSONAL_HINT, Client, DataDir, Module, RunFolder, permits_code, say
from turnout.errors import Absent, UserError
from turnout.machine.files import check_destination, write_whole

if TYPE_CHECKING:
    from turnout.running.result import Run

Model = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The trained model: .safetensors (weights), .pt2 (torch.export) or .onnx.",
    ),
]
Adapter = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The trained adapter as peft reads it: PeftModel.from_pretrained(base, DIR)."),
]
Merged = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The base's weights with the adapter merged into them, .safetensors."),
]
Exported = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run's folder, or a folder of runs; for --flower-app also an experiment."),
]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="DIR", help="The records as CSV files, one per table.")]
Card = Annotated[Path | None, typer.Option(metavar="FILE", help="A model card of the run, in Markdown.")]
TensorBoard = Annotated[
    Path | None, typer.Option("--tensorboard", metavar="DIR", help="The curves as TensorBoard event files.")
]
FlowerApp = Annotated[
    Path | None,
    typer.Option("--flower-app", metavar="DIR", help="The experiment as a Flower app, for flwr run on any SuperLink."),
]
MLflow = Annotated[str | None, typer.Option("--mlflow", metavar="URI", help="The curves and settings to MLflow.")]


@permits_code
def export(
    run: Exported,
    model: Model = None,
    adapter: Adapter = None,
    merged: Merged = None,
    client: Client = None,
    module: Module = None,
    card: Card = None,
    csv: Csv = None,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
    flower_app: FlowerApp = None,
    data_dir: DataDir = None,
) -> None:
    """Write a run's model, card or records, or a Flower app.

    The model needs neither the training data nor, except for .safetensors, this library. The weights alone
    (.safetensors) do not need the model's class either; a program needs it, and --module names it where the run's
    model was a lambda or an object. For a folder of runs, the tables of records have the columns variant and seed.

    \b
    turnout export runs/mine --model model.safetensors
    turnout export runs/mine --model client-3.onnx --client 3
    turnout export runs/mine --model model.pt2 --module package.module:Name
    turnout export runs/mine --adapter adapter --merged merged.safetensors
    turnout export runs/mine --model model.safetensors --card README.md
    turnout export runs/mine --csv tables
    turnout export runs/mine --tensorboard board
    turnout export runs/mine --mlflow http://localhost:5000
    turnout export my.toml --flower-app app      also of a recipe, or of a run's folder
    """
    if model is adapter is merged is card is csv is tensorboard is mlflow is flower_app is None:
        raise UserError(
            "say what to write: --model FILE, --card FILE, --csv DIR, --tensorboard DIR, --mlflow URI, "
            "--flower-app DIR, --adapter DIR or --merged FILE"
        )
    if module is not None and model is adapter is merged is None:
        raise UserError("--module builds the model that is written: use it with --model FILE")
    if client is not None and model is adapter is merged is None:
        raise UserError("--client chooses a model: use it with --model FILE")
    if model is not None:
        _write_model(run, model, client, module, data_dir)
    if adapter is not None or merged is not None:
        _write_adapter(run, adapter, merged, client, module, data_dir)
    if card is not None:
        from turnout.view.report.card import model_card

        check_destination("--card", card)
        write_whole(card, model_card(run))
        say(f"{card}: a model card; its last section is for you to write", stderr=False)
    if flower_app is not None:
        _write_flower_app(run, flower_app)
    if csv is not None:
        from turnout.running.records.export import write_csv

        for name, rows in write_csv(run, csv).items():
            say(f"{csv / name}: {rows:,} rows", stderr=False)
    if tensorboard is not None:
        _replay(run, f"tensorboard:{tensorboard}", f"tensorboard --logdir {tensorboard} shows")
    if mlflow is not None:
        _replay(run, f"mlflow:{mlflow}", f"{mlflow} has")


def _opened(run: Path, data_dir: Path | None, client: str | None) -> Run:
    """The run, with a hint where the model without --client has untrained parameters."""
    from turnout.running.result import open_one

    opened = open_one(run, data_dir)
    if client is None and getattr(opened.experiment.algorithm, "personal", None) is not None:
        say(PERSONAL_HINT)
    return opened


def _write_model(run: Path, path: Path, client: str | None, module: str | None, data_dir: Path | None) -> None:
    from turnout.running.charts.units import size
    from turnout.running.trained import WEIGHTS, check_form, module_named, write_program, write_weights

    check_destination("--model", path)
    check_form(path)
    given, opened = module_named(module), _opened(run, data_dir, client)
    if path.suffix == WEIGHTS:
        what = write_weights(opened.weights(client, given), opened.data().standardised, path)
    else:
        what = write_program(opened.model(client, given), path, opened.data().sample(2))
    say(f"{path}: {what}, {size(path.stat().st_size)}", stderr=False)


def _write_adapter(
    run: Path, folder: Path | None, merged: Path | None, client: str | None, module: str | None, data_dir: Path | None
) -> None:
    from turnout.running.adapter_files import merged_weights, write_adapter
    from turnout.running.charts.units import size
    from turnout.running.trained import WEIGHTS, module_named, write_weights

    if merged is not None:
        check_destination("--merged", merged)
        if merged.suffix != WEIGHTS:
            raise UserError(f"--merged {merged} is a file of weights: name it something{WEIGHTS}")
    opened = _opened(run, data_dir, client)
    model = opened.model(client, module_named(module))
    if folder is not None:
        say(f"{folder}: {write_adapter(model, folder)}", stderr=False)
    if merged is not None:
        what = write_weights(merged_weights(model), opened.data().standardised, merged)
        say(f"{merged}: {what}, {size(merged.stat().st_size)}", stderr=False)


def _write_flower_app(source: Path, folder: Path) -> None:
    from turnout.cli.deploying import agreed_experiment
    from turnout.deploy.app import write_flower_app

    file = source / "experiment.toml"
    for path in write_flower_app(folder, agreed_experiment(str(file if file.exists() else source), folder)):
        say(str(path), stderr=False)
    say(f"flwr run {folder} starts it on a SuperLink; flower-supernode --node-config 'client=\"0\"' is its client 0")


def _replay(run: Path, tracker: str, where: str) -> None:
    from turnout.view.trackers import replay

    sent = replay(run, tracker)
    say(f"{where} {len(sent)} run{'s' * (len(sent) > 1)}: {', '.join(list(sent)[:6])}", stderr=False)


def _label_of(run: Path) -> str | None:
    """The label column of a run on a table; None for other data."""
    from turnout.running.config.read import read_file

    data = read_file(run / "experiment.toml").get("world", {}).get("data", {})
    label = data.get("label", data.get("label_column")) if isinstance(data, dict) else None
    return label if isinstance(label, str) else None


@permits_code
def predict(
    run: RunFolder,
    data: Annotated[Path, typer.Argument(metavar="DATA.csv", help="Rows like the training data; no label needed.")],
    client: Client = None,
    module: Module = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The CSV file to write. [default: print it]")] = None,
    data_dir: DataDir = None,
) -> None:
    """Predict the rows of a table with a run's model.

    Writes the table's own columns and the prediction (for classes also its probability). A run on a table finds its
    columns by name, and fills gaps and encodes texts as in training; a run on texts needs their column, and where it
    predicts the next token, the perplexity of each text is written; any other run takes numbers in order. The training
    data is not needed. If the table has the label's column, the accuracy is printed.

    \b
    turnout predict runs/mine new-people.csv
    turnout predict runs/mine new-people.csv --client Ulm --out predicted.csv
    turnout predict runs/mine new-people.csv --module package.module:Name
    """
    from turnout.running.trained import module_named
    from turnout.running.trained import predict as predicted

    if out is not None:
        check_destination("--out", out)
    given, opened = module_named(module), _opened(run, data_dir, client)
    world = opened.experiment.world
    kind = None if isinstance(world, Absent) or isinstance(world.data, Absent) else world.data
    found = predicted(opened.model(client, given), opened.data(), data, _label_of(run), data_dir, kind)
    text = io.StringIO()
    found.write(text)
    if out is None:
        sys.stdout.write(text.getvalue())
    else:
        write_whole(out, text.getvalue())
        say(f"{out}: {len(found.table):,} rows", stderr=False)
    if found.score is not None:
        say(found.score)
