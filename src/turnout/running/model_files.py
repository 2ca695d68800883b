"""A trained model as a file for others: its weights alone, or a program that needs neither turnout nor the class."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from turnout.errors import UserError
from turnout.machine.files import replacing
from turnout.machine.optional import optional
from turnout.tasks import ScoresOnly, Standardised
from turnout.types import Tensors

WEIGHTS = ".safetensors"  # the form that needs no module


def write_weights(weights: Tensors, unit: Standardised | None, path: Path) -> str:
    """Write tensors under their own names; in words, what was written.

    Where targets were standardised, the way back to their unit is in the file's metadata.
    """
    about = {} if unit is None else {"target_mean": _single(unit.mean), "target_std": _single(unit.std)}
    with replacing(path) as temporary:
        save_file({name: value.clone().contiguous() for name, value in weights.items()}, temporary, about)
    note = "" if unit is None else " (for standardised targets: their mean and deviation are in the file's metadata)"
    return f"{len(weights)} tensors{note}"


def _single(number: float) -> str:
    """As the model in memory has it, in single precision."""
    return str(float(torch.tensor(number)))


def write_program(module: nn.Module, path: Path, sample: Tensor) -> str:
    """Write a model in the form its suffix names; in words, what was written. `sample`: two samples it could be given.

    .pt, .ts      TorchScript
    .pt2          a program of torch.export
    .onnx         ONNX
    """
    module = module.eval()
    with replacing(path) as temporary, _quiet():
        try:
            return PROGRAMS[path.suffix](_returning_scores(module, sample), temporary, sample)
        except UserError:
            raise
        except Exception as error:  # whatever a model of one's own does under a compiler
            why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise UserError(
                f"this model cannot be written as {path.suffix} ({why}): .safetensors has its weights"
            ) from error


def check_form(path: Path) -> None:
    """Refuse a name that says no form, and a form whose library is not here, before the work begins."""
    if path.suffix not in (WEIGHTS, *PROGRAMS):
        raise UserError(f"{path}: a model's file ends in {', '.join((WEIGHTS, *PROGRAMS))}, which says its form")
    if path.suffix == ".onnx":
        _onnx()


def _onnx() -> None:
    optional("onnx", "writing ONNX", "onnx")
    optional("onnxscript", "writing ONNX", "onnx")


def _returning_scores(module: nn.Module, sample: Tensor) -> nn.Module:
    """The module itself where it returns a tensor, so that names inside its program are its own."""
    with torch.no_grad():
        return module if isinstance(module(sample), Tensor) else ScoresOnly(module).eval()


def _torchscript(module: nn.Module, path: Path, sample: Tensor) -> str:
    traced = torch.jit.trace(module, (sample,), check_trace=False)
    traced.save(str(path))
    other = torch.cat([sample, sample, sample])[:5]  # another number of samples than it was traced with
    if sample.is_floating_point():
        other = torch.randn(other.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        if not torch.allclose(torch.jit.load(str(path))(other), module(other), atol=1e-5):
            raise UserError(
                "this model decides by its samples what to compute, which TorchScript does not see: use .pt2"
            )
    return "TorchScript: torch.jit.load"


def _program(module: nn.Module, path: Path, sample: Tensor) -> str:
    with path.open("wb") as file:  # by its name it would complain of a file that is not called .pt2 yet
        torch.export.save(torch.export.export(module, (sample,), dynamic_shapes=_any_number()), file)
    return "a program: torch.export.load"


def _open_neural_network(module: nn.Module, path: Path, sample: Tensor) -> str:
    _onnx()
    torch.onnx.export(
        module, (sample,), str(path), dynamo=True, dynamic_shapes=_any_number(), input_names=["input"],
        output_names=["output"], verbose=False, external_data=False,
    )  # fmt: skip
    return "ONNX, from input to output"


def _any_number() -> tuple[dict[int, object]]:
    """How many samples there are is open."""
    return ({0: torch.export.Dim("samples", min=1)},)


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what compilers say about themselves."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


PROGRAMS: dict[str, Callable[[nn.Module, Path, Tensor], str]] = {
    ".pt": _torchscript,
    ".ts": _torchscript,
    ".pt2": _program,
    ".onnx": _open_neural_network,
}
