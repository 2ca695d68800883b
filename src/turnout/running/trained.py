"""A run's trained model, from its folder: as tensors by name, as a module, as a file for other programs; and its
predictions for a table.

Tensors need no module: the folder has their names, shapes and untrained values (tracks/first_values.py). A module is
built only to compute something, from the experiment's own model or from one that is given.
"""

from __future__ import annotations

import csv
import logging
import math
import warnings
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from turnout.data.description import Description, read_description
from turnout.data.text_table import TextTable, as_number, read_tables
from turnout.data.texts import Texts
from turnout.errors import Absent, UserError, optional
from turnout.experiment import Experiment
from turnout.inputs import Inputs, call, trimmed
from turnout.machine.files import replacing
from turnout.models import Model
from turnout.running.config.hints import settable
from turnout.running.config.read import build
from turnout.running.loop import read_state
from turnout.running.tracks.building import build_model, with_all_sizes
from turnout.running.tracks.first_values import StandIn, fill, kept_values
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.rebuild import rebuild
from turnout.settings import IN_FOLDER
from turnout.tasks import IGNORED, NextToken, Predictor, Standardised
from turnout.types import Tensors

AT_ONCE = 4096  # rows to predict
TEXTS_AT_ONCE = 16  # scores of every token for every position are many


def module_named(text: str | None) -> Model | None:
    """The model that `--module` names, read like `model` in an experiment file."""
    model: Model | None = None if text is None else build(settable(Experiment)["model"], text, "--module")
    return model


def trained_weights(
    experiment: Experiment, folder: Path, data_dir: Path | None, client: int | str | None, module: Model | None
) -> Tensors:
    """The trained parameters and buffers by name."""
    if module is None:
        trained = _trained(experiment, folder, data_dir, client)
    else:  # which is refused if it is another model
        trained = trained_model(experiment, folder, data_dir, client, module)
    inner = trained.model if isinstance(trained, Predictor) else trained
    return {name: value.detach() for name, value in inner.state_dict().items()}


def trained_model(
    experiment: Experiment, folder: Path, data_dir: Path | None, client: int | str | None, module: Model | None
) -> nn.Module:
    """The trained model; inside a `Predictor` if targets were standardised."""
    experiment = experiment if module is None else experiment.but(model=module)
    _refuse_absent(experiment, folder, "model")
    trained, kept = _trained(experiment, folder, data_dir, client), read_description(folder)
    inner = trained.model if isinstance(trained, Predictor) else trained
    if not isinstance(inner, StandIn) or kept is None:
        return trained
    own = build_model(experiment.model, kept.input_shape, kept.classes, experiment.seed)
    own = with_all_sizes(own, kept.sample(2), experiment.seed)
    if (first := kept_values(folder, kept.mark)) is not None:
        first.check_names(own, folder)
    own = fill(own, inner)
    return own if kept.standardised is None else Predictor(own, kept.standardised).eval()


def _trained(experiment: Experiment, folder: Path, data_dir: Path | None, client: int | str | None) -> nn.Module:
    """A track's model: a `StandIn` with the model's names if the folder has all that it needs."""
    kept = read_description(folder)
    # A client's own model may be stored elsewhere by another runtime, or be calibrated on the client's samples.
    calibrated = getattr(experiment.algorithm, "newcomers", None) == "calibrated"
    in_folder = client is None or (isinstance(experiment.runtime, IN_FOLDER) and not calibrated)
    if kept is not None and in_folder:
        number, first = None if client is None else kept.client(client), kept_values(folder, kept.mark)
        if first is None or not first.complete:
            _refuse_absent(experiment, folder, "weights")
        track = rebuild(experiment, kept, first)
        if first is not None and not first.complete:
            first.refuse_other(track.first, folder)
        state = read_state(track, folder, kept.mark)
    else:
        track = prepare(experiment, data_dir)
        number = None if client is None else track.data().client(client)
        state = read_state(track, folder)
    if state is None:
        raise UserError(f"{folder} has no checkpoint yet: wait until the run has written one")
    try:
        return track.module(track.unpack(state.state), number)
    except RuntimeError as error:  # sizes that do not fit
        raise UserError(f"{folder} holds another model than this experiment's ({str(error)[:200]})") from error


