"""The plain loop is the oracle: by hand and under vmap give the same training, in any chunks, on any threads."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from turnout.engine.backprop import cross_entropy, loss_by_hand, soft_cross_entropy
from turnout.engine.batches import address_batches
from turnout.engine.by_hand import ByHand
from turnout.engine.chunk import captured_size
from turnout.engine.gradients import Looped, Vmapped, WorkerPool
from turnout.engine.job import Job, Trained
from turnout.engine.kernels.graphs import MOST_GRAPHS
from turnout.engine.layers import GradientSink, MaxPool
from turnout.engine.network import Network
from turnout.engine.train import Trainer
from turnout.engine.trainers import fastest
from turnout.layout import lay_out
from turnout.parts.local import steps_per_epoch
from turnout.parts.optimizers import SGD, Adam
from turnout.parts.terms.base import LocalTerm
from turnout.parts.terms.baselines import Proximal
from turnout.tasks import Classification, NextCharacter, Regression, TaskSpec
from turnout.types import Samples

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
CROSS_ENTROPY, CLASSES = nn.CrossEntropyLoss(reduction="none"), Classification()


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))


def image(dropout: float = 0.0) -> nn.Module:
    drop = [nn.Dropout(dropout)] if dropout else []
    drop2 = [nn.Dropout2d(dropout)] if dropout else []
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), *drop2, nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2, 3, 2, bias=False), nn.ReLU(), *drop, nn.Flatten(), nn.Linear(12, 3),
    )  # fmt: skip


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def normed_image() -> nn.Module:
    """BatchNorm everywhere it can be: on the samples themselves, on maps, on features."""
    return nn.Sequential(
        nn.BatchNorm2d(1), nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, momentum=0.3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4, eps=1e-2), nn.ReLU(), nn.Linear(4, 3),
    )  # fmt: skip


def normed_after() -> nn.Module:
    """BatchNorm after ReLU and pool, as in the authors' code of paper 004."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(2),
        nn.Flatten(), nn.Linear(8, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 3),
    )  # fmt: skip


def squashed() -> nn.Module:
    """Softmax as a hidden activation, over channels and over features (paper 002)."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Softmax(dim=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 5), nn.Softmax(dim=1),
        nn.Linear(5, 3),
    )  # fmt: skip


class Residual(nn.Module):
    """Not a plain stack: only vmap and the loop can train it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(36, 36), nn.Linear(36, 3), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        return self.b(h + self.scale * torch.tanh(self.a(h)))


def samples(counts: list[int], device: str = "cpu") -> Samples:
    g = torch.Generator().manual_seed(0)
    total = sum(counts)
    x = torch.randn(total, 1, 6, 6, generator=g, dtype=torch.float64)
    y = torch.randint(0, 3, (total,), generator=g)
    return Samples(x.to(device), y.to(device), torch.randperm(total, generator=g), torch.tensor(counts))


COUNTS = [9, 14, 5, 2, 8]  # with batches of 4: short last batches of 1, 2, 1, 2 and none
STEPS = [7, 5, 4, 2, 1]  # sorted by work; crosses epochs, ends inside them


def trained(
    model: nn.Module, kind: type | None, chunk: int = 5, threads: int = 1, device: str = "cpu", **changes: object
) -> Trained:
    trainer, job = prepared(model, kind, chunk, threads, device, **changes)
    return trainer.train(job)


def prepared(
    model: nn.Module,
    kind: type | None,
    chunk: int,
    threads: int,
    device: str,
    task: TaskSpec = CLASSES,
    **changes: object,
) -> tuple[Trainer, Job]:
    torch.manual_seed(3)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    layout = lay_out(model.double().to(device))
    network = Network.of(model, layout, task.loss)
    gradients = fastest(network, loss_by_hand(task)) if kind is None else kind(network)
    values: dict = {
        "client_C": torch.tensor([3, 1, 4, 11, 5]), "steps_C": torch.tensor(STEPS), "samples": samples(COUNTS, device),
        "start_P": layout.pack(dict(model.named_parameters())),
        "states": {n: b.clone() for n, b in model.named_buffers()},
        "lr": 0.1, "batch_size": 4, "drop_single": network.has_batch_statistics(), "seed": 7, "t": 2,
        "optimizer": SGD(0.1),
    }  # fmt: skip
    return Trainer(network, WorkerPool(gradients, threads), chunk), Job(**(values | changes))


