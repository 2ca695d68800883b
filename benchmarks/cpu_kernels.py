"""How near the C steps come to what a core can do, and what a round costs beside them: cases a, b and c.

    python benchmarks/cpu_kernels.py [--cases a b c h] [--repeats 30]

First torch's own products of such sizes, then a case's clients taking all local steps of a round in one call of
kernels/native.py, both on one thread. The best of the repeats counts: others only add time. Work is counted
as multiplications with an addition, two operations each, of the layers' products forward, for the weights' gradient,
and for the input's where it is needed; padding of vectors, pooling, loss and copies are not counted, but timed.

Then whole rounds on all cores: the median microseconds of each stage of the work.

Of case h, a user's `nn.LSTM`: one step of one client on one core, how much of it is torch's LSTM, and how long the
LSTM's products take by themselves.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from math import prod
from statistics import median
from typing import Any

import torch
from cases import CASES, Case, build_model, layers, make_tensors, mean_loss
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from turnout_side import NextInLine, held_by_clients

import turnout as to
from turnout.engine.batches import address_batches
from turnout.engine.kernels.native import NativeJob
from turnout.machine.profiling import Stopwatch
from turnout.machine.threads import cores
from turnout.round import run_round
from turnout.running.tracks.prepare import prepare
from turnout.server.state import Context

PRODUCTS = {
    "b, 784 to 200, forward": (10, 784, 200),
    "b, its weights": (784, 10, 200),
    "c, 10 to 20 channels as one product": (20, 250, 320),
    "as large as you like": (1024, 1024, 1024),
}


def products(case: Case) -> int:
    """Multiplications of one sample's forward and backward pass."""
    x, total, first = torch.zeros(1, *case.input_shape), 0, True
    for layer in layers(case).children():
        x = layer(x)
        if isinstance(layer, nn.Linear | nn.Conv2d):
            each = layer.weight.numel() * prod(x.shape[2:])
            total, first = total + (2 if first else 3) * each, False
    return total


def product(m: int, k: int, n: int, repeats: int) -> float:
    """The least seconds of torch's product of m x k and k x n."""
    a, b, c = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
    return best(lambda: torch.mm(a, b, out=c), repeats)


def best(work: Callable[[], object], repeats: int) -> float:
    """The least seconds of a call."""
    took = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return min(took)


def ready(case: Case) -> tuple[to.Experiment, Any]:
    """The case as the benchmark's own side has it."""
    local = to.Local(to.SGD(lr=case.lr), steps=case.steps, batch_size=case.batch)
    experiment = to.Experiment(
        world=to.World(held_by_clients(case, *make_tensors(case))),
        model=build_model(case),
        algorithm=to.Algorithm(local, selection=NextInLine(case)),
        runtime=to.runtime.InProcess(device="cpu"),
    )
    return experiment, prepare(experiment)


def local_steps(case: Case, threads: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """One call that trains every client of a round, and one that finds the order of their samples."""
    clients, client_C = ready(case)[1].runtime.clients, torch.arange(case.cohort)
    samples, steps_C = clients.federation.train(client_C, 0), torch.full((case.cohort,), case.steps)
    batches = address_batches(samples, client_C, steps_C, case.batch, False, 0, 0)
    start_cP = clients.model.flat_P[None]
    out_CP, loss_C = torch.empty(case.cohort, start_cP.shape[1]), torch.zeros(case.cohort)
    beside, width = ({}, torch.zeros_like(steps_C), None, {}), start_cP.shape[1]
    job = NativeJob(clients.trainer.native, to.SGD(lr=case.lr), case.lr, threads=threads)
    return (
        lambda: job.train(samples, batches, steps_C, start_cP, out_CP, loss_C, *beside, width),
        lambda: address_batches(samples, client_C, steps_C, case.batch, False, 0, 0),
    )


class Counted(TorchDispatchMode):
    """Counts torch's operations."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def operations(case: Case) -> int:
    """Torch's operations in a round."""
    experiment, prepared = ready(case)
    with Counted() as counted:
        run_round(prepared.server, 0, Context(experiment.algorithm, prepared.runtime, 0))
    return counted.count


def stages(case: Case, rounds: int) -> dict[str, float]:
    """The median microseconds of each stage of a round, and of a whole one."""
    experiment, prepared = ready(case)
    server, took, ctx = prepared.server, defaultdict(list), Context(experiment.algorithm, prepared.runtime, 0)
    for t in range(rounds + 5):
        watch = Stopwatch()
        with watch.running("everything else"):
            server = run_round(server, t, ctx).after
        for name, seconds in {**watch.seconds, "a round": sum(watch.seconds.values())}.items():
            took[name].append(seconds)
    return {name: 1e6 * median(seconds[5:]) for name, seconds in took.items()}


def recurrent(case: Case, repeats: int) -> None:
    """A step of one client with an LSTM, and the products in it: at each position those with the recurrent weights,
    forward and backward, for all positions at once those of the second layer's input and of the weights."""
    model = build_model(case)
    x, y = (value[0, : case.batch] for value in make_tensors(case))
    parameters = list(model.parameters())

    def step() -> None:
        torch.autograd.grad(mean_loss(model(x), y), parameters)

    step()
    seconds = best(step, repeats)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    each = {event.key: event.self_cpu_time_total for event in found.key_averages()}
    shares = {name: each.get(f"aten::mkldnn_rnn_layer{name}", 0) / sum(each.values()) for name in ("", "_backward")}
    size, places = model.lstm.hidden_size, case.input_shape[0]
    one = product(case.batch, size, 4 * size, repeats) + product(case.batch, 4 * size, size, repeats)
    alone = 2 * places * one + 5 * product(case.batch * places, size, 4 * size, repeats)
    said = f"torch's LSTM forward {shares['']:.0%}, backward {shares['_backward']:.0%}"
    print(
        f"case {case.name}, a step on one core: {seconds * 1e3:.3g} ms; {said}; its products alone {alone * 1e3:.3g} ms"
    )


def main() -> None:
    """Print a line for each product and each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices="abch", default=list("abc"))
    parser.add_argument("--repeats", type=int, default=30)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for what, (m, k, n) in PRODUCTS.items():
        seconds = product(m, k, n, 10 * given.repeats)
        print(f"torch.mm {m} x {k} x {n} ({what}): {2 * m * k * n / seconds / 1e9:.0f} billion a second", flush=True)
    for name in given.cases:
        case = CASES[name]
        if case.text:
            recurrent(case, given.repeats)
            continue
        (alone, order), (together, _) = local_steps(case, 1), local_steps(case, cores())
        seconds, shared = best(alone, given.repeats), best(together, given.repeats)
        print(
            f"case {name}: local steps on {cores()} cores {shared * 1e3:.3g} ms, order of samples "
            f"{best(order, given.repeats) * 1e6:.0f} µs, {operations(case)} operations of torch a round"
        )
        work, steps = 2 * products(case) * case.samples * case.cohort, case.cohort * case.steps
        each = f"{seconds / steps * 1e6:.3g} µs a step, {work / seconds / 1e9:.0f} billion a second"
        print(f"case {name}, local steps on one core: {seconds * 1e3:.3g} ms, {each}", flush=True)
        found = sorted(stages(case, 10 * given.repeats if name == "a" else given.repeats).items(), key=lambda s: -s[1])
        print(f"case {name}, µs: " + ", ".join(f"{stage} {value:.0f}" for stage, value in found), flush=True)


if __name__ == "__main__":
    main()
