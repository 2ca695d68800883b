"""On which device things lie, without one: fake tensors refuse what a GPU's would."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from turnout.clients.state import ClientState
from turnout.clients.work import finite_clients
from turnout.engine.batches import address_batches
from turnout.engine.dropout import keep_mask
from turnout.types import Samples


def test_a_dropout_mask_is_where_the_activations_are():
    """The plain loop's key is a buffer that was made when the model was already on its device."""
    with FakeTensorMode():
        x = torch.zeros(4, 3, device="cuda")
        mask = keep_mask(torch.zeros((), dtype=torch.int64), x.shape, 0.5, False, x.dtype, x.device)
        assert (x * mask).device.type == "cuda"


def test_rows_that_a_client_keeps_may_lie_apart():
    """What it watched of itself is in the processor's memory, what it trained is not."""
    with FakeTensorMode():
        kept = ClientState(torch.zeros(3, 2, device="cuda"), seen={"layer": torch.zeros(3, 5)})
        finite_R = torch.ones(3, dtype=torch.bool, device="cuda")
        assert finite_clients(finite_R, kept.to_rows()).device.type == "cuda"


def test_the_order_of_samples_takes_rows_of_any_whole_numbers():
    x, client_c, steps_c = torch.zeros(5, 2), torch.tensor([3, 8]), torch.tensor([2, 2])
    wide = Samples(x, x[:, 0], torch.arange(5), torch.tensor([3, 2]))
    narrow = Samples(x, x[:, 0], torch.arange(5, dtype=torch.int32), torch.tensor([3, 2], dtype=torch.int32))
    found = [address_batches(samples, client_c, steps_c, 2, False, 0, 0).row_cJB for samples in (wide, narrow)]
    assert torch.equal(*found)
