"""Measuring models: the global one on the central test set or on clients' own test data, and each client's own model.

Shape letters: P parameters (all columns), R rows (samples client after client), C clients, c of a chunk, B samples of
one client.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from turnout.engine.gradients import Gradients, WorkerPool
from turnout.engine.network import Network
from turnout.inputs import trimmed
from turnout.tasks import Metric, TaskSpec
from turnout.types import Samples, Tensors

BATCH = 512
ROOM = 32 << 20  # bytes of models and samples that are measured together
ON_GPU = 16  # so many times as many samples and bytes there: a launch takes as long as the work of many samples

Models = Callable[[Tensor], tuple[Tensor, Tensors]]  # places in the list of clients -> their models [c, P] and states


def per_sample(workers: WorkerPool, task: TaskSpec, flat_P: Tensor, states: Tensors, x: Tensor, y: Tensor) -> Tensors:
    """The loss and every metric of each sample under one model, in evaluation mode (statistics do not move)."""
    # One place for all: small results that are kept one by one between large ones would leave holes in the memory.
    values = {name: flat_P.new_empty(len(x)) for name in ("loss", *task.metrics)} if len(x) else {}

    @torch.no_grad()
    def part(gradients: Gradients, rows: slice) -> None:
        network = gradients.network
        network.module.eval()
        some = _prepared(x[rows], flat_P)
        output = network.output(flat_P, states, some)
        own = getattr(task, "models_own", False)
        values["loss"][rows] = network.losses_at(flat_P, states, some, y[rows]) if own else task.loss(output, y[rows])
        for name, metric in task.metrics.items():
            values[name][rows] = metric(output, y[rows]).to(flat_P.dtype)

    size = BATCH * ON_GPU if x.is_cuda else BATCH
    if getattr(task, "positions", None) is not None and len(x):  # scores of every position may be many
        with torch.no_grad():
            one = workers.first.network.output(flat_P, states, _prepared(x[:1], flat_P, trim=False))
        size = max(1, min(size, ROOM * (ON_GPU if x.is_cuda else 1) // (one.numel() * one.element_size())))
    workers.map(part, [slice(i, i + size) for i in range(0, len(x), size)])
    return values


def _prepared(x: Tensor, like: Tensor, trim: bool = True) -> Tensor:
    """Samples as the model takes them: without positions that none of them uses, in the type of the weights."""
    x = trimmed(x) if trim else x
    return x.to(like.dtype) if x.is_floating_point() else x


def _finished(task: TaskSpec, means: Tensors) -> Tensors:
    """Metrics that are a function of a mean (a perplexity), from the means."""
    metrics = dict(means)
    for name, metric in task.metrics.items():
        if isinstance(metric, Metric) and metric.of_mean is not None and name in metrics:
            metrics[name] = metric.of_mean(metrics[name])
    return metrics


def measure(
    workers: WorkerPool, task: TaskSpec, flat_P: Tensor, states: Tensors, x: Tensor, y: Tensor
) -> dict[str, float]:
    """The mean loss and metrics of one model."""
    values, weight_R = per_sample(workers, task, flat_P, states, x, y), weights_of(task, y)
    means = {
        name: value.double().mean() if weight_R is None else (value * weight_R).sum() / weight_R.sum()
        for name, value in values.items()
    }
    return {name: float(value) for name, value in _finished(task, means).items()}


def measure_clients(workers: WorkerPool, task: TaskSpec, flat_P: Tensor, states: Tensors, samples: Samples) -> Tensors:
    """The same for each client's own samples: name -> [C], NaN for a client without any."""
    rows = samples.row_R.to(samples.x.device)
    y = samples.y[rows]
    values, weight_R = per_sample(workers, task, flat_P, states, samples.x[rows], y), weights_of(task, y)
    count_C = samples.count_C.cpu()
    owner_R = torch.arange(len(count_C)).repeat_interleave(count_C)
    means = {n: _means(v.double().cpu(), owner_R, count_C, weight_R) for n, v in values.items()}
    return _finished(task, means)


def _means(value_R: Tensor, owner_R: Tensor, count_C: Tensor, weight_R: Tensor | None) -> Tensor:
    zero_C, all_C = torch.zeros(len(count_C), dtype=torch.float64), count_C
    if weight_R is not None:
        value_R, all_C = value_R * weight_R.cpu(), zero_C.index_add(0, owner_R, weight_R.cpu())
    return torch.where(all_C > 0, zero_C.index_add(0, owner_R, value_R) / all_C, float("nan"))


def weights_of(task: TaskSpec | Network, y: Tensor) -> Tensor | None:
    """How much each sample counts in a mean, where they do not count alike: the number of its positions."""
    positions = getattr(task, "positions", None)
    return None if positions is None else positions(y).double()


