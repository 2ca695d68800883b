"""Operations that know the client dimension against torch's own, client by client; and steps that leave some idle."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_engine import DEVICES, Residual, agree, dense, image, prepared, samples, trained
from torch import Tensor, nn
from torch.func import grad, vmap

from turnout.engine import network
from turnout.engine.gradients import Looped, Vmapped
from turnout.engine.job import cuda_graph_safe
from turnout.engine.stacked import StackedConvolution
from turnout.parts.optimizers import SGD, Adam
from turnout.parts.terms.baselines import APFL, MimeLite, Proximal
from turnout.parts.terms.control_variates import FedGATE, Scaffold
from turnout.parts.terms.elastic import Elastic

SHAPES = {  # clients, batch, inputs, outputs, size, kernel, stride, padding
    "plain": (3, 2, 2, 5, (6, 7), (3, 3), (1, 1), (0, 0)),
    "padded": (2, 3, 4, 17, (8, 8), (3, 3), (1, 1), (1, 1)),
    "strided": (2, 2, 3, 4, (9, 8), (3, 2), (2, 3), (1, 0)),
    "point": (3, 2, 4, 6, (8, 8), (1, 1), (2, 2), (0, 0)),
    "patches": (2, 1, 3, 8, (8, 8), (4, 4), (4, 4), (0, 0)),
}


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_convolution_of_clients_is_each_client_s_own(shape, device):
    c, B, i, o, size, kernel, stride, padding = shape
    x, W, b = drawn(c, B, i, *size).to(device), drawn(c, o, i, *kernel).to(device), drawn(c, o).to(device)

    def own(x: Tensor, W: Tensor, b: Tensor) -> Tensor:
        return StackedConvolution.apply(x, W, b, stride, padding).square().sum()

    def plain(x: Tensor, W: Tensor, b: Tensor) -> Tensor:
        return nn.functional.conv2d(x, W, b, stride, padding).square().sum()

    found = vmap(grad(own, argnums=(0, 1, 2)))(x, W, b)
    for k in range(c):
        expected = grad(plain, argnums=(0, 1, 2))(x[k], W[k], b[k])
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine[k], theirs, rtol=1e-4, atol=1e-3)
    by_sample = vmap(vmap(grad(own, argnums=1), (0, None, None)))(x.unsqueeze(2), W, b)
    torch.testing.assert_close(by_sample.sum(1), found[1], rtol=1e-4, atol=1e-3)


class Pictures(nn.Module):
    """Convolutions as layers and as a function, of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4)
        self.b, self.c = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 3, padding="same", groups=2)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.a(x)))
        h = h + nn.functional.conv2d(h, self.b.weight, None, 1, 1) + self.c(h)
        return self.out(h.mean((2, 3)))


def test_modules_train_alike_with_stacked_convolutions(monkeypatch):
    """On a CPU torch's own are used: here the operation that a GPU uses, in its plain form."""

    def conv2d(x: Tensor, W: Tensor, b: Tensor | None = None, stride=1, padding=0, dilation=1, groups=1) -> Tensor:
        if isinstance(padding, str) or groups > 1:
            return NotImplemented
        pairs = [(n, n) if isinstance(n, int) else n for n in (stride, padding)]
        return StackedConvolution.apply(x, W, torch.zeros_like(W[:, 0, 0, 0]) if b is None else b, *pairs)

    monkeypatch.setitem(network.OWN, torch.conv2d, conv2d)
    agree(trained(Pictures(), Vmapped), trained(Pictures(), Looped))


class Attending(nn.Module):
    """Six positions that look at one another, with and without looking ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.squeeze(1)).view(-1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        one = nn.functional.scaled_dot_product_attention(q, k, v)
        two = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        return self.out((one + two).transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize("device", DEVICES)
def test_attention_of_clients_is_each_client_s_own(device):
    agree(trained(Attending(), Vmapped, device=device), trained(Attending(), Looped))


@pytest.mark.parametrize("make", [dense, lambda: image(0.3), Residual])
@pytest.mark.parametrize("kind", [None, Vmapped])
def test_a_client_without_samples_stays_as_it_is(make, kind):
    """So that on a GPU clients who have finished may take part in a step."""
    trainer, job = prepared(make(), kind, 5, 1, "cpu")
    flat_cP = job.start_P.expand(3, -1).clone()
    given = samples([4, 4, 4])
    x, y = given.x.view(3, 4, 1, 6, 6), given.y.view(3, 4)
    mask_cB = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    from turnout.engine.batches import Batch

    keys_ck = torch.arange(3 * len(trainer.network.dropout_keys)).view(3, -1)
    loss_c = trainer.gradients.descend(flat_cP, {}, Batch(x, y, mask_cB, keys_ck), 0.1, 0.0)
    assert torch.equal(flat_cP[2], job.start_P)
    assert float(loss_c[2]) == 0
    assert (flat_cP[:2] != job.start_P).any(1).all()


@pytest.mark.parametrize("device", DEVICES)
def test_one_client_with_very_many_steps(device):
    """On a GPU few sizes of the active prefix occur; nothing of the others moves after their last step."""
    steps = {"steps_C": torch.tensor([40, 9, 5, 2, 1])}
    oracle = trained(dense(), Looped, **steps)
    trainer, job = prepared(dense(), None, 5, 1, device, **steps)
    for _ in range(3):
        agree(trainer.train(job), oracle)
    shares = dataclasses.replace(job, steps_C=torch.tensor([7, 7, 7, 7, 7]))
    agree(trainer.train(shares), trained(dense(), Looped, steps_C=torch.tensor([7, 7, 7, 7, 7])))


def test_only_parts_that_declare_it_are_captured():
    """The declaration is inherited; a subclass whose steps depend on more than tensors withdraws it."""

    class Inherits(SGD):
        """Steps as SGD's."""

    class Mine(SGD):
        """Takes steps that depend on more than tensors."""

        cuda_graph_safe = False

    _, job = prepared(dense(), None, 5, 1, "cpu", terms=[Proximal(0.1), Elastic(), Scaffold(), FedGATE(), APFL()])
    assert cuda_graph_safe(job)
    assert cuda_graph_safe(dataclasses.replace(job, optimizer=Adam(0.1)))
    assert cuda_graph_safe(dataclasses.replace(job, optimizer=Inherits(0.1)))
    assert not cuda_graph_safe(dataclasses.replace(job, optimizer=Mine(0.1)))
    assert not cuda_graph_safe(dataclasses.replace(job, terms=[MimeLite()]))
    assert not cuda_graph_safe(dataclasses.replace(job, magnitudes=True))
