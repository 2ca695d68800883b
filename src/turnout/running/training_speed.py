"""How many samples of an experiment this machine trains on in a second, as a single client would."""

from __future__ import annotations

import time
from statistics import median

import torch

from turnout.context import Context
from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.weights import Weights
from turnout.runtimes.inprocess import InProcessRuntime
from turnout.server.cohort import cohort_of
from turnout.server.downloads import make_download
from turnout.settings import InProcess


def samples_per_second(experiment: Experiment, seconds: float = 3.0) -> float:
    """The median over rounds of the client with the most samples (among the first hundred), alone on one thread."""
    settings = {"runtime": InProcess(device="cpu", threads=1), "world.devices": None}
    track = prepare(experiment.but(**settings))
    if not isinstance(track, Weights) or not isinstance(track.runtime, InProcessRuntime):
        raise UserError("training speed is measured of models whose weights are federated: name such a recipe or file")
    ids = torch.arange(min(track.clients, 100))
    examples_I = track.runtime.examples(ids)
    alone, ctx = ids[examples_I.argmax()].unsqueeze(0), Context(track.algorithm, track.runtime, experiment.seed)
    cohort = cohort_of(alone, torch.ones(1, dtype=torch.bool), track.server, ctx)
    download = make_download(track.server, cohort, 0, ctx)
    samples, speeds, until = _samples(experiment, int(examples_I.max())), list[float](), time.monotonic() + seconds
    while len(speeds) < 3 or time.monotonic() < until:
        began = time.perf_counter()
        track.runtime.simulation.would_send(alone, download)
        speeds.append(samples / (time.perf_counter() - began))
    return median(speeds[1:])  # the first one warms up


def _samples(experiment: Experiment, examples: int) -> int:
    local = experiment.algorithm.local
    return examples * local.full_work if local.steps is None else local.steps * min(local.batch_size, examples)
