"""All clients' samples in one pass over a frozen base: the plain loop is the oracle."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import turnout as to
from decoder import WORDS, Decoder, texts
from turnout.engine.batches import Batch
from turnout.engine.dropout import AddressedCalls
from turnout.engine.gradients import Looped
from turnout.engine.joined import Joined, per_client
from turnout.engine.network import Network
from turnout.engine.trainers import as_the_loop, make_trainer
from turnout.errors import UserError
from turnout.layout import lay_out
from turnout.settings import InProcess

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
LAYERS = "last.*|head.*|words.*|layers.0.before.*|layers.1.down.bias|layers.1.up.*"
ADAPTERS = {
    "both factors": to.LoRA(rank=2),
    "only B": to.LoRA(rank=2, frozen_a=True),
    "dropout": to.LoRA(rank=2, dropout=0.3),
    "and layers of the base": to.LoRA(rank=2, train=LAYERS),
}


def network_of(adapter: to.LoRA, checkpoint: str = "", base: nn.Module | None = None, device: str = "cpu") -> Network:
    torch.manual_seed(1)
    base = Decoder() if base is None else base
    module = to.models.Adapted(base, adapter, checkpoint=checkpoint).around(base).double().to(device)
    return Network.of(module, lay_out(module), to.tasks.NextCharacter(ignore=0).loss)


def two_batches(network: Network) -> tuple[Tensor, Batch]:
    """Weights of three clients, and a step in which two of them have short batches."""
    generator = torch.Generator().manual_seed(2)
    first_P = network.first_weights()
    there = first_P.device
    flat_cP = first_P + 0.3 * torch.randn(3, len(first_P), generator=generator, dtype=torch.float64).to(there)
    x, y, _ = (value.to(there) for value in texts(3, 4))
    mask_cB = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0.0]], dtype=torch.float64).to(there)
    keys_ck = torch.randint(1 << 60, (3, len(network.dropout_keys)), generator=generator).to(there)
    return flat_cP, Batch(x.view(3, 4, -1), y.view(3, 4, -1), mask_cB, keys_ck)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("checkpoint", ["", "layers.*"])
@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
def test_gradients_are_those_of_the_loop(adapter: to.LoRA, checkpoint: str, device: str) -> None:
    network = network_of(adapter, checkpoint, device=device)
    flat_cP, batch = two_batches(network)
    loop, joined = Looped(network.twin()), Joined(network)
    found, wanted = torch.empty_like(flat_cP), torch.empty_like(flat_cP)
    torch.testing.assert_close(joined.gradient(flat_cP, {}, batch, found), loop.gradient(flat_cP, {}, batch, wanted))
    assert wanted.abs().amax(1).min() > 1e-3  # every client has a gradient
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    moved, wanted = flat_cP.clone(), flat_cP.clone()
    joined.descend(moved, {}, batch, 0.1, 0.01)
    loop.descend(wanted, {}, batch, 0.1, 0.01)
    torch.testing.assert_close(moved, wanted, rtol=0, atol=1e-12)
    joined.add_squares(flat_cP, {}, batch, found, True, 0.5)
    loop.add_squares(flat_cP, {}, Batch(batch.x, batch.y, batch.mask_cB, None, False), wanted, True, 0.5)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(joined.outputs(flat_cP, {}, batch.x), loop.outputs(flat_cP, {}, batch.x))


def test_the_base_is_held_once() -> None:
    network = network_of(to.LoRA(rank=2))
    twins = [n.module for n in (network, network.twin(), Joined(network).joined, Joined(network).twin().network)]
    held = [{p.data_ptr() for p in twin.parameters() if not p.requires_grad} for twin in twins]
    assert held[0] == held[1] == held[2] == held[3]
    frozen = {name for name, p in network.module.named_parameters() if not p.requires_grad}
    assert frozen
    assert not frozen & {slot.name for slot in network.layout.slots}


class CallsDropout(Decoder):
    """Dropout as a function, and within attention."""

    def forward(self, x: Tensor) -> Tensor:
        h = functional.dropout(self.words(x), 0.3, self.training)
        q = self.layers[0].attention.q_proj(h)[:, None]
        p = 0.4 if self.training else 0.0
        h = functional.scaled_dot_product_attention(q, h[:, None], h[:, None], is_causal=True, dropout_p=p)[:, 0]
        return self.head(self.last(h))


def test_dropout_that_is_called_has_the_masks_of_each_client() -> None:
    network = network_of(to.LoRA(rank=2), base=CallsDropout())
    x, y, _ = texts(1, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = make_trainer(InProcess(device="cpu", precision="float64"), network, None, x, y)
    assert trainer.gradients.title == "joined"
    assert network.calls_dropout
    flat_cP, batch = two_batches(network)
    loop, joined, plain = Looped(network.twin()), Joined(network), replace(batch, training=False)
    found, wanted, same = torch.empty_like(flat_cP), torch.empty_like(flat_cP), torch.empty_like(flat_cP)
    batch = replace(batch, keys_ck=torch.tensor([[5] * network.keys, [6] * network.keys, [5] * network.keys]))
    loss_c = joined.gradient(flat_cP, {}, batch, found)
    torch.testing.assert_close(loss_c, loop.gradient(flat_cP, {}, batch, wanted))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    joined.gradient(flat_cP, {}, plain, same)
    assert not torch.allclose(same, wanted)
    other = replace(batch, keys_ck=batch.keys_ck + torch.tensor([[1], [0], [0]]))
    joined.gradient(flat_cP, {}, other, same)
    assert not torch.allclose(same[0], found[0])
    torch.testing.assert_close(same[1:], found[1:])


def test_attention_written_out_is_that_of_torch() -> None:
    q, k, v = (torch.randn(2, heads, 5, 3, dtype=torch.float64) for heads in (4, 2, 2))
    mask = torch.ones(5, 5, dtype=torch.bool).tril(1)
    for more in ({"is_causal": True}, {"attn_mask": mask, "scale": 0.3}, {"attn_mask": mask.double()}):
        wanted = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **more)
        with AddressedCalls(torch.zeros(1, dtype=torch.int64)):
            same = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **more)
            found = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, dropout_p=1e-9, **more)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(same, wanted)


class MixesSamples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(h - h.mean(0))


class ReadsAWeight(MixesSamples):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)) + self.b.bias.flip(0)


@pytest.mark.parametrize("base", [MixesSamples(), ReadsAWeight()])
def test_a_model_whose_samples_cannot_go_together_is_found_out(base: nn.Module) -> None:
    module = to.models.Adapted(base, to.LoRA(rank=2, targets="a", train="b.bias")).around(base)
    network = Network.of(module, lay_out(module), to.tasks.Classification().loss)
    x, y = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
    with pytest.warns(UserWarning, match="cannot go through this model together"):
        trainer = make_trainer(InProcess(device="cpu"), network, None, x, y)
    assert trainer.gradients.title == "vmap"


def test_batch_statistics_are_not_joined() -> None:
    base = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    module = to.LoRA(rank=2, targets="0").add_to(base)
    assert per_client(Network.of(module, lay_out(module), to.tasks.Classification().loss)) is None


def test_a_model_that_agrees_is_kept() -> None:
    network = network_of(to.LoRA(rank=2))
    x, y, _ = texts(1, 4)
    joined = Joined(network)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_the_loop(joined, network, x, y) is joined


def experiment(**settings: object) -> to.Experiment:
    """Absent and partial clients, unequal batches."""
    x, y, owner = texts(5, 7)
    torch.manual_seed(4)
    return to.Experiment(
        to.World(to.data.Own(x, y, owner, test_share=0.2, classes=WORDS), to.participation.Traces(first=4)),
        to.models.Adapted(Decoder(), to.LoRA(rank=2)),
        to.Algorithm(to.Local(to.Adam(0.01), epochs=2, batch_size=4)),
        task=to.tasks.NextCharacter(ignore=0),
        rounds=3,
        runtime=to.runtime.InProcess(**settings),  # type: ignore[arg-type]
    )


def test_a_run_is_that_of_the_loop_in_any_chunks(tmp_path: Path) -> None:
    ways = [{}, {"engine": "loop"}, {"chunk": 2, "threads": 1}, {"engine": "joined", "chunk": 3}]
    runs = [to.run(experiment(precision="float64", **way), tmp_path / str(i)) for i, way in enumerate(ways)]
    models = [run.weights() for run in runs]
    assert float(models[0]["layers.0.attention.q_proj.lora_B.weight"].abs().max()) > 1e-3
    for model in models[1:]:
        for name, value in model.items():
            torch.testing.assert_close(value, models[0][name], rtol=0, atol=1e-9)


def test_a_base_in_sixteen_bits_trains_almost_the_same(tmp_path: Path) -> None:
    exact, rounded, looped = (
        to.run(experiment(**way), tmp_path / str(i))
        for i, way in enumerate([{}, {"base_precision": "bfloat16"}, {"base_precision": "bfloat16", "engine": "loop"}])
    )
    found, near, other = (run.weights() for run in (exact, rounded, looped))
    name = "layers.1.attention.v_proj.lora_B.weight"
    assert near[name].dtype == torch.float32
    assert not torch.equal(found[name], near[name])
    apart = (found[name] - near[name]).norm() / found[name].norm()
    assert float(apart) < 0.2  # Adam's first steps have the sign of small numbers
    assert float((other[name] - near[name]).norm() / found[name].norm()) < 0.2
    assert rounded.final("global_loss") == pytest.approx(exact.final("global_loss"), rel=0.01)


def test_sixteen_bits_without_a_frozen_base_are_refused(tmp_path: Path) -> None:
    data = to.data.Digits(clients=3)
    runtime = to.runtime.InProcess(base_precision="bfloat16")
    with pytest.raises(UserError, match="this model has none: leave it out, or put an adapter on the model"):
        to.run(to.Experiment(to.World(data), to.models.MLP(4), rounds=1, runtime=runtime), tmp_path / "run")
