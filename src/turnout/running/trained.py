"""A run's trained model, from its folder: as tensors by name, as a module, or as a file for other programs.

Tensors need no module: the folder has their names, shapes and untrained values (tracks/first_values.py). A module is
built only to compute something, from the experiment's own model or from one that is given.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from turnout.data.description import read_description
from turnout.errors import Absent, UserError
from turnout.experiment import Experiment
from turnout.machine.files import replacing
from turnout.machine.optional import optional
from turnout.models import Model
from turnout.running.config.hints import settable
from turnout.running.config.read import build
from turnout.running.loop import read_state
from turnout.running.tracks.building import build_model, with_all_sizes
from turnout.running.tracks.first_values import StandIn, fill, kept_values
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.rebuild import rebuild
from turnout.settings import IN_FOLDER
from turnout.tasks import Predictor, Standardised
from turnout.types import Tensors

NO_CHECKPOINT = "{} has no checkpoint yet: wait until the run has written one"
GIVE = (
    "give the module, or a function that builds it: to.open_run({folder!r}).{call}(module=...), on the command line "
    "--module package.module:Name"
)
WITHOUT = "; its weights alone need no module: run.weights(), or turnout export {folder} --model model.safetensors"


def module_named(text: str | None) -> Model | None:
    """The model that `--module` names, read like `model` in an experiment file."""
    found: Model | None = None if text is None else build(settable(Experiment)["model"], text, "--module")
    return found


def trained_weights(
    experiment: Experiment, folder: Path, data_dir: Path | None, client: int | str | None, module: Model | None
) -> Tensors:
    """The trained parameters and buffers by name."""
    if module is None:
        found = _trained(experiment, folder, data_dir, client)
    else:  # which is refused if it is another model
        found = trained_model(experiment, folder, data_dir, client, module)
    inner = found.model if isinstance(found, Predictor) else found
    return {name: value.detach() for name, value in inner.state_dict().items()}


def trained_model(
    experiment: Experiment, folder: Path, data_dir: Path | None, client: int | str | None, module: Model | None
) -> nn.Module:
    """The trained model; inside a `Predictor` if targets were standardised."""
    experiment = experiment if module is None else experiment.but(model=module)
    _refuse_absent(experiment, folder, "model", WITHOUT)
    found, kept = _trained(experiment, folder, data_dir, client), read_description(folder)
    inner = found.model if isinstance(found, Predictor) else found
    if not isinstance(inner, StandIn) or kept is None:
        return found
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
            _refuse_absent(experiment, folder, "weights", "")
        track = rebuild(experiment, kept, first)
        if first is not None and not first.complete:
            first.refuse_other(track.first, folder)
        found = read_state(track, folder, kept.mark)
    else:
        track = prepare(experiment, data_dir)
        number = None if client is None else track.data().client(client)
        found = read_state(track, folder)
    if found is None:
        raise UserError(NO_CHECKPOINT.format(folder))
    try:
        return track.module(track.unpack(found.state), number)
    except RuntimeError as error:  # sizes that do not fit
        raise UserError(f"{folder} holds another model than this experiment's ({str(error)[:200]})") from error


def _refuse_absent(experiment: Experiment, folder: Path, call: str, besides: str) -> None:
    """Ask for the module if the run's file cannot give it back."""
    if isinstance(experiment.model, Absent):
        why = experiment.model.why.partition(": give the experiment")[0]
        raise UserError(f"{why}: {GIVE.format(folder=str(folder), call=call)}{besides.format(folder=folder)}")


# -- files for other programs

WEIGHTS = ".safetensors"  # the format that needs no module


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


def write_program(module: nn.Module, path: Path, sample: Tensor) -> str:
    """Write a model in the format of its suffix; returns a description. `sample`: two samples of its input.

    .pt, .ts      TorchScript
    .pt2          a program of torch.export
    .onnx         ONNX
    """
    check_form(path)
    module, logger = module.eval(), logging.getLogger("torch.onnx")
    level = logger.level
    with replacing(path) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of compilers
        logger.setLevel(logging.ERROR)
        try:
            with torch.no_grad():
                returns_scores = isinstance(module(sample), Tensor)  # then names inside the program are its own
            program = module if returns_scores else Predictor(module).eval()
            return PROGRAMS[path.suffix](program, temporary, sample)
        except UserError:
            raise
        except Exception as error:  # any failure of a user's model under a compiler
            why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise UserError(
                f"this model cannot be written as {path.suffix} ({why}): .safetensors has its weights"
            ) from error
        finally:
            logger.setLevel(level)


def check_form(path: Path) -> None:
    """Refuse an unknown suffix, or a format whose library is missing, before the work begins."""
    if path.suffix not in (WEIGHTS, *PROGRAMS):
        raise UserError(f"{path}: a model's file ends in {', '.join((WEIGHTS, *PROGRAMS))}, which sets the format")
    if path.suffix == ".onnx":
        optional("onnx", "writing ONNX", "onnx")
        optional("onnxscript", "writing ONNX", "onnx")


def _torchscript(module: nn.Module, path: Path, sample: Tensor) -> str:
    traced = torch.jit.trace(module, (sample,), check_trace=False)
    traced.save(str(path))
    other = torch.cat([sample, sample, sample])[:5]  # another number of samples than it was traced with
    if sample.is_floating_point():
        other = torch.randn(other.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        if not torch.allclose(torch.jit.load(str(path))(other), module(other), atol=1e-5):
            raise UserError(
                "this model's computation depends on its samples, which TorchScript cannot record: use .pt2"
            )
    return "TorchScript: torch.jit.load"


def _program(module: nn.Module, path: Path, sample: Tensor) -> str:
    with path.open("wb") as file:  # it refuses a temporary name that does not end in .pt2
        torch.export.save(torch.export.export(module, (sample,), dynamic_shapes=_any_number()), file)
    return "a program: torch.export.load"


def _open_neural_network(module: nn.Module, path: Path, sample: Tensor) -> str:
    torch.onnx.export(
        module, (sample,), str(path), dynamo=True, dynamic_shapes=_any_number(), input_names=["input"],
        output_names=["output"], verbose=False, external_data=False,
    )  # fmt: skip
    return "ONNX, from input to output"


def _any_number() -> tuple[dict[int, object]]:
    """Any number of samples."""
    return ({0: torch.export.Dim("samples", min=1)},)


PROGRAMS: dict[str, Callable[[nn.Module, Path, Tensor], str]] = {
    ".pt": _torchscript,
    ".ts": _torchscript,
    ".pt2": _program,
    ".onnx": _open_neural_network,
}