def agree(a: Trained, b: Trained) -> None:
    a = on_cpu(a)
    torch.testing.assert_close(a.flat_CP, b.flat_CP, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(a.loss_C, b.loss_C, rtol=1e-10, atol=1e-12)
    for name in a.states:
        torch.testing.assert_close(a.states[name], b.states[name], rtol=1e-10, atol=1e-12)


def on_cpu(result: Trained) -> Trained:
    states = {name: value.cpu() for name, value in result.states.items()}
    return dataclasses.replace(result, flat_CP=result.flat_CP.cpu(), loss_C=result.loss_C.cpu(), states=states)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "make",
    [dense, image, lambda: image(0.4), normed, normed_image, normed_after, squashed],
    ids=["dense", "image", "dropout", "norm", "norms", "norm after", "softmax"],
)
@pytest.mark.parametrize(
    "changes",
    [{}, {"optimizer": SGD(0.1, weight_decay=0.2)}, {"optimizer": SGD(0.1, momentum=0.9, weight_decay=0.1)},
     {"terms": [Proximal(0.7)]}, {"optimizer": Adam(0.01, eps=1e-3, moments="fresh")}],
    ids=["plain", "decay", "momentum", "proximal", "adam"],
)  # fmt: skip
def test_by_hand_and_vmap_equal_the_loop(make, changes, device):
    """(A bias before BatchNorm has gradient 0: a smaller eps would let Adam make whole steps of its rounding.)"""
    oracle = trained(make(), Looped, **changes)
    agree(trained(make(), None, device=device, **changes), oracle)
    agree(trained(make(), Vmapped, device=device, **changes), oracle)
    assert not torch.allclose(oracle.flat_CP[0], oracle.flat_CP[1])


def numbers(outputs: int) -> Samples:
    """Numbers to predict, one a sample or several, in another precision than the weights."""
    given = samples(COUNTS)
    y = torch.randn(len(given.y), *([outputs] if outputs > 1 else []), generator=torch.Generator().manual_seed(4))
    return dataclasses.replace(given, y=y.float())


@pytest.mark.parametrize("changes", [{}, {"optimizer": SGD(0.1, momentum=0.9)}], ids=["plain", "momentum"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_squared_error_by_hand_equals_the_loop(outputs, changes):
    """A stack, and a single layer without a name; batches that end short."""
    flat = dataclasses.replace(numbers(outputs), x=numbers(outputs).x.flatten(1))
    for make, given in (
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, outputs)), numbers(outputs)),
        (lambda: nn.Linear(36, outputs, bias=False), flat),
        (lambda: nn.Linear(36, outputs), flat),
    ):
        settings = changes | {"task": Regression(), "samples": given}
        trainer, _ = prepared(make(), None, 5, 1, "cpu", **settings)
        assert isinstance(trainer.gradients, ByHand)
        oracle = trained(make(), Looped, **settings)
        agree(trained(make(), None, **settings), oracle)
        agree(trained(make(), Vmapped, **settings), oracle)


def test_losses_by_hand_are_for_exactly_their_task():
    class Doubled(Regression):
        def loss(self, output: Tensor, target: Tensor) -> Tensor:
            return 2 * super().loss(output, target)

    assert loss_by_hand(Regression()) is not None
    assert loss_by_hand(Doubled()) is None
    assert loss_by_hand(NextCharacter()) is None


@pytest.mark.parametrize("kind", [None, Vmapped, Looped])
def test_dropout_of_everything_gives_zeros_as_torch_s_own(kind):
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Dropout(1.0), nn.Linear(8, 3))
    result = trained(model, kind)
    first = model[1].weight.numel() + model[1].bias.numel()
    assert torch.isfinite(result.flat_CP).all()
    assert (result.flat_CP[:, :first] == 0).all()  # nothing gets through, so nothing before it moves
    assert (result.flat_CP[:, -3:] != 0).any()


