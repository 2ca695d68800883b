"""From an experiment to a track: data loaded, model built and checked, initial server state."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from turnout.clients.state import initial_moments, initial_shared
from turnout.data import Federation
from turnout.data.federation import central_change
from turnout.engine.trainers import Place, place_of
from turnout.errors import UserError
from turnout.exchange import Enrolment
from turnout.experiment import Algorithm, Experiment
from turnout.layout import copied, lay_out
from turnout.parts.closing import WaitForAll
from turnout.parts.compatibility import check_experiment
from turnout.parts.compression.base import Dense
from turnout.parts.privacy.discrete import PrivateSum, sum_rule
from turnout.parts.privacy.rules import made_private
from turnout.running.config.run_file import check_settings, lasting
from turnout.running.tracks.building import (
    bound,
    build_model,
    check_model,
    enrolment_of,
    first_calendar,
    load_weights,
    log_matches,
    refuse_simulation_only,
    try_turnout,
    with_all_sizes,
)
from turnout.running.tracks.first_values import FirstValues
from turnout.running.tracks.preflight import about_privacy, about_products, preflight
from turnout.running.tracks.track import Track, TrackModule, fingerprint
from turnout.running.tracks.weights import Weights
from turnout.runtimes.parted import open_runtime
from turnout.runtimes.setup import Model, Setup
from turnout.server.state import Server
from turnout.types import storable
from turnout.world.members import Members


def prepare(experiment: Experiment, data_dir: Path | None = None) -> Track:
    """Load, build and check: the track of the algorithm."""
    check_settings(experiment)
    enrol = getattr(experiment.runtime, "enrol", None)
    federation: Federation | None
    if enrol is None:
        federation = experiment.world.data.load(experiment.seed, data_dir)
        enrolment = enrolment_of(federation)
    else:
        refuse_simulation_only(experiment)
        enrolment, federation = enrol(experiment, data_dir)
    kind = experiment.runtime.kind
    for attack in experiment.world.attack:
        if attack.colludes and kind != "in-process":
            raise UserError(
                f"world.attack = {type(attack).__name__} needs all updates of a round in one place, and runtime "
                f"{kind!r} has several: use runtime 'in-process', or an attack of single clients such as SignFlip"
            )
    if isinstance(experiment.algorithm, Algorithm):
        return prepare_weights(experiment, enrolment, federation)
    return track_of(experiment).prepare(experiment, enrolment, federation)


def track_of(experiment: Experiment) -> TrackModule:
    """The module of the track of an algorithm that is not the core's."""
    name = getattr(experiment.algorithm, "track_module", None)
    if name is None:
        raise UserError(f"algorithm is {experiment.algorithm!r}: give a turnout.Algorithm or turnout.Scores")
    return cast(TrackModule, import_module(name))


def prepare_weights(given: Experiment, enrolment: Enrolment, federation: Federation | None) -> Weights:
    """The weight track, ready for its first round."""
    experiment, template, model = settled(given, enrolment)
    algorithm, layout = _algorithm(experiment), model.layout
    calendar, place = first_calendar(experiment, enrolment), place_of(experiment.runtime.compute)
    first = FirstValues.of(template, layout)
    setup = Setup(experiment, algorithm, federation, model, calendar, place, first.marks())
    runtime = open_runtime(experiment.runtime, setup)
    devices, closes = experiment.world.devices, type(algorithm.closing) is not WaitForAll
    measures = experiment.evaluate.substitution  # also trains absent clients
    if runtime.simulation is None and (closes or devices is not None or measures):
        what = "algorithm.closing" if closes else "evaluate.substitution" if measures else "world.devices"
        raise UserError(f"{what} needs simulated clients, and this runtime has real ones: leave it out")
    if runtime.simulation is not None and devices is None and (closes or experiment.stop.simulated_hours is not None):
        what = "algorithm.closing" if closes else "stop.simulated_hours"
        raise UserError(f"{what} needs simulated time, and there is none: set world.devices, such as devices.Tiers()")
    server = first_server(algorithm, model, place, Members(enrolment.clients, calendar.outside_L))
    if isinstance(rule := sum_rule(algorithm), PrivateSum):
        asked = algorithm.selection.choose(Members(enrolment.clients), 0, experiment.seed, server.selection)
        rule.check(len(asked), layout.shared)
    slots = [(s.name, s.shape) for s in layout.slots]
    mark = f"{fingerprint(enrolment.fingerprint, slots, lasting(given))}-{first.mark}"
    odd = about_products() + [match.sentence() for match in log_matches(experiment) if match.is_partial]
    odd += about_privacy(given, layout, enrolment.clients)
    if federation is not None:
        odd += preflight(experiment, algorithm, federation, model.batch_statistics)
    tests = None if federation is None else partial(central_change, federation)
    return Weights(
        experiment, algorithm, enrolment, template, model, runtime, server, server.shared_P.device, mark, first, tests,
        tuple(odd),
    )  # fmt: skip


