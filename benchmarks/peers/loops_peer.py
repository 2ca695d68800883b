"""As many plain loops as there are processes, each in one thread, sharing a round's clients: what a CPU can do at most
with one client a core. Their sums are added up through shared memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from cases import build_model, make_tensors, train_client
from side import Clock, Options, read_options, report_times


def work(rank: int, options: Options, shared_P: Tensor, sums_LP: Tensor, start: list, done: list) -> None:
    """Train this process's part of every round's cohort."""
    torch.set_num_threads(1)
    case, model = options.case, build_model(options.case)
    x_NS, y_NS = make_tensors(case)
    for t in range(options.warmup + options.rounds):
        start[rank].acquire()
        sums_LP[rank] = 0
        for c in case.cohort_at(t)[rank :: options.processes]:
            vector_to_parameters(shared_P.clone(), model.parameters())
            train_client(model, x_NS[c], y_NS[c], case)
            sums_LP[rank] += parameters_to_vector(model.parameters()).detach()
        done[rank].release()


def time_rounds(options: Options) -> list[float]:
    """Run the warm-up and the timed rounds; the milliseconds of each."""
    context, loops, rounds = mp.get_context("spawn"), options.processes, options.warmup + options.rounds
    shared_P = parameters_to_vector(build_model(options.case).parameters()).detach().share_memory_()
    sums_LP = torch.zeros(loops, len(shared_P)).share_memory_()
    start, done = ([context.Semaphore(0) for _ in range(loops)] for _ in range(2))
    given = (options, shared_P, sums_LP, start, done)
    workers = [context.Process(target=work, args=(rank, *given), daemon=True) for rank in range(loops)]
    for worker in workers:
        worker.start()
    clock = Clock("cpu")
    clock.start()
    for _ in range(rounds):
        for semaphore in start:
            semaphore.release()
        for semaphore in done:
            semaphore.acquire()
        shared_P.copy_(sums_LP.sum(0) / options.case.cohort)
        clock.lap()
    return clock.laps


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    options = read_options("Time rounds of plain loops side by side.")
    report_times("loops", options, time_rounds(options))
