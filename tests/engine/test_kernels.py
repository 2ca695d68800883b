"""Each layer of the hand-written pass against ordinary autograd, client by client, on every implementation there is.

The plain layers always; on a machine with a GPU and Triton also the kernels of kernels/layers.py, and where Triton
interprets its kernels (TRITON_INTERPRET=1) on a CPU as well.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode

import turnout as to
from encoded import bytes_rows
from turnout.engine.dropout import keep_mask
from turnout.engine.kernels import dense, few_channels, pixels
from turnout.engine.kernels.layers import SWAPPED, for_gpu, supports
from turnout.engine.kernels.optimizer_steps import Pull, momentum_step, pulled_descent
from turnout.engine.layers import (
    Convolution,
    DenseLayer,
    Drop,
    GradientSink,
    Layer,
    MaxPool,
    SquaredGradientSink,
)
from turnout.layout import Slot
from turnout.machine import triton_tools
from turnout.parts.compression.codec import kernels
from turnout.parts.compression.codec.messages import pieces_of
from turnout.parts.compression.codec.picks import largest, largest_with_kernels, largest_with_torch
from turnout.parts.compression.codec.sparse import Ternary
from turnout.parts.substitution import projection
from turnout.parts.substitution.projection import signs
from turnout.parts.terms import elastic
from turnout.parts.terms.base import At
from turnout.running.tracks.prepare import prepare


@dataclass(frozen=True)
class Place:
    """Where a layer runs, and whether as its counterpart with kernels."""

    device: str
    swapped: bool

    def layer(self, layer: Layer) -> Layer:
        return for_gpu([layer])[0] if self.swapped else layer


PLACES = {"plain": Place("cpu", False)}
if torch.cuda.is_available():
    PLACES["plain on gpu"] = Place("cuda", False)
    if triton_tools.installed():
        PLACES["kernels"] = Place("cuda", True)

if triton_tools.installed() and os.environ.get("TRITON_INTERPRET") == "1":
    PLACES["kernels, interpreted"] = Place("cpu", True)

# A tile's rows beyond a layer's channels hold whatever was in memory; nothing of them is stored. And Triton's own
# interpreter reads a number from an array of one, which numpy before 2.4 warns of and from 2.4 on refuses.
pytestmark = [
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]
everywhere = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
sinks = pytest.mark.parametrize(("keep", "scale"), [(0.0, 1.0), (1.0, -1.0), (0.9, -1.0)], ids=["grad", "sgd", "decay"])
close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def flat_views(device: str, **tensors: Tensor) -> dict[str, Tensor]:
    """Parameters as the engine holds them: columns of one matrix, a client's row at an odd stride."""
    c = next(iter(tensors.values())).shape[0]
    flat = torch.cat([torch.zeros(c, 3), *(t.reshape(c, -1) for t in tensors.values())], 1).to(device)
    views, start = {}, 3
    for name, t in tensors.items():
        views[name] = flat[:, start : start + t[0].numel()].view(t.shape)
        start += t[0].numel()
    return views


def both_ways(place: Place, layer: Layer, x: Tensor, d: Tensor, weights: dict, keep: float, scale: float, first=False):
    """Output, gradient of the input and the parameters' targets after backward, on the CPU."""
    views = flat_views(place.device, **weights)
    fused = keep != 0
    targets = views if fused else {name: torch.full_like(v, 7.0) for name, v in views.items()}
    own = place.layer(layer)
    y, saved = own.forward(x.to(place.device), views)
    y = y.clone()
    dx = own.backward(d.to(place.device), saved, views, GradientSink(targets, keep, scale, 1.0), first=first)
    return y.cpu(), dx.cpu(), {name: t.cpu() for name, t in targets.items()}


def expected(weights: dict, grads: dict, keep: float, scale: float) -> dict:
    return {name: keep * w + scale * grads[name] for name, w in weights.items()}


CONVOLUTIONS = {  # clients, inputs, batch, height, width, outputs, kernel, padding
    "odd": (2, 3, 3, 7, 9, 5, (3, 2), (0, 0)),
    "padded": (3, 2, 2, 6, 6, 17, (3, 3), (1, 1)),
    "uneven": (1, 4, 2, 8, 5, 3, (5, 3), (2, 0)),
    "few": (3, 6, 4, 9, 8, 16, (5, 5), (0, 0)),
    "wide": (2, 1, 1, 4, 4, 2, (1, 1), (1, 2)),
    "many": (2, 20, 2, 8, 8, 70, (3, 3), (0, 0)),
    "by pixel": (2, 48, 2, 6, 7, 16, (3, 2), (1, 0)),
}