def test_soft_targets_by_hand_equal_the_loop():
    """Distillation: a probability for each label instead of the label."""
    given = samples(COUNTS)
    share = torch.rand(len(given.x), 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    soft = dataclasses.replace(given, y=share / share.sum(1, keepdim=True))
    oracle = trained(image(), Looped, samples=soft)
    agree(trained(image(), lambda network: fastest(network, soft_cross_entropy), samples=soft), oracle)
    agree(trained(image(), Vmapped, samples=soft), oracle)


def test_plain_stacks_are_trained_by_hand_and_others_are_not():
    for model, kind in [
        (dense(), ByHand),
        (image(0.1), ByHand),
        (normed_image(), ByHand),
        (squashed(), ByHand),
        (Residual(), Vmapped),
    ]:
        assert isinstance(fastest(Network.of(model, lay_out(model), CROSS_ENTROPY), cross_entropy), kind)
    model = dense()
    assert isinstance(fastest(Network.of(model, lay_out(model), CROSS_ENTROPY), None), Vmapped)
    odd = nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3))
    assert isinstance(fastest(Network.of(odd, lay_out(odd), CROSS_ENTROPY), cross_entropy), Vmapped)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [dense, lambda: image(0.4), normed, normed_image, Residual])
def test_own_models_in_evaluation_equal_the_module_and_move_nothing(make, device):
    """Dropout is off, BatchNorm uses each client's own running statistics: three ways, and the module itself."""
    model = make().double().to(device)
    network = Network.of(model, lay_out(model), CROSS_ENTROPY)
    g = torch.Generator(device).manual_seed(1)
    flat_cP = torch.randn(3, network.layout.width, generator=g, dtype=torch.float64, device=device)
    moved = {n: b.expand(3, *b.shape).clone() for n, b in model.named_buffers()}
    for name, value in moved.items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 2, generator=g)
        elif name.endswith("running_mean"):
            value.normal_(generator=g)
    before = {name: value.clone() for name, value in moved.items()}
    x = torch.randn(3, 4, 1, 6, 6, generator=g, dtype=torch.float64, device=device)
    for gradients in (fastest(network, cross_entropy), Vmapped(network), Looped(network)):
        found = gradients.outputs(flat_cP, moved, x)
        for i in range(3):
            own = network.layout.unpack(flat_cP[i]) | {name: value[i] for name, value in before.items()}
            torch.testing.assert_close(found[i], torch.func.functional_call(model.eval(), own, (x[i],)))
    assert all(torch.equal(moved[name], before[name]) for name in before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [normed, Residual])
def test_any_module_equals_the_loop(make, device):
    """BatchNorm: clients of different batch sizes are not padded together, and its statistics move."""
    oracle = trained(make(), Looped)
    agree(trained(make(), None, device=device), oracle)
    for name, value in oracle.states.items():
        if name.endswith("running_mean"):
            assert (value.abs().sum(1) > 0).all()


@pytest.mark.parametrize("make", [dense, lambda: image(0.4), normed, Residual], ids=["d", "drop", "norm", "any"])
def test_chunks_and_threads_do_not_matter(make):
    whole = trained(make(), None)
    for chunk, threads in [(1, 1), (2, 2), (3, 2)]:
        agree(trained(make(), None, chunk, threads), whole)


@pytest.mark.parametrize("size", [6, 16, 24])
def test_pooling_is_torch_s_own_also_where_neighbours_are_equal(size: int) -> None:
    g = torch.Generator().manual_seed(size)
    x = torch.randint(0, 3, (2, 3, 4, size, size), generator=g).double()  # ties everywhere
    pool = MaxPool((2, 2), (2, 2))
    y, saved = pool.forward(x, {})
    d = torch.randn(y.shape, generator=g, dtype=torch.float64)
    leaf = x.flatten(0, 1).clone().requires_grad_()
    expected = nn.functional.max_pool2d(leaf, 2)
    expected.backward(d.flatten(0, 1))
    assert torch.equal(y.flatten(0, 1), expected)
    sink = GradientSink({}, 0.0, 1.0, 1.0)
    assert leaf.grad is not None
    assert torch.equal(pool.backward(d, saved, {}, sink, first=False).flatten(0, 1), leaf.grad)


