"""Private rounds with real clients: the noise key stays on the server, and no round is released twice."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from torch import nn

import turnout as to
from flower_grid import HereGrid, devices_of
from turnout.deploy.apps import GridLink
from turnout.deploy.server import serve_experiment
from turnout.deploy.settings import Flower
from turnout.engine.kernels.native import NativeJob
from turnout.running.records.checkpoint import rounds_done
from turnout.running.records.records import Records
from turnout.running.tracks.prepare import prepare

QUICK = {"clients": 5, "start_with": 4, "round_seconds": 5.0, "request_seconds": 2.0, "server_data": False}


class Listening(HereGrid):
    """Keeps the bytes of all messages, and when each was sent."""

    def __init__(self, devices, run: Path):
        super().__init__(devices)
        self.bytes, self.run_folder, self.stored = list[bytes](), run, list[int]()

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            self.bytes.append(b"".join(o.deflate() for o in get_all_nested_objects(message).values()))
        self.stored.append(rounds_done(self.run_folder))
        return super().push_messages(messages)


class Killed(Exception):
    """The server ends while it evaluates."""


def test_a_release_is_stored_before_devices_receive_it_and_sent_again_after_a_kill(tmp_path, monkeypatch):
    experiment = to.Experiment(
        world=to.World(to.data.Digits(clients=5)),
        model=to.models.MLP(8),
        algorithm=to.Algorithm(
            local=to.Local(to.SGD(0.1), steps=3, batch_size=10),
            privacy=to.Private(
                1.0, n0=2, delta=1e-3, noise_multiplier=1.0, noise="banded", min_separation=2, most=3
            ),
        ),
        rounds=6,
        runtime=Flower(**QUICK),
    )  # fmt: skip
    out, devices = tmp_path / "run", devices_of(experiment, "0123", tmp_path / "devices")
    grid, killed, seen = Listening(devices, out), [], {}

    from turnout.running.tracks.weights import Weights

    measure = Weights.evaluate

    def evaluate(self, state, t):
        """Devices receive the model here for the first time; the second time the server is killed before that."""
        seen.setdefault(t, []).append(state.shared_P.clone())
        if t == 2 and not killed:
            killed.append(t)
            raise Killed
        return measure(self, state, t)

    monkeypatch.setattr(Weights, "evaluate", evaluate)
    with pytest.raises(Killed):
        serve_experiment(GridLink(grid), experiment, out)
    assert rounds_done(out) == 3  # round 2 is stored, though no device has received it
    again = Listening(devices_of(experiment, "0134", tmp_path / "devices"), out)  # others answer now
    serve_experiment(GridLink(again), experiment, out)
    assert len(seen[2]) == 1  # the round did not run again
    assert rounds_done(out) == 6

    key = (out / "noise.key").read_text().strip()
    assert stat.S_IMODE((out / "noise.key").stat().st_mode) == 0o600
    for content in (*grid.bytes, *again.bytes):
        assert not any(form in content for form in (key.encode(), bytes.fromhex(key), str(int(key, 16)).encode()))
    for path in (path for path in tmp_path.rglob("*") if path.is_file() and path.name != "noise.key"):
        assert key.encode() not in path.read_bytes(), path
    with Records.read(out / "records.sqlite") as records:
        rows = records.clients()
    took = [(c, t) for c, t, w in zip(rows["client"], rows["round"], rows["weight"], strict=True) if w > 0]
    for client in {c for c, _ in took}:
        rounds = torch.tensor(sorted(t for c, t in took if c == client))
        assert len(rounds) <= 3
        assert bool((rounds[1:] - rounds[:-1] >= 2).all())
    assert len(took) > 6


def test_a_device_cannot_claim_a_shorter_update_than_it_sends(tmp_path, monkeypatch):
    """A simulation takes the lengths that its own training has measured; a server measures what devices send."""
    train = NativeJob.train
    monkeypatch.setattr(NativeJob, "train", lambda *given: (train(*given)[0], torch.zeros(1, dtype=torch.float64)))
    private = to.Private(1e-3, n0=2, delta=1e-3, noise_multiplier=1e-12)
    local = to.Local(to.SGD(0.1), steps=3, batch_size=10)
    experiment = to.Experiment(
        world=to.World(to.data.Digits(clients=5)), model=to.models.MLP(8),
        algorithm=to.Algorithm(local=local, privacy=private), rounds=1, runtime=Flower(**QUICK),
    )  # fmt: skip
    grid = HereGrid(devices_of(experiment, "0123", tmp_path / "devices"))
    run = serve_experiment(GridLink(grid), experiment, tmp_path / "run")
    start_P = prepare(experiment.but(runtime=to.runtime.InProcess(device="cpu"))).server.shared_P
    moved = nn.utils.parameters_to_vector(run.model().parameters()).detach() - start_P
    assert 0 < float(moved.norm()) <= 4 * 1e-3 / 2 * (1 + 1e-4)
