"""Small worlds for tests: real parts, float64, a second or less."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import turnout as to
from turnout.prepare import prepare
from turnout.record import RoundRecord
from turnout.round import Server
from turnout.track import Weights

EXACT = to.InProcess(device="cpu", precision="float64", threads=1)


class Given:
    """A participation that a test writes down: fractions per client, the same every round."""

    def __init__(self, *fractions: float):
        self.fractions = torch.tensor(fractions, dtype=torch.float64)

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        return self.fractions[client_C]


def blobs(counts: list[int], features: int = 5, classes: int = 3, seed: int = 0) -> to.data.Own:
    """Clients with these many samples, mixed signs, each with labels of its own liking."""
    g = torch.Generator().manual_seed(seed)
    owner = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    x = torch.randn(len(owner), features, generator=g) + 0.3 * owner[:, None]
    y = (torch.rand(len(owner), generator=g) * classes + owner).long() % classes
    test = torch.randn(30, features, generator=g), torch.randint(0, classes, (30,), generator=g)
    return to.data.Own(x, y, owner, test=test, test_share=0.0)


def world(counts: list[int], *fractions: float, **algorithm: Any) -> to.Experiment:
    """Plain SGD on blobs, with this turnout every round."""
    local = algorithm.pop("local", to.Local(to.SGD(lr=0.1), epochs=4, batch_size=4))
    return to.Experiment(
        world=to.World(blobs(counts), Given(*(fractions or [1.0] * len(counts)))),
        algorithm=to.Algorithm(local=local, **algorithm),
        rounds=3,
        runtime=EXACT,
    )


def ready(experiment: to.Experiment, **changes: Any) -> Weights:
    return prepare(experiment.but(**changes))


def play(prepared: Weights, rounds: int = 1, server: Server | None = None) -> tuple[Server, list[RoundRecord]]:
    """Some rounds without a folder."""
    state, records = server or prepared.begin(), []
    for t in range(rounds):
        state, record = prepared.round(state, t)
        records.append(replace(record, seconds=0.0))
    return state, records


def local_updates(prepared: Weights, t: int = 0) -> Tensor:
    """D_k of every client by ordinary training, one after another: what the formulas of SPEC are about."""
    from turnout.engine.batches import address_batches
    from turnout.types import Samples

    e, model, runtime = prepared.experiment, prepared.template, prepared.runtime
    local, layout = e.algorithm.local, prepared.model.layout
    updates = []
    for client in range(prepared.federation.clients):
        _, steps_C = runtime._turn_out(torch.arange(prepared.federation.clients), t)
        x, y = prepared.federation.train(torch.tensor([client]), t).of(0)
        samples = Samples(x.double(), y, torch.arange(len(x)), torch.tensor([len(x)]))
        steps = int(steps_C[client])
        module = copy.deepcopy(model).double()
        ids = torch.tensor([client])
        batches = address_batches(samples, ids, torch.tensor([steps]), local.batch_size, False, e.seed, t)
        start = torch.cat([p.detach().reshape(-1).clone() for p in module.parameters()])
        for j in range(steps):
            rows = batches.row_cJB[0, j][: int(batches.size_cJ[0, j])]
            loss = torch.nn.functional.cross_entropy(module(samples.x[rows]), y[rows])
            grads = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for p, g in zip(module.parameters(), grads, strict=True):
                    p -= local.optimizer.lr * g
        updates.append(torch.cat([p.detach().reshape(-1) for p in module.parameters()]) - start)
    assert layout.width == len(updates[0])
    return torch.stack(updates)


def folder_run(experiment: to.Experiment, folder: Path) -> to.Run:
    return to.run(experiment, folder, quiet=True)