def objective_gradient(
    workers: WorkerPool, flat_P: Tensor, states: Tensors, samples: Samples, share_C: Tensor
) -> Tensor:
    """∇ Σ_c share_c F_c, F_c the mean loss of a client's own samples, in evaluation mode."""
    count_C, row_R = samples.count_C.to(share_C.device), samples.row_R
    weight_R = (share_C / count_C.clamp(min=1)).repeat_interleave(count_C)
    positions_R = weights_of(workers.first.network, samples.y[row_R.to(samples.y.device)])
    if positions_R is not None:
        owner_R = torch.arange(len(count_C)).repeat_interleave(count_C.cpu())
        all_C = torch.zeros(len(count_C), dtype=torch.float64).index_add(0, owner_R, positions_R.cpu())
        weight_R = ((share_C.cpu() / all_C.clamp(min=1))[owner_R] * positions_R.cpu()).to(share_C.device)

    def part(gradients: Gradients, rows: range) -> Tensor:
        network, total_P = gradients.network, torch.zeros_like(flat_P)
        network.module.eval()
        for some in (rows[i : i + BATCH] for i in range(0, len(rows), BATCH)):
            row_B, weight_B = (value_R[some.start : some.stop] for value_R in (row_R, weight_R))
            row_B, weight_B = row_B.to(samples.x.device), weight_B.to(flat_P)
            point_P = flat_P.detach().clone().requires_grad_()
            x = _prepared(samples.x[row_B], flat_P)
            loss = (network.losses_at(point_P, states, x, samples.y[row_B]) * weight_B).sum()
            total_P += torch.autograd.grad(loss, point_P)[0]
        return total_P

    each = max(1, -(-len(row_R) // workers.threads))
    parts = workers.map(part, [range(i, min(i + each, len(row_R))) for i in range(0, len(row_R), each)])
    return torch.stack(parts).sum(0) if parts else torch.zeros_like(flat_P)


def measure_own(workers: WorkerPool, task: TaskSpec, models: Models, samples: Samples) -> Tensors:
    """Loss and metrics of each client's own model on its own samples: name -> [C], NaN for a client without any.

    Models are made a chunk at a time, when their turn comes, so that memory does not grow with the clients.
    """
    count_C = samples.count_C.cpu()
    values = {name: torch.full((len(count_C),), float("nan"), dtype=torch.float64) for name in ("loss", *task.metrics)}

    @torch.no_grad()
    def part(gradients: Gradients, place_c: Tensor) -> None:
        flat_cP, states = models(place_c)
        x, y, real_cB = gathered(samples, place_c, flat_cP.dtype)
        weight_cB, all_c = weights_of(task, y), count_C[place_c]
        if weight_cB is not None:
            weight_cB = torch.where(real_cB, weight_cB, 0.0)
            all_c = weight_cB.sum(1).cpu()
        output, target = gradients.outputs(flat_cP, states, x).flatten(0, 1), y.flatten(0, 1)
        means = Tensors()
        for name, metric in {"loss": task.loss, **task.metrics}.items():
            if name == "loss" and getattr(task, "models_own", False):
                own = range(len(place_c))
                value_cB = torch.stack([
                    gradients.network.losses_at(flat_cP[i], {n: v[i] for n, v in states.items()}, x[i], y[i])
                    for i in own
                ]).double()  # fmt: skip
            else:
                value_cB = metric(output, target).double().view_as(real_cB)
            value_cB = value_cB if weight_cB is None else value_cB * weight_cB
            means[name] = torch.where(real_cB, value_cB, 0.0).sum(1).cpu() / all_c
        for name, value_c in _finished(task, means).items():
            values[name][place_c] = value_c

    workers.map(part, chunks(count_C, workers.first.network.layout.width, samples.x))
    return values


def chunks(count_C: Tensor, width: int, x: Tensor) -> list[Tensor]:
    """Places of the clients that have samples, cut into chunks of like counts: little is padded."""
    have = count_C.argsort(stable=True)[int((count_C == 0).sum()) :]
    if not len(have):
        return []
    most, room = int(count_C.max()) * x[:1].numel(), ROOM * ON_GPU if x.is_cuda else ROOM
    return list(have.split(max(1, min(256, room // (4 * (2 * width + 8 * most))))))


def gathered(samples: Samples, place_c: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The samples of a chunk of clients [c, B, ...], and which are real: short lists are filled up with their first."""
    count_c, start_c = samples.count_C.cpu()[place_c], samples.start_C.cpu()[place_c]
    column_B = torch.arange(int(count_c.max()))
    real_cB = column_B < count_c[:, None]
    row_cB = samples.row_R.cpu()[start_c[:, None] + torch.where(real_cB, column_B, 0)].to(samples.x.device)
    like = torch.empty(0, dtype=dtype)
    return _prepared(samples.x[row_cB], like), samples.y[row_cB], real_cB.to(samples.x.device)


def summary(name: str, value_C: Tensor, noisy_C: Tensor | None = None) -> dict[str, float]:
    """The mean over clients that have a value, and over those whose data was spoilt and those whose was not.

    >>> summary("accuracy", torch.tensor([1.0, 0.5, float("nan")]), torch.tensor([True, False, False]))
    {'accuracy': 0.75, 'accuracy_noisy': 1.0, 'accuracy_clean': 0.5}
    """
    has_C = ~value_C.isnan()
    parts = {name: has_C}
    if noisy_C is not None:
        parts |= {f"{name}_noisy": has_C & noisy_C, f"{name}_clean": has_C & ~noisy_C}
    return {part: float(value_C[chosen_C].double().mean()) for part, chosen_C in parts.items() if bool(chosen_C.any())}


def spread(name: str, value_C: Tensor, higher_is_better: bool) -> dict[str, float]:
    """The mean of the worst tenth of the clients (at least one), and the standard deviation over all.

    >>> spread("accuracy", torch.tensor([0.0, 1.0]), higher_is_better=True)
    {'accuracy_worst': 0.0, 'accuracy_spread': 0.5}
    """
    value_C = value_C[~value_C.isnan()].double().sort(descending=not higher_is_better).values
    if not len(value_C):
        return {}
    tenth = max(1, len(value_C) // 10)
    deviation = float(value_C.std(correction=0))
    return {f"{name}_worst": float(value_C[:tenth].mean()), f"{name}_spread": deviation}