def wide() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 40), nn.ReLU(), nn.Linear(40, 36, bias=False), nn.ReLU(), nn.Linear(36, 3)
    )


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_weights_that_are_followed_are_those_of_the_loop(chunk: int) -> None:
    few = {"steps_C": torch.tensor([4, 3, 2, 2, 1]), "batch_size": 3}  # some stop earlier, some batches are short
    trainer, job = prepared(wide(), None, chunk, 1, "cpu", **few)
    assert job.factored_samples == 12
    assert trainer.gradients.factored_bytes(job.start_P[None], job.factored_samples) == 12 * (36 + 40 + 40 + 36) * 8
    agree(trainer.train(job), trained(wide(), Looped, **few))


def test_what_decays_or_starts_elsewhere_is_not_followed() -> None:
    few = {"steps_C": torch.tensor([4, 3, 2, 2, 1]), "batch_size": 3}
    trainer, job = prepared(wide(), None, 5, 1, "cpu", **few, optimizer=SGD(0.1, weight_decay=0.2))
    assert job.factored_samples == 0
    agree(trainer.train(job), trained(wide(), Looped, **few, optimizer=SGD(0.1, weight_decay=0.2)))
    own = {"start_P": torch.stack([job.start_P * k for k in (1, 2, 3, 4, 5)])}
    agree(trained(wide(), None, **few, **own), trained(wide(), Looped, **few, **own))


@pytest.mark.parametrize("device", DEVICES)
def test_round_after_round_with_changing_rates(device):
    """A trainer's memory and captured steps are reused; the learning rate and the data are not what was captured."""
    trainer, job = prepared(image(0.3), None, 5, 1, device, optimizer=SGD(0.1, weight_decay=0.1))
    for t in range(7):
        job = dataclasses.replace(job, t=t, lr=0.1 / (t + 1))
        result = trainer.train(job)
        start = job.start_P.cpu()
        oracle = trained(image(0.3), Looped, t=t, lr=0.1 / (t + 1), start_P=start, optimizer=SGD(0.1, weight_decay=0.1))
        agree(result, oracle)
        job = dataclasses.replace(job, start_P=job.start_P + result.flat_CP.mean(0))


def test_a_client_does_not_depend_on_its_company():
    whole = trained(dense(), None)
    s = samples(COUNTS)
    alone = trained(
        dense(), None, client_C=torch.tensor([4]), steps_C=torch.tensor([4]),
        samples=Samples(s.x, s.y, s.row_R[23:28], torch.tensor([5])),
    )  # fmt: skip
    torch.testing.assert_close(alone.flat_CP[0], whole.flat_CP[2], rtol=1e-10, atol=1e-12)


