"""`nn.LSTM` and `nn.GRU` as users write them: stacked over clients they train as in the plain loop."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_engine import COUNTS, DEVICES, agree, prepared, samples, trained
from torch import Tensor, nn

from turnout.engine.gradients import Looped, Vmapped
from turnout.engine.network import ForClients
from turnout.engine.trainers import pick_gradients
from turnout.models.recurrent import LSTMLayer
from turnout.parts.optimizers import Adam
from turnout.types import Samples


class Text(nn.Module):
    """A recurrent layer over six positions of six numbers; scores from its output and its last state."""

    def __init__(self, kind: type, **options: object) -> None:
        super().__init__()
        self.layer = kind(6, 5, **options)
        self.first = bool(options.get("batch_first"))
        ways = 2 if options.get("bidirectional") else 1
        self.head = nn.Linear(5 * (ways + 1), 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.squeeze(1)
        out, last = self.layer(x if self.first else x.transpose(0, 1))
        last = last[1] if isinstance(last, tuple) else last
        out = out if self.first else out.transpose(0, 1)
        return self.head(torch.cat([out.mean(1), last[-1]], 1))


MODELS = {
    "lstm": lambda: Text(nn.LSTM, batch_first=True),
    "two layers": lambda: Text(nn.LSTM, num_layers=2),
    "both ways": lambda: Text(nn.LSTM, bidirectional=True, bias=False, batch_first=True),
    "gru": lambda: Text(nn.GRU, num_layers=2, bidirectional=True),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_stacked_recurrence_equals_the_loop(make, device):
    oracle = trained(make(), Looped)
    agree(trained(make(), Vmapped, device=device), oracle)
    changes = {"optimizer": Adam(0.01, eps=1e-3, moments="fresh")}
    agree(trained(make(), Vmapped, device=device, **changes), trained(make(), Looped, **changes))


def test_squares_of_single_samples_gradients():
    trainer, job = prepared(MODELS["two layers"](), Vmapped, 5, 1, "cpu")
    from turnout.engine.own_samples import OwnSamples, fisher

    flat_cP = job.start_P.expand(5, -1).clone()
    own = OwnSamples.of(job.samples, torch.arange(5), job.client_C, 0, most=3)
    looped = Looped(trainer.network)
    found = fisher(trainer.gradients, flat_cP, {}, own, 2)
    torch.testing.assert_close(found, fisher(looped, flat_cP, {}, own, 2), rtol=1e-10, atol=1e-14)


def test_recurrent_models_train_with_torch_s_kernels_on_a_cpu():
    trainer, _ = prepared(MODELS["lstm"](), Looped, 5, 1, "cpu")
    assert isinstance(pick_gradients("auto", trainer.network, None, on_gpu=False), Looped)
    assert isinstance(pick_gradients("auto", trainer.network, None, on_gpu=True), Vmapped)


def test_a_padded_text_is_read_as_if_it_were_not_padded():
    torch.manual_seed(0)
    layer, x = LSTMLayer(3, 4).double(), torch.randn(2, 5, 3, dtype=torch.float64)
    real = torch.tensor([[False, True, True, False, True], [True, True, False, False, False]])
    found = layer(x, real)
    whole = layer(x[:1, [1, 2, 4]])
    torch.testing.assert_close(found[0, [1, 2, 4]], whole[0])
    torch.testing.assert_close(found[0, 3], whole[0, 1])  # carried over
    assert (found[0, 0] == 0).all()
    torch.testing.assert_close(found[1, 4], layer(x[1:, :2])[0, 1])
    with ForClients():
        torch.testing.assert_close(layer(x, real), found)


def test_texts_of_numbers_under_a_mask():
    """Short batches: the samples that pad them change nothing."""
    given: Samples = dataclasses.replace(samples(COUNTS))
    oracle = trained(MODELS["gru"](), Looped, samples=given, batch_size=3)
    agree(trained(MODELS["gru"](), Vmapped, chunk=2, samples=given, batch_size=3), oracle)
