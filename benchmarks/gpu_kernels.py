"""Microseconds of one call of the convolution and dense kernels on a GPU, for several tiles beside what is used.

    python benchmarks/gpu_kernels.py [--calls 20] [--only lenet]

Each call is captured in a CUDA graph together with others like it, so that the host's time does not count. `off` is the
largest difference from torch's own result in float64, as a share of the largest entry. `memory` is how long reading and
writing the tensors once takes at 4.3 TB/s, `arithmetic` the multiplications at 60 TFLOP/s.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from turnout.engine.kernels import convolution, dense, few_channels, pixels
from turnout.engine.kernels.few_channels import FewTile
from turnout.machine.triton_tools import EXACT, FAST


@dataclass(frozen=True)
class Shape:
    """A convolution of many clients."""

    c: int
    B: int
    i: int
    size: int
    o: int
    kernel: int
    padding: int = 0

    def drawn(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x [c, i, B, h, w], W, bias and the gradient of the result, which lies by sample."""
        torch.manual_seed(0)
        outer = self.size + 2 * self.padding - self.kernel + 1
        x = torch.randn(self.c, self.B, self.i, self.size, self.size, device="cuda").transpose(1, 2)
        W = torch.randn(self.c, self.o, self.i, self.kernel, self.kernel, device="cuda")
        d = torch.randn(self.c, self.B, self.o, outer, outer, device="cuda").transpose(1, 2)
        return x, W, torch.randn(self.c, self.o, device="cuda"), d


SHAPES = {
    "lenet 1": Shape(20, 20, 3, 32, 6, 5),
    "lenet 2": Shape(20, 20, 6, 14, 16, 5),
    "lenet 1, 100 clients": Shape(100, 20, 3, 32, 6, 5),
    "mtfl cifar 1": Shape(100, 20, 3, 32, 32, 3),
    "mtfl cifar 2": Shape(100, 20, 32, 15, 64, 3),
    "case d 1": Shape(50, 10, 3, 32, 32, 3),
    "case d 2": Shape(50, 10, 32, 30, 64, 3),
}
DENSE = {"mnist mlp": (100, 20, 784, 200), "case d": (50, 10, 12544, 128), "lenet": (20, 20, 400, 120)}
Call = Callable[[], Tensor]


def microseconds(call: Call, calls: int) -> float:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(3):
        graph.replay()
    last.record()
    torch.cuda.synchronize()
    return 1000 * first.elapsed_time(last) / (3 * calls)


def few_product(
    x: Tensor, W: Tensor, b: Tensor | None, like: Tensor, padding: int, turned: bool, tile: FewTile
) -> Call:
    def call() -> Tensor:
        y = torch.empty_like(like)
        few_channels.product(x, W, b, y, (padding, padding), (1, 1), turned, tile)
        return y

    return call


def few_tiles(outputs: int) -> Iterator[FewTile]:
    for most in (8, 16) if outputs > 8 else (16,):
        for each in (1, 2, 4):
            yield FewTile(most, each, 4)


def gathered(call: Call) -> Call:
    """With the kernels that gather and multiply, whatever the number of channels."""

    def without() -> Tensor:
        kept, few_channels.precision = few_channels.precision, lambda: FAST
        try:
            return call()
        finally:
            few_channels.precision = kept

    return without


def forwards(s: Shape, x: Tensor, W: Tensor, b: Tensor, d: Tensor) -> Iterator[tuple[str, Call]]:
    pad = (s.padding, s.padding)
    plain: Call = lambda: convolution.convolve(x, W, b, pad, order=convolution.SAMPLES)  # noqa: E731
    yield "used", plain
    yield "gathered", gathered(plain)
    if s.o <= 32:
        for tile in few_tiles(s.o):
            yield f"few {tile.outputs} {tile.each} {tile.warps}", few_product(x, W, b, d, s.padding, False, tile)
    if pixels.pays(W):
        for channels, warps in ((32, 4), (16, 4), (16, 8)):
            tile = replace(pixels.PRODUCT, channels=channels, warps=warps)
            yield f"pixels {channels} {warps}", with_tile("PRODUCT", tile, lambda: pixels.convolve(x, W, b, pad))


def input_gradients(s: Shape, x: Tensor, W: Tensor, d: Tensor) -> Iterator[tuple[str, Call]]:
    pad, size = (s.padding, s.padding), (s.size, s.size)
    plain: Call = lambda: convolution.input_gradient(d, W, pad, size, order=convolution.SAMPLES)  # noqa: E731
    yield "used", plain
    yield "gathered", gathered(plain)
    if s.i <= 32:
        for tile in few_tiles(s.i):
            call = few_product(d, W.transpose(1, 2), None, x, s.kernel - 1 - s.padding, True, tile)
            yield f"few {tile.outputs} {tile.each} {tile.warps}", call


