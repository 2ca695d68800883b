"""From an experiment to something that runs: data loaded, model built and checked, first server state.

Everything that can be wrong with what a person wrote is found here, before the first round.
"""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path

import torch
from torch import Tensor

from turnout.clients.state import initial_moments, initial_shared
from turnout.config.check import check_settings
from turnout.config.read import lasting
from turnout.data import Federation
from turnout.errors import Mistake
from turnout.exchange import Server
from turnout.experiment import Algorithm, Experiment
from turnout.layout import Layout, lay_out
from turnout.parts.compatibility import check_experiment
from turnout.parts.compression.base import Dense
from turnout.runtimes.inprocess import InProcessRuntime, Model
from turnout.runtimes.settings import InProcess
from turnout.task import check_model
from turnout.tracks.building import bound, build_model, load_weights, try_turnout
from turnout.tracks.scores.prepare import prepare_scores
from turnout.tracks.scores.settings import Scores
from turnout.tracks.track import Track
from turnout.tracks.weights import Weights
from turnout.world.events import Setting, calendar_of
from turnout.world.members import Members


def prepare(experiment: Experiment, data_dir: Path | None = None) -> Track:
    """Load, build, check: the track that the algorithm asks for."""
    check_settings(experiment)
    federation = experiment.world.data.load(experiment.seed, data_dir)
    if isinstance(experiment.algorithm, Scores):
        return prepare_scores(experiment, experiment.algorithm, federation)
    return prepare_weights(experiment, federation)


def prepare_weights(given: Experiment, federation: Federation) -> Weights:
    """The weight track, ready for its first round."""
    experiment = _with_deadline(bound(given, federation))
    template = build_model(experiment.model, federation.input_shape, federation.classes, experiment.seed)
    if experiment.start is not None:
        load_weights(template, Path(experiment.start))
    x, y = _a_few_samples(federation)
    highest = y if y.is_floating_point() else torch.full_like(y, federation.classes - 1)
    check_model(experiment.task, template, x, highest)
    try_turnout(experiment, federation)
    layout = lay_out(template, _algorithm(experiment).personal)
    if not layout.width:
        raise Mistake("the model has no parameter that can be trained: give one that has")
    check_experiment(experiment, _algorithm(experiment), layout)
    experiment = _settled(experiment, layout)
    flat_P = layout.pack(dict(template.named_parameters()))
    states = {name: value.detach().clone() for name, value in template.named_buffers()}
    model = Model(copy.deepcopy(template), layout, flat_P, states)
    algorithm = _algorithm(experiment)
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


def _algorithm(experiment: Experiment) -> Algorithm:
    if not isinstance(experiment.algorithm, Algorithm):
        raise Mistake(f"algorithm is {experiment.algorithm!r}: give a turnout.Algorithm or turnout.Scores")
    return experiment.algorithm


def _with_deadline(experiment: Experiment) -> Experiment:
    if _algorithm(experiment).membership.deadline is None:
        experiment = experiment.but(**{"algorithm.membership.deadline": experiment.rounds})
    return experiment


def _settled(experiment: Experiment, layout: Layout) -> Experiment:
    """Settle what follows from the model and the other parts: where the moments are kept."""
    algorithm = _algorithm(experiment)
    if algorithm.local.optimizer.moments != "auto":
        return experiment
    home = layout.shared == 0 or not isinstance(algorithm.compression, Dense)
    return experiment.but(**{"algorithm.local.optimizer.moments": "local" if home else "federated"})


def _a_few_samples(federation: Federation) -> tuple[Tensor, Tensor]:
    """Samples to try the model on."""
    ids = torch.arange(min(federation.clients, 64))
    with_data = ids[federation.examples(ids).cpu() > 0]
    if len(with_data) == 0:
        raise Mistake("the first clients hold no training samples: look at world.data and its sizes")
    x, y = federation.train(with_data[:1], 0).of(0)
    return x[:8], y[:8]
