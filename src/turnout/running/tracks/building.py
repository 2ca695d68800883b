"""From settings to objects that run: a module from a model, weights from a file, parts bound to the data."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from turnout.data.description import enrolment_of as enrolment_of
from turnout.errors import UserError
from turnout.exchange import Enrolment
from turnout.experiment import Experiment
from turnout.inputs import Inputs, call, raw_output
from turnout.models.adapters import Adapted
from turnout.rng import key
from turnout.tasks import InOwnUnit, NextToken, TaskSpec
from turnout.world.enrolment import tied
from turnout.world.events import Calendar, EventSetting, calendar_of
from turnout.world.participation import Always, finished
from turnout.world.turnout_log import Match, TurnoutLog


def first_calendar(experiment: Experiment, enrolment: Enrolment) -> Calendar:
    """All events of the world; with real clients, none is a member at first, and joining is observed."""
    if hasattr(experiment.runtime, "enrol"):
        return Calendar(torch.arange(enrolment.clients))
    setting = EventSetting(enrolment.clients, enrolment.names, experiment.rounds, experiment.seed)
    return calendar_of(experiment.world.events, setting)


def refuse_simulation_only(experiment: Experiment) -> None:
    """Refuse settings that simulate what real clients decide, or that train absent clients."""
    world, kind = experiment.world, experiment.runtime.kind
    simulated = {
        "world.participation simulates who turns up": world.participation != Always(),
        "world.events simulates who joins and leaves": world.events,
        "world.attack simulates hostile clients": world.attack,
        "evaluate.substitution trains absent clients, which only a simulation can": experiment.evaluate.substitution,
    }
    for what in (words for words, is_set in simulated.items() if is_set):
        raise UserError(
            f"{what}, but with runtime {kind!r} clients are real: leave it out (to repeat a deployment, run the "
            "replay.toml of its run folder)"
        )


def bound(experiment: Experiment, enrolment: Enrolment) -> Experiment:
    """Bind parts to the clients where needed (a fleet's log has names, a cohort may be too large), and the task to the
    target's own unit."""
    participation, selection = experiment.world.participation, experiment.algorithm.selection
    for path, part in (("world.participation", participation), ("algorithm.selection", selection)):
        experiment = experiment.but(**{path: tied(part, enrolment, experiment.rounds, path)})
    if experiment.world.devices is not None:
        devices = tied(experiment.world.devices, enrolment, experiment.rounds, "world.devices")
        experiment = experiment.but(**{"world.devices": devices})
    unit = enrolment.standardised
    if unit is None or isinstance(experiment.task, InOwnUnit):
        return experiment
    return experiment.but(task=InOwnUnit(experiment.task, unit.mean, unit.std))


def log_matches(experiment: Experiment) -> list[Match]:
    """How the clients of each fleet log of an experiment match those of the data."""
    part: Any = experiment.world.participation
    while getattr(part, "when_up", None) is not None:
        part = part.when_up
    logs = [log for log in (part, getattr(experiment.algorithm.selection, "log", None)) if isinstance(log, TurnoutLog)]
    return list({(log.path, log.replays): log.match for log in logs}.values())


def try_turnout(experiment: Experiment, enrolment: Enrolment) -> None:
    """Draw one turnout, so that a participation that does not fit fails now, not in the first round."""
    everything, seed = experiment.algorithm.local.full_work, experiment.seed
    participation, client_C = experiment.world.participation, torch.zeros(1, dtype=torch.int64)
    finished(participation, client_C, 0, everything, seed, enrolment.groups)


def build_model(model: Any, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A module from a spec, a factory (which may need the input shape, and the classes), or a module itself."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model).cpu()
    if isinstance(model, Adapted):
        base = build_model(model.base, input_shape, classes, seed)
        if (file := model.base_file()) is not None:
            load_weights(base, file, "model.weights")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(seed, "adapter") & (2**63 - 1))
            return model.around(base)
    make = model if isinstance(model, type) else getattr(model, "build", model)
    if not callable(make):
        raise UserError(
            f"model is {model!r}: give a model of turnout.models, an nn.Module, or a function that makes one"
        )
    positional, named = _data_arguments(make, input_shape, classes)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(seed, "model") & (2**63 - 1))
            built = make(*positional, **named)
    except TypeError as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        given = ", ".join([*map(repr, positional), *(f"{name}={value!r}" for name, value in named.items())])
        raise UserError(
            f"the model cannot be made: {_name_of(make)}({given}) failed in {place.filename}, line {place.lineno} "
            f"({str(error).strip().splitlines()[0]}). A class or function that makes the model may take the input "
            "shape and the number of classes; give it the other arguments it needs, or a finished module"
        ) from error
    if isinstance(built, nn.Module):
        return built
    if hasattr(built, "build"):
        return build_model(built, input_shape, classes, seed)
    raise UserError(
        f"the model function gave {type(built).__name__}, not an nn.Module: {_name_of(make)} must return one"
    )