def settled(given: Experiment, enrolment: Enrolment) -> tuple[Experiment, nn.Module, Model]:
    """The experiment with open settings resolved, its model as the user wrote it, and that model ready for training."""
    experiment = bound(given, enrolment)
    if _algorithm(experiment).membership.deadline is None:
        experiment = experiment.but(**{"algorithm.membership.deadline": experiment.rounds})
    if (private := _algorithm(experiment)).privacy is not None:
        experiment = experiment.but(**made_private(private, experiment.rounds)[0])
    x, y = enrolment.sample
    template = template_of(experiment, enrolment.input_shape, enrolment.classes, x)
    check_model(experiment.task, template, x, experiment.task.highest(y, enrolment.classes))
    try_turnout(experiment, enrolment)
    layout = lay_out(template, _algorithm(experiment).personal)
    if not layout.width:
        raise UserError("the model has no parameter that can be trained: give one that has")
    algorithm = _algorithm(experiment)
    check_experiment(experiment, algorithm, layout)
    if algorithm.local.optimizer.moments == "auto":
        local = layout.shared == 0 or not isinstance(algorithm.compression, Dense)
        experiment = experiment.but(**{"algorithm.local.optimizer.moments": "local" if local else "federated"})
    flat_P = layout.pack(dict(template.named_parameters()))
    buffers = dict(template.named_buffers())
    states = {name: buffers[name].detach().clone() for name in layout.states}
    return experiment, template, Model(copied(template), layout, flat_P, states)


def template_of(experiment: Experiment, input_shape: tuple[int, ...], classes: int, x: Tensor) -> nn.Module:
    """The model as the user wrote it, with initial values; `x`: samples to try it on."""
    template = build_model(experiment.model, input_shape, classes, experiment.seed)
    template = with_all_sizes(template, x, experiment.seed)
    if experiment.start is not None:
        load_weights(template, Path(experiment.start))
    return template


def first_server(algorithm: Algorithm, model: Model, place: Place, members: Members) -> Server:
    """The server before the first round."""
    layout, shared_P = model.layout, place.put(model.flat_P[: model.layout.shared])
    states = place.put_all({n: model.states[n] for n in layout.shared_states})
    states |= initial_moments(layout, shared_P, algorithm)
    states |= place.put_all(initial_shared(layout, model.flat_P, model.states, algorithm))
    return Server(
        shared_P=shared_P,
        states=states,
        term_states=place.put_tree(
            storable({term.name: term.server_state(shared_P) for term in algorithm.terms}, "algorithm.terms")
        ),
        members=members,
        mixing=storable(algorithm.mixing.begin(members.population, layout.shared), "algorithm.mixing"),
        substitution=storable(
            algorithm.substitution.begin(members.population, layout.shared), "algorithm.substitution"
        ),
        compression=place.put_tree(storable(algorithm.compression.begin(layout.shared_slots), "algorithm.compression")),
        step=place.put_tree(storable(algorithm.server.begin(layout.shared), "algorithm.server")),
        selection=storable(algorithm.selection.begin(), "algorithm.selection"),
        privacy={} if algorithm.privacy is None else storable(algorithm.privacy.begin(), "algorithm.privacy"),
        roster=algorithm.membership.begin(),
    )


def _algorithm(experiment: Experiment) -> Algorithm:
    if not isinstance(experiment.algorithm, Algorithm):
        raise UserError(f"algorithm is {experiment.algorithm!r}: give an Algorithm, or scores.Scores")
    return experiment.algorithm
