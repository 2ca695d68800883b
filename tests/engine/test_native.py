"""Local steps in C against the plain loop; who shares a call; and what happens without a compiler."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine import (
    COUNTS,
    CROSS_ENTROPY,
    agree,
    dense,
    image,
    normed,
    normed_after,
    normed_image,
    prepared,
    samples,
    squashed,
    wide,
)
from torch import Tensor, nn

import turnout as to
from turnout.engine import dropout
from turnout.engine.backprop import cross_entropy, soft_cross_entropy, stack_of
from turnout.engine.batches import address_batches, order_with_torch
from turnout.engine.by_hand import ByHand
from turnout.engine.gradients import Looped, WorkerPool
from turnout.engine.job import Job
from turnout.engine.kernels import native
from turnout.engine.kernels.native import NativeSteps
from turnout.engine.network import Network
from turnout.engine.train import Trainer
from turnout.errors import UserError
from turnout.layout import Predicate, lay_out
from turnout.machine.checksums import seal
from turnout.machine.compiler import FLAGS, compiled, function
from turnout.parts.local import steps_per_epoch
from turnout.parts.optimizers import SGD, Adam
from turnout.parts.terms.baselines import Proximal
from turnout.rng import key, keys
from turnout.types import Samples
from worlds import blobs, play, ready


def in_c(model: nn.Module, threads: int = 1, **changes: object) -> tuple[Trainer, Job]:
    trainer, job = prepared(model, None, 5, threads, "cpu", **changes)
    assert isinstance(trainer.gradients, ByHand)
    made = NativeSteps.of(
        trainer.gradients.stack, trainer.network.layout, job.samples.x[:4], trainer.network.dropout_keys
    )
    assert (made is None) == (native.train_function(torch.float64) is None)
    again = Trainer(trainer.network, trainer.workers, 5, native=made)
    assert (again._native(job) is None) == (made is None)
    return again, job


def odd() -> nn.Module:
    """Kernels that are no squares, a border wider than its kernel, a pool that leaves a rest, six taps in a line."""
    return nn.Sequential(
        nn.ReLU(), nn.Conv2d(1, 5, (2, 3), padding=(0, 2), bias=False), nn.MaxPool2d((2, 3)), nn.ReLU(),
        nn.Conv2d(5, 7, 3, padding=3), nn.Conv2d(7, 3, (1, 6)), nn.Flatten(), nn.Linear(18, 20, bias=False), nn.ReLU(),
        nn.Linear(20, 3),
    )  # fmt: skip


def one() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 3))


def pooled() -> nn.Module:
    """Convolutions after pools whose lines are shorter than a vector."""
    return nn.Sequential(
        nn.Conv2d(1, 5, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(5, 5, 2), nn.Conv2d(5, 4, 3, padding=1),
        nn.MaxPool2d(2), nn.Conv2d(4, 3, 1), nn.Flatten(), nn.Linear(3, 3),
    )  # fmt: skip


MODELS = {"pooled": pooled, "dense": dense, "image": image, "wide": wide, "odd": odd, "one": one}
MODELS |= {"normed": normed, "normed image": normed_image, "normed after": normed_after}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("threads", [1, 3])
def test_steps_in_c_equal_the_loop(make, decay, threads, monkeypatch):
    monkeypatch.setattr("turnout.engine.train._SMALL_JOB", 0)  # or five clients would never be shared out
    changes = {"optimizer": SGD(0.1, weight_decay=decay), "scale_C": torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0])}
    trainer, job = in_c(make(), threads, **changes)
    looped, _ = prepared(make(), Looped, 5, 1, "cpu", **changes)
    agree(trainer.train(job), looped.train(job))


def broad() -> nn.Module:
    """Layers for whole blocks of the widest vectors, with a rest of each kind."""
    return nn.Sequential(
        nn.Conv2d(1, 11, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(11, 6, 5, padding=1), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(72, 75), nn.ReLU(), nn.Linear(75, 19),
    )  # fmt: skip


def broad_update(make: type, dtype: torch.dtype, batch: int) -> Tensor:
    """What two clients send after three steps, in C or one by one."""
    g = torch.Generator().manual_seed(5)
    x, y = torch.randn(60, 1, 20, 27, generator=g), torch.randint(0, 19, (60,), generator=g)
    torch.manual_seed(1)
    network = Network.of(broad().to(dtype), lay_out(broad()), CROSS_ENTROPY)
    stack = stack_of(network.module, cross_entropy)
    assert stack is not None
    native = NativeSteps.of(stack, network.layout, x.to(dtype)) if make is ByHand else None
    gradients = ByHand(network, stack) if make is ByHand else Looped(network)
    job = Job(
        client_C=torch.tensor([2, 7]), steps_C=torch.tensor([3, 2]),
        samples=Samples(x.to(dtype), y, torch.arange(60), torch.tensor([40, 20])),
        start_P=network.layout.pack(dict(network.module.named_parameters())), states={}, lr=0.2, batch_size=batch,
        drop_single=False, seed=0, t=0, optimizer=SGD(0.2),
    )  # fmt: skip
    return Trainer(network, WorkerPool(gradients, 1), 5, native=native).train(job).flat_CP


@pytest.mark.parametrize("batch", [23, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_wide_layers_in_c_equal_the_loop(dtype, batch):
    close = {torch.float32: {"rtol": 1e-3, "atol": 2e-6}, torch.float64: {"rtol": 1e-9, "atol": 1e-12}}[dtype]
    torch.testing.assert_close(broad_update(ByHand, dtype, batch), broad_update(Looped, dtype, batch), **close)


@pytest.mark.slow
@pytest.mark.parametrize("narrow", ["-mno-avx512f", "-mno-avx"])
def test_narrower_vectors_do_the_same(narrow, monkeypatch):
    """Older machines: the same sources with narrower vectors and fewer registers."""
    monkeypatch.setattr("turnout.machine.compiler.FLAGS", (*FLAGS, narrow))
    function.cache_clear()
    try:
        test_wide_layers_in_c_equal_the_loop(torch.float32, 23)
    finally:
        function.cache_clear()


def made_for(model: nn.Module, personal: Predicate | None, x: Tensor) -> Trainer:
    network = Network.of(model, lay_out(model, personal), CROSS_ENTROPY)
    stack = stack_of(network.module, cross_entropy)
    assert stack is not None
    return Trainer(
        network, WorkerPool(ByHand(network, stack), 1), 5, native=NativeSteps.of(stack, network.layout, x[:4])
    )


SPRINGS = {
    "proximal": [Proximal(0.7)],
    "elastic": [to.terms.Elastic(0.5, samples=3)],
    "kept": [to.terms.Elastic(0.5, samples=3, fisher_keep=0.2)],
    "both": [Proximal(0.3), to.terms.Elastic(0.2, samples=3)],
}


@pytest.mark.parametrize("terms", SPRINGS.values(), ids=SPRINGS)
@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("make", [dense, odd, normed_image])
def test_springs_in_c_equal_the_loop(make, terms, reported):
    """The local loss pulls towards some weights; what terms send when training ends is the same, too."""
    width = lay_out(make()).width
    g = torch.Generator().manual_seed(8)
    U, V = torch.rand(width, generator=g, dtype=torch.float64), torch.randn(width, generator=g, dtype=torch.float64)
    down = {
        "elastic": {"U": U, "V": V, "Z": torch.ones(1).double()} if reported else to.terms.Elastic().server_state(U)
    }
    if reported and "fisher_keep=0.2" in str(terms):
        index = torch.arange(0, width, 5)
        down["elastic"] |= {"U": U[index], "V": V[index], "index": index.int()}
    changes = {"terms": terms, "server_term_states": down, "optimizer": SGD(0.1, weight_decay=0.1)}
    trainer, job = in_c(make(), **changes)
    looped, _ = prepared(make(), Looped, 5, 1, "cpu", **changes)
    found, expected = trainer.train(job), looped.train(job)
    agree(found, expected)
    for name, sent in expected.uploads.items():
        for what, value in sent.items() if "index" not in sent else [("u", sent["u"])]:  # of equal ones any is kept
            torch.testing.assert_close(found.uploads[name][what], value, rtol=1e-8, atol=1e-11)


def test_a_spring_of_another_precision_is_converted():
    @dataclasses.dataclass(frozen=True)
    class Coarse(Proximal):
        def as_quadratic(self, start_cP, server_state):
            return tuple(value.float() for value in super().as_quadratic(start_cP, server_state))

    found, expected = (in_c(dense(), terms=[term]) for term in (Coarse(0.5), Proximal(0.5)))
    torch.testing.assert_close(
        found[0].train(found[1]).flat_CP, expected[0].train(expected[1]).flat_CP, atol=1e-6, rtol=1e-5
    )


def test_everybody_s_own_start():
    trainer, job = in_c(image())
    looped, _ = prepared(image(), Looped, 5, 1, "cpu")
    own = dataclasses.replace(job, start_P=torch.stack([job.start_P * k for k in (1.0, -1.0, 0.5, 2.0, 0.1)]))
    agree(trainer.train(own), looped.train(own))


def test_personal_columns_are_the_weights_themselves():
    model = image()
    whole, job = in_c(model)
    expected = whole.train(job).flat_CP.clone()
    trainer = made_for(model, lambda name, module: name.startswith("0."), job.samples.x)
    layout = trainer.network.layout
    start_P = layout.pack(dict(model.named_parameters()))
    found = trainer.train(dataclasses.replace(job, start_P=start_P)).flat_CP
    change = torch.cat([found[:, layout.shared :] - start_P[layout.shared :], found[:, : layout.shared]], 1)
    torch.testing.assert_close(change, expected, rtol=1e-10, atol=1e-12)


def test_single_precision_is_as_close_as_it_can_be():
    model = odd()
    trainer, job = in_c(model)
    exact = trainer.train(job).flat_CP.clone()
    single = dataclasses.replace(job.samples, x=job.samples.x.float())
    trained = made_for(model.float(), None, single.x).train(
        dataclasses.replace(job, samples=single, start_P=job.start_P.float())
    )
    torch.testing.assert_close(trained.flat_CP.double(), exact, rtol=1e-3, atol=1e-5)


def test_a_client_is_the_same_to_the_last_bit_in_any_company(monkeypatch):
    monkeypatch.setattr("turnout.engine.train._SMALL_JOB", 1 << 60)
    trainer, job = in_c(image())
    whole = trainer.train(job).flat_CP.clone()
    s = samples(COUNTS)
    alone = dataclasses.replace(
        job, client_C=torch.tensor([4]), steps_C=torch.tensor([4]),
        samples=Samples(s.x, s.y, s.row_R[23:28], torch.tensor([5])),
    )  # fmt: skip
    if trainer.native:
        assert torch.equal(trainer.train(alone).flat_CP[0], whole[2])


def test_lengths_are_measured_where_the_update_is_written(monkeypatch):
    """Σ u², client by client, over two calls of C; and of updates that are scaled or written later."""
    monkeypatch.setattr("turnout.engine.train._CALL", 1)
    monkeypatch.setattr("turnout.engine.train.BLOCK", 3)
    trainer, job = in_c(wide(), lengths=True)
    if not trainer.native:
        return
    trained = trainer.train(job)
    expected = trained.flat_CP.double().square().sum(1)
    assert float(expected[0]) > 0
    torch.testing.assert_close(trained.squared_C, expected, rtol=1e-13, atol=0.0)
    assert len(trainer.train(dataclasses.replace(job, lengths=False)).squared_C) == 0
    for changes in ({"scale_C": torch.full((5,), 2.0)}, {"terms": [Proximal(0.1)]}):
        later = trainer.train(dataclasses.replace(job, **changes))
        expected = later.flat_CP.double().square().sum(1)
        torch.testing.assert_close(later.squared_C, expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_s_broken_numbers_are_nobody_else_s(make, value, monkeypatch):
    monkeypatch.setattr("turnout.engine.train._SMALL_JOB", 1 << 60)  # all of them in one call, on the same memory
    trainer, job = in_c(make())
    whole = trainer.train(job).flat_CP.clone()
    x = job.samples.x.clone()
    x[job.samples.row_R[:9]] = value  # all of the first client's, who goes first
    broken = trainer.train(dataclasses.replace(job, samples=dataclasses.replace(job.samples, x=x)))
    assert broken.finite_C.tolist() == [False, True, True, True, True]
    assert torch.equal(broken.flat_CP[1:], whole[1:])


def test_a_label_without_a_score_is_an_error_and_no_crash():
    trainer, job = in_c(dense())
    y = job.samples.y.clone()
    y[job.samples.row_R[3]] = 3
    with pytest.raises((IndexError, RuntimeError), match=r"outside the model's scores|out of bounds"):
        trainer.train(dataclasses.replace(job, samples=dataclasses.replace(job.samples, y=y)))


def test_what_is_not_plain_is_left_to_others():
    trainer, job = in_c(dense())
    assert None is trainer._native(dataclasses.replace(job, terms=[to.terms.Scaffold()]))
    assert None is trainer._native(dataclasses.replace(job, magnitudes=True))
    x = torch.zeros(4, 1, 6, 6)
    for model, loss in [
        (squashed(), cross_entropy),
        (dense(), soft_cross_entropy),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 8000), nn.ReLU(), nn.Linear(8000, 3)), cross_entropy),  # too large
    ]:
        network = Network.of(model, lay_out(model), CROSS_ENTROPY)
        stack = stack_of(network.module, loss)
        assert stack is not None
        assert NativeSteps.of(stack, network.layout, x) is None


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """An empty cache folder, and nothing loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("turnout.machine.compiler._trouble", {})  # what is missed here is not missed later
    function.cache_clear()
    yield tmp_path
    function.cache_clear()