@everywhere
@sinks
@pytest.mark.parametrize("shape", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_is_autograds(place, keep, scale, shape, bias):
    c, i, B, h, w, o, kernel, padding = shape
    x, W, b = drawn(c, B, i, h, w), drawn(c, o, i, *kernel, seed=1), drawn(c, o, seed=2)
    inner = [t.clone().requires_grad_() for t in (x, W, b)]
    wanted = torch.stack([F.conv2d(inner[0][n], inner[1][n], inner[2][n] * bias, padding=padding) for n in range(c)])
    d = drawn(*wanted.shape, seed=3)
    gx, gW, gb = torch.autograd.grad(wanted, inner, d)
    weights = {"w": W, "b": b} if bias else {"w": W}
    layer = Convolution("w", "b" if bias else None, kernel, padding)
    y, dx, targets = both_ways(place, layer, x.transpose(1, 2), d.transpose(1, 2), weights, keep, scale)
    close(y, wanted.detach().transpose(1, 2))
    close(dx, gx.transpose(1, 2))
    close(targets, expected(weights, {"w": gW, "b": gb}, keep, scale))


@everywhere
@sinks
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("shape", [(2, 10, 1027, 70), (3, 1, 600, 130), (2, 17, 5, 3)], ids=["long", "one", "small"])
def test_a_dense_layer_is_autograds(place, keep, scale, first, shape):
    c, B, i, o = shape
    x, W, b = drawn(c, B, i), drawn(c, o, i, seed=1), drawn(c, o, seed=2)
    d = drawn(c, B, o, seed=3)
    assert dense.pays(x, W) == (i > 5)
    weights, grads = {"w": W, "b": b}, {"w": d.transpose(1, 2) @ x, "b": d.sum(1)}
    y, dx, targets = both_ways(place, DenseLayer("w", "b"), x, d, weights, keep, scale, first)
    close(y, x @ W.transpose(1, 2) + b.unsqueeze(1), rtol=1e-4, atol=1e-3)
    close(targets, expected(weights, grads, keep, scale))
    if not first:
        close(dx, d @ W)


@everywhere
@pytest.mark.parametrize("shape", [(2, 10, 1027, 70), (2, 17, 5, 3)], ids=["large", "small"])
@pytest.mark.parametrize("drift", [0.0, 1.0], ids=["springs", "drift"])
def test_a_step_with_springs_is_one_with_the_gradient(place, shape, drift):
    """w <- (1 - lr k) w + lr f + lr d - lr g, with k and f of every entry and d of every client's; the input's gradient
    is that of the old weights."""
    c, B, i, o = shape
    x, W, b, d = drawn(c, B, i), drawn(c, o, i, seed=1), drawn(c, o, seed=2), drawn(c, B, o, seed=3)
    k, f, lr = drawn(1, o, i, seed=4).abs(), drawn(1, o, i, seed=5), 0.1
    views = flat_views(place.device, w=W, b=b)
    kept, shift = ({"w": value.to(place.device)} for value in (1 - lr * k, lr * f))
    own = drift * drawn(c, o, i, seed=6)
    owns = {"w": lr * own.to(place.device)} if drift else {}
    layer, sink = place.layer(DenseLayer("w", "b")), GradientSink(views, 1.0, -1.0, lr, kept, shift, owns)
    saved = layer.forward(x.to(place.device), views)[1]
    dx = layer.backward(lr * d.to(place.device), saved, views, sink, first=False)
    close(dx.cpu(), lr * d @ W)
    close(views["w"].cpu(), W - lr * (d.transpose(1, 2) @ x + k * W - f - own))
    close(views["b"].cpu(), b - lr * d.sum(1))


@everywhere
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("image", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.25, 0.5])
def test_dropout_hides_the_addressed_entries(place, whole, image, p):
    x = drawn(3, 2, 5, 4, 3) if image else drawn(3, 4, 300)
    key_c = torch.tensor([[5, 1], [-(2**62), 2], [2**62 + 12345, 3]])[:, 0]
    mask = keep_mask(key_c, x.shape[1:], p, whole, x.dtype, x.device)
    turn = (lambda t: t.transpose(1, 2)) if image else (lambda t: t)
    d = drawn(*x.shape, seed=4)
    layer = place.layer(Drop("key", p, whole))
    weights = {"key": key_c.to(place.device)}
    y, saved = layer.forward(turn(x).to(place.device), weights)
    dx = layer.backward(turn(d).to(place.device), saved, weights, GradientSink({}, 0, 1, 1), first=False)
    torch.testing.assert_close(y.cpu(), turn(x * mask))
    torch.testing.assert_close(dx.cpu(), turn(d * mask))
    assert p == 0 or (mask == 0).any()


