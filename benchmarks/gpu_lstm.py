"""Microseconds of the LSTM's recurrence on a GPU in one kernel: a layer of 256, 80 positions, batches of 10.

    python benchmarks/gpu_lstm.py [--clients 50,200] [--calls 3] [--settings]

`off` is the largest difference from float64, as a share of the largest entry. `memory` is how long it takes at 4.3 TB/s
to read each client's recurrent weights at every position, as float16 and as float32, and everything else once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from unittest.mock import patch

import torch
from gpu_kernels import Call, show
from torch import Tensor

from turnout.engine import recurrent
from turnout.engine.gpu import recurrence
from turnout.engine.gpu.recurrence import Launch

B, T, H = 10, 80, 256


def launched(name: str, launch: Launch, gates: int, call: Call) -> Call:
    def other() -> Tensor:
        with patch.object(recurrence, name, launch), patch.object(recurrence, "GATES", gates):
            return call()

    return other


def ways(name: str, call: Call, settings: list[tuple[int, int, int]]) -> Iterator[tuple[str, Call]]:
    yield "used", call
    for warps, stages, gates in settings:
        yield f"{warps} {stages} {gates}", launched(name, Launch(warps, stages), gates, call)


FORWARD = [(4, 2, 64), (8, 3, 64)]
BACKWARD = [(8, 4, 64), (8, 6, 64), (16, 3, 64), (16, 6, 64), (16, 3, 128), (16, 6, 32)]


def look(clients: int, calls: int, settings: bool) -> None:
    torch.manual_seed(0)
    draw: Callable[..., Tensor] = lambda *shape: torch.randn(clients, *shape, device="cuda")  # noqa: E731
    a, U, b, h, c, d = draw(B, T, 4 * H), draw(4 * H, H) / 16, draw(4 * H), draw(B, H), draw(B, H), draw(B, T, H)
    weights, rest = 16 * H * H * T * clients, 4 * (a.numel() * 2 + 2 * d.numel())
    half, whole = ((weights / parts + rest) / 4.3e6 for parts in (2, 1))
    print(f"{clients} clients: memory {half:.0f} us with weights as float16, {whole:.0f} as float32", flush=True)
    some = min(clients, 8)  # to compare with
    hs, cs, kept = recurrent.Recurrence.forward(*(v[:some].double() for v in (a, U, b, h, c)), "lstm")
    forward: Call = lambda: recurrent.Recurrence.forward(a, U, b, h, c, "lstm")[0]  # noqa: E731
    show(f"{clients}, forward", ways("FORWARD", forward, FORWARD if settings else []), hs, calls)
    _, cells, gates = recurrent.Recurrence.forward(a, U, b, h, c, "lstm")
    given = (d[:some].double(), None, U[:some].double(), c[:some].double(), cs, kept, "lstm")
    wanted = recurrent.RecurrenceBackward.forward(*given)[0]
    backward: Call = lambda: recurrent.RecurrenceBackward.forward(d, None, U, c, cells, gates, "lstm")[0]  # noqa: E731
    show(f"{clients}, backward", ways("BACKWARD", backward, BACKWARD if settings else []), wanted, calls)
    show(f"{clients}, rounding", iter([("used", lambda: recurrence.rounded(U)[1])]), recurrence.rounded(U)[1], calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="50,200")
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--settings", action="store_true", help="other launch settings as well: warps, stages, gates")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.no_grad():
        for clients in map(int, args.clients.split(",")):
            look(clients, args.calls, args.settings)


if __name__ == "__main__":
    main()