def chosen(engine: str) -> to.runtime.InProcess:
    return to.runtime.InProcess(device="cpu", engine=engine, threads=1)


def test_without_a_compiler_the_same_run_goes_by_hand(fresh: Path, monkeypatch: pytest.MonkeyPatch):
    experiment = to.Experiment(to.World(blobs([9, 14, 5])), rounds=2, runtime=chosen("auto"))
    there = ready(experiment)
    assert there.runtime.describe()["engine"] == ("native" if native.train_function(torch.float32) else "by hand")
    assert ready(experiment, **{"algorithm.terms": [to.terms.Scaffold()]}).runtime.describe()["engine"] == "by hand"
    with_c, _ = play(there, 2)
    function.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "no-such-compiler")
    without = ready(experiment)
    assert without.runtime.describe()["engine"] == "by hand"
    by_torch, _ = play(without, 2)
    torch.testing.assert_close(with_c.shared_P, by_torch.shared_P, rtol=1e-4, atol=1e-6)
    with pytest.raises(UserError, match="needs a C compiler"):
        ready(experiment, runtime=chosen("native"))


@pytest.mark.parametrize("broken", ["no home", "no folder", "no library", "no source"])
def test_what_cannot_be_compiled_or_loaded_is_done_by_hand(fresh: Path, broken: str, monkeypatch: pytest.MonkeyPatch):
    if broken == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "expanduser", lambda self: (_ for _ in ()).throw(RuntimeError("no home")))
    elif broken == "no folder":
        (fresh / "turnout").write_text("a file in its place")
    elif broken == "no source":
        (fresh / "broken.c").write_text("this is not C")
        monkeypatch.setattr(native, "SOURCE", fresh / "broken.c")
    else:
        path = compiled(native.SOURCE, native.NUMBERS[torch.float32])
        path.write_bytes(b"this is no library")
        seal(path)
    assert native.train_function(torch.float32) is None
    assert list(fresh.glob("turnout/kernels/tmp*")) == []
    ready(to.Experiment(to.World(blobs([9, 14])), rounds=1, runtime=chosen("auto")))


