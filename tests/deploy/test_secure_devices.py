"""Secure sums with devices: the server learns only sums, and devices may vanish at every stage."""

from __future__ import annotations

import json
import math
import secrets
import signal
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Message

import killed_devices
import turnout as to
from deployments import Deployment, deployed
from flower_grid import HereGrid, devices_of
from turnout.deploy.apps import GridLink, parts_of
from turnout.deploy.secure import MASKED
from turnout.deploy.server import serve_experiment
from turnout.deploy.settings import Flower
from turnout.parts.privacy.accountant import epsilon_of
from turnout.parts.privacy.discrete import PrivateSum, sum_rule
from turnout.parts.secure import SecureSum
from turnout.running.config.read import load, to_toml
from turnout.running.records.records import Records
from turnout.runtimes import wire
from turnout.runtimes.remote import HEAD, REPLY
from turnout.runtimes.secure_sum import _stream, simulated_noise_key

STAGES = ("keys", "shares", "work", "reveal")


def world(secure: SecureSum | None, clients: int = 6, rounds: int = 3, **algorithm) -> to.Experiment:
    settings = {"local": to.Local(to.SGD(0.1), epochs=1, batch_size=10)} | algorithm
    return to.Experiment(
        world=to.World(to.data.Digits(clients=clients)),
        model=to.models.MLP(8),
        algorithm=to.Algorithm(membership=to.Membership(join="vanilla"), secure=secure, **settings),
        rounds=rounds,
        runtime=Flower(clients=clients, start_with=clients, least=clients, round_seconds=20.0, request_seconds=5.0,
                       server_data=True),
    )  # fmt: skip


class Watched(HereGrid):
    """Keeps what devices answer. Nodes vanish when they are asked for a stage of a round, until the next round."""

    def __init__(self, devices, vanish: Mapping[tuple[int, str], set[int]] | None = None):
        super().__init__(devices)
        self.vanish, self.t, self.stage, self.asked = vanish or {}, -1, "", set[int]()
        self.answers: list[tuple[int, str, int, dict[str, bytes]]] = []  # round, stage, node, parts

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        stages = {str(wire.unpack(parts_of(message.content)[HEAD])["what"]) for message in messages} & {*STAGES}
        for stage in stages - {self.stage}:
            if stage == "keys":
                self.t += 1
            self.stage, self.asked = stage, {message.metadata.dst_node_id for message in messages}
            self.gone |= self.vanish.get((self.t, stage), set())
        return super().push_messages(messages)

    def get_node_ids(self) -> Iterable[int]:
        seen = set(super().get_node_ids())
        if self.stage == "reveal" and not self.asked - self.gone:  # the round has ended: devices come back
            self.gone.clear()
        return seen

    def _reply(self, node: int, message: Message) -> Message:
        reply = super()._reply(node, message)
        self.asked.discard(node)
        self.answers.append((self.t, self.stage, node, parts_of(reply.content)))
        return reply


def served(experiment: to.Experiment, folder: Path, vanish=None) -> Watched:
    names = [str(c) for c in range(experiment.world.data.clients)]
    grid = Watched(devices_of(experiment, names, folder / "devices"), vanish)
    serve_experiment(GridLink(grid), experiment, folder / "run", quiet=True)
    return grid


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([value.flatten() for value in to.open_run(folder).model().state_dict().values()])


def test_the_sum_is_that_of_plain_updates_and_its_replay_is_equal_to_the_bit(tmp_path: Path):
    served(world(None), tmp_path / "plain")
    served(world(SecureSum()), tmp_path / "secure")
    plain_P, secure_P = weights(tmp_path / "plain/run"), weights(tmp_path / "secure/run")
    assert torch.allclose(plain_P, secure_P, atol=2e-6, rtol=0)
    assert not torch.equal(plain_P, secure_P)  # whole numbers were summed
    to.run(load(tmp_path / "secure/run/replay.toml"), tmp_path / "again", quiet=True)
    assert torch.equal(secure_P, weights(tmp_path / "again"))


