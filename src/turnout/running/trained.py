"""A run's trained values, from its folder: as tensors by name, or inside the module that was trained.

Tensors need no module: the folder has their names, shapes and what is never trained (tracks/first_values.py). A module
is built only to compute something, from the experiment's own model or from one that is given.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from turnout.data.description import Description, read_description
from turnout.errors import Absent, UserError
from turnout.experiment import Experiment
from turnout.models import Model
from turnout.running.config.hints import settable
from turnout.running.config.read import build
from turnout.running.loop import read_state
from turnout.running.tracks.building import build_model, with_all_sizes
from turnout.running.tracks.first_values import StandIn, fill, kept_values
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.rebuild import rebuild
from turnout.settings import IN_FOLDER
from turnout.tasks import Predictor
from turnout.types import Tensors

NO_CHECKPOINT = "{} has no checkpoint yet: the run has not got that far"
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
    """The trained model; where targets were standardised, inside a `Predictor`."""
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
    """What a track hands out: a `StandIn` with the model's names where the folder has all that it needs."""
    kept = read_description(folder)
    if kept is not None and _kept_here(experiment, client):
        return _without_data(experiment, folder, kept, client)
    track = prepare(experiment, data_dir)
    number = None if client is None else track.data().client(client)
    found = read_state(track, folder)
    if found is None:
        raise UserError(NO_CHECKPOINT.format(folder))
    return track.module(track.unpack(found.state), number)


def _kept_here(experiment: Experiment, client: int | str | None) -> bool:
    """Whether a model is in the run's folder: a client's own may be where another runtime has put it, and statistics
    that are calibrated for a newcomer are made from its samples."""
    if client is None:
        return True
    calibrated = getattr(experiment.algorithm, "newcomers", None) == "calibrated"
    return isinstance(experiment.runtime, IN_FOLDER) and not calibrated


def _without_data(experiment: Experiment, folder: Path, kept: Description, client: int | str | None) -> nn.Module:
    number, first = None if client is None else kept.client(client), kept_values(folder, kept.mark)
    if first is None or not first.complete:
        _refuse_absent(experiment, folder, "weights", "")
    track = rebuild(experiment, kept, first)
    if first is not None and not first.complete:
        first.refuse_other(track.first, folder)
    found = read_state(track, folder, kept.mark)
    if found is None:
        raise UserError(NO_CHECKPOINT.format(folder))
    try:
        return track.module(track.unpack(found.state), number)
    except RuntimeError as error:  # sizes that do not fit
        raise UserError(f"{folder} holds another model than this experiment's ({str(error)[:200]})") from error


def _refuse_absent(experiment: Experiment, folder: Path, call: str, besides: str) -> None:
    """Ask for the module where the run's file cannot give it back."""
    if isinstance(experiment.model, Absent):
        why = experiment.model.why.partition(": give the experiment")[0]
        raise UserError(f"{why}: {GIVE.format(folder=str(folder), call=call)}{besides.format(folder=folder)}")