def _refuse_absent(experiment: Experiment, folder: Path, call: str) -> None:
    """Ask for the module if the run's file cannot give it back."""
    if isinstance(experiment.model, Absent):
        why = experiment.model.why.partition(": give the experiment")[0]
        alone = f"its weights alone need no module: run.weights(), or turnout export {folder} --model model.safetensors"
        raise UserError(
            f"{why}: give the module, or a function that builds it: to.open_run({str(folder)!r}).{call}(module=...), "
            f"on the command line --module package.module:Name{f'; {alone}' if call == 'model' else ''}"
        )


# -- files for other programs

WEIGHTS = ".safetensors"  # the format that needs no module
FORMS = (WEIGHTS, ".pt2", ".onnx")


def write_weights(weights: Tensors, unit: Standardised | None, path: Path) -> str:
    """Write tensors under their own names; returns a description.

    If targets were standardised, their mean and deviation are in the file's metadata, in single precision.
    """
    numbers = {} if unit is None else {"target_mean": unit.mean, "target_std": unit.std}
    about = {name: str(float(torch.tensor(number))) for name, number in numbers.items()}
    with replacing(path) as temporary:
        save_file({name: value.clone().contiguous() for name, value in weights.items()}, temporary, about)
    note = "" if unit is None else " (for standardised targets: their mean and deviation are in the file's metadata)"
    return f"{len(weights)} tensors{note}"


class ByPlace(nn.Module):
    """A model whose several inputs are given one after another instead of by name; it returns its scores."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        return call(self.model, Inputs(dict(zip(self.names, inputs, strict=True))))


def write_program(module: nn.Module, path: Path, sample: Tensor) -> str:
    """Write a model as .pt2 (a program of torch.export) or .onnx; returns a description. `sample`: two inputs."""
    module, logger, any_number = module.eval(), logging.getLogger("torch.onnx"), torch.export.Dim("samples", min=1)
    names, given, shapes = ["input"], tuple[Tensor, ...]((sample,)), tuple[Any, ...](({0: any_number},))
    if isinstance(sample, Inputs):
        names, given = list(sample.tensors), tuple(sample.tensors.values())
        shapes = (({0: any_number},) * len(names),)
        module = ByPlace(module, tuple(names))
    in_order = f"; inputs: {', '.join(names)}" if len(names) > 1 else ""
    level = logger.level
    with replacing(path) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of compilers
        logger.setLevel(logging.ERROR)
        try:
            with torch.no_grad():
                returns_scores = isinstance(module(*given), Tensor)  # then names inside the program are its own
            program = module if returns_scores else Predictor(module).eval()
            if path.suffix == ".pt2":
                with temporary.open("wb") as file:  # it refuses a temporary name that does not end in .pt2
                    torch.export.save(torch.export.export(program, given, dynamic_shapes=shapes), file)
                return f"a program: torch.export.load{in_order}"
            torch.onnx.export(
                program, given, str(temporary), dynamo=True, dynamic_shapes=shapes, input_names=names,
                output_names=["output"], verbose=False, external_data=False,
            )  # fmt: skip
            return f"ONNX, from {', '.join(names)} to output"
        except Exception as error:  # any failure of a user's model under a compiler
            why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise UserError(
                f"this model cannot be written as {path.suffix} ({why}): .safetensors has its weights"
            ) from error
        finally:
            logger.setLevel(level)


def check_form(path: Path) -> None:
    """Refuse an unknown suffix, or a format whose library is missing, before the work begins."""
    if path.suffix not in FORMS:
        raise UserError(f"{path}: a model's file ends in {', '.join(FORMS)}, which sets the format")
    if path.suffix == ".onnx":
        optional("onnx", "writing ONNX", "onnx")
        optional("onnxscript", "writing ONNX", "onnx")


# -- predictions for the rows of a table; shape letters: S rows, K outputs of the model


@dataclass(frozen=True)
class Prediction:
    """A table with predictions.

    table    the table
    columns  the predicted columns
    score    a sentence that compares them with the table's own label column
    """

    table: TextTable
    columns: dict[str, list[str]]
    score: str | None = None

    def write(self, out: IO[str]) -> None:
        """Write a CSV: the table's own columns, then the predicted ones."""
        writer = csv.writer(out, lineterminator="\n")
        columns = self.table.columns | self.columns
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def predict(
    model: nn.Module, kept: Description, path: Path, label: str | None, data_dir: Path | None, data: object = None
) -> Prediction:
    """Predict the rows of a CSV file (or of a folder of them); `label`: the label column of the training data, `data`:
    its settings, by which texts become samples."""
    table = read_tables(path, data_dir)
    if kept.inputs and isinstance(data, Texts):
        x: Tensor = data.inputs_of(table, data_dir)
        if data.label_column is None:
            return _perplexities(model, table, data, x)
    else:
        x = _inputs_of(table, kept, label)
    with torch.no_grad():
        output_SK = torch.cat([call(model, part) for part in x.split(AT_ONCE)])
    if output_SK.ndim != 2:
        raise UserError(f"this run's model gives {tuple(output_SK.shape[1:])} numbers per row, which is not a table")
    known, score = table.columns.get(label or ""), None
    if kept.target_type == "float32":
        columns = _numbers(output_SK, "prediction")
        if known is not None and output_SK.shape[1] == 1 and all(as_number(cell) is not None for cell in known):
            error = (output_SK[:, 0].double() - torch.tensor([float(cell) for cell in known])).abs().mean()
            score = f"predictions differ from column {label!r} by {float(error):.4g} on average"
    elif kept.target_shape:  # several labels per row: only the task knows what its outputs mean
        columns = _numbers(output_SK, "output")
    elif output_SK.shape[1] != len(kept.labels):
        raise UserError(
            f"this model has {output_SK.shape[1]} of the {len(kept.labels)} labels of the data, and a run does not "
            "record which: use it in Python, to.load_model(folder, client)"
        )
    else:
        chance_S, best_S = output_SK.softmax(1).max(1)
        predicted = [kept.labels[i] for i in best_S.tolist()]
        columns = {"prediction": predicted, "probability": [f"{chance:.6g}" for chance in chance_S.tolist()]}
        if known is not None:
            right = sum(a == b.strip() for a, b in zip(predicted, known, strict=True))
            score = f"{right} of {len(known)} predictions are as in column {label!r} ({100 * right / len(known):.1f} %)"
    renamed = {f"{name} by turnout" if name in table.columns else name: cells for name, cells in columns.items()}
    return Prediction(table, renamed, score)