def test_the_loop_is_ordinary_training():
    """The oracle itself, against torch.optim on one client's batches."""
    model = dense()
    result = trained(model, Looped, optimizer=SGD(0.1, momentum=0.9, weight_decay=0.01))
    s, client, steps = samples(COUNTS), 1, STEPS[1]
    own = Samples(s.x, s.y, s.row_R[9:23], torch.tensor([14]))
    batches = address_batches(own, torch.tensor([client]), torch.tensor([steps]), 4, False, 7, 2)
    start = lay_out(model).pack(dict(model.named_parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for j in range(steps):
        rows = batches.row_cJB[0, j][batches.row_cJB[0, j] >= 0]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(s.x[rows]), s.y[rows]).backward()
        optimizer.step()
    expected = lay_out(model).pack(dict(model.named_parameters()))
    torch.testing.assert_close(result.flat_CP[1], expected - start, rtol=1e-10, atol=1e-12)


def test_an_epoch_sees_every_sample_once_and_epochs_differ():
    s = samples([10, 7])
    batches = address_batches(s, torch.tensor([5, 9]), torch.tensor([6, 4]), 4, False, 0, 0)
    first = batches.row_cJB[0, :3][batches.row_cJB[0, :3] >= 0]
    second = batches.row_cJB[0, 3:][batches.row_cJB[0, 3:] >= 0]
    assert sorted(first.tolist()) == sorted(s.row_R[:10].tolist()) == sorted(second.tolist())
    assert first.tolist() != second.tolist()
    assert batches.size_cJ.tolist() == [[4, 4, 2, 4, 4, 2], [4, 3, 4, 3, 0, 0]]


def test_a_last_batch_of_one_is_dropped_only_for_batch_statistics():
    assert steps_per_epoch(torch.tensor([9, 8, 1]), 4, drop_single=True).tolist() == [2, 2, 0]
    assert steps_per_epoch(torch.tensor([9, 8, 1]), 4, drop_single=False).tolist() == [3, 2, 1]
    s = samples([9])
    batches = address_batches(s, torch.tensor([0]), torch.tensor([4]), 4, True, 0, 0)
    assert batches.size_cJ.tolist() == [[4, 4, 4, 4]]


def test_personal_columns_come_last_and_travel_not():
    layout = lay_out(normed(), personal=lambda name, module: name.startswith("2."))
    assert [s.name for s in layout.slots[-2:]] == ["2.weight", "2.bias"]
    assert layout.width - layout.shared == 12
    assert set(layout.personal_states) == {"2.running_mean", "2.running_var", "2.num_batches_tracked"}


@dataclasses.dataclass(frozen=True)
class Earlier(LocalTerm):
    """Sends the weights of the round before, and keeps those of the last two."""

    name: str = "earlier"

    def finish(self, at, server_state, client_state):
        return {"old": client_state["last"], "same": client_state["last"][:]}, {
            "last": at.x_cP,
            "second": client_state["last"],
        }


@pytest.mark.parametrize("chunk", [2, 5])
def test_a_term_may_send_and_keep_rows_that_it_replaces(chunk):
    """Whether clients are trained in one chunk or in several."""
    width = sum(p.numel() for p in dense().parameters())
    rows = {
        name: torch.full((5, width), value, dtype=torch.float64) for name, value in (("last", 3.0), ("second", 4.0))
    }
    trainer, job = prepared(dense(), None, chunk, 1, "cpu", terms=[Earlier()], term_states={"earlier": rows})
    found = trainer.train(job)
    assert (found.uploads["earlier"]["old"] == 3).all()
    assert (found.uploads["earlier"]["same"] == 3).all()
    assert (found.term_states["earlier"]["second"] == 3).all()
    torch.testing.assert_close(found.term_states["earlier"]["last"], found.flat_CP + job.start_P)


@dataclasses.dataclass(frozen=True)
class Sends(LocalTerm):
    """Sends and keeps tensors of its own."""

    made: list[torch.Tensor]
    name: str = "sends"

    def finish(self, at, server_state, client_state):
        self.made.extend((at.x_cP.clone(), at.x_cP.clone()))
        return {"sent": self.made[0]}, {"kept": self.made[1]}


def test_new_rows_of_a_whole_cohort_are_not_copied():
    """Each has the size of the cohort's weights: a copy of one takes as long as several local steps."""
    term, width = Sends([]), sum(p.numel() for p in dense().parameters())
    states = {"sends": {"kept": torch.zeros(5, width, dtype=torch.float64)}}
    trainer, job = prepared(dense(), None, 5, 1, "cpu", terms=[term], term_states=states)
    found = trainer.train(job)
    assert found.uploads["sends"]["sent"] is term.made[0]
    assert found.term_states["sends"]["kept"] is term.made[1]


def test_the_captured_sizes_of_a_round_are_kept_for_the_next():
    """A thousand clients with unequal numbers of steps, with and without a mask: none is captured a second time."""
    sizes = {captured_size(active) for active in range(1, 1001)}
    assert 2 * len(sizes) <= MOST_GRAPHS
    assert all(n <= captured_size(n) <= 1.5 * n for n in range(1, 1001))
