"""Where a person's own model, data or part meets the library: several labels a sample, tables in buffers, guards."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import turnout as to
from turnout.errors import UserError
from turnout.layout import lay_out
from turnout.world.participation import finished
from worlds import EXACT, play, ready, world


def each_label(output, target):
    return binary_cross_entropy_with_logits(output, target.to(output), reduction="none").mean(1)


@pytest.mark.parametrize("labels", [1, 2, 5])
def test_several_labels_a_sample(labels: int):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=g)
    y = (x @ torch.randn(4, labels, generator=g) > 0).long()
    data = to.data.Own(x, y, torch.arange(60) // 15)
    experiment = to.Experiment(to.World(data), task=to.tasks.Task(each_label), rounds=3, runtime=EXACT)
    prepared = ready(experiment, **{"algorithm.local": to.Local(to.SGD(0.5 * labels), epochs=5)})
    assert prepared.model.flat_P.numel() == 5 * labels  # an output for each label
    server, _ = play(prepared, 3)
    assert prepared.evaluate(server, 2).values["global_loss"] < 0.5


def test_labels_by_number_are_still_tried_with_the_highest():
    data = to.data.Own(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64), torch.arange(8) // 4, classes=7)
    for task in (to.tasks.Classification(), to.tasks.Task(to.tasks.Classification().loss)):
        with pytest.raises(UserError):
            ready(to.Experiment(to.World(data), model=nn.Linear(4, 3), task=task))


class Sines(nn.Module):
    def __init__(self):
        super().__init__()
        self.output = nn.Linear(5, 3)
        self.register_buffer("table", torch.sin(torch.arange(5.0)), persistent=False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        return self.output(x + self.table)


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_a_table_that_follows_from_the_model_does_not_travel(engine: str):
    assert lay_out(Sines()).states == ("seen",)
    runtime = to.runtime.InProcess(device="cpu", precision="float64", threads=1, engine=engine)
    prepared = ready(world([8, 8]).but(model=Sines(), runtime=runtime))
    server, (record,) = play(prepared)
    assert set(server.states) == {"seen"}
    assert record.bytes_up == 2 * (18 * 4 + 4)
    torch.testing.assert_close(prepared.module(server, None).table, Sines().table)


class Quacks:
    """All that a weighting can do, but not one."""

    def counts(self, turnout):
        return turnout.present_C

    def client_scale(self, turnout):
        return turnout.present_C.double()

    def server_scale(self, share_C, counts_C, turnout, lent):
        return torch.ones_like(share_C)


def test_a_weighting_that_is_none_is_told_what_to_do():
    with pytest.raises(UserError, match=r"derive your own from roles\.Weighting"):
        to.Algorithm(weighting=Quacks())


@dataclass(frozen=True)
class Overdoes:
    def fraction(self, client_C, t, full_work, seed, groups=None):
        return torch.full((len(client_C),), 1.5, dtype=torch.float64)


def test_a_participation_is_held_to_its_promise_wherever_it_comes_from():
    Overdoes.__module__ = "turnout.world.participation"
    with pytest.raises(UserError, match="0 to 1"):
        finished(Overdoes(), torch.arange(3), 0, 5, 0, None)
