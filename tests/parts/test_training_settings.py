"""Training as people do it: AdamW, schedules over rounds, clipping and accumulation, against torch's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import turnout as to
from turnout.errors import UserError
from turnout.running.tracks.prepare import prepare


@dataclass(frozen=True)
class Planned:
    """In every round one client is absent and one finishes part of its work."""

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        return torch.tensor([1.0, 0.5, 0.0, 1.0], dtype=torch.float64).roll(t)[client_C]


def experiment(engine: str = "auto", clients: int = 4, **changes: object) -> to.Experiment:
    g = torch.Generator().manual_seed(0)
    owner = torch.arange(clients).repeat_interleave(11)
    x, y = torch.randn(len(owner), 5, generator=g), torch.randint(0, 3, (len(owner),), generator=g)
    return to.Experiment(
        world=to.World(
            to.data.Own(x, y, owner=owner, test_share=0.1), Planned() if clients == 4 else to.participation.Always()
        ),
        model=lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)),
        algorithm=to.Algorithm(local=to.Local(optimizer=to.SGD(lr=0.3), epochs=2, batch_size=4)),
        runtime=to.runtime.InProcess(engine=engine, precision="float64", threads=1),
        rounds=3,
    ).but(**changes)


def weights(changed: to.Experiment, tmp_path) -> dict[str, Tensor]:
    return to.run(changed, tmp_path / str(len(list(tmp_path.iterdir())))).weights()


def close(one: dict[str, Tensor], other: dict[str, Tensor], atol: float = 1e-6) -> None:
    for name, value in one.items():
        torch.testing.assert_close(value.double(), other[name].double(), rtol=0, atol=atol)


def by_torch(given: to.Experiment, optimizer, rounds: int, clip: float | None = None) -> dict[str, Tensor]:
    """One client that trains by itself, with all of its samples in every batch."""
    track = prepare(given)
    model = track.template.double()
    samples = given.world.data.load(0, None).train(torch.tensor([0]), 0)
    x, y = samples.of(0)
    made = optimizer(model.parameters())
    for _ in range(rounds):
        made.zero_grad()
        nn.functional.cross_entropy(model(x.double()), y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        made.step()
    return model.state_dict()


WHOLE = {"algorithm.local.epochs": 1, "algorithm.local.batch_size": 11}


@pytest.mark.parametrize(("precision", "atol"), [("float64", 1e-6), ("float32", 1e-4)])  # a GPU has a kernel for one
def test_adamw_is_that_of_torch(precision, atol, tmp_path):
    changes = {"algorithm.local.optimizer": to.AdamW(lr=0.05, weight_decay=0.3), "runtime.precision": precision}
    one = experiment(clients=1, **WHOLE, **changes, rounds=6)
    expected = by_torch(one, lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.3), 6)
    close(weights(one, tmp_path), expected, atol)
    without = one.but(**{"algorithm.local.optimizer": to.AdamW(lr=0.05, weight_decay=0.0)})
    adam = one.but(**{"algorithm.local.optimizer": to.Adam(lr=0.05, beta1=0.9, beta2=0.999)})
    close(weights(without, tmp_path), weights(adam, tmp_path), atol)


def test_clipping_is_that_of_torch(tmp_path):
    one = experiment(clients=1, **WHOLE, **{"algorithm.local.clip": 0.05}, rounds=4)
    close(weights(one, tmp_path), by_torch(one, lambda p: torch.optim.SGD(p, lr=0.3), 4, clip=0.05))
    free, clipped = weights(one.but(**{"algorithm.local.clip": None}), tmp_path), weights(one, tmp_path)
    assert not torch.allclose(free["0.weight"], clipped["0.weight"])


@pytest.mark.parametrize("changes", [{"algorithm.local.clip": 0.1}, {"algorithm.local.optimizer": to.AdamW(lr=0.02)}])
def test_clients_are_clipped_alike_by_every_engine(changes, tmp_path):
    loop, vmap, hand = (weights(experiment(engine, **changes), tmp_path) for engine in ("loop", "vmap", "auto"))
    close(loop, vmap, 1e-9)
    close(loop, hand, 1e-9)


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("engine", ["loop", "vmap", "auto"])
def test_accumulation_changes_no_result(parts, engine, tmp_path):
    """Batches of 4, 4 and 2 or 1: parts of unequal size, and parts without a sample of some clients."""
    changes = {"algorithm.terms": [to.terms.Proximal(0.5)]} if parts == 3 else {}
    whole = weights(experiment(engine, **changes), tmp_path)
    close(weights(experiment(engine, **{"algorithm.local.accumulate": parts}, **changes), tmp_path), whole, 1e-9)


def test_batch_norm_refuses_accumulation():
    norm = lambda: nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))  # noqa: E731
    with pytest.raises(UserError, match="BatchNorm needs whole ones"):
        prepare(experiment(model=norm, **{"algorithm.local.accumulate": 2}))


def test_a_batch_has_a_sample_for_each_part():
    with pytest.raises(UserError, match="divides a mini-batch of 4 samples"):
        to.Local(batch_size=4, accumulate=5)


def test_a_warm_up_and_a_cosine_over_rounds(tmp_path):
    schedule = to.schedules.WarmUp(rounds=2, then=to.schedules.Cosine(rounds=4, least=0.1))
    run = to.run(experiment(**{"algorithm.local.schedule": schedule}, rounds=7), tmp_path / "run")
    expected = [0.5, 1.0, 1.0, 0.8682, 0.55, 0.2318, 0.2318]
    assert run.curve("lr")[1] == pytest.approx([0.3 * share for share in expected], abs=1e-4)