def _data_arguments(
    make: Callable[..., Any], input_shape: tuple[int, ...], classes: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a model's class or function: by position, or by name if it takes names only."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except ValueError:  # it has no signature
        return (), {}
    known: dict[str, Any] = {"input_shape": input_shape, "classes": classes}
    needed = [p for p in parameters if p.default is p.empty and p.kind != p.VAR_KEYWORD]
    named = {p.name: known[p.name] for p in needed if p.kind is p.KEYWORD_ONLY and p.name in known}
    rest = [p for p in needed if p.name not in named]
    if len(rest) > 2 or any(p.kind is p.KEYWORD_ONLY for p in rest):
        raise UserError(
            f"the model function needs {', '.join(map(str, rest))}: {_name_of(make)} is given (input_shape, classes) "
            "only; give it the others as settings, or a finished module"
        )
    return (input_shape, classes)[: len(rest)], named


def _name_of(make: Any) -> str:
    return getattr(getattr(make, "func", make), "__qualname__", type(make).__name__)


def with_all_sizes(module: nn.Module, x: Tensor, seed: int) -> nn.Module:
    """The module itself; layers that infer their size from the first samples (nn.LazyLinear) do so now, by the seed."""
    if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
        was_training = [inner for inner in module.modules() if inner.training]
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(key(seed, "sizes from samples") & (2**63 - 1))
            call(module.eval(), x)
        for inner in was_training:
            inner.training = True
    return module


def load_weights(module: nn.Module, path: Path, setting: str = "start") -> None:
    """Load initial weights; names and shapes must be those of the model."""
    try:
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{setting} = {str(path)!r} cannot be read as a safetensors file: {error}") from error
    except RuntimeError as error:  # it lists the names and shapes that differ
        words = " ".join(str(error).split())[:400]
        raise UserError(f"{setting} = {str(path)!r} holds another model's weights: {words}") from error


def check_model(task: TaskSpec, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """A `UserError` unless the model takes these samples and its output fits their targets; changes nothing."""
    packed = next(((n, p) for n, p in model.named_parameters() if type(p) is not nn.Parameter), None)
    if packed is not None:
        raise UserError(
            f"the model's {packed[0]} is packed by another library ({type(packed[1]).__name__}): give the model with "
            "ordinary weights, and set runtime.base_precision = 'int8' or 'nf4', which packs a frozen base"
        )
    two_texts = getattr(getattr(model, "config", None), "is_encoder_decoder", False) is True
    if two_texts and isinstance(getattr(task, "task", task), NextToken):
        raise UserError(
            "this model reads one text and writes another (encoder and decoder), and task NextToken is for models that "
            "continue a text: give decoder_input_ids as an input too, which are the labels moved on by one position, "
            "and compare each score with the label in its place: NextCharacter(ignore=-100)"
        )
    was_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            output = call(model, x)
            own = raw_output(model, x, labels=y).loss if getattr(task, "models_own", False) else None
    except UserError:
        raise
    except Exception as error:  # any failure of a user's model
        raise UserError(_cannot_take(model, x, error)) from error
    finally:
        for module in was_training:
            module.training = True
    task.check_output(tuple(output.shape), y)
    if own is not None and not (isinstance(own, Tensor) and own.dim() == 0):
        raise UserError(
            f"the model's own loss is {own!r:.60}, and ModelLoss needs a single number: give the task itself "
            f"({type(getattr(task, 'task', task)).__name__}()), or write a module around the model with .loss"
        )


def _cannot_take(model: nn.Module, x: Tensor, error: Exception) -> str:
    """What is wrong, and the module to write around a model that cannot be changed."""
    why = " ".join(str(error).split())[:300]
    if not isinstance(x, Inputs):
        advice = "Choose a model for such samples, or reshape the data"
        if isinstance(error, TypeError):
            advice = "Write a module around one that needs more: def forward(self, x): return self.model(x, ...)"
        return f"the model cannot take samples of shape {tuple(x.shape[1:])} ({x.dtype}): {why}. {advice}"
    names, taken = ", ".join(x.tensors), ", ".join(inspect.signature(model.forward).parameters)
    return (
        f"the model cannot take the inputs {names} ({why}): its forward takes {taken}. Name the inputs so, or write a "
        f"module around it: def forward(self, {names}): return self.model(...)"
    )
