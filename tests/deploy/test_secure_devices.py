"""Secure sums with devices: the server learns only sums, and devices may vanish at every stage."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

import turnout as to
from flower_grid import HereGrid, devices_of
from turnout.deploy.apps import GridLink
from turnout.deploy.server import serve_experiment
from turnout.deploy.settings import Flower
from turnout.parts.secure import SecureSum
from turnout.running.config.read import load
from turnout.running.records.records import Records
from turnout.runtimes import wire
from turnout.runtimes.remote import HEAD, REPLY

QUICK = {"clients": 6, "start_with": 6, "round_seconds": 5.0, "request_seconds": 1.0, "server_data": True}


def world(secure: SecureSum | bool | None, clients: int = 6, **algorithm) -> to.Experiment:
    settings = {"local": to.Local(to.SGD(0.1), epochs=1, batch_size=10)} | algorithm
    return to.Experiment(
        world=to.World(to.data.Digits(clients=clients)),
        model=to.models.MLP(8),
        algorithm=to.Algorithm(membership=to.Membership(join="vanilla"), secure=secure, **settings),
        rounds=3,
        runtime=Flower(**(QUICK | {"clients": clients, "start_with": clients})),
    )


def weights(folder: Path) -> torch.Tensor:
    state = to.open_run(folder).model().state_dict()
    return torch.cat([value.flatten() for value in state.values()])


class Watched(HereGrid):
    """Keeps what devices answer; in some rounds, nodes vanish when they are asked for a stage, and come back."""

    def __init__(self, devices, vanish=None):
        super().__init__(devices)
        self.vanish, self.round = vanish or {}, -1  # (round, stage) -> nodes
        self.answers: list[tuple[int, str, dict]] = []

    def push_messages(self, messages):
        from turnout.deploy.apps import parts_of

        messages = list(messages)
        for message in messages:
            what = wire.unpack(parts_of(message.content)[HEAD])["what"]
            if what == "keys" and not any(w == "keys" for _, w in self.asked_now):
                self.round += 1
        return super().push_messages(messages)
