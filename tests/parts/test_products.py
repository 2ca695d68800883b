"""The mean of the products B A, and the best approximation of rank r of it: against M written out and its own SVD."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import turnout as to
from decoder import WORDS, Decoder, texts
from turnout.errors import UserError
from turnout.layout import Slot
from turnout.parts.updates import Updates
from turnout.types import Turnout

RANK, IN, OUT = 2, 5, 4
SLOTS = (
    Slot("layer.lora_A.weight", (RANK, IN), 0, RANK * IN),
    Slot("other", (3,), RANK * IN, 3),
    Slot("layer.lora_B.weight", (OUT, RANK), RANK * IN + 3, OUT * RANK),
)
WIDTH = RANK * IN + 3 + OUT * RANK


def factors(flat_P: Tensor) -> tuple[Tensor, Tensor]:
    return flat_P[: RANK * IN].view(RANK, IN), flat_P[RANK * IN + 3 :].view(OUT, RANK)


def product(flat_P: Tensor) -> Tensor:
    A, B = factors(flat_P)
    return B @ A


def replies(update_RP: Tensor, start_P: Tensor, **more: Tensor) -> Updates:
    """One client of the cohort is absent."""
    clients = len(update_RP)
    work_C = torch.tensor([1.0] * clients + [0.0])
    turnout = Turnout(torch.arange(clients + 1), work_C, 1.0, work_C, torch.ones_like(work_C))
    client_R = torch.arange(clients)
    return Updates(0, 0, client_R, update_RP, start_P, turnout, client_R, slots=SLOTS, **more)


def drawn(clients: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    start_P = torch.randn(WIDTH, generator=generator, dtype=torch.float64)
    return torch.randn(clients, WIDTH, generator=generator, dtype=torch.float64), start_P


@pytest.mark.parametrize("weight", [[0.5, 0.3, 0.2], [0.5, 0.1, 0.05], [0.9, 0.0, 0.4]])
@pytest.mark.parametrize("own", [False, True])
def test_the_product_is_the_best_approximation_of_the_mean_product(weight: list[float], own: bool) -> None:
    update_RP, start_P = drawn(3)
    weight_R = torch.tensor(weight, dtype=torch.float64)
    begun_RP = start_P + 0.3 * drawn(3)[0].flip(1) if own else start_P.expand(3, -1)
    scale_R = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)  # the second did half of its work, and doubled it
    updates = replies(update_RP * scale_R[:, None], start_P, sent_scale_R=scale_R)
    updates = Updates(**{**vars(updates), "start_RP": begun_RP}) if own else updates
    M = product(start_P)
    for w, scale, begun, update in zip(weight_R, scale_R, begun_RP, update_RP, strict=True):
        M = M + w * scale * (product(begun + update) - product(begun))
    U, S, V = torch.linalg.svd(M)
    wanted = U[:, :RANK] @ torch.diag(S[:RANK]) @ V[:RANK]
    found = to.aggregation.ProductMean().combine(updates, weight_R)
    new_P = start_P + found.update_P
    torch.testing.assert_close(product(new_P), wanted)
    assert found.extra["discarded_energy"] == pytest.approx(float(S[RANK:].square().sum() / S.square().sum()))
    torch.testing.assert_close(found.update_P[RANK * IN : RANK * IN + 3], (weight_R * scale_R) @ update_RP[:, 10:13])
    A, old = factors(new_P)[0], factors(start_P)[0]
    assert float(A.norm()) == pytest.approx(float(old.norm()))  # as large as before
    others = [turn @ A for turn in (-torch.eye(2).double(), torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double())]
    assert all(float((A - old).norm()) <= float((other - old).norm()) for other in others)


def test_one_client_is_its_own_mean() -> None:
    update_RP, start_P = drawn(1)
    found = to.aggregation.ProductMean().combine(replies(update_RP, start_P), torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(product(start_P + found.update_P), product(start_P + update_RP[0]))
    assert found.extra["discarded_energy"] < 1e-20


def test_where_nothing_is_learnt_the_factors_stay() -> None:
    update_RP, start_P = drawn(2)
    start_P[RANK * IN + 3 :] = 0  # B
    update_RP[:, : RANK * IN] *= 0.5
    update_RP[:, RANK * IN + 3 :] = 0
    found = to.aggregation.ProductMean().combine(replies(update_RP, start_P), torch.tensor([0.5, 0.5]).double())
    torch.testing.assert_close(found.update_P, update_RP.mean(0))


def experiment(model: object, **algorithm: object) -> to.Experiment:
    x, y, owner = texts(5, 7)
    return to.Experiment(
        to.World(to.data.Own(x, y, owner, test_share=0.2, classes=WORDS), to.participation.Dropout(0.3)),
        model,
        to.Algorithm(to.Local(to.SGD(0.5), epochs=2, batch_size=4), **algorithm),
        task=to.tasks.NextCharacter(ignore=0),
        rounds=3,
    )


def test_a_run_records_the_discarded_energy(tmp_path: Path) -> None:
    model = to.models.Adapted(Decoder, to.LoRA(rank=2))
    run = to.run(experiment(model, aggregation=to.aggregation.ProductMean()), tmp_path / "run")
    energy = run.frame()["discarded_energy"].tolist()[1:]
    assert len(energy) == 3
    assert all(0 < value < 0.5 for value in energy)


def test_without_both_factors_it_is_refused(tmp_path: Path) -> None:
    for model, personal in (
        (to.models.Adapted(Decoder, to.LoRA(rank=2)), to.personal.lora_b),
        (to.models.Adapted(Decoder, to.LoRA(rank=2, frozen_a=True)), None),
    ):
        with pytest.raises(UserError, match="there is no such pair"):
            to.run(experiment(model, aggregation=to.aggregation.ProductMean(), personal=personal), tmp_path / "run")


def test_the_shared_half_of_an_adapter(tmp_path: Path) -> None:
    model = to.models.Adapted(Decoder, to.LoRA(rank=2))
    run = to.run(experiment(model, personal=to.personal.lora_b), tmp_path / "run")
    name = "layers.0.attention.q_proj.lora_{}.weight"
    own = [run.weights(client=i) for i in range(5)]
    shared = run.weights()
    for client in own:
        assert torch.equal(client[name.format("A")], shared[name.format("A")])
    assert not torch.equal(own[0][name.format("B")], own[1][name.format("B")])
    sent = 4 * sum(value.numel() for key, value in shared.items() if "lora_A" in key)
    assert all(bytes_up % sent == 0 for bytes_up in run.frame()["bytes_up"].tolist()[1:])
