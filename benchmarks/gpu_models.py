"""Own modules on a GPU beside the natural limit: milliseconds a round of 5 steps of 10 samples a client, and the ratio
to `central`, one model trained on the same samples in one large batch (eager, PyTorch's own kernels).

    python benchmarks/gpu_models.py [--cases d,e,f,h] [--clients 10,50,200,1000] [--loop] [--tails] [--evaluate]

--loop      also the plain loop over 50 clients, which everything must be equal to
--tails     sizes from a Pareto law: as many steps as one pass takes, at most 200
--evaluate  also a round that is followed by the evaluation of the global model on 10,000 samples and of 200 clients'
            own test data
--profile   the kernels that took the most time in a round, of each case at its last number of clients
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from cases import CASES, CHARACTERS, CLASSES, Case, build_model, mean_loss
from torch import Tensor

import turnout as to
from turnout.running.tracks.prepare import prepare

DRAWN = 20_000  # samples; where more are wanted, these again


def drawn(case: Case, count: int) -> tuple[Tensor, Tensor]:
    """Random samples and labels."""
    if count > DRAWN:
        x, y = drawn(case, DRAWN)
        again = torch.arange(count) % DRAWN
        return x[again], y[again]
    generator = torch.Generator().manual_seed(0)
    if not case.text:
        x = torch.randn(count, *case.input_shape, generator=generator)
        return x, torch.randint(0, CLASSES, (count,), generator=generator)
    x = torch.randint(0, CHARACTERS, (count, *case.input_shape), generator=generator)
    shape = x.shape if case.everywhere else (count,)
    return x, torch.randint(0, CHARACTERS if case.everywhere else CLASSES, shape, generator=generator)


def pareto_sizes(clients: int, case: Case) -> Tensor:
    """Samples of each client: one batch at least, 200 at most, the tail falling as 1/n^1.2."""
    u = torch.rand(clients, generator=torch.Generator().manual_seed(1))
    return (case.batch * u.pow(-1 / 1.2)).long().clamp(case.batch, 200 * case.batch) // case.batch * case.batch


def experiment(case: Case, clients: int, args: argparse.Namespace, engine: str = "auto") -> to.Experiment:
    """Everybody takes part in every round."""
    sizes = pareto_sizes(clients, case) if args.tails else torch.full((clients,), case.samples)
    x, y = drawn(case, int(sizes.sum()))
    tested = drawn(case, 10_000) if args.evaluate else drawn(case, 10)
    classes = CHARACTERS if case.everywhere else CLASSES
    share = 0.2 if args.evaluate else 0.0
    data = to.data.Own(x, y, torch.arange(clients).repeat_interleave(sizes), tested, test_share=share, classes=classes)
    precision = "tf32" if args.device == "cuda" else "float32"
    work: dict[str, Any] = {"epochs": 1} if args.tails else {"steps": case.steps}
    return to.Experiment(
        to.World(data, to.participation.Always()),
        build_model(case),
        to.Algorithm(to.Local(to.SGD(case.lr), batch_size=case.batch, **work)),
        task=to.tasks.NextCharacter() if case.everywhere else to.tasks.Classification(),
        rounds=1000,
        runtime=to.runtime.InProcess(device=args.device, precision=precision, engine=engine),
    )


def laps(one: Callable[[int], Any], rounds: int, cuda: bool) -> list[float]:
    """Milliseconds of each round."""
    times = []
    for t in range(rounds):
        start = time.perf_counter()
        one(t)
        if cuda:
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return times


def turnout_times(case: Case, clients: int, args: argparse.Namespace, engine: str = "auto") -> tuple[list[float], Any]:
    """The time of every round from the first on, that with all preparation, and a function that does one more."""
    given, start = experiment(case, clients, args, engine), time.perf_counter()
    track = prepare(given)
    state, prepared = track.begin(), 1000 * (time.perf_counter() - start)

    def one(t: int) -> None:
        nonlocal state
        state, _ = track.round(state, t)
        if args.evaluate:
            track.evaluate(state, t)

    rounds = 2 if engine == "loop" else args.warm_up + args.rounds
    times = laps(one, rounds, args.device == "cuda")
    return [times[0] + prepared, *times[1:]], one


def central_time(case: Case, clients: int, args: argparse.Namespace) -> float:
    """One model, as many steps, each on a batch of everybody's."""
    model = build_model(case).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=case.lr)
    x, y = (value.to(args.device) for value in drawn(case, clients * case.batch))

    def one(t: int) -> None:
        for _ in range(case.steps):
            optimizer.zero_grad()
            mean_loss(model(x), y).backward()
            optimizer.step()

    return statistics.median(laps(one, args.warm_up + args.rounds, args.device == "cuda")[args.warm_up :])


def profile(one: Callable[[int], None], t: int) -> None:
    """The kernels that took the most time in a round."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watched

    with watched(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        one(t)
        torch.cuda.synchronize()
    print(found.key_averages().table(sort_by="self_cuda_time_total", row_limit=22, max_name_column_width=70))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cases", default="d,e,f,h,i")
    parser.add_argument("--clients", default="10,50,200,1000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=4)
    for flag in ("loop", "tails", "evaluate", "profile"):
        parser.add_argument(f"--{flag}", action="store_true")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for name in args.cases.split(","):
        for clients in map(int, args.clients.split(",")):
            case = replace(CASES[name], population=clients, cohort=clients)
            central = central_time(case, clients, args)
            times, one = turnout_times(case, clients, args)
            own = statistics.median(times[args.warm_up :])
            early = " ".join(f"{value:.0f}" for value in times[: args.warm_up])
            line = f"{name} {clients:5} clients {own:9.1f} ms  {own / central:5.2f} x central ({central:.1f})"
            line += f"  first {early}"
            if args.loop and clients == 50:
                line += f"  loop {turnout_times(case, clients, args, 'loop')[0][-1]:.0f}"
            print(f"{line}  {own / clients:.3f} ms a client", flush=True)
        if args.profile:
            profile(one, args.warm_up + args.rounds)


if __name__ == "__main__":
    main()
