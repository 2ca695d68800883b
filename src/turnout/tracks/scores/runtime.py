"""Clients of the score track, simulated in this process: their samples, their labels, their models.

A round asks twice: `build` (train, score the public samples) and, after the global update, `learn` (digest the global
scores, keep the model). Clients of one architecture are trained together.

Shape letters: C clients of the cohort, c those of one architecture that are there, R public samples, l labels of one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from turnout.data import Federation
from turnout.data.labels import check_own_labels
from turnout.parts.local import turn_out
from turnout.tracks.scores.architectures import COUNT, MODEL, ROUND, SLOT, STATE, Architecture, Zoo
from turnout.tracks.scores.averaging import Averages, Trained, averaged, begin
from turnout.tracks.scores.settings import Scores
from turnout.tracks.scores.tables import Sheet, Table, accuracy, targets
from turnout.tracks.scores.training import Built, Lesson, Models, Work, build, digest, predict, split_off
from turnout.types import Samples, Tensors, Turnout
from turnout.world.events import Calendar, Event
from turnout.world.participation import Participation, finished


@dataclass(frozen=True, eq=False)
class Reply:
    """What a participant sends: scores on the public samples for its own labels, and how many samples it trained on."""

    client: int
    set_l: Tensor
    f_Rl: Tensor
    examples: int
    loss: float
    epochs: float
    finite: bool
    weight_bytes: int  # of its model, for comparison


@dataclass(frozen=True, eq=False)
class Group:
    """Participants of one architecture and their models, between the two halves of a round."""

    architecture: Architecture
    work: Work
    built: Built
    sets: Sequence[Tensor]
    examples_c: Tensor


@dataclass(frozen=True, eq=False)
class Asked:
    """What came of asking a cohort; `sample_C` counts each one's samples of this round (the usual number if absent)."""

    turnout: Turnout
    sample_C: Tensor
    replies: Sequence[Reply] = ()
    groups: Sequence[Group] = ()
    extra: dict[str, float] = field(default_factory=dict)