@everywhere
@pytest.mark.parametrize(("kernel", "stride"), [((2, 2), (2, 2)), ((3, 2), (3, 2)), ((3, 3), (2, 2))])
@pytest.mark.parametrize("by_pixel", [False, True])
def test_a_pool_passes_the_gradient_to_the_first_of_the_largest(place, kernel, stride, by_pixel):
    x = drawn(2, 3, 2, 8, 7).mul(2).round()  # rounded: windows with equals
    x = (pixels.by_pixel(x) if by_pixel else x).requires_grad_()
    wanted = F.max_pool2d(x.flatten(0, 1), kernel, stride).unflatten(0, (2, 3))
    d = drawn(*wanted.shape, seed=1)
    (gx,) = torch.autograd.grad(wanted, x, d)
    layer = place.layer(MaxPool(kernel, stride))
    y, saved = layer.forward(x.detach().to(place.device), {})
    dx = layer.backward(d.to(place.device), saved, {}, GradientSink({}, 0, 1, 1), first=False)
    assert torch.equal(y.cpu(), wanted.detach())
    assert torch.equal(dx.cpu(), gx)


def test_the_kernels_are_for_float32_on_a_gpu():
    assert not supports(torch.zeros(1))
    layers = [
        Convolution("w", None, (3, 3), (1, 1)),
        DenseLayer("v", "b"),
        Drop("k", 0.5, False),
        MaxPool((2, 2), (2, 2)),
    ]
    for plain, swapped in zip(layers, for_gpu(layers), strict=True):
        assert type(swapped) is SWAPPED[type(plain)]
        assert vars(swapped) == vars(plain)


