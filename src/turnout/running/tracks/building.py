"""From what a person gave to what runs: a module from a model, weights from a file, parts tied to the data."""

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

from turnout.data.enrolling import enrolment_of as enrolment_of
from turnout.errors import UserError, nearest
from turnout.exchange import Enrolment
from turnout.experiment import Experiment
from turnout.rng import key
from turnout.task import InOwnUnit
from turnout.world.client_names import Match
from turnout.world.enrolment import tied
from turnout.world.events import Calendar, EventSetting, calendar_of
from turnout.world.participation import Always
from turnout.world.turnout_log import TurnoutLog


def first_calendar(experiment: Experiment, enrolment: Enrolment) -> Calendar:
    """All events of the world; where clients are real, nobody is there at first and who comes is seen."""
    if hasattr(experiment.runtime, "enrol"):
        return Calendar(torch.arange(enrolment.clients))
    setting = EventSetting(enrolment.clients, enrolment.names, experiment.rounds, experiment.seed)
    return calendar_of(experiment.world.events, setting)


def refuse_simulation_only(experiment: Experiment) -> None:
    """Real clients turn up, join and leave as they do: what draws that, or needs the missing, is a mistake."""
    world, kind = experiment.world, experiment.runtime.kind
    if world.participation != Always():
        raise UserError(
            f"world.participation draws who turns up, and with runtime {kind!r} that is seen: leave it out (to repeat "
            "what was seen, run the replay.toml of its run folder)"
        )
    if world.events:
        raise UserError(
            f"world.events says who joins and leaves, and with runtime {kind!r} that is seen: leave it out, and let "
            "devices join and leave"
        )
    if world.attack:
        raise UserError(
            f"world.attack makes simulated clients hostile, and with runtime {kind!r} clients are real: leave it out"
        )
    if experiment.evaluate.substitution:
        raise UserError("evaluate.substitution trains the missing too, which only a simulation can: leave it out")


def bound(experiment: Experiment, enrolment: Enrolment) -> Experiment:
    """Tell parts who the clients are, where they ask for it: a fleet's log has names, a cohort may be too large; and
    give the task the target's own unit."""
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
    """How the fleet's logs of an experiment, tied to its clients, match these: each log once."""
    part: Any = experiment.world.participation
    while getattr(part, "when_up", None) is not None:
        part = part.when_up
    logs = [log for log in (part, getattr(experiment.algorithm.selection, "log", None)) if isinstance(log, TurnoutLog)]
    return list({(log.path, log.mode == "replay"): log.match for log in logs}.values())


def try_turnout(experiment: Experiment, enrolment: Enrolment) -> None:
    """Let a participation that does not fit the work asked for say so now, not in the first round."""
    everything, seed = experiment.algorithm.local.full_work, experiment.seed
    experiment.world.participation.fraction(torch.zeros(1, dtype=torch.int64), 0, everything, seed, enrolment.groups)


def build_model(model: Any, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A module from a spec, a factory (which may need the input shape, and the classes), or a module itself."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model).cpu()
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
            "shape and the number of classes; give it the other arguments it needs, or a module that is made already"
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
    """What a model's class or function is given of the data: by position, or by name where it takes names only."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except ValueError:  # one that does not tell what it takes
        return (), {}
    needed = [p for p in parameters if p.default is p.empty and p.kind != p.VAR_KEYWORD]
    known: dict[str, Any] = {"input_shape": input_shape, "classes": classes}
    named = {p.name: known[p.name] for p in needed if p.kind is p.KEYWORD_ONLY and p.name in known}
    rest = [p for p in needed if p.name not in named]
    if len(rest) > 2 or any(p.kind is p.KEYWORD_ONLY for p in rest):
        raise UserError(
            f"the model function needs {', '.join(map(str, rest))}: {_name_of(make)} is given (input_shape, classes) "
            "only; give it the others as settings, or a module that is made already"
        )
    return (input_shape, classes)[: len(rest)], named


def _name_of(make: Any) -> str:
    return getattr(getattr(make, "func", make), "__qualname__", type(make).__name__)


def with_all_sizes(module: nn.Module, x: Tensor, seed: int) -> nn.Module:
    """The module itself; layers that learn their size from the first samples (nn.LazyLinear) do so now, by the seed."""
    if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
        was_training = [inner for inner in module.modules() if inner.training]
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(key(seed, "sizes from samples") & (2**63 - 1))
            module.eval()(x)
        for inner in was_training:
            inner.training = True
    return module


def load_weights(module: nn.Module, path: Path) -> None:
    """Begin from given weights; names and shapes must be the model's own."""
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"start = {str(path)!r} cannot be read as a safetensors file: {error}") from error
    own = module.state_dict()
    for name, value in weights.items():
        if name not in own:
            raise UserError(f"{path} has a tensor {name!r} that this model has not: {nearest(name, own)}")
        if own[name].shape != value.shape:
            raise UserError(f"{path}: {name} is {tuple(value.shape)}, the model wants {tuple(own[name].shape)}")
    missing = own.keys() - weights.keys()
    if missing:
        raise UserError(f"{path} lacks {', '.join(sorted(missing)[:3])}: it holds another model's weights")
    module.load_state_dict(weights)