def weight_gradients(s: Shape, x: Tensor, W: Tensor, d: Tensor) -> Iterator[tuple[str, Call]]:
    pad, kernel = (s.padding, s.padding), (s.kernel, s.kernel)
    plain: Call = lambda: convolution.weight_gradient(x, d, kernel, pad, False)  # noqa: E731
    yield "used", plain
    yield "gathered", gathered(plain)
    if s.o <= 32:
        for most in (8, 16) if s.o > 8 else (16,):
            for warps, least in ((1, 512), (4, 512), (4, 1024), (4, 2048)):
                given = (kernel, pad, False, (1, 1), False, FewTile(most, 1, warps), least)
                yield (
                    f"few {most} {warps} {least}",
                    lambda given=given: few_channels.weight_gradient(x, d, *given).sum(0),
                )
    if pixels.pays(W):
        for positions, warps in ((64, 2), (32, 2), (16, 4), (32, 4)):
            tile = replace(pixels.GRADIENT[EXACT], positions=positions, warps=warps)
            call = with_tile(
                "GRADIENT", {EXACT: tile, FAST: tile}, lambda: pixels.weight_gradient(x, d, kernel, pad)[0].flatten(2)
            )
            yield f"pixels {positions} {warps}", call


def with_tile(name: str, tile: object, call: Call) -> Call:
    def other() -> Tensor:
        kept = getattr(pixels, name)
        setattr(pixels, name, tile)
        try:
            return call()
        finally:
            setattr(pixels, name, kept)

    return other


def dense_ways(x: Tensor, W: Tensor, b: Tensor) -> Iterator[tuple[str, Call]]:
    yield "torch", lambda: torch.baddbmm(b.unsqueeze(1), x, W.transpose(1, 2))
    for inputs, outputs, warps in ((128, 64, 4), (32, 64, 4), (16, 64, 4), (32, 32, 2)):
        tile = dense.DenseTile(outputs, inputs, warps, 3)

        def call(tile: dense.DenseTile = tile) -> Tensor:
            kept, dense.FORWARD = dense.FORWARD, tile
            try:
                return dense.forward(x, W, b)
            finally:
                dense.FORWARD = kept

        yield f"kernel {outputs}x{inputs} {warps}", call


def show(name: str, ways: Iterator[tuple[str, Call]], wanted: Tensor, calls: int) -> None:
    for way, call in ways:
        try:
            off = ((call()[: len(wanted)].reshape(wanted.shape) - wanted).abs().max() / wanted.abs().max()).item()
            print(f"{name:34} {way:18} {microseconds(call, calls):8.1f} us   off {off:.1e}", flush=True)
        except Exception as error:  # one way that does not fit must not end the others
            print(f"{name:34} {way:18} {type(error).__name__}: {str(error)[:120]}", flush=True)
            torch.cuda.synchronize()


def look(name: str, s: Shape, only: str, calls: int) -> None:
    x, W, b, d = s.drawn()
    work = 2 * d.numel() * s.i * s.kernel**2 / 60e6
    traffic = 4 * (x.numel() + W.numel() + d.numel()) / 4.3e6
    print(f"{name}: {s}; memory {traffic:.1f} us, arithmetic {work:.1f} us", flush=True)
    flat = [t.double().requires_grad_() for t in (x, W)]
    images = flat[0].permute(2, 0, 1, 3, 4).flatten(1, 2)
    y = F.conv2d(images, flat[1].flatten(0, 1), b.double().flatten(), padding=s.padding, groups=s.c)
    y = y.unflatten(1, (s.c, s.o)).permute(1, 2, 0, 3, 4)
    gx, gW = torch.autograd.grad(y, flat, d.double())
    sides = {"forward": (forwards(s, x, W, b, d), y.detach()), "weights": (weight_gradients(s, x, W, d), gW.flatten(2))}
    if s.i > 3:
        sides["input"] = (input_gradients(s, x, W, d), gx)
    for side, (ways, wanted) in sides.items():
        if f"{name}, {side}".startswith(only):
            show(f"{name}, {side}", ways, wanted, calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--only", default="", help="names that begin so")
    parser.add_argument("--tf32", action="store_true", help="let products round to TF32")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    torch.backends.cudnn.allow_tf32 = False
    for name, (c, B, i, o) in DENSE.items():
        if f"dense {name}".startswith(args.only):
            torch.manual_seed(0)
            x, W, b = (torch.randn(*shape, device="cuda") for shape in ((c, B, i), (c, o, i), (c, o)))
            exact = torch.baddbmm(b.double().unsqueeze(1), x.double(), W.double().transpose(1, 2))
            show(f"dense {name}", dense_ways(x, W, b), exact, args.calls)
    for name, shape in SHAPES.items():
        if name.startswith(args.only) or args.only.startswith(f"{name}, "):
            look(name, shape, args.only, args.calls)


if __name__ == "__main__":
    main()
