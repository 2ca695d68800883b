"""Secure sums with devices: the server learns only sums, and devices may vanish at every stage."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import torch
from flwr.app import Message

import turnout as to
from flower_grid import HereGrid, devices_of
from turnout.deploy.apps import GridLink, parts_of
from turnout.deploy.secure import MASKED
from turnout.deploy.server import serve_experiment
from turnout.deploy.settings import Flower
from turnout.parts.secure import SecureSum
from turnout.running.config.read import load
from turnout.running.records.records import Records
from turnout.runtimes import wire
from turnout.runtimes.remote import HEAD, REPLY

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


def test_too_many_dropouts_lose_the_round_and_nothing_else(tmp_path: Path):
    served(world(SecureSum(dropout=0.1)), tmp_path, {(2, "work"): {101, 104}})
    with Records.read(tmp_path / "run/records.sqlite") as records:
        assert records.column("counted").tolist() == [6, 6, 0]
        assert "the secure sum is lost" in records.column("failed")[2]


def test_no_answer_carries_an_update_or_a_metric_of_one_device(tmp_path: Path):
    """Masked vectors look random: no correlation with the device's update, bits even; nothing else is sent."""
    grid = served(world(SecureSum(), rounds=1), tmp_path)
    served(world(None, rounds=1), tmp_path / "plain")
    replies = [(stage, wire.unpack(parts[REPLY])) for _, stage, _, parts in grid.answers if REPLY in parts]
    assert {stage for stage, _ in replies} == {*STAGES}
    assert all(set(tree) == ({MASKED} if stage == "work" else {"entries"}) for stage, tree in replies)
    device = grid.devices[100].tasks.clients
    change_P = weights(tmp_path / "plain/run") - device.model.flat_P  # of all; each device's update is close to it
    for stage, tree in replies:
        if stage == "work":
            masked_P = tree[MASKED][:-1].double()
            correlation = torch.corrcoef(torch.stack([masked_P, change_P.double()]))[0, 1]
            assert abs(float(correlation)) < 4 / len(masked_P) ** 0.5
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


def grid_question(grid: Watched, what: str) -> bytes:
    """The head of a question as the server of the last run would send it to the first device."""
    device = grid.devices[100]
    standing = device.tasks.standing
    assert standing is not None
    return wire.pack({"what": what, **vars(standing)})
