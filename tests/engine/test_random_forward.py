"""Models that draw inside their forward pass (dropout as a function, attention): addressed like everything else."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turnout as to
from same_rows import same
from turnout.engine.batches import Batch, address_batches
from turnout.engine.dropout import dropout_keys
from turnout.errors import UserError
from turnout.types import Samples
from worlds import EXACT, blobs, folder_run, play, ready, stopped_and_resumed, world

COUNTS, FRACTIONS = [8, 12, 4, 16], (1.0, 0.5, 0.0, 1.0)


class Functional(nn.Module):
    """Dropout called as a function."""

    def __init__(self, always: bool = False):
        super().__init__()
        self.always = always
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(torch.tanh(self.first(x)), 0.4, self.training or self.always))


class Attention(nn.Module):
    """Five numbers as a sequence of five tokens, through one layer of a transformer: layers of dropout, and one within
    the attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(1, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.embed(x.unsqueeze(-1))).mean(1))


MODELS = [Functional(), Attention()]
pytestmark = pytest.mark.filterwarnings("ignore:this model draws")


def noisy_world(model: nn.Module, **changes: object) -> to.Experiment:
    made = dataclasses.replace(world(COUNTS, *FRACTIONS), model=model, rounds=4)
    return made.but(**changes)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_the_same_seed_gives_the_same_losses(model: nn.Module) -> None:
    """Whatever the state of torch's generator, the threads and the chunks; which is left as it was."""
    ends, losses = [], []
    for start, threads, chunk, engine in ((1, 1, 1, "auto"), (2, 1, 3, "loop"), (3, 3, 1, "vmap"), (4, 2, 2, "auto")):
        torch.manual_seed(start)
        before = torch.get_rng_state()
        runtime = {"runtime.threads": threads, "runtime.chunk": chunk, "runtime.engine": engine}
        prepared = ready(noisy_world(model, **runtime))
        assert prepared.runtime.describe()["engine"] == "loop"
        server, records = play(prepared, 3)
        prepared.evaluate(server, 2)
        ends.append(server.shared_P)
        losses.append([r.train_loss for r in records])
        assert torch.equal(torch.get_rng_state(), before), "the user's generator is not ours to move"
    assert all(torch.equal(end, ends[0]) for end in ends)
    assert all(loss == losses[0] for loss in losses)
    assert play(ready(noisy_world(model, seed=1)), 1)[1][0].train_loss != losses[0][0]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_resumed_is_uninterrupted(model: nn.Module, tmp_path: Path) -> None:
    experiment = noisy_world(model)
    whole = folder_run(experiment, tmp_path / "whole")
    torch.manual_seed(77)
    halves = stopped_and_resumed(experiment, tmp_path / "halves", after=2)
    assert same(whole.folder / "records.sqlite", halves.folder / "records.sqlite") == []


def test_each_step_of_each_client_draws_from_its_own_address() -> None:
    """By hand: torch's generator seeded with the key of (seed, round, client, step) before every forward pass."""
    prepared = ready(noisy_world(Functional()))
    server, _ = play(prepared, 1)
    local, moved = prepared.experiment.algorithm.local, torch.zeros_like(server.shared_P)
    for client, steps, scale in ((0, 8, 1.0), (1, 6, 2.0), (3, 16, 1.0)):
        x, y = prepared.runtime.clients.federation.train(torch.tensor([client]), 0).of(0)
        samples = Samples(x, y, torch.arange(len(x)), torch.tensor([len(x)]))
        batches = address_batches(samples, torch.tensor([client]), torch.tensor([steps]), 4, False, 0, 0)
        keys_J = dropout_keys(0, 0, torch.tensor([client]), steps, 1)[0, :, 0]
        module = prepared.template.double().train()
        weights = [p.detach().clone() for p in module.parameters()]
        for j in range(steps):
            rows = batches.row_cJB[0, j][: int(batches.size_cJ[0, j])]
            torch.manual_seed(int(keys_J[j]) & (2**63 - 1))
            loss = F.cross_entropy(module(x[rows].double()), y[rows])
            for p, g in zip(module.parameters(), torch.autograd.grad(loss, list(module.parameters())), strict=True):
                p.data -= local.optimizer.lr * g
        end_P = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
        for p, first in zip(module.parameters(), weights, strict=True):
            p.data = first
        moved += COUNTS[client] / sum(COUNTS) * scale * (end_P - prepared.server.shared_P)
    torch.testing.assert_close(server.shared_P - prepared.server.shared_P, moved)


def test_masks_differ_between_clients_steps_and_rounds_and_not_within_a_step() -> None:
    """Four clients with the same samples, a batch each; terms ask for gradients at other weights with the same mask."""
    data = blobs([4])
    twins = to.data.Own(data.x.repeat(4, 1), data.y.repeat(4), torch.arange(4).repeat_interleave(4), test_share=0.0)
    experiment = noisy_world(Functional(), **{"world.data": twins, "world.participation": to.participation.Always()})
    prepared = ready(experiment.but(**{"algorithm.local": to.Local(to.SGD(lr=1e-30), steps=1, batch_size=4)}))
    state, losses = prepared.begin(), set()
    for t in range(3):
        state, record = prepared.round(state, t)
        losses |= set(record.clients["loss"].tolist())
    assert len(losses) == 12
    gradients = prepared.runtime.clients.trainer.gradients
    x, y = prepared.runtime.clients.federation.train(torch.tensor([0]), 0).of(0)
    keys_ck = torch.tensor([[5], [5], [6]])
    batch = Batch(x.double().expand(3, -1, -1), y.expand(3, -1), None, keys_ck)
    flat_cP = prepared.server.shared_P.expand(3, -1).clone()
    first, again = torch.empty_like(flat_cP), torch.empty_like(flat_cP)
    loss_c = gradients.gradient(flat_cP, {}, batch, first)
    assert torch.equal(gradients.gradient(flat_cP, {}, batch, again), loss_c)
    assert torch.equal(first, again)
    assert loss_c[0] == loss_c[1] != loss_c[2]


def test_the_loop_is_used_with_a_sentence_and_layers_still_vectorise() -> None:
    with pytest.warns(UserWarning, match=r"draws random numbers inside its forward pass.*nn.Dropout"):
        ready(noisy_world(Attention()))
    layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ready(noisy_world(layers)).runtime.describe()["engine"] == "vmap"


def test_a_model_that_draws_in_evaluation_too_is_refused() -> None:
    """F.dropout without `training=self.training`: its metrics would be other ones every time."""
    with pytest.raises(UserError, match=r"in evaluation mode.*training=self.training"):
        ready(noisy_world(Functional(always=True)))


def test_scores_of_such_models_are_reproducible_too() -> None:
    """The score track trains on the same engine."""
    data = to.data.Arriving(to.data.Digits(), [("1", "2"), ("2", "3"), ("3", "4"), ("4", "1")], per_label=20, public=20)
    algorithm = to.scores.Scores(to.Local(to.SGD(lr=0.1), epochs=1, batch_size=10))
    found = []
    for start in (1, 2):
        torch.manual_seed(start)
        experiment = to.Experiment(to.World(data), pixels, algorithm, rounds=2, runtime=EXACT)
        found.append([r.train_loss for r in play(ready(experiment), 2)[1]])
    assert found[0] == found[1]


def pixels(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(torch.Size(input_shape).numel(), classes)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.dropout(x.flatten(1), 0.3, self.training))

    return Net()
