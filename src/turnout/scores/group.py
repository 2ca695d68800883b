"""Clients of one architecture in a round: they train together, and their models wait here between its two halves.

Shape letters: c clients of the group, R public samples, T those that are tested on, l labels of one client.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.scores.architectures import Architecture
from turnout.scores.averaging import sent_by
from turnout.scores.client_models import ClientModels
from turnout.scores.distillation import Lesson, distil
from turnout.scores.early_stopping import build_until
from turnout.scores.exchange import Averages, LearnReply, LearnRequest, ScoreReply, Spent
from turnout.scores.settings import Scores
from turnout.scores.training import Built, Work, build, predict


@dataclass(frozen=True, eq=False)
class Group:
    """Participants of one architecture, their work and the models they have built."""

    architecture: Architecture
    work: Work
    built: Built
    sets: Sequence[Tensor]
    examples_c: Tensor  # samples of each, those set aside for early stopping included
    seconds: float

    @staticmethod
    def of(
        architecture: Architecture, algorithm: Scores, work: Work, start: ClientModels, sets: Sequence[Tensor],
        examples_c: Tensor,
    ) -> Group:  # fmt: skip
        """Build the models."""
        began, local, early = time.perf_counter(), algorithm.local, algorithm.early
        if early is None:
            built = build(architecture, local, work, start)
        else:
            built = build_until(architecture, local, work, start, early)
        return Group(architecture, work, built, sets, examples_c, time.perf_counter() - began)

    @property
    def client_c(self) -> Tensor:
        return self.work.client_C

    def take(self, place_c: Tensor) -> Group:
        """Some of the participants."""
        if len(place_c) == len(self.client_c):
            return self
        sets, examples_c = [self.sets[i] for i in place_c.tolist()], self.examples_c[place_c]
        work, built = self.work.take(place_c), self.built.take(place_c)
        return Group(self.architecture, work, built, sets, examples_c, self.seconds)

    # -- the first half

    def replies(self, x: Tensor, scores: str) -> tuple[list[ScoreReply], Spent]:
        """Everybody's scores on the public samples, and what it all took."""
        began, built = time.perf_counter(), self.built
        output_cRl = predict(self.architecture, built.models, x)
        scored = output_cRl.shape[0] * output_cRl.shape[1]
        spent = Spent(self.seconds, float(built.epochs_C.sum()), time.perf_counter() - began, scored)
        f_cRl = output_cRl.softmax(2) if scores == "softmax" else output_cRl
        finite_c = built.finite_C & torch.isfinite(output_cRl).flatten(1).all(1)
        replies = [
            ScoreReply(
                client=client,
                set_l=self.sets[i],
                f_Rl=f_cRl[i],
                examples=int(self.examples_c[i]),
                loss=float(built.loss_C[i]),
                epochs=float(built.epochs_C[i]),
                finite=bool(finite_c[i]),
                weight_bytes=self.architecture.bytes,
            )
            for i, client in enumerate(self.client_c.tolist())
        ]
        return replies, spent

    # -- the second half

    def learnt(self, request: LearnRequest, algorithm: Scores, x: Tensor) -> Group:
        """The same with models that have learnt the global scores, where the algorithm distils."""
        if algorithm.distil is None:
            return self
        means = [request.mean[client] for client in self.client_c.tolist()]
        lessons = [Lesson.of(mean_Rl, request.open_R, algorithm.scores) for mean_Rl in means]
        models = self.built.models
        taught = distil(self.architecture, algorithm.local, algorithm.distil, self.work, models, lessons, x)
        return replace(self, built=replace(self.built, models=taught))

    def keep(self, moments: bool) -> None:
        """The models are their clients' own from now on."""
        self.architecture.keep(self.client_c, self.built.models.to_rows(self.work.t, moments))

    def answers(self, request: LearnRequest, algorithm: Scores, x: Tensor) -> list[LearnReply]:
        """What everybody's model says after learning, and its weights where they are averaged."""
        models, clients = self.built.models, self.client_c.tolist()
        outputs: Sequence[Tensor | None] = [None] * len(clients)
        weights: Sequence[Averages] = [{}] * len(clients)
        if algorithm.distil is not None:
            outputs = list(predict(self.architecture, models, x[request.tested_R.to(x.device)]))
        if algorithm.start == "averaged":
            weights = sent_by(self.architecture, self.sets, models)
        return [LearnReply(*answer) for answer in zip(clients, outputs, weights, strict=True)]
