"""From an experiment with `algorithm = Scores(...)` to a track: public samples, labels, models, checked.

Everything that can be wrong with what a person wrote is found here, before the first round.
"""

from __future__ import annotations

from torch import Tensor

from turnout.data import Federation
from turnout.data.federation import digest
from turnout.deploy.flower.settings import Flower
from turnout.engine.trainers import place_of
from turnout.errors import UserError
from turnout.exchange import Enrolment
from turnout.experiment import Evaluate, Experiment
from turnout.running.config.run_file import lasting
from turnout.running.tracks.building import bound, build_model, first_calendar, log_matches, try_turnout, with_all_sizes
from turnout.running.tracks.first_values import FirstValues
from turnout.running.tracks.track import fingerprint
from turnout.runtimes.settings import InProcess, Processes, Ray, RuntimeSpec
from turnout.scores.devices import DeviceScores
from turnout.scores.inprocess import InProcessScores
from turnout.scores.model_plan import ModelPlan
from turnout.scores.parted import scores_in_parts
from turnout.scores.public_labels import PublicLabels
from turnout.scores.score_table import ScoreTable
from turnout.scores.settings import Scores
from turnout.scores.setup import ScoreFactory, ScoreSetup
from turnout.scores.state import ScoreServer
from turnout.scores.track import ScoreTrack
from turnout.task import Classification
from turnout.world.client_names import ClientNames
from turnout.world.members import Members


def on_devices(setup: ScoreSetup) -> DeviceScores:
    """Real devices; the settings are the experiment's."""
    assert isinstance(setup.experiment.runtime, Flower)
    return DeviceScores(setup, setup.experiment.runtime)


RUNTIMES: dict[type, ScoreFactory] = {
    InProcess: InProcessScores,
    Processes: scores_in_parts,
    Ray: scores_in_parts,
    Flower: on_devices,
}


def prepare_scores(given: Experiment, enrolment: Enrolment, federation: Federation | None) -> ScoreTrack:
    """The score track, ready for its first round."""
    if federation is None:
        raise UserError("scores are compared with the labels of public samples, so the server needs world.data for "
                      "them: set runtime.server_data = true")  # fmt: skip
    setup = set_up(given, federation, enrolment)
    experiment, algorithm, samples = setup.experiment, setup.algorithm, setup.public
    runtime = factory_of(experiment.runtime)(setup)
    how = algorithm.held_out, algorithm.permuted, experiment.seed
    public = PublicLabels.of(samples.y_R, federation.labels, *how)
    members = Members(enrolment.clients, setup.calendar.outside_L)
    server = ScoreServer(ScoreTable.blank(len(public.true_R), len(public.names)), members, {})
    first = first_values(setup.plan, enrolment.input_shape, enrolment.classes, samples.x, experiment.seed)
    mark = f"{fingerprint(enrolment.fingerprint, digest(samples.x, samples.y_R), lasting(given))}-{first.mark}"
    models, device = len(setup.plan.models), setup.place.device
    odd = tuple(match.sentence() for match in log_matches(experiment) if match.is_partial)
    return ScoreTrack(experiment, algorithm, enrolment, models, public, runtime, server, device, mark, first, odd)


def first_values(plan: ModelPlan, shape: tuple[int, ...], classes: int, x: Tensor, seed: int) -> FirstValues:
    """Of each model that a client may have, with an output for every label."""
    built = [build_model(model, shape, classes, seed) for model in plan.models]
    return FirstValues.of_several([with_all_sizes(module, x[:2].cpu(), seed) for module in built])


def set_up(given: Experiment, federation: Federation, enrolment: Enrolment) -> ScoreSetup:
    """What a runtime is made from."""
    experiment = bound(given, enrolment)
    algorithm = checked(experiment)
    try_turnout(experiment, enrolment)
    if federation.public is None:
        raise UserError(
            "scores are exchanged on public samples, and world.data has none: use Arriving or WithPublic, or give "
            "Stream or Loader public and label_sets"
        )
    plan = ModelPlan.of(experiment.model, algorithm.models, ClientNames(enrolment.names, enrolment.clients))
    calendar, place = first_calendar(experiment, enrolment), place_of(experiment.runtime.compute)
    return ScoreSetup(experiment, algorithm, federation, federation.public, plan, calendar, place)


def checked(experiment: Experiment) -> Scores:
    """The algorithm; what the score track cannot do is a mistake, not ignored."""
    factory_of(experiment.runtime)
    if not isinstance(experiment.algorithm, Scores):
        raise UserError(f"algorithm is {experiment.algorithm!r}: give scores.Scores()")
    if type(experiment.task) is not Classification:
        raise UserError(f"scores are of labels, so the task is Classification(), not {experiment.task!r}")
    if experiment.start is not None:
        raise UserError("start = ... loads one model's weights, and here every client has its own: leave it out, or "
                      "give algorithm.models a module that has its weights")  # fmt: skip
    if experiment.world.devices is not None:
        raise UserError("world.devices times rounds of weights, and here scores are federated: leave it out")
    asked, plain = experiment.evaluate, Evaluate()
    for name in ("per_client", "substitution", "recovery", "gradients", "activations"):
        if getattr(asked, name) != getattr(plain, name):
            raise UserError(f"evaluate.{name} looks at federated weights, and here scores are federated: leave it out")
    return experiment.algorithm


def factory_of(settings: RuntimeSpec) -> ScoreFactory:
    """What makes the runtime that settings name: from the table, or `open_scores(setup)` of settings of one's own."""
    factory: ScoreFactory | None = RUNTIMES.get(type(settings), getattr(settings, "open_scores", None))
    if factory is None:
        raise UserError(f"runtime {settings!r} is not known to the score track: use runtime.InProcess()")
    return factory
