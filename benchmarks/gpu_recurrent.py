"""Microseconds of the kernels of recurrent layers on a GPU: a layer of 256, 80 positions, batches of 10.

    python benchmarks/gpu_recurrent.py [--kinds lstm,gru] [--clients 50,200] [--calls 3] [--settings]

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
from turnout.engine.kernels import recurrence
from turnout.engine.kernels.recurrence import Launch, rounded

B, T, H = 10, 80, 256


Settings = list[tuple[int, int, int]]
SIZES = {"lstm": (4 * H, H), "gru": (3 * H, 0)}


def ways(kind: str, name: str, call: Call, settings: Settings) -> Iterator[tuple[str, Call]]:
    """What is used, and the same with other numbers of warps, stages and gates."""
    yield "used", call
    for warps, stages, gates in settings:
        yield f"{warps} {stages} {gates}", launched(kind, name, Launch(warps, stages), gates, call)


def launched(kind: str, name: str, launch: Launch, gates: int, call: Call) -> Call:
    def other() -> Tensor:
        with patch.object(recurrence, f"{kind.upper()}_{name}", launch), patch.object(recurrence, "GATES", gates):
            return call()

    return other


FORWARD = [(16, 4, 64), (16, 6, 64), (8, 5, 64)]
BACKWARD = [(16, 4, 64), (8, 6, 64)]


def look(kind: str, clients: int, calls: int, settings: bool) -> None:
    torch.manual_seed(0)
    draw: Callable[..., Tensor] = lambda *shape: torch.randn(clients, *shape, device="cuda")  # noqa: E731
    G, C = SIZES[kind]
    a, U, b, h, c, d = draw(B, T, G), draw(G, H) / 16, draw(G), draw(B, H), draw(B, C), draw(B, T, H)
    weights, rest = 4 * G * H * T * clients, 4 * (a.numel() * 2 + 2 * d.numel())
    half, whole = ((weights / parts + rest) / 4.3e6 for parts in (2, 1))
    print(f"{kind}, {clients}: memory {half:.0f} us with weights as float16, {whole:.0f} as float32", flush=True)
    some = min(clients, 8)  # to compare with
    hs, cs, kept = recurrent.Recurrence.forward(*(v[:some].double() for v in (a, U, b, h, c)), kind)
    forward: Call = lambda: recurrent.Recurrence.forward(a, U, b, h, c, kind)[0]  # noqa: E731
    show(f"{kind}, {clients}, forward", ways(kind, "FORWARD", forward, FORWARD if settings else []), hs, calls)
    _, cells, gates = recurrent.Recurrence.forward(a, U, b, h, c, kind)
    given = (d[:some].double(), None, U[:some].double(), c[:some].double(), cs, kept, kind)
    wanted = recurrent.RecurrenceBackward.forward(*given)[0]
    backward: Call = lambda: recurrent.RecurrenceBackward.forward(d, None, U, c, cells, gates, kind)[0]  # noqa: E731
    show(f"{kind}, {clients}, backward", ways(kind, "BACKWARD", backward, BACKWARD if settings else []), wanted, calls)
    show(f"{kind}, {clients}, rounding", iter([("used", lambda: rounded(U)[1])]), rounded(U)[1], calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="lstm,gru")
    parser.add_argument("--clients", default="50,200")
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--settings", action="store_true", help="other launch settings as well: warps, stages, gates")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.no_grad():
        for kind in args.kinds.split(","):
            for clients in map(int, args.clients.split(",")):
                look(kind, clients, args.calls, args.settings)


if __name__ == "__main__":
    main()
