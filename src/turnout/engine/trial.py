"""A short trial of which engine trains a model fastest on this machine, for models where no rule of thumb decides.

Small models are bound by the interpreter, so training clients together always pays. From a few megabytes a step on it
depends on the layers: stacked products gain from shared work, torch's own kernels from being made for their size and
from one client a core.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor

from turnout.engine.job import Job
from turnout.engine.train import Trainer
from turnout.parts.optimizers import Optimizer
from turnout.types import Samples

TRIAL_FROM = 4 << 20  # bytes of one client's step from which engines are compared
STEPS = 2  # local steps of a client in a trial
EACH = 3  # clients of a thread
TURNS = 5  # timed runs of each engine, in turns, after one that is not timed
HOPELESS = 6.0  # an engine whose first run takes so many times the fastest's is not tried again
BEHIND = 1.25  # nor is one that has taken so many times the best's in the turns so far


def quickest(trainers: dict[str, Trainer], x: Tensor, y: Tensor, optimizer: Optimizer) -> str:
    """The name of the trainer that takes least time a client, for steps on batches like x, y."""
    jobs = {name: trial_job(trainer, x, y, optimizer) for name, trainer in trainers.items()}
    first = {name: seconds_a_client(trainer, jobs[name]) for name, trainer in trainers.items()}
    hopeful = [name for name, value in first.items() if value <= HOPELESS * min(first.values())]
    turns: list[dict[str, float]] = []
    while len(turns) < TURNS and len(hopeful) > 1:
        hopeful.reverse()  # so that a machine that slows down does not always slow the same one
        turns.append({name: seconds_a_client(trainers[name], jobs[name]) for name in hopeful})
        behind = times_the_best(turns)
        hopeful = [name for name in hopeful if behind[name] <= BEHIND * min(behind[n] for n in hopeful)]
    return min(hopeful, key=times_the_best(turns).__getitem__) if turns else hopeful[0]


def times_the_best(turns: Sequence[dict[str, float]]) -> dict[str, float]:
    """Each engine's time as a multiple of the fastest in the same turn: the median over its turns.

    Within a turn, because a shared machine is faster or slower from turn to turn; and the median, because a burst of
    other work can hit any single run.

    >>> times_the_best([{"loop": 1.0, "vmap": 2.0}, {"loop": 9.0, "vmap": 3.0}, {"loop": 2.0, "vmap": 4.0}])
    {'loop': 1.0, 'vmap': 2.0}
    """
    names = dict.fromkeys(name for turn in turns for name in turn)
    return {n: median(turn[n] / min(turn.values()) for turn in turns if n in turn) for n in names}


def seconds_a_client(trainer: Trainer, job: Job) -> float:
    """How long a job takes, by client."""
    start = time.perf_counter()
    trainer.train(job)
    return (time.perf_counter() - start) / len(job.client_C)


def trial_job(trainer: Trainer, x: Tensor, y: Tensor, optimizer: Optimizer) -> Job:
    """A few clients that all hold the samples x, y and take steps of length 0."""
    network, clients = trainer.network, EACH * trainer.threads
    rows = torch.arange(len(x)).repeat(clients)
    return Job(
        client_C=torch.arange(clients),
        steps_C=torch.full((clients,), STEPS),
        samples=Samples(x, y, rows, torch.full((clients,), len(x))),
        start_P=network.first_weights(),
        states={name: value.clone() for name, value in network.first_states().items()},
        lr=1e-30,  # no step, but a number that an optimizer may divide by
        batch_size=len(x),
        drop_single=False,
        seed=0,
        t=0,
        optimizer=optimizer,
    )
