"""Rounds in time: fleets of devices, deadlines, and methods under them; the worlds of study `deadline`.

Clients come in clusters with classes of their own, and in the fleet of tiers a cluster has one kind of device, so a
tier that is excluded takes its labels with it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch

import turnout as to
import turnout.models as models
from turnout import SGD, Algorithm, Evaluate, Experiment, Local, Stop, World
from turnout.data import Digits
from turnout.data.partition import Clustered
from turnout.experiment import Model
from turnout.parts.weighting import ByShare, ByWork, FedAvg
from turnout.settings import InProcess
from turnout.world.devices.device_draw import Pace, Passes

EVEN, TIERS, THIN = FLEETS = ("even", "tiers", "thin")
WAIT, FEDAVG, B, C = "wait", "FedAvg", "B", "C"
TERNARY, BITS, FRIENDS, FEDBUFF = "ternary", "8 bit", "friends", "FedBuff"
METHODS = (WAIT, FEDAVG, B, C, TERNARY, BITS, FRIENDS, FEDBUFF)
CLUSTERS = 5


@dataclass(frozen=True)
class Load:
    """A model and what it asks of devices.

    name        what its runs are called
    model       the network
    parameters  how many are shared
    flops       operations of one sample's training
    slower      small networks reach less of a device's peak: by how many times
    device      where it is fastest to simulate: a small network on one core, a large one on a GPU where there is one
    """

    name: str
    model: Model
    parameters: int
    flops: float
    slower: float
    device: str


def _mlp(name: str, hidden: tuple[int, ...], slower: float, device: str) -> Load:
    widths = (64, *hidden, 10)
    products = sum(a * b for a, b in itertools.pairwise(widths))
    return Load(name, models.MLP(*hidden), products + sum(widths[1:]), 6.0 * products, slower, device)


SMALL, LARGE = _mlp("20 k", (256,), 20.0, "cpu"), _mlp("1.6 M", (1230, 1230), 1.0, "auto")
LOADS = {load.name: load for load in (SMALL, LARGE)}


def fleet(name: str, slower: float) -> to.devices.Devices:
    """One of the three fleets: fast and even; three tiers by cluster; thin uplinks whose times have a heavy tail."""
    if name == EVEN:
        return to.devices.Alike(gflops=6.0 / slower, down_mbps=85.7, up_mbps=45.7, latency=0.021, noise=0.1)
    if name == TIERS:
        tiers = ("laptop", "phone-2018", "raspberry-pi-3b")
        return to.devices.Tiers(names=tiers, shares=(2, 2, 1), slower=slower, by="cluster", noise=0.2, slow_chance=0.05)
    return to.devices.SpreadDevices(
        law="pareto", gflops=4.2 / slower, down_mbps=36.0, up_mbps=4.0, latency=0.04, compute_spread=0.3,
        down_spread=0.3, up_spread=0.7, noise=0.2,
    )  # fmt: skip


def median_seconds(name: str, load: Load, clients: int, epochs: int, batch: int) -> float:
    """Seconds that complete work with whole messages takes the median client of a fleet, to two digits: the deadline.

    Over many more clients than there are, so that it depends on the fleet and not on a seed.
    """
    client_C = torch.arange(2000)
    devices = fleet(name, load.slower)
    if isinstance(devices, to.devices.Tiers):
        devices = replace(devices, by="draw")
    examples_C = torch.full_like(client_C, round(0.7 * 1797 / clients))
    passes = Passes.of(examples_C, batch, drop_single=False)
    bytes_C = torch.full((len(client_C),), 4.0 * load.parameters, dtype=torch.float64)
    pace = Pace.of(devices.draw(client_C, 0, 0), bytes_C, bytes_C, load.flops, passes)
    whole_C = pace.download_C + pace.train_C(passes.steps_C * epochs) + pace.upload_C
    return float(f"{float(whole_C.median()):.2g}")


def methods(deadline: float, clients: int, keep: float) -> dict[str, dict[str, Any]]:
    """The settings of each method; all but waiting and FedBuff close a round at the same deadline.

    FedAvg and the methods beside it take whole replies only; B and C let clients send what they have finished.
    """
    whole: to.closing.Closing = to.closing.Deadline(deadline, partial=False)
    part: to.closing.Closing = to.closing.Deadline(deadline)
    return {
        WAIT: {"closing": to.closing.WaitForAll()},
        FEDAVG: {"closing": whole},
        B: {"closing": part, "weighting": ByShare()},
        C: {"closing": part, "weighting": ByWork()},
        TERNARY: {"closing": whole, "compression": to.compression.SparseTernary(keep=keep)},
        BITS: {"closing": whole, "compression": to.compression.Quantise()},
        FRIENDS: {"closing": whole, "substitution": to.substitution.Friends()},
        FEDBUFF: {"closing": to.closing.Buffered(size=max(1, clients // 5))},
    }


def timed(
    name: str, load: Load, clients: int, deadlines: float, epochs: int = 5, batch: int = 10, lr: float = 0.1
) -> dict[str, Experiment]:
    """All methods in one fleet with one model, until so many deadlines have passed in simulated time."""
    seconds = median_seconds(name, load, clients, epochs, batch)
    data = Digits(clients=clients, partition=Clustered(clusters=CLUSTERS), test_share=0.3)
    local = Local(SGD(lr=lr), epochs=epochs, batch_size=batch)
    return {
        method: Experiment(
            world=World(data, devices=fleet(name, load.slower)),
            model=load.model,
            algorithm=Algorithm(local=local, **({"weighting": FedAvg()} | parts)),
            rounds=40 * round(deadlines),
            evaluate=Evaluate(every=1 if method == WAIT else 5, per_client=True),
            stop=Stop(simulated_hours=deadlines * seconds / 3600),
            runtime=InProcess(device=load.device, threads=1),
        )
        for method, parts in methods(seconds, clients, keep=0.05).items()
    }


def deadlines(clients: int = 30, rounds: int = 30) -> dict[str, Experiment]:
    """Laptops, phones and Raspberry Pis on the embedded digits: waiting, a deadline, partial work, FedBuff."""
    return timed(TIERS, SMALL, clients, deadlines=rounds)
