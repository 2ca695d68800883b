"""One client trained by ordinary torch, batch by batch: what formulas about optimizers and personal layers say."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from turnout.engine.batches import address_batches
from turnout.running.tracks.weights import Weights
from turnout.types import Samples


def train_alone(prepared: Weights, client: int, t: int, module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """A round's local work of one client, in place; the steps made come back."""
    e, runtime = prepared.experiment, prepared.runtime
    everyone = torch.arange(prepared.runtime.clients.federation.clients)
    steps = int(runtime.turn_out(everyone, t)[1][client])
    x, y = prepared.runtime.clients.federation.train(torch.tensor([client]), t).of(0)
    samples = Samples(x.double(), y, torch.arange(len(x)), torch.tensor([len(x)]))
    size, ids = e.algorithm.local.batch_size, torch.tensor([client])
    batches = address_batches(samples, ids, torch.tensor([steps]), size, runtime.drop_single, e.seed, t)
    module.train()
    for j in range(steps):
        rows = batches.row_cJB[0, j][: int(batches.size_cJ[0, j])]
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(samples.x[rows]), y[rows]).backward()
        optimizer.step()
    return steps


def fresh(prepared: Weights) -> nn.Module:
    """The model before the first round, in double precision."""
    return copy.deepcopy(prepared.template).double()


def torch_adam(prepared: Weights, module: nn.Module) -> torch.optim.Adam:
    adam = prepared.experiment.algorithm.local.optimizer
    return torch.optim.Adam(module.parameters(), lr=adam.lr, betas=(adam.beta1, adam.beta2), eps=adam.eps)


def flat(prepared: Weights, named: dict[str, Tensor]) -> Tensor:
    return torch.cat([named[slot.name].detach().reshape(-1) for slot in prepared.model.layout.slots])


def weights_of(prepared: Weights, module: nn.Module) -> Tensor:
    return flat(prepared, dict(module.named_parameters()))


def moments_of(prepared: Weights, module: nn.Module, optimizer: torch.optim.Adam) -> tuple[Tensor, Tensor]:
    state = {name: optimizer.state[p] for name, p in module.named_parameters()}
    first, second = ({name: s[key] for name, s in state.items()} for key in ("exp_avg", "exp_avg_sq"))
    return flat(prepared, first), flat(prepared, second)
