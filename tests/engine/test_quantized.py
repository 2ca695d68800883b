"""A base in 8 or 4 bits: the gradients of the plain loop on the unpacked base, and only packed weights are held."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from test_joined import DEVICES, experiment, two_batches
from torch import nn
from torch.nn import functional

import turnout as to
from decoder import Decoder, texts
from turnout.engine.gradients import Gradients, Looped, Vmapped
from turnout.engine.joined import Joined, can_join
from turnout.engine.network import Network
from turnout.engine.trainers import client_bytes
from turnout.errors import UserError
from turnout.layout import copied, lay_out
from turnout.models.quantized import PackedLinear, frozen_bytes, pack
from turnout.running.tracks.prepare import prepare

ENGINES: dict[str, type[Gradients]] = {"joined": Joined, "loop": Looped, "vmap": Vmapped}


def network_of(module: nn.Module) -> Network:
    return Network.of(module, lay_out(module), to.tasks.NextCharacter(ignore=0).loss)


def adapted(checkpoint: str = "", width: int = 16) -> nn.Module:
    torch.manual_seed(1)
    base = Decoder(width)
    return to.models.Adapted(base, to.LoRA(rank=2), checkpoint=checkpoint).around(base)


def unpacked(module: nn.Module) -> nn.Module:
    """The same model with ordinary layers."""
    found = copied(module)
    for path, layer in list(found.named_modules()):
        if isinstance(layer, PackedLinear):
            plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, dtype=torch.float64)
            plain.weight.data = layer.packed.unpacked(torch.float64)
            plain.bias = layer.bias
            parent, _, leaf = path.rpartition(".")
            setattr(found.get_submodule(parent), leaf, plain.requires_grad_(False))
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("checkpoint", ["", "layers.*"])
@pytest.mark.parametrize("precision", ["int8", "nf4"])
def test_gradients_are_those_of_the_loop_on_the_unpacked_base(
    precision: str, checkpoint: str, engine: str, device: str
) -> None:
    module = pack(adapted(checkpoint).to(device), precision).double()
    network, plain = network_of(module), network_of(unpacked(module))
    assert can_join(network)
    assert sum(isinstance(layer, PackedLinear) for layer in network.module.modules()) == 12  # all but the odd head
    flat_cP, batch = two_batches(network)
    found, wanted = torch.empty_like(flat_cP), torch.empty_like(flat_cP)
    loss_c = ENGINES[engine](network).gradient(flat_cP, {}, batch, found)
    torch.testing.assert_close(loss_c, Looped(plain).gradient(flat_cP, {}, batch, wanted))
    assert wanted.abs().amax(1).min() > 1e-3
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("precision", "bits", "error"), [("int8", 8, 0.01), ("nf4", 4, 0.12)])
def test_weights_are_packed_and_held_once(precision: str, bits: int, error: float) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(256, 512, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    module = pack(nn.Sequential(copy.deepcopy(linear), nn.LayerNorm(512)), precision)
    packed = module[0].packed
    assert packed.nbytes == pytest.approx(256 * 512 * bits / 8, rel=0.05)  # and scales
    assert frozen_bytes(module, copied(module), copy.deepcopy(module)) == packed.nbytes
    apart = (module[0].weight - linear.weight).float().norm() / linear.weight.float().norm()
    assert 1e-4 < float(apart) < error
    x = torch.randn(3, 256, dtype=torch.bfloat16)
    assert torch.equal(module[0](x), functional.linear(x, module[0].weight))


@pytest.mark.parametrize("precision", ["int8", "nf4"])
def test_a_step_keeps_no_unpacked_weights(precision: str) -> None:
    x, y, _ = texts(1, 2)
    plain = network_of(adapted(width=64))
    packed = network_of(pack(adapted(width=64), precision))
    assert client_bytes(packed, x, y) <= client_bytes(plain, x, y)


@pytest.mark.parametrize("precision", ["int8", "nf4"])
def test_a_run_is_near_that_in_sixteen_bits_and_resumes(precision: str, tmp_path: Path) -> None:
    given, rounded = experiment(base_precision=precision), experiment(base_precision="bfloat16")
    near, run = to.run(rounded, tmp_path / "near"), to.run(given, tmp_path / "run")
    assert run.final("global_loss") == pytest.approx(near.final("global_loss"), rel=0.01)
    assert run.final("global_loss") != near.final("global_loss")
    to.run(given.but(rounds=1), tmp_path / "parts")
    resumed = to.run(given, tmp_path / "parts", resume=True)
    first, found, exact = run.weights(), resumed.weights(), near.weights()
    assert first.keys() == exact.keys()
    for name, value in first.items():
        assert torch.equal(value, found[name]), name
        if "lora" not in name:
            assert torch.equal(value, exact[name]), name  # the base as it was given
    memory = [prepare(one).memory()["base"] for one in (given, rounded)]
    assert memory[0] < memory[1]


def test_what_stays_as_it_is() -> None:
    tied = nn.ModuleDict({"words": nn.Embedding(64, 16), "head": nn.Linear(16, 64, bias=False)})
    tied["head"].weight = tied["words"].weight
    tied.update({"odd": nn.Linear(5, 3), "trained": nn.Linear(8, 8), "bias": nn.Linear(8, 8), "one": nn.Linear(8, 8)})
    tied["again"] = tied["one"]
    for name, parameter in tied.named_parameters():
        parameter.requires_grad_(name.startswith("trained") or name == "bias.bias")
    pack(tied, "int8")
    assert [name for name, layer in tied.items() if isinstance(layer, PackedLinear)] == ["one", "again"]
    assert tied["one"] is tied["again"]
    with pytest.raises(UserError, match="this model has none whose number of weights is a multiple of 64"):
        pack(nn.Sequential(nn.Linear(5, 3)).requires_grad_(False), "nf4")


def test_the_library_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchao"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(UserError, match=r"runtime.base_precision = 'nf4' needs torchao.*turnout\[quantized\]"):
        to.run(experiment(base_precision="nf4"), tmp_path / "run")