@settings(max_examples=80, deadline=None)
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    steps=st.lists(st.integers(0, 25), min_size=6, max_size=6),
    size=st.integers(1, 12),
    drop_single=st.booleans(),
    seed=st.integers(0, 3),
)
def test_orders_in_c_are_those_of_torch(counts, steps, size, drop_single, seed):
    row_R = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed))
    count_C = torch.tensor(counts)
    held = Samples(torch.zeros(sum(counts), 1), torch.zeros(sum(counts)), row_R, count_C)
    client_c, steps_c = torch.arange(len(counts)) * 7, torch.where(count_C > 0, torch.tensor(steps)[: len(counts)], 0)
    found = address_batches(held, client_c, steps_c, size, drop_single, seed, 3)
    per_epoch_c = steps_per_epoch(count_C, size, drop_single).clamp(min=1)
    key_c = keys(key(seed, "batches", 3), client_c)
    expected = order_with_torch(held, key_c, steps_c, per_epoch_c, size, int(steps_c.max()))
    assert torch.equal(found.row_cJB, expected.row_cJB)
    assert torch.equal(found.size_cJ, expected.size_cJ)


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("whole_channels", [False, True])
def test_dropout_masks_in_c_are_those_of_torch(p, whole_channels, monkeypatch):
    address = torch.tensor([3, -5, 2**62])
    given = (torch.Size((4, 3, 5, 2)), p, whole_channels, torch.float64, torch.device("cpu"))
    found = dropout.keep_mask(address, *given)
    monkeypatch.setattr(dropout, "mask_in_c", lambda *_: None)
    assert torch.equal(found, dropout.keep_mask(address, *given))
    assert torch.equal(found[1], dropout.keep_mask(address[1], *given))


