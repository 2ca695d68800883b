"""LSTM and GRU of many clients against ordinary autograd, on every implementation there is: the plain form always, on a
machine with a GPU and Triton also the kernels of engine/kernels/recurrence.py, and where Triton interprets its
kernels (TRITON_INTERPRET=1) on a CPU as well. The kernels round products as TF32 does.
"""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch
from test_engine import prepared, trained
from test_recurrent import MODELS, Text
from torch import Tensor, nn

from turnout.engine import recurrent
from turnout.engine.batches import Batch
from turnout.engine.gradients import Looped, Vmapped
from turnout.engine.kernels import recurrence
from turnout.engine.network import Network
from turnout.layout import lay_out
from turnout.machine import triton_tools

PLACES = {"plain": "cpu"}
if triton_tools.installed() and torch.cuda.is_available():
    PLACES["kernels"] = "cuda"
if triton_tools.installed() and os.environ.get("TRITON_INTERPRET") == "1":
    PLACES["kernels, interpreted"] = "cpu"

everywhere = pytest.mark.parametrize("place", PLACES)
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
TF32 = 4e-3  # a product's rounding, 2^-11, and what the positions make of it


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_autograd(kind: str, a: Tensor, U: Tensor, b: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """h and c [c, B, T, H] after every position, as one would write it."""
    hs, cs = [], []
    for t in range(a.shape[2]):
        u = h @ U.transpose(1, 2) + b[:, None]
        if kind == "lstm":
            i, f, g, o = (a[:, :, t] + u).chunk(4, 2)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        else:
            r, z = (a + b for a, b in zip(a[:, :, t].chunk(3, 2)[:2], u.chunk(3, 2)[:2], strict=True))
            n = (a[:, :, t].chunk(3, 2)[2] + r.sigmoid() * u.chunk(3, 2)[2]).tanh()
            h = (1 - z.sigmoid()) * n + z.sigmoid() * h
        hs.append(h)
        cs.append(c)
    return torch.stack(hs, 2), torch.stack(cs, 2)


def near(found: Tensor, wanted: Tensor, place: str) -> None:
    """Within rounding of the largest number of its row."""
    most = wanted.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    apart = ((found.cpu().double() - wanted) / most).abs().max()
    assert apart < (2e-5 if place == "plain" else TF32)


@pytest.fixture
def in_one_kernel(place, monkeypatch):
    """Whatever is asked for runs in the kernels, or in the plain form."""
    monkeypatch.setattr(recurrent, "_kernels", lambda kind, *_: None if place == "plain" else KERNELS[kind])


KERNELS = recurrence.KERNELS
SHAPES = {  # clients, batch, positions, hidden size
    "wide": (1, 10, 3, 256),
    "odd": (2, 3, 4, 100),
    "small": (2, 20, 3, 5),
    "one": (3, 1, 1, 33),
}


@everywhere
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("kind", "cells"), [("lstm", True), ("lstm", False), ("gru", False)])
def test_a_layer_is_autograds(place, shape, kind, cells, in_one_kernel):
    """Also with gradients of very different sizes, and weights that are columns of a matrix."""
    c, B, T, H = shape
    G, C = (4 * H, H) if kind == "lstm" else (3 * H, 0)
    size_B = (10.0 ** -torch.arange(B)).clamp(min=1e-12)[:, None, None]
    a, b, h, c0 = drawn(c, B, T, G), drawn(c, G, seed=1), 3 * drawn(c, B, H, seed=2), drawn(c, B, C, seed=3)
    U = drawn(c, 3 + G * H, seed=4)[:, 3:].div(H**0.5)
    dh, dc = drawn(c, B, T, H, seed=5) * size_B, drawn(c, B, T, C, seed=6) * size_B * cells
    given = [v.double().requires_grad_() for v in (a, U.unflatten(1, (G, H)), b, h, c0)]
    wanted = by_autograd(kind, *given)
    grads = torch.autograd.grad(wanted, given, (dh.double(), dc.double()), materialize_grads=True)
    device = PLACES[place]
    U = U.to(device).unflatten(1, (G, H))
    a, b, h, c0, dh, dc = (v.to(device) for v in (a, b, h, c0, dh, dc))
    hs, cs, kept = recurrent.Recurrence.forward(a, U, b, h, c0, kind)
    da, du, dh0, dc0 = recurrent.RecurrenceBackward.forward(dh, dc if cells else None, U, c0, cs, kept, kind)
    dU = du.flatten(1, 2).transpose(1, 2) @ torch.cat([h.unsqueeze(2), hs[:, :, :-1]], 2).flatten(1, 2)
    near(hs, wanted[0].detach(), place)
    for found, expected in ((da, grads[0]), (dh0, grads[3])):
        near(found, expected, place)
    near(dU.flatten(1), grads[1].flatten(1), place)
    near(du.sum((1, 2)), grads[2], place)
    if kind == "lstm":
        near(cs, wanted[1].detach(), place)
        near(dc0, grads[4], place)


