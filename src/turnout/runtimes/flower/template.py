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
from turnout.runtimes.clients import Clients
from turnout.runtimes.setup import Setup
from turnout.types import Replies, Samples, Tensors


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
    clients = Clients(replace(setup, experiment=bare, federation=MadeUp(data)))
    one = torch.zeros(1, dtype=torch.int64)
    start = None if download.start_CP is None else download.start_CP[:1]
    asked = replace(download.among(one) if start is None else replace(download, client_C=one), start_CP=start)
    return clients.work(asked, Assignment(one, torch.ones(1, dtype=torch.int64)))[0]


def unlike(replies: Replies, like: Replies) -> str | None:
    """How replies of one client differ from what they should look like; None: they do not."""
    groups = {"states": (replies.states, like.states), "hints": (replies.hints, like.hints)}
    if replies.sums.keys() != like.sums.keys():
        return f"it has sums of {sorted(replies.sums)[:3]}, not of {sorted(like.sums)[:3]}"
    groups |= {f"sums of {term}": (replies.sums[term], like.sums[term]) for term in like.sums}
    for what, (found, wanted) in groups.items():
        if (wrong := _unlike(found, wanted)) is not None:
            return f"its {what}: {wrong}"
    if replies.message.tensors.keys() != like.message.tensors.keys():
        return f"its message has {sorted(replies.message.tensors)[:3]}, not {sorted(like.message.tensors)[:3]}"
    for name, row in like.message.tensors.items():
        sent = replies.message.tensors[name]
        encoded = row.dtype == torch.uint8 and row.dim() == 2 and sent.dim() == 2  # as long as it is
        if sent.dtype != row.dtype or (not encoded and sent.shape != row.shape) or len(sent) != 1:
            return f"its {name} is {tuple(sent.shape)} of {sent.dtype}, not {tuple(row.shape)} of {row.dtype}"
    return None


def _unlike(found: Tensors, wanted: Tensors) -> str | None:
    if found.keys() != wanted.keys():
        return f"there are {sorted(found)[:3]}, not {sorted(wanted)[:3]}"
    for name, like in wanted.items():
        value = found[name]
        if value.shape != like.shape or value.dtype != like.dtype:
            return f"{name} is {tuple(value.shape)} of {value.dtype}, not {tuple(like.shape)} of {like.dtype}"
    return None
