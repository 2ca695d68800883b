"""Large models on a CPU: the engines are tried, the choice is recorded, and a resumed run keeps it."""

from __future__ import annotations

import json

import pytest
import torch
from test_engine import agree, image, normed_image, prepared, trained
from torch import nn

import turnout as to
from turnout.engine import trainers
from turnout.engine.backprop import cross_entropy
from turnout.engine.gradients import Looped
from turnout.engine.trainers import make_trainer
from turnout.parts.optimizers import SGD, Adam
from turnout.running.loop import as_before
from turnout.settings import InProcess


@pytest.mark.parametrize("make", [image, lambda: image(0.3), normed_image])
def test_channels_last_is_only_another_layout(make):
    agree(trained(make(), lambda network: Looped(network, channels_last=True)), trained(make(), Looped))


def given(model: nn.Module) -> tuple:
    trainer, job = prepared(model, Looped, 5, 1, "cpu")
    return trainer.network, job.samples.x[:4], job.samples.y[:4]


def test_every_engine_that_fits_is_tried(monkeypatch):
    tried = []

    def quickest(found: dict, *rest: object) -> str:
        tried.append(sorted(found))
        return "channels-last" if "channels-last" in found else "loop"

    monkeypatch.setattr(trainers, "TRIAL_FROM", 0)
    monkeypatch.setattr(trainers, "quickest", quickest)
    network, x, y = given(normed_image())
    made = make_trainer(InProcess(), network, cross_entropy, x, y, Adam(0.1))
    assert tried == [["by hand", "channels-last", "loop", "native", "vmap"]]
    assert (made.gradients.title, made.chunk) == ("channels-last", 1)
    small = given(image())[0]
    make_trainer(InProcess(), small, cross_entropy, x, y, Adam(0.1))
    assert tried[1:] == [["by hand", "channels-last", "loop", "native", "vmap"]]
    make_trainer(InProcess(engine="vmap"), network, cross_entropy, x, y, Adam(0.1))
    make_trainer(InProcess(), network, cross_entropy, x, y)
    dense = nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.Tanh(), nn.Linear(3, 3))
    make_trainer(InProcess(), *given(dense)[:1], cross_entropy, *given(dense)[1:], SGD(0.1))
    assert tried[2:] == [["loop", "vmap"]]


def test_a_trial_times_every_engine_and_moves_nothing(monkeypatch):
    monkeypatch.setattr(trainers, "TRIAL_FROM", 0)
    network, x, y = given(normed_image())
    before = {name: value.clone() for name, value in network.module.state_dict().items()}
    made = make_trainer(InProcess(threads=2), network, cross_entropy, x, y, Adam(0.1))
    assert made.title(Adam(0.1)) in ("by hand", "channels-last", "loop", "native", "vmap")
    assert all(torch.equal(value, before[name]) for name, value in network.module.state_dict().items())


def test_a_resumed_run_keeps_the_engine(tmp_path):
    experiment = to.Experiment(to.World(to.data.Digits(clients=2)), to.models.Logistic())
    for recorded, kept in (
        ("channels-last", "channels-last"),
        ("by hand", "by-hand"),
        ("native", "native"),
        ("vmap, loop", "auto"),
    ):
        about = {"threads": 1, "chunk": 3, "device": "cpu", "engine": recorded}
        (tmp_path / "environment.json").write_text(json.dumps(about))
        assert as_before(experiment, tmp_path).runtime.engine == kept
        chosen = experiment.but(runtime=InProcess(engine="vmap"))
        assert as_before(chosen, tmp_path).runtime.engine == "vmap"
