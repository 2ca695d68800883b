"""What aggregation does to neurons before BatchNorm (paper 004, §3.3): distributions over a client's own test data.

z_i is what enters BatchNorm at neuron i under the model a client has trained, z̄_i under the one it downloads next.
With its own BatchNorm (γ, β, μ, σ²) the output moves by Δμ = E[z̄] - E[z] and Δσ² = Var[z̄] - Var[z] only; with the
averaged one (γ̄, β̄, μ̄, σ̄²) it moves also because that is another one. Inequality (10) says the first moves less.

Shape letters: C clients, c of a chunk, B samples, I neurons (or channels) of a layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from turnout.clients.metrics import Models, chunks, gathered
from turnout.engine.gradients import Gradients, WorkerPool
from turnout.engine.network import Network
from turnout.types import Samples, Tensors

_ROUNDING = 1e-6  # BatchNorm's outputs are of order 1, in float32
_BATCH_NORM = nn.modules.batchnorm._BatchNorm
OWN_VALUES = {"gamma": "weight", "beta": "bias", "mu": "running_mean", "var": "running_var"}


def norms(module: nn.Module) -> dict[str, int]:
    """The BatchNorm layers of a model, and how many neurons each has."""
    return {name: m.num_features for name, m in module.named_modules() if isinstance(m, _BATCH_NORM)}


def blank(module: nn.Module) -> Tensors:
    """What a client has seen before its first round: nothing."""
    names = ("z_mean", "z_var", *OWN_VALUES)
    return {f"{layer}.{name}": torch.zeros(size) for layer, size in norms(module).items() for name in names}


def distributions(workers: WorkerPool, models: Models, samples: Samples) -> Tensors:
    """E[z] and Var[z] of every neuron before BatchNorm: "layer.z_mean" -> [C, I]; NaN for a client without samples."""
    count_C, network = samples.count_C.cpu(), workers.first.network
    statistics = {
        f"{layer}.{name}": torch.full((len(count_C), size), float("nan"), dtype=torch.float64)
        for layer, size in norms(network.module).items()
        for name in ("z_mean", "z_var")
    }

    @torch.no_grad()
    def part(gradients: Gradients, place_c: Tensor) -> None:
        flat_cP, states = models(place_c)
        x, _, real_cB = gathered(samples, place_c, flat_cP.dtype)
        for i, place in enumerate(place_c.tolist()):
            own = {name: value[i] for name, value in states.items()}
            for layer, z in _entering(gradients.network, flat_cP[i], own, x[i][real_cB[i]]).items():
                var, mean = torch.var_mean(z.double(), [d for d in range(z.dim()) if d != 1], correction=0)
                statistics[f"{layer}.z_mean"][place], statistics[f"{layer}.z_var"][place] = mean.cpu(), var.cpu()

    workers.map(part, chunks(count_C, network.layout.width, samples.x))
    return statistics


def _entering(network: Network, flat_P: Tensor, states: Tensors, x: Tensor) -> Tensors:
    """What enters each BatchNorm layer of one client's model, in evaluation mode."""
    inputs_of: Tensors = {}

    def keep(layer: str) -> Any:
        return lambda module, inputs: inputs_of.__setitem__(layer, inputs[0])

    layers = [m for m in network.module.named_modules() if isinstance(m[1], _BATCH_NORM)]
    handles = [m.register_forward_pre_hook(keep(name)) for name, m in layers]
    try:
        network.module.eval()
        network.output(flat_P, states, x)
    finally:
        for handle in handles:
            handle.remove()
    return inputs_of


def own_values(network: Network, models: Models, clients: int) -> Tensors:
    """γ, β, μ, σ² of each client's BatchNorm layers: "layer.gamma" -> [C, I]."""
    flat_CP, states = models(torch.arange(clients))
    values = {**network.layout.views(flat_CP), **states}
    return {
        f"{layer}.{name}": values[f"{layer}.{tensor}"].double().cpu().reshape(clients, -1)
        for layer in norms(network.module)
        for name, tensor in OWN_VALUES.items()
    }


def smaller_moves(before: Tensors, after: Tensors, averaged: Tensors, layer: str, eps: float) -> tuple[Tensor, Tensor]:
    """Inequality (10) for each neuron: of the mean, and of the variance [C, I].

    |γ Δμ/σ| < |β - γ̄ (μ + Δμ - μ̄)/σ̄ - β̄|,  |γ² Δσ²/σ²| < |γ² - γ̄² (σ² + Δσ²)/σ̄²|

    `before` has z under the trained model and the client's own values, `after` z under the downloaded one.
    """
    own = {name: before[f"{layer}.{name}"] for name in OWN_VALUES}
    mean = {name: averaged[f"{layer}.{name}"] for name in OWN_VALUES}
    own_var, mean_var = own["var"] + eps, mean["var"] + eps
    shift = after[f"{layer}.z_mean"] - before[f"{layer}.z_mean"]
    growth = after[f"{layer}.z_var"] - before[f"{layer}.z_var"]
    kept = (own["gamma"] * shift / own_var.sqrt()).abs()
    moved = mean["gamma"] * (own["mu"] + shift - mean["mu"]) / mean_var.sqrt()
    swapped = (own["beta"] - moved - mean["beta"]).abs()
    kept_var = (own["gamma"].square() * growth / own_var).abs()
    swapped_var = (own["gamma"].square() - mean["gamma"].square() * (own_var + growth) / mean_var).abs()
    return _less(kept, swapped), _less(kept_var, swapped_var)


def _less(a: Tensor, b: Tensor) -> Tensor:
    """a < b by more than rounding: for a client that was alone in its round, whose average is its own, they agree."""
    return b - a > _ROUNDING * (1 + b)


def shares(module: nn.Module, before: Tensors, after: Tensors, averaged: Tensors) -> Tensors:
    """The share of each client's neurons that satisfy (10), by layer; NaN for a client that has not trained yet."""
    moved: Tensors = {}
    for layer in norms(module):
        norm = module.get_submodule(layer)
        assert isinstance(norm, _BATCH_NORM)
        mean_CI, var_CI = smaller_moves(before, after, averaged, layer, norm.eps)
        known_C = (before[f"{layer}.var"].sum(1) > 0) & ~after[f"{layer}.z_mean"].isnan().any(1)
        for name, holds_CI in (("mean", mean_CI), ("variance", var_CI), ("both", mean_CI & var_CI)):
            moved[f"neurons_{name}_{layer}"] = torch.where(known_C, holds_CI.double().mean(1), float("nan"))
    return moved
