"""Distillation: clients of one architecture learn the global scores of their labels on open public samples.

Shape letters: C clients, c some of them, R public samples, B samples of a lesson, l labels of a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.parts.local import Local, steps_per_epoch
from turnout.rng import key
from turnout.scores.architectures import Architecture
from turnout.scores.client_models import ClientModels
from turnout.scores.score_table import targets
from turnout.scores.settings import Distil
from turnout.scores.training import Work, models_of, most_first, train
from turnout.types import Samples

COPIES = 256 << 20  # bytes of public samples copied at once


@dataclass(frozen=True, eq=False)
class Lesson:
    """What one client is taught: rows of the public samples, and probabilities of its labels for each."""

    row_B: Tensor
    target_Bl: Tensor

    @staticmethod
    def of(mean_Rl: Tensor, open_R: Tensor, scores: str) -> Lesson:
        """The open samples on which all of its labels have been scored by somebody."""
        row_B = (open_R & ~mean_Rl.isnan().any(1)).nonzero().squeeze(1)
        return Lesson(row_B, targets(mean_Rl[row_B], scores))


def distil(
    architecture: Architecture, local: Local, how: Distil, work: Work, models: ClientModels,
    lessons: Sequence[Lesson], x: Tensor,
) -> ClientModels:  # fmt: skip
    """Teach each client's model its lesson; its optimizer starts anew, and what it carries between rounds is not
    touched. A few clients at a time: each needs the public samples with targets of its own."""
    size = max(1, max(len(lesson.row_B) for lesson in lessons) * x[:1].numel() * 4)
    result, every = models.clone(), torch.arange(len(lessons))
    for place_c in every.split(max(1, COPIES // size)):
        before, some = models.take(place_c), [lessons[i] for i in place_c.tolist()]
        blank = replace(before, slots={}, count_C=torch.zeros_like(before.count_C))
        taught = _taught(architecture, local, how, work, work.client_C[place_c], blank, some, x)
        result.put(place_c, replace(taught, slots=before.slots, count_C=before.count_C))
    return result


def _taught(
    architecture: Architecture, local: Local, how: Distil, work: Work, client_c: Tensor, models: ClientModels,
    lessons: Sequence[Lesson], x: Tensor,
) -> ClientModels:  # fmt: skip
    trainer, samples = architecture.distiller, _samples(lessons, x, models.flat_CP.dtype)
    steps_c = how.epochs * steps_per_epoch(samples.count_C, how.batch_size, architecture.batch_statistics)
    local = replace(local, batch_size=how.batch_size, growing_batch=False)
    lr = work.lr if how.lr is None else how.lr
    own = Work(client_c, steps_c, samples, None, lr, work.t, key(work.seed, "distil"))
    order = most_first(steps_c)
    trained = train(trainer, local, own, models, order, steps_c, own.seed)
    return models_of(trained).take(torch.argsort(order))


def _samples(lessons: Sequence[Lesson], x: Tensor, dtype: torch.dtype) -> Samples:
    """The lessons in a pool of their own, one client's after the other."""
    pool = torch.cat([x[lesson.row_B.to(x.device)] for lesson in lessons])
    y = torch.cat([lesson.target_Bl for lesson in lessons]).to(x.device, dtype)
    count_c = torch.tensor([len(lesson.row_B) for lesson in lessons])
    return Samples(pool.to(dtype) if pool.is_floating_point() else pool, y, torch.arange(len(pool)), count_c)
