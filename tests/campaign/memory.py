"""How much memory a run announces and how much it takes, in a process of its own: prints both as JSON.

    python tests/campaign/memory.py SEED [CLIENTS]

The seed draws the experiment: clients, a few with very many samples, a model, an optimizer, a batch size. With CLIENTS
it is so many of them with five samples each, and a small model.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

import turnout as to
from turnout.machine.memory import give_back_freed_memory
from turnout.running.loop import begin, rounds_of


def drawn(seed: int, tiny: bool = False) -> to.Experiment:
    """An experiment that takes some hundreds of megabytes at most; `tiny`: the same with next to no data."""
    draw = np.random.default_rng(seed)
    clients, features = int(draw.integers(2, 200)), int(draw.choice([10, 100, 784]))
    counts = draw.integers(20, 200, clients)
    counts[: int(draw.integers(1, 3))] = int(draw.choice([2_000, 50_000, 300_000, 1_000_000])) * 10 // max(10, features)
    if tiny:
        clients, counts = 2, np.array([120, 120])  # a whole batch each, so that the same engines are tried
    owner = torch.arange(clients).repeat_interleave(torch.as_tensor(counts))
    x, y = torch.randn(len(owner), features), torch.randint(10, (len(owner),))
    model = [to.models.Logistic(), to.models.MLP(64), to.models.MLP(512, 256)][int(draw.integers(3))]
    optimizer = [to.SGD(lr=0.01), to.SGD(lr=0.01, momentum=0.9), to.Adam(lr=0.001)][int(draw.integers(3))]
    local = to.Local(optimizer, epochs=int(draw.integers(1, 3)), batch_size=int(draw.choice([10, 100])))
    world = to.World(to.data.Own(x, y, owner))
    return to.Experiment(world, model, algorithm=to.Algorithm(local), rounds=1, seed=seed)


def many(clients: int, tiny: bool = False) -> to.Experiment:
    """Very many clients with hardly any samples; `tiny`: two of them."""
    owner = torch.arange(2 if tiny else clients).repeat_interleave(5)
    x, y = torch.randn(len(owner), 2), torch.randint(2, (len(owner),))
    local = to.Local(to.SGD(lr=0.01), epochs=1, batch_size=5)
    return to.Experiment(to.World(to.data.Own(x, y, owner)), algorithm=to.Algorithm(local), rounds=1)


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main(seed: int, clients: int = 0) -> None:
    made = partial(many, clients) if clients else partial(drawn, seed)
    to.run(made(tiny=True), Path(tempfile.mkdtemp()) / "first", quiet=True)  # what the libraries take
    give_back_freed_memory()
    before = resident("VmRSS")
    folder = Path(tempfile.mkdtemp())
    track = begin(made(), folder, resume=False)
    announced = track.memory()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here, where a run is refused or begins
    for _ in rounds_of(track, folder):
        pass
    used = resident("VmHWM") - before
    print(json.dumps({"seed": seed, "announced": sum(announced.values()), "used": used, "parts": announced}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
