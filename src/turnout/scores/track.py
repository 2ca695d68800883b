"""From an experiment with `algorithm = Scores(...)` to a track, which the loop of running/loop.py drives.

Everything that can be wrong with the settings is found here, before the first round. The functions `prepare`,
`client_tasks` is what a device calls (running/tracks/track.py, `TrackModule`).

Shape letters: C members that are measured, R public samples, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import torch
from torch import Tensor, nn

from turnout.clients.metrics import summary
from turnout.data import Federation
from turnout.data.federation import digest
from turnout.engine.trainers import place_of
from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.parts.privacy.rules import about_stopping
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.config.run_file import lasting
from turnout.running.tracks.building import bound, build_model, first_calendar, log_matches, try_turnout, with_all_sizes
from turnout.running.tracks.first_values import FirstValues
from turnout.running.tracks.preflight import about_products
from turnout.running.tracks.track import Store, Track, fingerprint, record_bytes, sample_of
from turnout.scores.exchange import ScoreRuntime, ScoreSetup
from turnout.scores.privacy import check_evaluated, made_private_scores
from turnout.scores.round import ScoreContext, ScoreServer, run_round
from turnout.scores.runtimes import ScoreTasks, open_runtime
from turnout.scores.score_table import PublicLabels, ScoreTable, hits
from turnout.scores.settings import ModelPlan, Scores
from turnout.tasks import Classification
from turnout.types import State, storable
from turnout.world.enrolment import ClientNames, Enrolment
from turnout.world.members import Members

# settings that are about federated weights; the score track refuses them
WEIGHTS_ONLY = ("start", "world.devices", "world.attack", "evaluate.per_client", "evaluate.substitution",
                "evaluate.recovery", "evaluate.gradients", "evaluate.activations")  # fmt: skip


def prepare(given: Experiment, enrolment: Enrolment, federation: Federation | None) -> ScoreTrack:
    """The score track, ready for its first round."""
    if federation is None:
        raise UserError("scores are compared with the labels of public samples, so the server needs world.data for "
                        "them: set runtime.server_data = true")  # fmt: skip
    setup = set_up(given, federation, enrolment)
    experiment, algorithm, samples = setup.experiment, setup.algorithm, setup.public
    runtime = open_runtime(setup)
    how = algorithm.held_out, algorithm.permuted, experiment.seed
    public = PublicLabels.of(samples.y_R, federation.labels, *how)
    members = Members(enrolment.clients, setup.calendar.outside_L)
    private = algorithm.privacy
    server = ScoreServer(
        ScoreTable.blank(len(public.true_R), len(public.names)),
        members,
        storable(algorithm.selection.begin(), "algorithm.selection"),
        {} if private is None else storable(private.begin(), "algorithm.privacy"),
    )
    first = first_values(setup.plan, enrolment.input_shape, enrolment.classes, samples.x, experiment.seed)
    mark = f"{fingerprint(enrolment.fingerprint, digest(samples.x, samples.y_R), lasting(given))}-{first.mark}"
    models, device = len(setup.plan.models), setup.place.device
    odd = about_products() + [match.sentence() for match in log_matches(experiment) if match.is_partial]
    if private is not None:
        assert isinstance(given.algorithm, Scores)
        odd += made_private_scores(given.algorithm, given.rounds)[1] + about_stopping(given.stop)
    return ScoreTrack(
        experiment, algorithm, enrolment, models, public, runtime, server, device, mark, first, tuple(odd)
    )


def client_tasks(given: Experiment, enrolment: Enrolment, federation: Federation, folder: Path) -> ScoreTasks:
    """What one client does on its device."""
    return ScoreTasks(set_up(given, federation, enrolment), folder)


def first_values(plan: ModelPlan, shape: tuple[int, ...], classes: int, x: Tensor, seed: int) -> FirstValues:
    """Of each model that a client may have, with an output for every label."""
    built = [build_model(model, shape, classes, seed) for model in plan.models]
    return FirstValues.of_several([with_all_sizes(module, x[:2].cpu(), seed) for module in built])


def set_up(given: Experiment, federation: Federation, enrolment: Enrolment) -> ScoreSetup:
    """What a runtime is made from; settings that the score track cannot follow are errors, not ignored."""
    experiment = bound(given, enrolment)
    algorithm = experiment.algorithm
    if not isinstance(algorithm, Scores):
        raise UserError(f"algorithm is {algorithm!r}: give turnout.Scores")
    if type(experiment.task) is not Classification:
        raise UserError(f"scores are of labels, so the task is Classification(), not {experiment.task!r}")
    for name in WEIGHTS_ONLY:
        if attrgetter(name)(experiment):
            raise UserError(f"{name} is about federated weights, and here scores are federated: leave it out")
    check_evaluated(algorithm, experiment.evaluate)
    if algorithm.privacy is not None:
        experiment = experiment.but(**made_private_scores(algorithm, experiment.rounds)[0])
        assert isinstance(experiment.algorithm, Scores)
        algorithm = experiment.algorithm
    try_turnout(experiment, enrolment)
    if federation.public is None:
        raise UserError(
            "scores are exchanged on public samples, and world.data has none: use Arriving, or give "
            "Stream or Loader public and label_sets"
        )
    plan = ModelPlan.of(experiment.model, algorithm.models, ClientNames(enrolment.names, enrolment.clients))
    calendar, place = first_calendar(experiment, enrolment), place_of(experiment.runtime.compute)
    return ScoreSetup(experiment, algorithm, federation, federation.public, plan, calendar, place)


@dataclass(frozen=True, eq=False)
class ScoreTrack(Track):
    """Federated scores, prepared for one experiment.

    experiment   as prepared
    algorithm    its algorithm
    enrolment    what is known of the clients
    models       how many different models there are
    public       the labels of the public samples
    runtime      maps work over clients
    server       the server before the first round
    device       the device that computes
    fingerprint  of data, settings and models
    first        the models' first values
    warnings     what is odd about the experiment
    noise_key    the secret of a private run's noise; None: it is drawn from the seed, or by devices
    """

    experiment: Experiment
    algorithm: Scores
    enrolment: Enrolment
    models: int
    public: PublicLabels
    runtime: ScoreRuntime
    server: ScoreServer
    device: torch.device
    fingerprint: str
    first: FirstValues
    warnings: tuple[str, ...] = ()
    noise_key: int | None = None

    def headline(self) -> str:
        rows, labels = self.server.table.score_RL.shape
        kinds = f"{self.models} model{'s' * (self.models > 1)}"
        return f"{self.clients:,} clients, {kinds}, scores of {labels} labels on {rows:,} public samples"

    def begin(self) -> ScoreServer:
        return self.server

    def round(self, state: ScoreServer, t: int, store: Store | None = None) -> tuple[ScoreServer, RoundRecord]:
        ctx = ScoreContext(self.algorithm, self.public, self.runtime, self.experiment.seed, self.noise_key, store)
        after, record = run_round(state, t, ctx)
        return after, replace(record, extra={**record.extra, **self.runtime.noted()})

    def pack(self, state: ScoreServer) -> State:
        return state.to_state()

    def unpack(self, tree: State) -> ScoreServer:
        return ScoreServer.from_state(tree)

    def evaluate(self, state: ScoreServer, t: int) -> Evaluation:
        """The global scores on the held-out public samples: over all labels (Figure 3), and among each member's own
        (Global_Update); members' models if asked for."""
        values: dict[str, float] = {}
        if bool((state.table.evidence_RL > 0).any()):
            every_L = torch.arange(len(self.public.names))
            right_R = hits(state.table.read(self.algorithm.growth), every_L, self.public.true_R)
            values["global_accuracy"] = float(right_R[self.public.tested_R].double().mean())
        client_C = sample_of(state.members, self.experiment)
        consensus = [
            self.public.accuracy(state.table.of(set_l).read(self.algorithm.growth), set_l)
            for set_l in self.runtime.label_sets(client_C, max(t, 0))
        ]
        found = {"consensus_accuracy": torch.tensor(consensus, dtype=torch.float64)}
        if self.algorithm.measures_personal(self.experiment.evaluate):
            answers = self.runtime.measure(client_C, self.public.tested_R)
            own = {a.client: self.public.accuracy_of(a.output_Tl, a.set_l) for a in answers if a.output_Tl is not None}
            personal = [own.get(client, float("nan")) for client in client_C.tolist()]  # NaN without a model
            found["personal_accuracy"] = torch.tensor(personal, dtype=torch.float64)
        for name, value_C in found.items():
            values |= summary(name, value_C)
        return Evaluation(t, values, {name: (client_C, value_C) for name, value_C in found.items()})

    def module(self, state: ScoreServer, client: int | None) -> nn.Module:
        """A client's latest model; there is no other."""
        if client is None:
            raise UserError("clients exchange scores, so there is no global model: name a client, model(client=0)")
        module = self.runtime.own_module(client)
        if module is None:
            raise UserError(f"client {client} has not trained a model yet: it has not taken part")
        return module

    def memory(self) -> dict[str, int]:
        selection = self.algorithm.selection
        cohort = len(selection.choose(self.server.members, 0, self.experiment.seed, self.server.selection))
        ever = min(self.clients, cohort * self.experiment.rounds)
        table = self.server.table.score_RL.numel() * 8
        needed = self.runtime.memory(cohort, ever) | {"records": record_bytes(cohort)}
        noise = 0 if self.privacy is None else (cohort + self.privacy.vectors) * table
        return needed | {"scores": (4 + cohort) * table, "noise": noise}
