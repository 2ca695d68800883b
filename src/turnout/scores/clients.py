"""Clients of the score track at work: their samples, their models, and the public samples they see.

`ScoreClients` works for a set of clients: all of them in this process (inprocess.py), a part of them in another one, a
single one on a device. It never sees the server: requests go in, answers come out. Models that were built wait until
the second request says whose scores were used; the others go back to what they had.

Shape letters: C, I any clients, c those of one architecture, R public samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnout.data.labels import check_own_labels
from turnout.parts.local import turn_out
from turnout.running.tracks.track import filled
from turnout.runtimes.needs import data_bytes
from turnout.scores.architectures import Architecture, Architectures, Conditions
from turnout.scores.averaging import begin
from turnout.scores.client_models import MODEL, ClientModels, states_in
from turnout.scores.early_stopping import split_off
from turnout.scores.exchange import BuildAnswer, BuildRequest, LearnReply, LearnRequest, OwnOutput
from turnout.scores.group import Group
from turnout.scores.setup import ScoreSetup
from turnout.scores.training import Work, predict
from turnout.types import Samples

CHECKED = 10_000  # clients whose labels are looked at before the first round


class ScoreClients:
    """Some clients with models of their own, simulated or real. `clients`: who they are; None: everybody."""

    def __init__(self, setup: ScoreSetup, clients: Sequence[int] | None = None):
        experiment, algorithm, place = setup.experiment, setup.algorithm, setup.place
        self.algorithm, self.seed, self.place = algorithm, experiment.seed, place
        self.federation, self.label_set = setup.federation.to(place.device), setup.public.label_set
        self.x = place.put(setup.public.x)
        tried = self.x[: algorithm.local.batch_size]
        conditions = Conditions(experiment.runtime.compute, algorithm, place, tried, experiment.seed)
        self.architectures = Architectures(setup.plan, conditions)
        self._pending: list[Group] = []
        self._try(range(self.federation.clients) if clients is None else clients, experiment.rounds)

    def _try(self, clients: Sequence[int], rounds: int) -> None:
        """Look at every client's labels, and make the architectures of the first round and of every change."""
        for client in clients[:CHECKED]:
            self.architecture(client, 0)
        for client, changes in self.architectures.plan.changes.items():
            for since in (since for since, _ in changes if since < rounds and client in clients):
                self.architecture(client, since)

    def architecture(self, client: int, t: int) -> Architecture:
        return self.architectures.of(client, t, len(self.label_set(client, t)))

    # -- the first half of a round

    def build(self, request: BuildRequest, fraction_C: Tensor) -> BuildAnswer:
        """Those who have time train for this fraction of the work, and score the public samples."""
        answer, self._pending = BuildAnswer.nobody(self.algorithm.local.full_work), []
        for architecture, place_c in self._together(request.client_C, fraction_C, request.t):
            part = request.among(request.client_C[place_c])
            answer = answer.plus(self._build(architecture, part, fraction_C[place_c]))
        return answer

    def _together(self, client_C: Tensor, fraction_C: Tensor, t: int) -> Iterable[tuple[Architecture, Tensor]]:
        """Those who have time, by architecture: places in the list."""
        found: dict[Architecture, list[int]] = {}
        for place in (fraction_C > 0).nonzero().squeeze(1).tolist():
            found.setdefault(self.architecture(int(client_C[place]), t), []).append(place)
        return [(architecture, torch.tensor(places)) for architecture, places in found.items()]

    def _build(self, architecture: Architecture, request: BuildRequest, fraction_c: Tensor) -> BuildAnswer:
        """Build the models of one architecture; they stay here until the scores are used."""
        algorithm, client_c, t, check = self.algorithm, request.client_C, request.t, None
        sets = [self.label_set(client, t) for client in client_c.tolist()]
        samples = self._samples(client_c, sets, t)
        examples_c = samples.count_C
        if algorithm.early is not None:
            samples, check = split_off(samples, client_c, algorithm.early.share, self.seed, t)
        single = architecture.batch_statistics
        turnout, steps_c = turn_out(client_c, fraction_c, samples.count_C, algorithm.local, single, t)
        at = (steps_c > 0).nonzero().squeeze(1)
        if not len(at):
            return BuildAnswer(turnout)
        work = Work(client_c, steps_c, samples, check, request.lr, t, self.seed).take(at)
        sets = [sets[i] for i in at.tolist()]
        start = self._start(architecture, request, work.client_C, sets)
        group = Group.of(architecture, algorithm, work, start, sets, examples_c[at])
        self._pending.append(group)
        return BuildAnswer(turnout, *group.replies(self.x, algorithm.scores))

    def _samples(self, client_c: Tensor, sets: Sequence[Tensor], t: int) -> Samples:
        """The clients' samples in a pool of their own, each with the places of its labels among its client's."""
        found = self.federation.train(client_c, t)
        row_R, count_c = found.row_R.cpu(), found.count_C.cpu()
        x, y = found.x[row_R.to(found.x.device)], found.y[row_R.to(found.y.device)]
        own = []
        for client, set_l, y_S in zip(client_c.tolist(), sets, y.split(count_c.tolist()), strict=True):
            check_own_labels(y_S, set_l, self.federation.labels, f"client {client}, round {t},")
            own.append(torch.searchsorted(set_l.to(y_S.device), y_S))
        return Samples(self.place.put(x), torch.cat(own), torch.arange(len(x)), count_c)

    def _start(
        self, architecture: Architecture, request: BuildRequest, client_c: Tensor, sets: Sequence[Tensor]
    ) -> ClientModels:
        """Where training begins: fresh, with the averages, or with what was kept by those whose architecture stays."""
        models = architecture.fresh(request.t, len(client_c))
        if self.algorithm.start == "averaged":
            begin(request.averages, architecture, sets, models)
        if self.algorithm.start == "carried":
            latest, _ = self.architectures.latest(client_c)
            place = torch.tensor([i for i, found in enumerate(latest) if found is architecture], dtype=torch.int64)
            carries_count = self.algorithm.local.optimizer.carries_count
            models.put(place, models.take(place).with_rows(architecture.kept(client_c[place]), carries_count))
        return models

    # -- the second half

    def learn(self, request: LearnRequest) -> list[LearnReply]:
        """Those asked learn from the global scores, and keep their models; what others have built is dropped."""
        groups, self._pending = self._pending, []
        replies: list[LearnReply] = []
        for group in groups:
            place_c = torch.isin(group.client_c, request.client_C).nonzero().squeeze(1)
            if len(place_c):
                group = group.take(place_c).learnt(request, self.algorithm, self.x)
                group.keep(moments=self.algorithm.moments == "local")
                replies += group.answers(request, self.algorithm, self.x)
        return sorted(replies, key=lambda reply: reply.client)

    def forget(self, client_I: Tensor) -> None:
        for client in client_I.tolist():
            self.architectures.forget(client)

    # -- looking

    def measure(self, client_C: Tensor, tested_R: Tensor) -> list[OwnOutput]:
        """What each client's latest model says of some public samples."""
        x, found = self.x[tested_R.to(self.x.device)], list[OwnOutput]()
        latest, round_C = self.architectures.latest(client_C)
        for architecture in dict.fromkeys(a for a in latest if a is not None):
            place_c = torch.tensor([i for i, own in enumerate(latest) if own is architecture])
            kept = architecture.kept(client_C[place_c])
            models = ClientModels(kept[MODEL], states_in(kept), {}, round_C[place_c])
            for i, output_Tl in zip(place_c.tolist(), predict(architecture, models, x), strict=True):
                client = int(client_C[i])
                found.append(OwnOutput(client, self.label_set(client, int(round_C[i])), output_Tl))
        return found

    def own_module(self, client: int) -> nn.Module | None:
        """A client's latest model; None where it has none yet."""
        architecture = self.architectures.latest(torch.tensor([client]))[0][0]
        if architecture is None:
            return None
        rows = {name: value[0] for name, value in architecture.store.gather(torch.tensor([client])).items()}
        return filled(architecture.template, architecture.layout, rows[MODEL], states_in(rows))

    # -- what it takes

    def describe(self) -> dict[str, Any]:
        """The device, and how the work is cut up."""
        trainers = [architecture.trainer for architecture in self.architectures.made.values()]
        engines = dict.fromkeys(trainer.title(self.algorithm.local.optimizer) for trainer in trainers)
        chunk, threads = min(trainer.chunk for trainer in trainers), trainers[0].threads
        return self.place.describe() | {"engine": " and ".join(engines), "chunk": chunk, "threads": threads}

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        """Bytes by what for, with so many clients in a round and in all rounds together."""
        made = list(self.architectures.made.values())
        width = max(a.layout.width for a in made) * (8 if self.place.dtype == torch.float64 else 4)
        return {
            "cohort": (3 + len(self.algorithm.local.optimizer.slots)) * cohort * width,
            "training": max(a.trainer.step_bytes(cohort, self.algorithm.local.optimizer) for a in made),
            "client state": max(a.store.row_bytes for a in made) * ever,
            "data": data_bytes(self.federation),
        }

    # -- what is kept on disk

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        return self.architectures.save(folder, mark, files)

    def load(self, folder: Path, files: list[str]) -> None:
        self._pending = []
        self.architectures.load(folder, files)
