"""From an experiment to something that runs: data loaded, model built and checked, first server state.

Everything that can be wrong with what a person wrote is found here, before the first round.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from turnout.combining import check_experiment
from turnout.compression import Dense
from turnout.config import lasting
from turnout.data import Federation
from turnout.engine.layout import Layout, lay_out
from turnout.errors import Mistake, nearest
from turnout.events import Setting, calendar_of
from turnout.kept import initial_moments, initial_shared
from turnout.members import Members
from turnout.rng import key
from turnout.round import Server
from turnout.runtimes.inprocess import InProcessRuntime, Model
from turnout.runtimes.settings import InProcess
from turnout.settings import Experiment
from turnout.task import check_model
from turnout.track import Weights


def prepare(experiment: Experiment, data_dir: Path | None = None) -> Weights:
    """Load, build, check."""
    given, federation = experiment, experiment.world.data.load(experiment.seed, data_dir)
    experiment = _bound(experiment, federation)
    template = build_model(experiment.model, federation, experiment.seed)
    if experiment.start is not None:
        load_weights(template, Path(experiment.start))
    x, y = _a_few_samples(federation)
    highest = y if y.is_floating_point() else torch.full_like(y, federation.classes - 1)
    check_model(experiment.task, template, x, highest)
    _try_turnout(experiment, federation)
    layout = lay_out(template, experiment.algorithm.personal)
    check_experiment(experiment, layout)
    experiment = _settled(experiment, layout)
    flat_P = layout.pack(dict(template.named_parameters()))
    states = {name: value.detach().clone() for name, value in template.named_buffers()}
    model = Model(copy.deepcopy(template), layout, flat_P, states)
    algorithm = experiment.algorithm
    settings, world = experiment.runtime, experiment.world
    setting = Setting(federation.clients, federation.names, experiment.rounds, experiment.seed)
    calendar = calendar_of(world.events, setting)
    if not isinstance(settings, InProcess):
        raise Mistake(f"runtime {settings!r} is not known here: use turnout.InProcess()")
    runtime = InProcessRuntime(
        settings,
        federation,
        world.participation,
        algorithm,
        experiment.task,
        model,
        experiment.seed,
        calendar,
        experiment.evaluate,
    )
    shared_P = runtime.placed(flat_P[: layout.shared])
    server = Server(
        shared_P=shared_P,
        states={n: runtime.placed(states[n]) for n in layout.shared_states}
        | initial_moments(layout, shared_P, algorithm)
        | {n: runtime.placed(v) for n, v in initial_shared(layout, flat_P, states, algorithm).items()},
        down={t.name: {n: runtime.placed(v) for n, v in t.down(shared_P).items()} for t in algorithm.terms},
        parts={
            "mixing": algorithm.mixing.begin(federation.clients, layout.shared),
            "substitution": algorithm.substitution.begin(federation.clients, layout.shared),
            "compression": runtime.placed_tree(algorithm.compression.begin(layout.shared_slots)),
            "server": runtime.placed_tree(algorithm.server.begin(layout.shared)),
            "membership": algorithm.membership.begin(),
        },
        members=Members(federation.clients, calendar.outside_L),
    )
    identity = repr((federation.fingerprint(), [(s.name, s.shape) for s in layout.slots], lasting(given)))
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return Weights(experiment, federation, template, model, runtime, server, fingerprint)


def _bound(experiment: Experiment, federation: Federation) -> Experiment:
    """Tie parts that speak of clients by name (fleet logs) to this data, and refuse a cohort larger than it."""
    participation, selection = experiment.world.participation, experiment.algorithm.selection
    if hasattr(participation, "bound"):
        experiment = experiment.but(
            **{"world.participation": participation.bound(federation.names, federation.clients)}
        )
    if hasattr(selection, "bound"):
        bound = selection.bound(federation.names, federation.clients)
        experiment = experiment.but(**{"algorithm.selection": bound})
    if hasattr(selection, "check"):
        selection.check(federation.clients)
    if experiment.algorithm.membership.deadline is None:
        experiment = experiment.but(**{"algorithm.membership.deadline": experiment.rounds})
    return experiment


def _try_turnout(experiment: Experiment, federation: Federation) -> None:
    """Let a participation that does not fit the work asked for say so now, not in the first round."""
    everything, seed = experiment.algorithm.local.full_work, experiment.seed
    experiment.world.participation.fraction(torch.zeros(1, dtype=torch.int64), 0, everything, seed, federation.groups())


def _settled(experiment: Experiment, layout: Layout) -> Experiment:
    """Settle what follows from the model and the other parts: where the moments are kept."""
    algorithm = experiment.algorithm
    if algorithm.local.optimizer.moments != "auto":
        return experiment
    home = layout.shared == 0 or not isinstance(algorithm.compression, Dense)
    return experiment.but(**{"algorithm.local.optimizer.moments": "local" if home else "federated"})


def build_model(model: Any, federation: Federation, seed: int) -> nn.Module:
    """A module from a spec, a factory (which may need the input shape, and the classes), or a module itself."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    make = getattr(model, "build", model)
    if not callable(make):
        raise Mistake(f"model is {model!r}: give a model of turnout.models, an nn.Module, or a function that makes one")
    needed = [
        p for p in inspect.signature(make).parameters.values() if p.default is p.empty and p.kind != p.VAR_KEYWORD
    ]
    if len(needed) > 2:
        raise Mistake(
            f"the model function needs {', '.join(map(str, needed))}: it is given (input_shape, classes) only"
        )
    arguments = (federation.input_shape, federation.classes)[: len(needed)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "model") & (2**63 - 1))
        built = make(*arguments)
    if hasattr(built, "build"):
        return build_model(built, federation, seed)
    if not isinstance(built, nn.Module):
        raise Mistake(f"the model function gave {type(built).__name__}, not an nn.Module")
    return built


def load_weights(module: nn.Module, path: Path) -> None:
    """Begin from given weights; names and shapes must be the model's own."""
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise Mistake(f"start = {str(path)!r} cannot be read as a safetensors file: {error}") from error
    own = module.state_dict()
    for name, value in weights.items():
        if name not in own:
            raise Mistake(f"{path} has a tensor {name!r} that this model has not: {nearest(name, own)}")
        if own[name].shape != value.shape:
            raise Mistake(f"{path}: {name} is {tuple(value.shape)}, the model wants {tuple(own[name].shape)}")
    missing = own.keys() - weights.keys()
    if missing:
        raise Mistake(f"{path} lacks {', '.join(sorted(missing)[:3])}: it holds another model's weights")
    module.load_state_dict(weights)


def _a_few_samples(federation: Federation) -> tuple[Tensor, Tensor]:
    """Samples to try the model on."""
    ids = torch.arange(min(federation.clients, 64))
    with_data = ids[federation.examples(ids).cpu() > 0]
    if len(with_data) == 0:
        raise Mistake("the first clients hold no training samples: look at world.data and its sizes")
    x, y = federation.train(with_data[:1], 0).of(0)
    return x[:8], y[:8]
