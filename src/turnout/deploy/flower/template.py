"""What a reply looks like, to hold replies against: names, shapes and types of everything but encoded updates.

One step is trained on made-up samples, which needs no data but its description.

Shape letters: C clients asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.data.description import Description, Zeros
from turnout.exchange import Assignment, Download
from turnout.runtimes.clients import ClientPool
from turnout.runtimes.setup import Setup
from turnout.types import Replies, Samples


@dataclass(frozen=True, eq=False)
class MadeUp(Zeros):
    """A few samples of zeros for everybody."""

    samples: int = 4

    def examples(self, client_C: Tensor) -> Tensor:
        return torch.full_like(client_C, self.samples)

    def train(self, client_C: Tensor, t: int) -> Samples:
        like, count = self.like, self.samples
        y = torch.zeros(count, *like.target_shape, dtype=getattr(torch, like.target_type))
        return Samples(like.sample(count), y, torch.arange(count).repeat(len(client_C)), self.examples(client_C))


def template(setup: Setup, data: Description, download: Download) -> Replies:
    """A reply of client 0 to such a download."""
    bare = setup.experiment.but(**{"evaluate.recovery": False, "evaluate.gradients": False})
    clients = ClientPool(replace(setup, experiment=bare, federation=MadeUp(data)))
    one = torch.zeros(1, dtype=torch.int64)
    start = None if download.start_CP is None else download.start_CP[:1]
    asked = replace(download.among(one) if start is None else replace(download, client_C=one), start_CP=start)
    return clients.work(asked, Assignment(one, torch.ones(1, dtype=torch.int64)))[0]
