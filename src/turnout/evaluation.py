"""Measuring models: the global one on the central test set, and on each client's own test data.

Shape letters: P parameters (all columns), S samples, R rows (samples client after client), C clients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from turnout.engine.crew import Crew
from turnout.engine.gradients import Gradients, Network
from turnout.task import TaskSpec
from turnout.types import Samples, Tensors

BATCH = 512


def per_sample(crew: Crew, task: TaskSpec, flat_P: Tensor, states: Tensors, x: Tensor, y: Tensor) -> Tensors:
    """The loss and every metric of each sample under one model, in evaluation mode (statistics do not move)."""

    @torch.no_grad()
    def part(gradients: Gradients, rows: slice) -> Tensors:
        network = gradients.network
        network.module.eval()
        features = x[rows].to(flat_P.dtype) if x.is_floating_point() else x[rows]
        output = functional_call(network.module, {**network.layout.unpack(flat_P), **states}, (features,))
        values = {"loss": task.loss(output, y[rows])}
        return values | {name: metric(output, y[rows]).to(flat_P.dtype) for name, metric in task.metrics.items()}

    parts = crew.map(part, [slice(i, i + BATCH) for i in range(0, len(x), BATCH)])
    return {name: torch.cat([values[name] for values in parts]) for name in (parts[0] if parts else {})}


def measure(crew: Crew, task: TaskSpec, flat_P: Tensor, states: Tensors, x: Tensor, y: Tensor) -> dict[str, float]:
    """The mean loss and metrics of one model."""
    values = per_sample(crew, task, flat_P, states, x, y)
    return {name: float(value.double().mean()) for name, value in values.items()}


def measure_clients(crew: Crew, task: TaskSpec, flat_P: Tensor, states: Tensors, samples: Samples) -> Tensors:
    """The same for each client's own samples: name -> [C], NaN for a client without any."""
    rows = samples.row_R.to(samples.x.device)
    values = per_sample(crew, task, flat_P, states, samples.x[rows], samples.y[rows])
    count_C = samples.count_C.cpu()
    owner_R = torch.arange(len(count_C)).repeat_interleave(count_C)
    return {name: _means(value.double().cpu(), owner_R, count_C) for name, value in values.items()}


def _means(value_R: Tensor, owner_R: Tensor, count_C: Tensor) -> Tensor:
    total_C = torch.zeros(len(count_C), dtype=torch.float64).index_add(0, owner_R, value_R)
    return torch.where(count_C > 0, total_C / count_C, float("nan"))


def objective_gradient(network: Network, flat_P: Tensor, states: Tensors, samples: Samples, share_C: Tensor) -> Tensor:
    """∇ Σ_c share_c F_c, F_c the mean loss of a client's own samples, in evaluation mode."""
    count_C = samples.count_C.to(share_C.device)
    weight_R = (share_C / count_C.clamp(min=1)).repeat_interleave(count_C)
    row_R, total_P = samples.row_R, torch.zeros_like(flat_P)
    network.module.eval()
    for start in range(0, len(row_R), BATCH):
        rows, weights = row_R[start : start + BATCH].to(samples.x.device), weight_R[start : start + BATCH].to(flat_P)
        features = samples.x[rows].to(flat_P.dtype) if samples.x.is_floating_point() else samples.x[rows]
        point_P = flat_P.detach().clone().requires_grad_()
        output = functional_call(network.module, {**network.layout.unpack(point_P), **states}, (features,))
        loss = (network.loss(output, samples.y[rows]) * weights).sum()
        total_P += torch.autograd.grad(loss, point_P)[0]
    return total_P