def test_rows_that_32_bits_do_not_count_are_for_no_kernel(monkeypatch):
    monkeypatch.setattr(triton_tools, "installed", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with FakeTensorMode():
        few, many, none = (torch.empty(2, width, device="cuda:0") for width in (1 << 24, 1 << 31, 0))
    assert triton_tools.takes(few)
    assert not triton_tools.takes(few, many)
    assert projection.fits(few)
    assert not projection.fits(none)


def test_few_channels_have_kernels_of_their_own_in_float32(monkeypatch):
    """The choice depends on shapes and precision alone, so that a run that goes on does as it did."""
    small = torch.empty(2, 6, 1, 3, 3)
    assert few_channels.few(16)
    assert not few_channels.few(17)
    assert few_channels.pays(small)
    assert not few_channels.pays(pixels.by_pixel(small))
    assert not few_channels.pays(torch.empty(2, 16, 1, 3, 3))
    assert few_channels.pays(torch.empty(64, 32, 64, 8, 8, device="meta"))
    monkeypatch.setattr(few_channels, "precision", lambda: "tf32")
    assert not few_channels.few(6)
    assert not few_channels.pays(small)


@everywhere
@pytest.mark.parametrize("padding", [0, 1])
def test_squares_of_each_sample_s_gradient(place, padding):
    """For the Fisher information: a convolution and a large dense layer, against autograd sample by sample."""
    c, i, B, o = 2, 3, 3, 5
    x, W, b = drawn(c, i, B, 7, 7), drawn(c, o, i, 3, 3, seed=1), drawn(c, o, seed=2)
    d = drawn(c, o, B, 5 + 2 * padding, 5 + 2 * padding, seed=3)
    layer = Convolution("W", "b", (3, 3), (padding, padding))
    found = squares(place, layer, x, d, {"W": W, "b": b})
    for k in range(c):
        total = {"W": torch.zeros_like(W[k]), "b": torch.zeros_like(b[k])}
        for s in range(B):
            w, bias = W[k].clone().requires_grad_(), b[k].clone().requires_grad_()
            F.conv2d(x[k, :, s][None], w, bias, padding=padding).backward(d[k, :, s][None])
            total = {"W": total["W"] + w.grad**2, "b": total["b"] + bias.grad**2}
        for name, value in total.items():
            close(found[name][k], value, atol=1e-3)


@everywhere
def test_squares_of_a_large_dense_layer(place):
    x, W, d = drawn(2, 4, 300), drawn(2, 260, 300, seed=1), drawn(2, 4, 260, seed=2)
    found = squares(place, DenseLayer("W", None), x, d, {"W": W})
    close(found["W"], torch.einsum("cso,csi->coi", d**2, x**2))


def squares(place: Place, layer: Layer, x: Tensor, d: Tensor, weights: dict) -> dict:
    """What a layer adds to the sums of squares, on the CPU."""
    views = flat_views(place.device, **weights)
    targets = {name: torch.full_like(value, torch.nan) for name, value in views.items()}
    own = place.layer(layer)
    saved = own.forward(x.to(place.device), views)[1]
    for keep in (0.0, 1.0):  # to nothing, and to what is there then
        own.backward(d.to(place.device), saved, views, SquaredGradientSink(targets, keep, 0.5, 1.0), first=False)
    return {name: value.cpu() for name, value in targets.items()}


def test_terms_as_one_pull_are_their_corrections_one_after_another():
    """k x - f - d is what springs and a drift add; on a GPU the whole step is a kernel."""
    x, grad, start = drawn(3, 40), drawn(3, 40, seed=1), drawn(1, 30, seed=2)
    terms = [to.terms.Proximal(0.7), to.terms.Elastic(0.3), to.terms.Scaffold()]
    down = {"elastic": {"U": drawn(30, seed=3), "V": drawn(30, seed=4), "Z": torch.ones(1)}}
    down |= {"scaffold": {"c": drawn(30, seed=5)}}
    mine = {"scaffold": {"c": drawn(3, 30, seed=6)}}
    pull = Pull.of(terms, start, down, mine)
    assert pull is not None
    assert pull.own_cP is not None
    at = At(x[:, :30], start, 0.1, 0, torch.ones(3), torch.ones(3), *[None] * 3)
    corrected = grad.clone()
    for term in terms:
        corrected[:, :30] = term.transform_grad(
            corrected[:, :30].clone(), at, down.get(term.name, {}), mine.get(term.name, {})
        )
    whole = grad.clone()
    whole[:, :30] += pull.stiff_P * x[:, :30] - pull.pull_P - pull.own_cP
    close(whole, corrected)
    assert (
        Pull.of([to.terms.Scaffold(), to.terms.FedGATE()], start, down, mine | {"fedgate": {"delta": drawn(3, 30)}})
        is None
    )
    if "kernels" in PLACES:
        there = x.cuda()
        on_gpu = Pull(pull.stiff_P.cuda(), pull.pull_P.cuda(), pull.own_cP.cuda())
        pulled_descent(there, grad.cuda(), on_gpu, 0.1)
        close(there.cpu(), x - 0.1 * corrected)


@everywhere
@pytest.mark.parametrize("keep", [0.02, 0.5])
def test_ternary_messages_are_those_of_each_row_by_itself(place, keep):
    """To the bit: picked entries, ties, zeros, tensors of one entry and of more than a tile; what is left and sent."""
    sizes = (40, 7, 1, 4200)
    slots = tuple(Slot(f"w{i}", (n,), sum(sizes[:i]), n) for i, n in enumerate(sizes))
    x, codec = drawn(4, sum(sizes)), Ternary(keep)
    x[1], x[2, 30:] = x[1].round(), 0
    left = torch.nn.functional.pad(x, (0, 3)).to(place.device)[:, : x.shape[1]]
    pieces = pieces_of(slots, keep, "tensor")
    coded = kernels.write_message(left, pieces, codec.longest(slots)) if place.swapped else codec.write(left, slots)
    pick = largest_with_kernels if place.swapped else largest_with_torch
    found, wanted = pick(x.to(place.device), pieces), largest(x, pieces)
    assert torch.equal(found.there_CK.cpu(), wanted.there_CK)
    assert torch.equal(found.column_CK.cpu()[wanted.there_CK], wanted.column_CK[wanted.there_CK])
    for i, message in enumerate(bytes_rows(coded)):
        own = x[i : i + 1].clone()
        alone = codec.write(own, slots)
        assert message == bytes_rows(alone)[0]
        assert torch.equal(left[i].cpu(), own[0])
        assert torch.equal(coded.decoded[i].cpu(), alone.decoded[0])


@everywhere
def test_rows_folded_by_a_kernel_are_the_sketch(place):
    """Columns that are no multiple of a program's, a last fold that is not full, a sum in several parts."""
    x, turn_F, base = drawn(2, 150 * 300 + 7), torch.arange(151) * 7 % 300, -(2**60) - 12345
    sign_P = signs(base, torch.arange(x.shape[1])).float()
    wanted = sum(
        torch.roll(F.pad(part * sign, (0, 300 - part.shape[1])), turn, 1)
        for part, sign, turn in zip(x.split(300, 1), sign_P.split(300), turn_F.tolist(), strict=True)
    )
    there = x.to(place.device)
    fold = projection.folded_by_kernel if place.swapped else projection.folded
    close(fold(there, base, turn_F, 300).cpu(), wanted)


@everywhere
def test_what_an_elastic_term_sends(place):
    u, w = drawn(3, 5000).abs(), drawn(3, 5000, seed=1)
    if place.swapped:
        v, z = elastic.products_by_kernel(u.to(place.device), w.to(place.device))
    else:
        sent = to.terms.Elastic()._message(u.to(place.device), w.to(place.device))
        v, z = sent["v"], sent["z"]
    assert torch.equal(v.cpu(), u * w)
    close(z.cpu(), (u * w * w).sum(1, keepdim=True))


@everywhere
def test_a_step_with_momentum(place):
    x, grad, m = drawn(3, 1500), drawn(3, 1500, seed=1), drawn(3, 1500, seed=2)
    optimizer = to.SGD(0.1, momentum=0.9, weight_decay=0.01)
    there = [value.clone().to(place.device) for value in (x, grad, m)]
    if place.swapped:
        momentum_step(optimizer, *there, 0.1)
    else:
        optimizer.step(*there[:2], {"momentum": there[2]}, torch.ones(3), 0.1)
    wanted = 0.9 * m + grad + 0.01 * x
    close(there[2].cpu(), wanted)
    close(there[0].cpu(), x - 0.1 * wanted)


SPRINGS = {
    "head at home": {"terms": [to.terms.Elastic(0.5)], "personal": to.personal.Named("output.*")},
    "two": {"terms": [to.terms.Elastic(0.5), to.terms.Proximal(0.3)]},
    "drift": {"terms": [to.terms.Elastic(0.5), to.terms.Scaffold()]},
}


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("settings", SPRINGS.values(), ids=SPRINGS)
def test_rounds_with_springs_are_those_of_the_loop(device, settings):
    """On a GPU the steps have no gradient of their own, and are captured."""
    server, wanted = (after_rounds(settings, d, engine) for d, engine in ((device, "by-hand"), ("cpu", "loop")))
    close(server.shared_P.cpu(), wanted.shared_P, rtol=1e-3, atol=1e-4)
    for name in ("U", "V", "Z"):
        close(server.term_states["elastic"][name].cpu(), wanted.term_states["elastic"][name], rtol=1e-2, atol=1e-3)


def after_rounds(settings: dict, device: str, engine: str):
    """The server after some rounds of a model with one large layer."""
    x, y = drawn(24, 1, 15, 20), torch.arange(24) % 4
    data = to.data.Own(x, y, torch.arange(24) // 12, test=(x[:4], y[:4]), test_share=0.0)
    algorithm = to.Algorithm(to.Local(to.SGD(0.05), steps=3, batch_size=5), **settings)
    runtime, world = to.runtime.InProcess(device=device, engine=engine), to.World(data, to.participation.Always())
    track = prepare(to.Experiment(world, to.models.MLP(230), algorithm, rounds=3, runtime=runtime))
    state = track.begin()
    for t in range(3):
        state, _ = track.round(state, t)
    return state
