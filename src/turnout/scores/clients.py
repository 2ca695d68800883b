"""Clients of the score track at work: their samples, their models, and the public samples they see.

`ScoreClients` works for a set of clients: all of them in this process, a part of them in another one, a single one on a
device. It never sees the server: requests go in, answers come out. Models that were built wait until the second request
names the clients whose scores were used; the others return to what they had.

Shape letters: C, I any clients, c those of one architecture, R public samples, T those that are tested on, l labels of
one client.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnout.data.labels import check_own_labels
from turnout.parts.local import turn_out
from turnout.running.tracks.track import filled
from turnout.runtimes.client_pool import data_bytes
from turnout.scores.exchange import BuildAnswer, BuildRequest, LearnRequest, OwnOutput, ScoreReply, ScoreSetup
from turnout.scores.privacy import noised_reply
from turnout.scores.training import (
    MODEL,
    ROUND,
    Architecture,
    ClientModels,
    LocalWork,
    build,
    distil,
    predict,
    split_off,
    states_in,
)
from turnout.types import Samples, State, flatten

CHECKED = 10_000  # clients whose labels are checked before the first round


@dataclass(frozen=True, eq=False)
class BuiltModels:
    """Models of one architecture that were built together and wait for the second half of the round.

    architecture  their architecture
    client_c      whose they are
    models        the models
    lr            the learning rate they were built with
    """

    architecture: Architecture
    client_c: Tensor
    models: ClientModels
    lr: float


class ScoreClients:
    """Some clients with models of their own, simulated or real. `clients`: their numbers; None: all."""

    def __init__(self, setup: ScoreSetup, clients: Sequence[int] | None = None):
        experiment, algorithm, place = setup.experiment, setup.algorithm, setup.place
        self.algorithm, self.seed, self.place = algorithm, experiment.seed, place
        self.federation, self.label_set = setup.federation.to(place.device), setup.public.label_set
        self.x = place.put(setup.public.x)
        self.setup, self.made = setup, dict[tuple[int, int], Architecture]()  # by number of the model, and of labels
        self._pending: list[BuiltModels] = []
        self.multiplier = 0.0 if algorithm.client_noise is None else float(algorithm.client_noise.begin()["multiplier"])
        # check every client's labels, and make the architectures of the first round and of every change
        clients = range(self.federation.clients) if clients is None else clients
        for client in clients[:CHECKED]:
            self.architecture(client, 0)
        for client, changes in setup.plan.changes.items():
            for since in (since for since, _ in changes if since < experiment.rounds and client in clients):
                self.architecture(client, since)

    def architecture(self, client: int, t: int) -> Architecture:
        """A client's architecture in a round."""
        return self._make(self.setup.plan.number(client, t), len(self.label_set(client, t)))

    def _make(self, number: int, labels: int) -> Architecture:
        if (number, labels) not in self.made:
            x = self.x[: self.algorithm.local.batch_size]
            self.made[number, labels] = Architecture(self.setup, x, number, labels)
        return self.made[number, labels]

    def _latest(self, client_C: Tensor) -> tuple[list[Architecture | None], Tensor]:
        """The architecture of each client's latest model (None: it has none yet), and the round it is from."""
        best_C = torch.full((len(client_C),), -1)
        found: list[Architecture | None] = [None] * len(client_C)
        for architecture in self.made.values():
            round_C = architecture.store.gather(client_C, lambda name: name == ROUND)[ROUND]
            for i in (round_C > best_C).nonzero().squeeze(1).tolist():
                found[i] = architecture
            best_C = torch.maximum(best_C, round_C)
        return found, best_C

    # -- the first half of a round

    def build(self, request: BuildRequest, fraction_C: Tensor) -> BuildAnswer:
        """Clients that have time train for this fraction of the work, and score the public samples."""
        self._pending = []
        together: dict[Architecture, list[int]] = {}
        for place in (fraction_C > 0).nonzero().squeeze(1).tolist():
            together.setdefault(self.architecture(int(request.client_C[place]), request.t), []).append(place)
        answers = []
        for architecture, places in together.items():
            part = replace(request, client_C=request.client_C[places])
            answers.append(self._build(architecture, part, fraction_C[places]))
        here_C = request.client_C[fraction_C > 0]
        return BuildAnswer.join(answers, here_C, self.algorithm.local.full_work)

    def _build(self, architecture: Architecture, request: BuildRequest, fraction_c: Tensor) -> BuildAnswer:
        """Build the models of one architecture; they stay here until the scores are used."""
        algorithm, client_c, t, check = self.algorithm, request.client_C, request.t, None
        sets = [self.label_set(client, t) for client in client_c.tolist()]
        samples = self._samples(client_c, sets, t)
        examples_c = samples.count_C
        if algorithm.early is not None:
            samples, check = split_off(samples, client_c, algorithm.early.share, self.seed, t)
        single = architecture.batch_statistics
        turnout, steps_c = turn_out(client_c, fraction_c, samples.count_C, algorithm.local, single)
        at = (steps_c > 0).nonzero().squeeze(1)
        if not len(at):
            return BuildAnswer(turnout)
        own_check = None if check is None else check.take(at)
        client_c, sets, examples_c = client_c[at], [sets[i] for i in at.tolist()], examples_c[at]
        began = time.perf_counter()
        work = LocalWork(client_c, steps_c[at], samples.take(at), own_check, request.lr, t, self.seed)
        built = build(architecture, algorithm, work, self._start(architecture, t, client_c))
        middle = time.perf_counter()
        output_cRl = predict(architecture, built.models, self.x)
        end = time.perf_counter()
        self._pending.append(BuiltModels(architecture, client_c, built.models, request.lr))
        f_cRl = output_cRl.softmax(2) if algorithm.scores == "softmax" else output_cRl
        finite_c = built.finite_C & torch.isfinite(output_cRl).flatten(1).all(1)
        replies = [
            ScoreReply(
                client=client, set_l=sets[i], f_Rl=f_cRl[i], examples=int(examples_c[i]), loss=float(built.loss_C[i]),
                epochs=float(built.epochs_C[i]), finite=bool(finite_c[i]), weight_bytes=architecture.bytes,
                training=(middle - began) * float(built.epochs_C[i] / built.epochs_C.sum()),
                scoring=(end - middle) / len(client_c),
            )
            for i, client in enumerate(client_c.tolist())
        ]  # fmt: skip
        if (private := algorithm.client_noise) is not None:  # nothing else of a client's data leaves it
            replies = [noised_reply(reply, private, self.multiplier, request.key, t) for reply in replies]
            turnout = replace(
                turnout, progress_C=turnout.work_C, full_progress_C=torch.full_like(turnout.work_C, turnout.full_work)
            )
        return BuildAnswer(turnout, replies)

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

    def _start(self, architecture: Architecture, t: int, client_c: Tensor) -> ClientModels:
        """Where training begins: fresh, or with what clients kept whose architecture stays."""
        models = architecture.fresh(t, len(client_c))
        if self.algorithm.start == "carried":
            latest, _ = self._latest(client_c)
            place = torch.tensor([i for i, found in enumerate(latest) if found is architecture], dtype=torch.int64)
            carries_count = self.algorithm.local.optimizer.carries_count
            models.put(place, models.take(place).with_rows(architecture.kept(client_c[place]), carries_count))
        return models

    # -- the second half

    def learn(self, request: LearnRequest) -> list[OwnOutput]:
        """The clients asked learn from the global scores, and keep their models; other built models are dropped."""
        groups, self._pending = self._pending, []
        algorithm, replies = self.algorithm, list[OwnOutput]()
        for group in groups:
            place_c = torch.isin(group.client_c, request.client_C).nonzero().squeeze(1)
            if not len(place_c):
                continue
            architecture, client_c = group.architecture, group.client_c[place_c]
            models = group.models if len(place_c) == len(group.client_c) else group.models.take(place_c)
            outputs: Sequence[Tensor | None] = [None] * len(client_c)
            if algorithm.distil is not None:
                means = [request.mean[client] for client in client_c.tolist()]
                how = group.lr, request.t, self.seed
                models = distil(architecture, algorithm, client_c, models, means, request.open_R, self.x, *how)
                if algorithm.client_noise is None:
                    outputs = list(predict(architecture, models, self.x[request.tested_R.to(self.x.device)]))
            architecture.keep(client_c, models.to_rows(request.t, moments=algorithm.moments == "local"))
            for client, output_Tl in zip(client_c.tolist(), outputs, strict=True):
                replies.append(OwnOutput(client, self.label_set(client, request.t), output_Tl))
        return sorted(replies, key=lambda reply: reply.client)

    # -- what clients keep

    def kept_by(self, client_c: Tensor, t: int | None = None) -> State:
        """The rows of these clients, by architecture: all of them, or those of round t."""
        found: State = {}
        for (number, labels), architecture in self.made.items():
            client_k = client_c[architecture.store.knows(client_c)]
            rows = architecture.store.gather(client_k)
            of_k = (rows[ROUND] == t) if t is not None else rows[ROUND] >= 0
            if bool(of_k.any()):
                own = {name: value[of_k.to(value.device)] for name, value in rows.items()}
                found[architecture.key] = {"number": number, "labels": labels, "client": client_k[of_k], "rows": own}
        return found

    def remember(self, kept: State) -> None:
        """Keep these rows of `kept_by`."""
        for found in kept.values():
            self._make(found["number"], found["labels"]).keep(found["client"], flatten(found["rows"])[0])

    def clear(self) -> None:
        """Forget all clients."""
        self._pending = []
        for architecture in self.made.values():
            architecture.store.clear()

    def forget(self, client_I: Tensor) -> None:
        for client in client_I.tolist():
            for architecture in self.made.values():
                architecture.store.forget(client)

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        """Write the clients' rows, a list of files per architecture."""
        found = []
        for architecture in self.made.values():
            own = [name for name in files if _key_of(name) == architecture.key]
            found += architecture.store.save(folder, f"{mark}-{architecture.key}", own)
        return found

    def load(self, folder: Path, files: list[str]) -> None:
        self.clear()
        for own in dict.fromkeys(map(_key_of, files)):
            number, labels = (int(part) for part in own.split("x"))
            self._make(number, labels).store.load(folder, [name for name in files if _key_of(name) == own])

    # -- looking

    def measure(self, client_C: Tensor, tested_R: Tensor) -> list[OwnOutput]:
        """The output of each client's latest model on some public samples."""
        x, found = self.x[tested_R.to(self.x.device)], list[OwnOutput]()
        latest, round_C = self._latest(client_C)
        for architecture in dict.fromkeys(a for a in latest if a is not None):
            place_c = torch.tensor([i for i, own in enumerate(latest) if own is architecture])
            kept = architecture.kept(client_C[place_c])
            models = ClientModels(kept[MODEL], states_in(kept), {}, round_C[place_c])
            for i, output_Tl in zip(place_c.tolist(), predict(architecture, models, x), strict=True):
                client = int(client_C[i])
                found.append(OwnOutput(client, self.label_set(client, int(round_C[i])), output_Tl))
        return found

    def own_module(self, client: int) -> nn.Module | None:
        """A client's latest model; None if it has none yet."""
        architecture = self._latest(torch.tensor([client]))[0][0]
        if architecture is None:
            return None
        rows = {name: value[0] for name, value in architecture.store.gather(torch.tensor([client])).items()}
        return filled(architecture.template, architecture.layout, rows[MODEL], states_in(rows))

    def describe(self) -> dict[str, Any]:
        """The device, and how the work is cut up."""
        trainers = [architecture.trainer for architecture in self.made.values()]
        engines = dict.fromkeys(trainer.title(self.algorithm.local.optimizer) for trainer in trainers)
        chunk, threads = min(trainer.chunk for trainer in trainers), trainers[0].threads
        return self.place.describe() | {"engine": " and ".join(engines), "chunk": chunk, "threads": threads}

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        """Bytes by purpose, with so many clients in a round and in all rounds together."""
        made = list(self.made.values())
        width = max(a.layout.width for a in made) * (8 if self.place.dtype == torch.float64 else 4)
        return {
            "cohort": (3 + len(self.algorithm.local.optimizer.slots)) * cohort * width,
            "training": max(a.trainer.step_bytes(cohort, self.algorithm.local.optimizer) for a in made),
            "client state": max(a.store.row_bytes for a in made) * ever,
            "data": data_bytes(self.federation),
        }


def _key_of(file: str) -> str:
    """
    >>> _key_of("clients-0000004-1x2.safetensors")
    '1x2'
    """
    return file.removesuffix(".safetensors").rpartition("-")[2]
