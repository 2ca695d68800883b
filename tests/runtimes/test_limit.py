"""Training that stops before its last step: as if so many steps had been asked for, to the bit."""

from __future__ import annotations

import pytest
import torch

import turnout as to
from turnout.exchange import Assignment, Limit
from turnout.running.tracks.prepare import prepare
from turnout.runtimes.inprocess import InProcessRuntime
from worlds import download_for

MODELS = {
    "native": to.models.MLP(8),
    "by-hand": to.models.MLP(8, batch_norm=True),
    "loop": to.models.MLP(8),
}


@pytest.mark.parametrize("engine", MODELS)
@pytest.mark.parametrize("terms", [(), (to.terms.Scaffold(),)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_stopping_is_being_asked_for_less(engine, terms, momentum):
    local = to.Local(to.SGD(0.1, momentum=momentum), steps=64, batch_size=4)
    track = prepare(
        to.Experiment(
            world=to.World(to.data.Digits(clients=5)),
            model=MODELS[engine],
            algorithm=to.Algorithm(local, terms=terms, weighting=to.weighting.ByWork()),
            runtime=to.runtime.InProcess(device="cpu", threads=1, engine=engine),
        )
    )
    runtime, client_R = track.runtime, torch.tensor([2])
    assert isinstance(runtime, InProcessRuntime)
    download = download_for(client_R, track)
    looks = iter([False] + [True] * 3)
    limit = Limit(lambda: next(looks), lambda steps_c: 64 / steps_c.double())
    stopped, kept = runtime.clients.work(download, Assignment(client_R, torch.tensor([64]), None, limit))
    taken = int(stopped.report["steps"])
    assert taken == (32 if track.runtime.describe()["engine"] == "native" else 2)
    short = Assignment(client_R, torch.tensor([taken]), torch.tensor([64 / taken]))
    update = stopped.message.tensors["update"].clone()
    wanted, rows = runtime.clients.work(download, short)
    assert torch.equal(update, wanted.message.tensors["update"])
    assert torch.equal(stopped.report["loss"], wanted.report["loss"])
    for name, value in rows.items():
        assert torch.equal(value, kept[name]), name
