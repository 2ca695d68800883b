"""The losses of the hand-written pass: the mean over a client's batch, and its gradient.

Each takes the outputs [c, B, K], the targets, a mask of the real samples (None: all are real) and a gain. It returns
the mean loss of each client [c], and gain times its gradient with respect to the outputs [c, B, K].

Shape letters: c clients of a chunk, B batch, K scores or outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from turnout.tasks import Classification, InOwnUnit, Regression, TaskSpec

Loss = Callable[[Tensor, Tensor, Tensor | None, float | Tensor], tuple[Tensor, Tensor]]


def shares(mask_cB: Tensor) -> Tensor:
    """Each real sample's weight in its client's mean; all 0 for a client without samples.

    >>> shares(torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]))
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000],
            [0.0000, 0.0000]])
    """
    return mask_cB / mask_cB.sum(1, keepdim=True).clamp(min=1)


def _mean(loss_cB: Tensor, d: Tensor, mask_cB: Tensor | None, gain: float | Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of each client and its gradient, from those of each sample; overwrites d."""
    if mask_cB is None:
        return loss_cB.mean(1), d.mul_(gain / loss_cB.shape[1])
    share_cB = shares(mask_cB)
    return (loss_cB * share_cB).sum(1), d.mul_((share_cB * gain).unsqueeze(2))


def cross_entropy(logits: Tensor, y: Tensor, mask_cB: Tensor | None, gain: float | Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of scores [c, B, classes] with labels [c, B].

    The softmax is written out: for few classes torch's own takes four times as long.
    """
    z = logits - logits.amax(2, keepdim=True)
    index = y.unsqueeze(2)
    picked = z.gather(2, index)
    e = z.exp_()
    total = e.sum(2, keepdim=True)
    loss_cB = (total.log() - picked).squeeze(2)
    d = e.div_(total).scatter_add_(2, index, torch.full_like(total, -1.0))
    return _mean(loss_cB, d, mask_cB, gain)


def soft_cross_entropy(
    logits: Tensor, y: Tensor, mask_cB: Tensor | None, gain: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy with target probabilities [c, B, classes] that sum to 1, for distillation."""
    log_q = logits.log_softmax(2)
    loss_cB = -(y * log_q).sum(2)
    d = log_q.exp_().sub_(y)
    return _mean(loss_cB, d, mask_cB, gain)


def squared_error(output: Tensor, y: Tensor, mask_cB: Tensor | None, gain: float | Tensor) -> tuple[Tensor, Tensor]:
    """Squared error, averaged over a sample's outputs.

    >>> squared_error(torch.tensor([[[1.0], [3.0]]]), torch.zeros(1, 2), None, 1.0)
    (tensor([5.]), tensor([[[1.],
             [3.]]]))
    """
    error = output - y.to(output).view_as(output)
    loss_cB = error.square().mean(2)
    d = error.mul_(2 / output.shape[2])
    return _mean(loss_cB, d, mask_cB, gain)


# Exact types: a subclass may have another loss.
BY_HAND: dict[type, Loss] = {Classification: cross_entropy, Regression: squared_error}


def loss_by_hand(task: TaskSpec) -> Loss | None:
    """The hand-written form of a task's loss; None if there is none."""
    return BY_HAND.get(type(task.task if isinstance(task, InOwnUnit) else task))