class ScoreRuntime:
    """Simulated clients with models of their own."""

    def __init__(
        self,
        federation: Federation,
        participation: Participation,
        algorithm: Scores,
        zoo: Zoo,
        sheet: Sheet,
        calendar: Calendar,
        seed: int,
    ):
        assert federation.public is not None
        self.federation, self.participation, self.algorithm = federation, participation, algorithm
        self.zoo, self.sheet, self.calendar, self.seed = zoo, sheet, calendar, seed
        self.label_set = federation.public.label_set
        self.clusters = federation.groups()

    def events(self, t: int) -> Sequence[Event]:
        return self.calendar.at(t)

    def architecture(self, client: int, t: int) -> Architecture:
        return self.zoo.of(client, t, len(self.label_set(client, t)))

    # -- the first half

    def build(self, client_C: Tensor, t: int, averages: Averages) -> Asked:
        """Draw who turns up; those who do train, and score the public samples."""
        local = self.algorithm.local
        fraction_C = finished(self.participation, client_C, t, local.full_work, self.seed, self.clusters)
        sample_C, zero_C = self.federation.examples(client_C).cpu(), torch.zeros(len(client_C), dtype=torch.float64)
        turnout = Turnout(client_C, zero_C, local.full_work, zero_C.clone(), zero_C.clone())
        groups, replies, spent = [], [], dict.fromkeys(("training", "epochs", "scoring", "scored"), 0.0)
        for architecture, place_c in self._together(client_C, fraction_C, t):
            group, part = self._build(architecture, client_C[place_c], fraction_C[place_c], t, averages, spent)
            for name in ("work_C", "progress_C", "full_progress_C"):
                getattr(turnout, name)[place_c] = getattr(part, name).double()
            if group is not None:
                sample_C[place_c[torch.isin(client_C[place_c], group.work.client_C)]] = group.examples_c
                groups.append(group)
                replies += self._replies(group, spent)
        extra = {
            "epoch_seconds": spent["training"] / max(spent["epochs"], 1e-9),
            "inference_seconds": spent["scoring"] / max(spent["scored"], 1e-9),
        }
        replies.sort(key=lambda reply: reply.client)
        return Asked(turnout, sample_C, replies, groups, extra if replies else {})

    def _together(self, client_C: Tensor, fraction_C: Tensor, t: int) -> list[tuple[Architecture, Tensor]]:
        """Those who may turn up, by architecture: places in the cohort."""
        found: dict[Architecture, list[int]] = {}
        for place in (fraction_C > 0).nonzero().squeeze(1).tolist():
            found.setdefault(self.architecture(int(client_C[place]), t), []).append(place)
        return [(architecture, torch.tensor(places)) for architecture, places in found.items()]

    def _build(
        self,
        architecture: Architecture,
        client_c: Tensor,
        fraction_c: Tensor,
        t: int,
        averages: Averages,
        spent: dict[str, float],
    ) -> tuple[Group | None, Turnout]:
        algorithm, early = self.algorithm, self.algorithm.early
        sets = [self.label_set(client, t) for client in client_c.tolist()]
        samples, check = self._samples(client_c, sets, t, architecture), None
        examples_c = samples.count_C
        if early is not None:
            samples, check = split_off(samples, client_c, early.share, self.seed, t)
        single = architecture.network.has_batch_statistics()
        turnout, steps_c = turn_out(client_c, fraction_c, samples.count_C, algorithm.local, single, t)
        at = (steps_c > 0).nonzero().squeeze(1)
        if not len(at):
            return None, turnout
        lr = algorithm.local.schedule.rate(algorithm.local.optimizer.lr, t)
        own_check = None if check is None else check.take(at)
        work = Work(client_c[at], steps_c[at], samples.take(at), own_check, lr, t, self.seed)
        sets = [sets[i] for i in at.tolist()]
        start = time.perf_counter()
        built = build(architecture, algorithm.local, work, self._start(architecture, work, sets, averages), early)
        spent["training"] += time.perf_counter() - start
        spent["epochs"] += float(built.epochs_C.sum())
        return Group(architecture, work, built, sets, examples_c[at]), turnout

    def _samples(self, client_c: Tensor, sets: Sequence[Tensor], t: int, architecture: Architecture) -> Samples:
        """The clients' samples in a pool of their own, each with the places of its labels among its client's."""
        found = self.federation.train(client_c, t)
        row_R, count_c = found.row_R.cpu(), found.count_C.cpu()
        x, y = found.x[row_R.to(found.x.device)], found.y[row_R.to(found.y.device)]
        own = []
        for client, set_l, y_S in zip(client_c.tolist(), sets, y.split(count_c.tolist()), strict=True):
            check_own_labels(y_S, set_l, self.sheet.labels, f"client {client}, round {t},")
            own.append(torch.searchsorted(set_l.to(y_S.device), y_S))
        return Samples(architecture.placed(x), torch.cat(own), torch.arange(len(x)), count_c)

    def _start(self, architecture: Architecture, work: Work, sets: Sequence[Tensor], averages: Averages) -> Models:
        """Where training begins: fresh, with the averages, or with what was kept by those whose architecture stays."""
        clients, (flat_P, states) = len(work.client_C), architecture.fresh(work.t)
        flat_CP = flat_P.expand(clients, -1).clone()
        slots = {name: torch.zeros_like(flat_CP) for name in self.algorithm.local.optimizer.slots}
        count_C = torch.zeros(clients, dtype=torch.int64, device=flat_CP.device)
        own = {name: value.expand(clients, *value.shape).clone() for name, value in states.items()}
        models = Models(flat_CP, own, slots, count_C)
        if self.algorithm.start == "averaged":
            return begin(averages, architecture, sets, models)
        if self.algorithm.start == "carried":
            latest, _ = self.zoo.latest(work.client_C)
            place = torch.tensor([i for i, found in enumerate(latest) if found is architecture], dtype=torch.int64)
            models.put(place.to(flat_CP.device), self._kept(architecture, work.client_C[place], models.take(place)))
        return models

    def _kept(self, architecture: Architecture, client_c: Tensor, like: Models) -> Models:
        """What these clients keep; what they do not keep of the optimizer is as in `like`."""
        rows = architecture.kept(client_c)
        states = {name: rows[STATE + name] for name in like.states}
        slots = {name: rows.get(SLOT + name, value) for name, value in like.slots.items()}
        carries = self.algorithm.local.optimizer.carries_count
        return Models(rows[MODEL], states, slots, rows[COUNT] if COUNT in rows and carries else like.count_C)

    def _replies(self, group: Group, spent: dict[str, float]) -> list[Reply]:
        start = time.perf_counter()
        output_CRl = predict(group.architecture, group.built.models, self.sheet.x)
        spent["scoring"] += time.perf_counter() - start
        spent["scored"] += output_CRl.shape[0] * output_CRl.shape[1]
        f_CRl = output_CRl.softmax(2) if self.algorithm.scores == "softmax" else output_CRl
        finite_C = group.built.finite_C & torch.isfinite(output_CRl).flatten(1).all(1)
        return [
            Reply(
                client=client,
                set_l=set_l,
                f_Rl=f_CRl[i],
                examples=int(group.examples_c[i]),
                loss=float(group.built.loss_C[i]),
                epochs=float(group.built.epochs_C[i]),
                finite=bool(finite_C[i]),
                weight_bytes=group.architecture.bytes,
            )
            for i, (client, set_l) in enumerate(zip(group.work.client_C.tolist(), group.sets, strict=True))
        ]

    # -- the second half

    def learn(
        self, asked: Asked, good: set[int], table: Table, averages: Averages
    ) -> tuple[Averages, dict[int, float]]:
        """Digest the global scores where wanted, and keep the models; the new averages, and each one's accuracy on
        what is held out after that. Clients outside `good` (scores that are no numbers) keep what they had."""
        trained: list[Trained] = []
        taught: dict[int, float] = {}
        for group in asked.groups:
            place = torch.tensor([i for i, c in enumerate(group.work.client_C.tolist()) if c in good])
            if not len(place):
                continue
            group = _some(group, place)
            if self.algorithm.distil is not None:
                group = self._digest(group, table)
                taught |= self._tested(group)
            self._keep(group)
            models, samples_c = group.built.models, group.examples_c.double()
            trained.append(Trained(group.architecture, models, samples_c, group.sets))
        return (averaged(averages, trained) if self.algorithm.start == "averaged" else averages), taught

    def _digest(self, group: Group, table: Table) -> Group:
        algorithm, sheet = self.algorithm, self.sheet
        assert algorithm.distil is not None
        lessons = []
        for set_l in group.sets:
            known_R = (table.of(set_l).evidence_RL > 0).all(1)
            row_B = (sheet.open_R & known_R).nonzero().squeeze(1)
            lessons.append(Lesson(sheet.x, row_B, targets(table, set_l, algorithm.scores)[row_B]))
        args = (group.architecture, algorithm.local, algorithm.distil, group.work, group.built.models, lessons)
        return replace(group, built=replace(group.built, models=digest(*args)))

    def _tested(self, group: Group) -> dict[int, float]:
        rows = self.sheet.tested_R
        output_CRl = predict(group.architecture, group.built.models, self.sheet.x[rows.to(self.sheet.x.device)])
        every = torch.ones(int(rows.sum()), dtype=torch.bool)
        pairs = zip(group.work.client_C.tolist(), group.sets, strict=True)
        return {c: accuracy(output_CRl[i], set_l, self.sheet.true_R[rows], every) for i, (c, set_l) in enumerate(pairs)}

    def _keep(self, group: Group) -> None:
        models, store = group.built.models, group.architecture.store
        rows: Tensors = {MODEL: models.flat_CP, ROUND: torch.full((len(group.sets),), group.work.t)}
        rows |= {STATE + name: value for name, value in models.states.items()}
        if self.algorithm.moments == "local":
            rows |= {SLOT + name: value for name, value in models.slots.items()} | {COUNT: models.count_C}
        store.scatter(group.work.client_C, rows)

    # -- looking

    def own_accuracy(self, client_C: Tensor, t: int) -> Tensor:
        """Each client's latest model on the samples held out, among its labels [C]; NaN for one without a model."""
        found_C = torch.full((len(client_C),), float("nan"), dtype=torch.float64)
        rows = self.sheet.tested_R
        x, y = self.sheet.x[rows.to(self.sheet.x.device)], self.sheet.true_R[rows]
        latest, round_C = self.zoo.latest(client_C)
        for architecture in dict.fromkeys(a for a in latest if a is not None):
            place = torch.tensor([i for i, found in enumerate(latest) if found is architecture])
            kept = architecture.kept(client_C[place])
            states = {n.removeprefix(STATE): v for n, v in kept.items() if n.startswith(STATE)}
            output_cRl = predict(architecture, Models(kept[MODEL], states, {}, round_C[place]), x)
            for i, client, since in zip(place.tolist(), client_C[place].tolist(), round_C[place].tolist(), strict=True):
                set_l, every = self.label_set(client, since), torch.ones(len(y), dtype=torch.bool)
                found_C[i] = accuracy(output_cRl[place.tolist().index(i)], set_l, y, every)
        return found_C


def _some(group: Group, place: Tensor) -> Group:
    """Some of the participants."""
    work, built = group.work, group.built
    if len(place) == len(work.client_C):
        return group
    return replace(
        group,
        work=replace(
            work, client_C=work.client_C[place], steps_C=work.steps_C[place], samples=work.samples.take(place)
        ),
        built=replace(built, models=built.models.take(place.to(built.models.flat_CP.device))),
        sets=[group.sets[i] for i in place.tolist()],
        examples_c=group.examples_c[place],
    )
