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
from turnout.deploy.apps import GridLink, parts_of
from turnout.deploy.link import question
from turnout.deploy.server import serve_experiment
from turnout.deploy.settings import Flower
from turnout.engine.kernels.native import NativeJob
from turnout.parts.privacy.accountant import epsilon_of
from turnout.running.records.checkpoint import rounds_done
from turnout.running.records.records import Records
from turnout.running.tracks.prepare import prepare
from turnout.runtimes import wire
from turnout.runtimes.remote import COMMON, HEAD, REPLY, ClientStanding
from turnout.scores.exchange import BuildRequest
from turnout.scores.runtimes import NOISED, DeviceScores

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


# -- scores


def scores(rounds: int, **privacy) -> to.Experiment:
    sets = (("3", "5"), ("5", "8"), ("8", "9"), ("3", "5", "9"))
    return to.Experiment(
        world=to.World(to.data.Arriving(to.data.Digits(), sets, per_label=6, public=12)),
        model=to.models.MLP(8),
        algorithm=to.scores.Scores(
            local=to.Local(to.Adam(0.01), epochs=2, batch_size=5),
            beta="equal",
            distil=to.scores.Distil(epochs=1),
            privacy=to.Private(**({"clip": 4.0, "n0": 3, "delta": 1e-3, "noise_multiplier": 1.0} | privacy)),
        ),
        rounds=rounds,
        runtime=Flower(**QUICK | {"clients": 4, "start_with": 3, "server_data": True}),
    )


class Answering(Listening):
    """Keeps what devices answer to which question, too."""

    def __init__(self, devices, run: Path):
        super().__init__(devices, run)
        self.answers = list[tuple[str, int, dict[str, bytes]]]()

    def _reply(self, node, message):
        what = str(wire.unpack(parts_of(message.content)[HEAD])["what"])
        reply = super()._reply(node, message)
        self.answers.append((what, node, parts_of(reply.content)))
        return reply


def test_scores_are_stored_before_devices_learn_them_and_learnt_again_after_a_kill(tmp_path, monkeypatch):
    experiment, out, killed = scores(4, min_separation=1, most=3), tmp_path / "run", []
    grid, learn, seen = Listening(devices_of(experiment, "012", tmp_path / "devices"), out), DeviceScores.learn, []

    def dies(self, request):
        seen.append((request.t, request.mean))
        if request.t == 1 and not killed:
            killed.append(request.t)
            raise Killed
        return learn(self, request)

    monkeypatch.setattr(DeviceScores, "learn", dies)
    with pytest.raises(Killed):
        serve_experiment(GridLink(grid), experiment, out)
    assert rounds_done(out) == 1
    again = Listening(devices_of(experiment, "023", tmp_path / "devices"), out)  # others answer now
    serve_experiment(GridLink(again), experiment, out)
    assert rounds_done(out) == 4
    before, after = (mean for t, mean in seen if t == 1)
    assert sorted(before) == [0, 1, 2]
    assert sorted(after) == [0, 2]  # whose scores are in the release, and who is there
    assert all(torch.equal(after[client], before[client]) for client in after)
    key = (out / "noise.key").read_text().strip()
    for content in (*grid.bytes, *again.bytes):
        assert not any(form in content for form in (key.encode(), bytes.fromhex(key), str(int(key, 16)).encode()))


def test_a_device_that_adds_the_noise_sends_nothing_else_and_counts_itself(tmp_path):
    """Noised scores, twice at most, the same again for a question that comes again; the server has no key."""
    experiment, out = scores(4, noise_at="client", most=2), tmp_path / "run"
    devices = devices_of(experiment, "0123", tmp_path / "devices")
    grid = Answering(devices, out)
    serve_experiment(GridLink(grid), experiment, out)
    assert {what for what, _, _ in grid.answers} == {"hello", "work", "learn"}
    assert not (out / "noise.key").exists()
    with Records.read(out / "records.sqlite") as records:
        assert records.rounds()["counted"].tolist() == [4, 4, 0, 0]
        assert records.rounds()["epsilon"][1] == pytest.approx(epsilon_of(2**0.5, 1e-3))
    simulated = prepare(experiment.but(runtime=to.runtime.InProcess()))
    by_seed = simulated.runtime.build(BuildRequest(0, 0.01, torch.arange(4), key=experiment.seed)).replies
    for what, node, parts in grid.answers:
        head, reply = wire.unpack(parts[HEAD]), wire.unpack(parts[REPLY]) if REPLY in parts else {}
        client = str(node - 100)
        if what == "hello":
            assert head["examples"] == 1
        elif what == "learn":
            assert set(reply[client]) == {"client", "set_l"}
        else:
            own, turnout = reply["replies"][client], reply["turnout"]
            assert (own["examples"], own["loss"], own["epochs"], own["training"], own["scoring"]) == (1, 0, 0, 0, 0)
            assert turnout["progress_C"].tolist() == turnout["full_progress_C"].tolist() == [2.0]
            assert float(own["f_Rl"].min()) < -1  # of scores in [0, 1]
            assert not torch.allclose(own["f_Rl"], by_seed[int(client)].f_Rl)

    (last,) = (parts[REPLY] for what, node, parts in grid.answers[-8:] if what == "work" and node == 100)
    run = str(unpack_kept(tmp_path / "devices" / "0")["asked"][0])

    def asked(t: int) -> dict[str, bytes]:
        standing = ClientStanding(run, 0, used=1, durable=1)
        (anew,) = devices_of(experiment, "0", tmp_path / "devices")  # its process was restarted
        return anew.answer(question("work", standing) | {COMMON: wire.pack({"t": t, "lr": 0.01})})

    assert asked(1)[REPLY] == last
    declined = asked(2)
    assert REPLY not in declined
    assert "2 times, as often as algorithm.privacy allows" in wire.unpack(declined[HEAD])["error"]
    assert unpack_kept(tmp_path / "devices" / "0")["sent"] == 2


def unpack_kept(folder: Path) -> dict:
    return wire.unpack((folder / NOISED).read_bytes())
