"""Copies to a GPU that nobody waits for."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(value: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The same on a device; on its way to a GPU the work that is queued there goes on, and so does this process.

    An ordinary copy from this computer's memory waits until everything before it is done.
    """
    value = value if dtype is None else value.to(dtype)
    if device.type != "cuda" or value.is_cuda:
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)
