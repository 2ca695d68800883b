"""Small worlds for tests: real parts, float64, a second or less."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

import turnout as to
from turnout.engine.batches import address_batches
from turnout.exchange import Download
from turnout.parts.compression.base import Dense
from turnout.round_record import RoundRecord
from turnout.running.loop import begin, rounds_of
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.weights import Weights
from turnout.server.asking import cohort_of, make_download
from turnout.server.state import Context, Server
from turnout.types import Samples

EXACT = to.runtime.InProcess(device="cpu", precision="float64", threads=1)


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


@dataclass(frozen=True)
class Coarse(Dense):
    """Updates travel in steps of 1/8, in one byte."""

    def encode(self, update_CP, kept, sending):
        message, kept = super().encode((update_CP * 8).round() / 8, kept, sending)
        return replace(message, bytes_C=message.bytes_C // 4), kept

    def catch_up(self, state, held, sending):
        return super().catch_up(state, held, sending) // 4


def world(counts: list[int], *fractions: float, **algorithm: Any) -> to.Experiment:
    """Plain SGD on blobs, with this turnout every round; scheme C unless the test says otherwise."""
    local = algorithm.pop("local", to.Local(to.SGD(lr=0.1), epochs=4, batch_size=4))
    algorithm = {"weighting": to.weighting.ByWork()} | algorithm
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


Stepping = Callable[[Tensor, Tensor, Callable[[Tensor], Tensor], int], Tensor]  # (x, gradient, gradient at, step)


def walk(prepared: Weights, client: int, t: int, start_P: Tensor, change: Stepping | None = None) -> tuple[Tensor, int]:
    """One client's local training with ordinary autograd: where it ends, and its steps. `change` gives the gradient
    to use instead, at x, and may ask for the one at other weights on the same mini-batch."""
    e, local = prepared.experiment, prepared.experiment.algorithm.local
    _, steps_C = prepared.runtime.turn_out(torch.arange(prepared.runtime.clients.federation.clients), t)
    x, y = prepared.runtime.clients.federation.train(torch.tensor([client]), t).of(0)
    samples = Samples(x.double(), y, torch.arange(len(x)), torch.tensor([len(x)]))
    steps, ids = int(steps_C[client]), torch.tensor([client])
    batches = address_batches(samples, ids, torch.tensor([steps]), local.batch_size, False, e.seed, t)
    at_P = start_P.clone()
    for j in range(steps):
        rows = batches.row_cJB[0, j][: int(batches.size_cJ[0, j])]

        def gradient(x_P: Tensor, rows: Tensor = rows) -> Tensor:
            return gradient_of(prepared, x_P, samples.x[rows], y[rows])

        grad_P = gradient(at_P)
        at_P = at_P - local.optimizer.lr * (grad_P if change is None else change(at_P, grad_P, gradient, j))
    return at_P, steps


def gradient_of(prepared: Weights, x_P: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the mean loss at some weights (shared columns; what is personal has its first values)."""
    layout = prepared.model.layout
    point_P = torch.cat([x_P, prepared.model.flat_P[layout.shared :].double()]).requires_grad_()
    module = copy.deepcopy(prepared.template).double()
    output = functional_call(module, layout.unpack(point_P), (x.double(),))
    loss = torch.nn.functional.cross_entropy(output, y)
    return torch.autograd.grad(loss, point_P)[0][: layout.shared]


def local_updates(prepared: Weights, t: int = 0) -> Tensor:
    """D_k of every client by ordinary training, from the template: what the formulas of SPEC are about."""
    start_P = prepared.model.layout.pack(dict(prepared.template.named_parameters())).double()
    ends = [walk(prepared, client, t, start_P)[0] for client in range(prepared.runtime.clients.federation.clients)]
    return torch.stack(ends) - start_P


def own_models(prepared: Weights, server: Server, client_C: Tensor) -> Callable[[Tensor], tuple[Tensor, Any]]:
    """Clients' own models as they would begin the next round."""
    return prepared.runtime.clients.own_models(replace(prepared.asked(server, 0), client_C=client_C))


def kept_rows(prepared: Weights, server: Server, client_C: Tensor) -> dict[str, Tensor]:
    """What clients have of their own, after hearing what they were told."""
    return prepared.runtime.clients.state(client_C, {}, server.outbox).to_rows()


def folder_run(experiment: to.Experiment, folder: Path) -> to.Run:
    return to.run(experiment, folder, quiet=True)


def stopped_and_resumed(experiment: to.Experiment, folder: Path, after: int) -> to.Run:
    """The same run, left alone after some rounds and gone on with from its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = rounds_of(begin(experiment, folder, resume=False), folder)
    for _ in range(after):
        next(steps)
    steps.close()
    return to.run(experiment, folder, resume=True, quiet=True)


def download_for(client_C: Tensor, track: Weights, t: int = 0) -> Download:
    """What the server sends to these clients."""
    ctx, server = Context(track.algorithm, track.runtime, track.experiment.seed), track.begin()
    return make_download(server, cohort_of(client_C, torch.ones_like(client_C, dtype=torch.bool), server, ctx), t, ctx)


@dataclass(frozen=True)
class Control(to.terms.LocalTerm):
    """SCAFFOLD as a term (SPEC §1.5): g - c_k + c; c_k+ = c_k - c + (w_start - w_end)/(s η); c += Σ(c_k+ - c_k)/N."""

    name: str = "control"

    def server_state(self, initial_P):
        return {"c": torch.zeros_like(initial_P)}

    def client_state(self, initial_P):
        return {"c": torch.zeros_like(initial_P)}

    def transform_grad(self, grad_cP, at, server_state, client_state):
        return grad_cP - client_state["c"] + server_state["c"]

    def finish(self, at, server_state, client_state):
        new = client_state["c"] - server_state["c"] + (at.start_cP - at.x_cP) / (at.steps_c[:, None] * at.lr)
        return {"change": new - client_state["c"]}, {"c": new}

    def server_update(self, server_state, upload, applied):
        return {"c": server_state["c"] + upload["change"].sum(0) / applied.objective_size}, {
            "reporters": float(len(upload["change"]))
        }