@pytest.mark.parametrize("stage", STAGES)
def test_devices_that_vanish_at_a_stage_cost_only_their_own_update(tmp_path: Path, stage: str):
    """Six devices, two of which vanish in the second round. Vectors that arrived before are in the sum all the same."""
    served(world(SecureSum(dropout=0.4)), tmp_path / "secure", {(1, stage): {101, 104}})
    with Records.read(tmp_path / "secure/run/records.sqlite") as records:
        counted = records.column("counted").tolist()
    assert counted == [6, 6 if stage == "reveal" else 4, 6]
    to.run(load(tmp_path / "secure/run/replay.toml").but(**{"algorithm.secure": None}), tmp_path / "plain", quiet=True)
    assert torch.allclose(weights(tmp_path / "secure/run"), weights(tmp_path / "plain"), atol=2e-6, rtol=0)


@pytest.mark.slow
def test_five_of_twenty_devices_vanish_at_each_stage(tmp_path: Path):
    """One round for each stage; the sums of all rounds are those of the plain replay, up to the whole numbers."""
    vanish = {(t, stage): {100 + 5 * t + i for i in range(5)} for t, stage in enumerate(STAGES)}
    served(world(SecureSum(), clients=20, rounds=5), tmp_path / "secure", vanish)
    with Records.read(tmp_path / "secure/run/records.sqlite") as records:
        assert records.column("counted").tolist() == [15, 15, 15, 20, 20]
    to.run(load(tmp_path / "secure/run/replay.toml").but(**{"algorithm.secure": None}), tmp_path / "plain", quiet=True)
    assert torch.allclose(weights(tmp_path / "secure/run"), weights(tmp_path / "plain"), atol=5e-6, rtol=0)


