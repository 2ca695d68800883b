"""From an experiment with `algorithm = Scores(...)` to a track: public samples, label sets, architectures, checked."""

from __future__ import annotations

import hashlib

from turnout.config.read import lasting
from turnout.data import Federation
from turnout.data.federation import digest
from turnout.engine.trainers import place_of
from turnout.errors import Mistake
from turnout.experiment import Evaluate, Experiment
from turnout.runtimes.settings import InProcess
from turnout.task import Classification
from turnout.tracks.building import bound, enrolment_of, try_turnout
from turnout.tracks.scores.architectures import Shop, Zoo
from turnout.tracks.scores.round import ScoreServer
from turnout.tracks.scores.runtime import ScoreRuntime
from turnout.tracks.scores.settings import Scores
from turnout.tracks.scores.tables import Table, sheet_of
from turnout.tracks.scores.track import ScoreTrack
from turnout.world.events import Calendar, Setting, calendar_of
from turnout.world.members import Members

CHECKED = 10_000  # clients whose labels are looked at before the first round


def prepare_scores(given: Experiment, algorithm: Scores, federation: Federation) -> ScoreTrack:
    """Everything that can be wrong with what a person wrote is found here, before the first round."""
    enrolment = enrolment_of(federation)
    experiment = bound(given, enrolment)
    assert isinstance(experiment.algorithm, Scores)
    algorithm = experiment.algorithm
    settings = _checked(experiment)
    try_turnout(experiment, enrolment)
    place = place_of(settings)
    public = federation.public
    if public is None:
        raise Mistake(
            "scores are exchanged on public samples, and world.data has none: use Arriving or WithPublic, or give "
            "Stream or Loader public and label_sets"
        )
    federation = federation.to(place.device)
    x = place.put(public.x)
    args = (federation.labels, algorithm.held_out, algorithm.permuted, experiment.seed)
    sheet = sheet_of(x, public.y_R, *args)
    shop = Shop(settings, algorithm, x[: algorithm.local.batch_size], experiment.seed)
    zoo = Zoo(experiment.model, algorithm.models, federation.names, federation.clients, shop)
    calendar = _calendar(experiment, federation)
    runtime = ScoreRuntime(federation, experiment.world.participation, algorithm, zoo, sheet, calendar, experiment.seed)
    _try_everybody(runtime, federation, experiment.rounds)
    members = Members(federation.clients, calendar.outside_L)
    server = ScoreServer(Table.blank(len(x), len(federation.labels)), members, {})
    identity = repr((federation.fingerprint(), digest(public.x, public.y_R), lasting(given)))
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return ScoreTrack(experiment, algorithm, federation, runtime, server, fingerprint)


def _checked(experiment: Experiment) -> InProcess:
    """What the score track cannot do is a mistake, not ignored."""
    if not isinstance(experiment.runtime, InProcess):
        raise Mistake(f"runtime {experiment.runtime!r} is not known to the score track: use turnout.InProcess()")
    if type(experiment.task) is not Classification:
        raise Mistake(f"scores are of labels, so the task is Classification(), not {experiment.task!r}")
    if experiment.start is not None:
        raise Mistake("start = ... loads one model's weights, and here every client has its own: leave it out, or give "
                      "algorithm.models a module that has its weights")  # fmt: skip
    asked, plain = experiment.evaluate, Evaluate()
    for name in ("per_client", "substitution", "recovery", "gradients", "activations"):
        if getattr(asked, name) != getattr(plain, name):
            raise Mistake(f"evaluate.{name} looks at federated weights, and here scores are federated: leave it out")
    return experiment.runtime


def _calendar(experiment: Experiment, federation: Federation) -> Calendar:
    setting = Setting(federation.clients, federation.names, experiment.rounds, experiment.seed)
    return calendar_of(experiment.world.events, setting)


def _try_everybody(runtime: ScoreRuntime, federation: Federation, rounds: int) -> None:
    """Every client's labels, and the architectures of the first round and of every change, before it is too late."""
    for client in range(min(federation.clients, CHECKED)):
        runtime.architecture(client, 0)
    for client, changes in runtime.zoo.plan.items():
        for since, _ in changes:
            if since < rounds:
                runtime.architecture(client, since)