def _perplexities(model: nn.Module, table: TextTable, data: Texts, x: Tensor) -> Prediction:
    """The perplexity of each text (of its first `length` tokens), and of all tokens together."""
    task, loss_S, count_S = NextToken(), list[Tensor](), list[Tensor]()
    for part in x.split(TEXTS_AT_ONCE):
        y = torch.where(part["attention_mask"] == 1, part["input_ids"], IGNORED)
        with torch.no_grad():
            loss_S.append(task.loss(call(model, trimmed(part)), y).double())
        count_S.append(task.positions(y))
    loss, count = torch.cat(loss_S), torch.cat(count_S)
    cells = [f"{value:.7g}" if n else "" for value, n in zip(loss.exp().tolist(), count.tolist(), strict=True)]
    mean = float((loss * count).sum() / count.sum().clamp(min=1))
    return Prediction(table, {"perplexity": cells}, f"the perplexity of all texts together is {math.exp(mean):.4g}")


def _inputs_of(table: TextTable, kept: Description, label: str | None) -> Tensor:
    """The rows as inputs of the model: by the columns' names if it was trained on a table, else in their order."""
    if kept.encoding is not None:
        return kept.encoding.encode(table)
    if kept.inputs:
        raise UserError(
            f"this run's samples have several inputs ({', '.join(kept.inputs)}), which a table does not have: use the "
            "model in Python, to.load_model(folder)(...)"
        )
    wanted, shape = prod(kept.input_shape), " × ".join(map(str, kept.input_shape))
    names = [name for name in table.columns if name != label]
    if len(names) != wanted:
        raise UserError(
            f"{table.path} has {len(names)} columns, and this model needs {wanted} numbers per row ({shape}), in order"
        )
    for name in names:
        words = "{} is not a finite number, and this model was not trained on a table with texts"
        table.refuse(name, table.columns[name], lambda cell: as_number(cell) is None, words)
    numbers = torch.tensor([[float(cell) for cell in table.columns[name]] for name in names], dtype=torch.float64)
    return numbers.T.reshape(-1, *kept.input_shape).to(getattr(torch, kept.input_type))


def _numbers(output_SK: Tensor, called: str) -> dict[str, list[str]]:
    columns = output_SK.T.tolist()
    names = [called] if len(columns) == 1 else [f"{called} {i}" for i in range(len(columns))]
    return {name: [f"{value:.7g}" for value in column] for name, column in zip(names, columns, strict=True)}