@pytest.mark.slow
def test_five_of_twenty_device_processes_are_killed_at_each_stage(tmp_path: Path):
    """SuperLink, server and 20 devices are processes. In each of four rounds five devices are killed (SIGKILL) when
    they are asked for a stage, some before and some after they have computed their answer; they come back for the next
    round. The sums are those of the plain replay, up to the whole numbers."""
    deployment = Deployment(tmp_path / "app", tls=False, rounds=5, in_memory=True)
    seconds = {"round_seconds": 90.0, "request_seconds": 45.0}  # on a busy machine 20 processes need some
    runtime = Flower(clients=20, start_with=20, least=20, server_data=True, **seconds)
    experiment = world(SecureSum(), clients=20, rounds=5).but(runtime=runtime)
    (deployment.folder / "experiment.toml").write_text(to_toml(experiment))
    files = [str(deployment.device(str(c))) for c in range(20)]
    plan = deployment.folder / "plan.json"
    plan.write_text(json.dumps({file: [c // 5, STAGES[c // 5], c % 2 == 0] for c, file in enumerate(files)}))
    with deployed(deployment):
        script = Path(killed_devices.__file__)
        deployment.start(Path(files[0]), [sys.executable, str(script), str(plan)])
        deployment.until(6, seconds=1500)
    died = [line.split() for line in (deployment.folder / "died.log").read_text().splitlines()]
    assert sorted(died) == sorted([file, str(int(signal.SIGKILL))] for file in files)
    with Records.read(deployment.folder / "run/records.sqlite") as records:
        assert records.column("counted").tolist() == [15, 15, 15, 20, 20]
        unreachable = [n for n in records.rounds().get("unreachable", []) if n == n]
        assert all(n >= 0 for n in unreachable)
        print("seconds and bytes of each round", records.column("seconds"), records.column("bytes_up"))
    replay = load(deployment.folder / "run/replay.toml").but(**{"algorithm.secure": None})
    to.run(replay, tmp_path / "plain", quiet=True)
    assert torch.allclose(weights(deployment.folder / "run"), weights(tmp_path / "plain"), atol=5e-6, rtol=0)


def test_too_many_dropouts_lose_the_round_and_nothing_else(tmp_path: Path):
    served(world(SecureSum(dropout=0.1)), tmp_path, {(2, "work"): {101, 104}})
    with Records.read(tmp_path / "run/records.sqlite") as records:
        assert records.column("counted").tolist() == [6, 6, 0]
        assert "the secure sum is lost" in records.column("failed")[2]


def test_no_answer_carries_an_update_or_a_metric_of_one_device(tmp_path: Path):
    """Masked vectors look random: no correlation with the device's update, bits even; nothing else is sent."""
    grid, plain = served(world(SecureSum(), rounds=1), tmp_path), served(world(None, rounds=1), tmp_path / "plain")
    replies = [(stage, node, wire.unpack(parts[REPLY])) for _, stage, node, parts in grid.answers if REPLY in parts]
    assert {stage for stage, _, _ in replies} == {*STAGES}
    assert all(set(tree) == ({MASKED} if stage == "work" else {"entries"}) for stage, _, tree in replies)
    sent = {node: wire.unpack(parts[REPLY]) for _, stage, node, parts in plain.answers if stage == "work"}
    for stage, node, tree in replies:
        if stage == "work":
            masked_P, update_P = tree[MASKED][:-1].double(), sent[node]["message"]["tensors"]["update"][0].double()
            assert abs(float(torch.corrcoef(torch.stack([masked_P, update_P]))[0, 1])) < 4 / len(masked_P) ** 0.5
            ones = sum(((tree[MASKED] >> bit) & 1).double().mean() for bit in range(32)) / 32
            assert abs(float(ones) - 0.5) < 4 * 0.5 / (32 * len(masked_P)) ** 0.5


def test_a_device_answers_each_stage_once_and_keeps_its_secrets_to_itself(tmp_path: Path):
    experiment = world(SecureSum())
    grid = served(experiment, tmp_path)
    device = grid.devices[100]
    assert stat.S_IMODE((device.folder / "secure-sum.json").stat().st_mode) == 0o600
    secrets = (device.folder / "secure-sum.json").read_text()
    seed = bytes.fromhex(json.loads(secrets)["seed"])
    assert not any(seed in part for *_, parts in grid.answers for part in parts.values())
    head = wire.unpack(grid_question(grid, "reveal"))
    again = device.answer({HEAD: wire.pack(head), "own": wire.pack({"arrived": torch.tensor([1]), "total": 6})})
    assert "does not follow" in wire.unpack(again[HEAD])["error"]
    assert REPLY not in again


# -- private sums


def private_world(clients: int = 6, rounds: int = 1, secure: SecureSum | None = None, **privacy) -> to.Experiment:
    settings = {"clip": 0.3, "n0": clients, "delta": 1e-3, "noise_multiplier": 0.5, "min_separation": 1} | privacy
    secure = secure or SecureSum(least=4, dropout=0.4, corrupt=0.0)
    local = to.Local(to.SGD(0.1), steps=4, batch_size=10)
    return world(secure, clients, rounds, privacy=to.Private(**settings), local=local)


def test_devices_add_noise_that_only_they_know(tmp_path: Path, monkeypatch):
    """The sum is that of clipped updates with noise from each device's own key, which is in no message and no file."""
    keys: list[bytes] = []

    def token(size: int) -> bytes:
        keys.append(secrets.token_bytes(size))
        return keys[-1]

    monkeypatch.setattr("turnout.deploy.secure.token_bytes", token)
    experiment = private_world()
    served(experiment.but(**{"algorithm.secure": None, "algorithm.privacy.noise_multiplier": 1e-9}), tmp_path / "plain")
    assert not keys
    grid = served(experiment, tmp_path / "noised")
    first, drawn = weights(tmp_path / "noised/run").double(), list(keys)
    assert len(drawn) == 6
    rule = sum_rule(grid.devices[100].tasks.algorithm)
    assert isinstance(rule, PrivateSum)

    def noise_of(each: Iterable[bytes]) -> torch.Tensor:
        words = [rule.noise(len(first), 6, _stream(key, torch.int64)) for key in each]
        return rule.decode(torch.stack(words).sum(0), 6) / 6  # n0

    noise_P = first - weights(tmp_path / "plain/run").double()
    torch.testing.assert_close(noise_P, noise_of(drawn), atol=1e-6, rtol=0)
    expected = 0.5 * 0.3 * (6 / 4) ** 0.5 / 6  # z C √(6 survivors / 4 honest at least) / n0
    assert float(noise_P.std()) == pytest.approx(expected, rel=5 / (2 * len(first)) ** 0.5)

    simulated_P = noise_of(simulated_noise_key(experiment.seed, 0, c) for c in range(6))  # all that the seed gives
    assert abs(float(torch.corrcoef(torch.stack([noise_P, simulated_P]))[0, 1])) < 4 / len(first) ** 0.5
    served(experiment, tmp_path / "again")
    assert float((weights(tmp_path / "again/run") - first).abs().max()) > expected
    sent = [part for *_, parts in grid.answers for part in parts.values()]
    files = [path.read_bytes() for path in (tmp_path / "noised").rglob("*") if path.is_file()]
    for key in drawn:
        assert not any(form in content for content in (*sent, *files) for form in (key, key.hex().encode()))
    assert not (tmp_path / "noised/run/noise.key").exists()
    with Records.read(tmp_path / "noised/run/records.sqlite") as records:
        assert records.column("epsilon").tolist() == [pytest.approx(epsilon_of(2.0, 1e-3))]


def test_devices_that_vanish_leave_enough_noise_or_nothing_is_unmasked(tmp_path: Path):
    """Four devices are enough. One vanishes when it should send its vector, then one after that, then three."""
    vanish = {(0, "work"): {102}, (1, "reveal"): {104}, (2, "work"): {100, 101, 105}}
    served(private_world(rounds=3), tmp_path, vanish)
    with Records.read(tmp_path / "run/records.sqlite") as records:
        assert records.column("counted").tolist() == [5, 6, 0]
        epsilon = records.column("epsilon").tolist()
    assert epsilon[:2] == [pytest.approx(epsilon_of(rounds**0.5 / 0.5, 1e-3)) for rounds in (1, 2)]
    assert math.isnan(epsilon[2])
    again = to.run(load(tmp_path / "run/replay.toml"), tmp_path / "again", quiet=True)  # with other noise
    with again.records() as records:
        assert records.column("counted").tolist() == [5, 6, 0]
        assert records.column("epsilon").tolist()[:2] == epsilon[:2]
    assert not torch.equal(weights(tmp_path / "run"), weights(tmp_path / "again"))


def test_a_device_keeps_the_promise_of_separation_itself(tmp_path: Path):
    """It does not take part twice in a round that a killed server asks for again, nor more often than promised."""
    grid = served(private_world(rounds=3, min_separation=2, most=2), tmp_path)
    device = grid.devices[100]
    assert json.loads((device.folder / "private-rounds.json").read_text())[1] == [0, 2]

    def error(t: int) -> str:
        asked = {HEAD: grid_question(grid, "keys"), "own": wire.pack({"t": t})}
        return wire.unpack(device.answer(asked)[HEAD]).get("error", "")

    assert "took part 2 times, last in round 2: privacy allows 2" in error(7)
    device.tasks.secure.private = replace(device.tasks.secure.private, most=None)
    assert "at least 2 rounds apart" in error(2)
    assert "at least 2 rounds apart" in error(3)
    assert error(4) == ""
    (device.folder / "private-rounds.json").write_text("[")
    assert "does not know how often it took part" in error(9)


def grid_question(grid: Watched, what: str) -> bytes:
    """The head of a question as the server of the last run would send it to the first device."""
    device = grid.devices[100]
    standing = device.tasks.standing
    assert standing is not None
    return wire.pack({"what": what, **vars(standing)})
