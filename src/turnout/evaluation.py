"""Measuring models: the global one on the central test set, and on each client's own test data.

Shape letters: P parameters (all columns), S samples, C clients.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import functional_call

from turnout.engine.gradients import Network
from turnout.task import TaskSpec
from turnout.types import Samples, Tensors

BATCH = 1024


@torch.no_grad()
def per_sample(network: Network, task: TaskSpec, flat_P: Tensor, states: Tensors, x: Tensor, y: Tensor) -> Tensors:
    """The loss and every metric of each sample under one model, in evaluation mode (statistics do not move)."""
    network.module.eval()
    weights = {**network.layout.unpack(flat_P), **states}
    columns: dict[str, list[Tensor]] = {name: [] for name in ("loss", *task.metrics)}
    for part in _parts(len(x)):
        features = x[part].to(flat_P.dtype) if x.is_floating_point() else x[part]
        output = functional_call(network.module, weights, (features,))
        columns["loss"].append(task.loss(output, y[part]))
        for name, metric in task.metrics.items():
            columns[name].append(metric(output, y[part]).to(flat_P.dtype))
    return {name: torch.cat(values) for name, values in columns.items() if values}


def _parts(samples: int) -> Iterator[slice]:
    return (slice(i, i + BATCH) for i in range(0, samples, BATCH))


def measure(
    network: Network, task: TaskSpec, flat_P: Tensor, states: Tensors, x: Tensor, y: Tensor
) -> dict[str, float]:
    """The mean loss and metrics of one model."""
    values = per_sample(network, task, flat_P, states, x, y)
    return {name: float(value.double().mean()) for name, value in values.items()}


def measure_clients(network: Network, task: TaskSpec, flat_P: Tensor, states: Tensors, samples: Samples) -> Tensors:
    """The same for each client's own samples: name -> [C], NaN for a client without any."""
    rows = samples.row_R.to(samples.x.device)
    values = per_sample(network, task, flat_P, states, samples.x[rows], samples.y[rows])
    count_C = samples.count_C.cpu()
    owner_R = torch.arange(len(count_C)).repeat_interleave(count_C)
    return {name: _means(value.double().cpu(), owner_R, count_C) for name, value in values.items()}


def _means(value_R: Tensor, owner_R: Tensor, count_C: Tensor) -> Tensor:
    total_C = torch.zeros(len(count_C), dtype=torch.float64).index_add(0, owner_R, value_R)
    return torch.where(count_C > 0, total_C / count_C, float("nan"))