@everywhere
@pytest.mark.parametrize("make", [MODELS["two layers"], MODELS["gru"]], ids=["lstm", "gru"])
def test_training_is_the_loop_s(place, make, in_one_kernel):
    """Users' modules under `vmap`, with short batches; on a GPU steps are captured from the third on."""
    oracle = trained(make(), Looped)
    trainer, job = prepared(make(), Vmapped, 5, 1, PLACES[place])
    given = dataclasses.replace(job.samples, x=job.samples.x.float())
    found = trainer.train(dataclasses.replace(job, start_P=job.start_P.float(), samples=given))
    near(found.flat_CP, oracle.flat_CP, place)
    near(found.loss_C, oracle.loss_C, place)


@everywhere
def test_an_empty_batch_has_no_gradient(place, in_one_kernel):
    torch.manual_seed(0)
    model = Text(nn.LSTM, bidirectional=True, bias=False).to(PLACES[place])
    network = Network.of(model, lay_out(model), nn.CrossEntropyLoss(reduction="none"))
    flat, x, y = 0.3 * drawn(2, network.layout.width), drawn(2, 4, 1, 6, 6, seed=1), torch.arange(8).view(2, 4) % 3
    given = (v.to(PLACES[place]) for v in (x, y, torch.tensor([[1.0, 1, 0, 0], [0, 0, 0, 0]])))
    Vmapped(network).gradient(there := flat.to(PLACES[place]), {}, Batch(*given, None), out := torch.empty_like(there))
    assert out[0].abs().max() > 0
    assert (out[1] == 0).all()


def test_the_kernel_is_for_small_batches_in_tf32(monkeypatch):
    """Which form is taken depends on shape and precision alone, so that a run that goes on does as it did."""
    U, large = torch.empty(1024, 256), torch.empty(1032, 258)
    monkeypatch.setattr(recurrence, "precision", lambda: "tf32")
    assert recurrence.fits(10, 80, U)
    assert not recurrence.fits(33, 80, U)
    assert not recurrence.fits(10, 80, large)
    assert not recurrence.fits(10, 1 << 20, U)
    assert not recurrence.fits(0, 80, U)
    assert not recurrence.fits(32, 60_000, U[:768])  # of a GRU more numbers are kept than there are gates
    assert recurrent._kernels("lstm", torch.empty(10, 80, 8), U) is None  # not on a GPU
    monkeypatch.setattr(recurrence, "precision", lambda: "ieee")
    assert not recurrence.fits(10, 80, U)


def by_torch(U: Tensor) -> tuple[Tensor, Tensor]:
    """What `recurrence.rounded` does, without its padding."""
    unit = 2.0 ** (torch.frexp(U.abs().amax(2).clamp(min=2.0**-100))[1] - 14)
    unit = torch.where(torch.isfinite(U.sum(2)), unit, torch.inf)
    return (U / unit[:, :, None]).half(), unit


@everywhere
def test_weights_in_float16_keep_what_tf32_keeps(place):
    """Ten bits behind the point, whatever the size of a row; what is not finite stays so."""
    U = drawn(2, 4 * 32, 32) * (10.0 ** torch.linspace(-28, 30, 128))[:, None]
    U[1, 3], U[1, 4, 2], U[1, 5, 2] = 0.0, torch.inf, torch.nan
    w, unit = by_torch(U) if place == "plain" else recurrence.rounded(U.to(PLACES[place]))
    found, ordinary = w.cpu().double() * unit.cpu().double()[:, :, None], torch.isfinite(U).all(2)
    assert ((found - U)[ordinary].abs() <= 2.0**-11 * U[ordinary].abs()).all()
    assert not torch.isfinite(found[1, 4]).any()
    assert torch.isnan(found[1, 5, 2])
    if place != "plain":
        assert torch.equal(w.cpu()[ordinary], by_torch(U)[0][ordinary])
        turned = recurrence.turned(U.to(PLACES[place]))[0].unflatten(2, (-1, 4)).permute(0, 3, 2, 1).flatten(1, 2)
        assert torch.equal(turned.cpu()[ordinary], w.cpu()[ordinary])