OPTIMIZERS = {
    "momentum": SGD(0.1, momentum=0.9, weight_decay=0.1),
    "adam": Adam(0.01, eps=1e-3),
    "uncorrected": Adam(0.01, eps=1e-3, count="none"),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize(
    "make", [dense, lambda: image(0.4), odd, normed_image], ids=["dense", "dropout", "odd", "normed"]
)
def test_momentum_adam_and_dropout_in_c_equal_the_loop(make, optimizer):
    """Moments go on from an earlier round, and come back as the loop's."""
    trainer, job = in_c(make(), 2, optimizer=optimizer)
    g = torch.Generator().manual_seed(1)
    if optimizer.carries_count or isinstance(optimizer, Adam):
        rows = (5, trainer.network.layout.width)
        slots = {name: torch.rand(rows, generator=g, dtype=torch.float64) for name in optimizer.slots}
        job = dataclasses.replace(job, slots=slots, count_C=torch.tensor([3, 0, 1, 7, 2]))
    looped, _ = prepared(make(), Looped, 5, 1, "cpu", optimizer=optimizer)
    same = dataclasses.replace(job, slots={name: value.clone() for name, value in job.slots.items()})
    found, oracle = trainer.train(job), looped.train(same)
    agree(found, oracle)
    assert found.slots.keys() == oracle.slots.keys()
    for name, value in oracle.slots.items():
        torch.testing.assert_close(found.slots[name], value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.count_C, oracle.count_C)


def test_springs_with_momentum_are_not_in_c():
    trainer, job = prepared(dense(), None, 5, 1, "cpu", optimizer=SGD(0.1, momentum=0.5), terms=[Proximal(0.7)])
    made = NativeSteps.of(trainer.gradients.stack, trainer.network.layout, job.samples.x[:4])
    assert Trainer(trainer.network, trainer.workers, 5, native=made)._native(job) is None
