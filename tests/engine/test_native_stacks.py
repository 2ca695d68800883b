"""Random stacks of layers in C against the plain loop, on every width of vector; and what C must never be given."""

from __future__ import annotations

import dataclasses
import platform
import random
import resource
from pathlib import Path

import pytest
import torch
from test_engine import CROSS_ENTROPY
from torch import nn

from turnout.engine.backprop import cross_entropy, stack_of
from turnout.engine.batches import address_batches
from turnout.engine.by_hand import ByHand
from turnout.engine.gradients import Looped, WorkerPool
from turnout.engine.job import Job, Trained
from turnout.engine.kernels.native import NativeSteps, train_function
from turnout.engine.network import Network
from turnout.engine.train import Trainer
from turnout.layout import lay_out
from turnout.machine.bundled import build, levels_here
from turnout.machine.compiler import FLAGS, compiler, function
from turnout.parts.optimizers import SGD, Adam
from turnout.parts.terms.baselines import Proximal
from turnout.types import Samples

Shape = tuple[int, int, int]


def image_layer(r: random.Random, shape: Shape) -> tuple[nn.Module, Shape]:
    """A layer for images of a shape, and the shape of what it makes of them."""
    i, h, w = shape
    kind = r.choice(["convolution", "convolution", "pool", "relu", "norm", "drop"])
    if kind == "convolution":
        ph, pw, o = r.choice([0, 0, 1, 3]), r.choice([0, 0, 1, 4]), r.randint(1, 11)
        kh, kw = r.randint(1, min(4, h + 2 * ph)), r.randint(1, min(7, w + 2 * pw))
        made = nn.Conv2d(i, o, (kh, kw), padding=(ph, pw), bias=r.random() < 0.7)
        return made, (o, h + 2 * ph - kh + 1, w + 2 * pw - kw + 1)
    if kind == "pool":
        kh, kw = (min(k, most) for k, most in zip(r.choice([(2, 2), (2, 2), (3, 2), (1, 3)]), (h, w), strict=True))
        return nn.MaxPool2d((kh, kw)), (i, h // kh, w // kw)
    others = {"relu": nn.ReLU(), "norm": nn.BatchNorm2d(i, eps=0.01), "drop": r.choice([nn.Dropout, nn.Dropout2d])(0.3)}
    return others[kind], shape


def random_model(r: random.Random, shape: Shape, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(r.randint(0, 4)):
        layer, shape = image_layer(r, shape)
        layers.append(layer)
    layers, inputs = [*layers, nn.Flatten()], shape[0] * shape[1] * shape[2]
    for _ in range(r.randint(0, 2)):
        outputs = r.randint(1, 40)
        layers += [nn.Linear(inputs, outputs, bias=r.random() < 0.7), r.choice([nn.ReLU(), nn.Dropout(0.3)])]
        inputs = outputs
    return nn.Sequential(*layers, nn.Linear(inputs, classes, bias=r.random() < 0.8))


def trainer_of(model: nn.Module, x: torch.Tensor, threads: int) -> tuple[Trainer, Trainer]:
    """One in C, and the plain loop."""
    network = Network.of(model, lay_out(model), CROSS_ENTROPY)
    stack = stack_of(network.module, cross_entropy)
    assert stack is not None
    native = NativeSteps.of(stack, network.layout, x, network.dropout_keys)
    assert (native is None) == (compiler() is None)
    in_c = Trainer(network, WorkerPool(ByHand(network, stack), threads), 5, native=native)
    return in_c, Trainer(network, WorkerPool(Looped(network), 1), 5)


def random_case(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Trainer, Trainer, Job]:
    r = random.Random(seed)
    torch.manual_seed(seed)
    shape, classes = (r.randint(1, 3), r.randint(1, 14), r.randint(1, 36)), r.choice([1, 3, 10, 17])
    counts = [r.randint(2, 20) for _ in range(r.randint(2, 5))]
    x, y = torch.randn(sum(counts), *shape).to(dtype), torch.randint(0, classes, (sum(counts),))
    in_c, looped = trainer_of(random_model(r, shape, classes).to(dtype), x, r.randint(1, 4))
    network, springs = in_c.network, r.random() < 0.3
    optimizers = [SGD(0.05, weight_decay=0.1), SGD(0.05, momentum=0.9, weight_decay=0.1), Adam(0.01, eps=1e-2)]
    job = Job(
        client_C=torch.randperm(50)[: len(counts)],
        steps_C=torch.tensor(sorted([r.randint(1, 5), *(r.randint(0, 5) for _ in counts[1:])], reverse=True)),
        samples=Samples(x, y, torch.randperm(len(y)), torch.tensor(counts)),
        start_P=network.layout.pack(dict(network.module.named_parameters())),
        states={name: value.clone() for name, value in network.module.named_buffers()},
        lr=0.05, batch_size=r.choice([2, 3, 5, 11, 17]) if network.has_batch_statistics() else r.choice([1, 4, 11, 17]),
        drop_single=network.has_batch_statistics(), seed=seed, t=1,
        optimizer=SGD(0.05) if springs else r.choice(optimizers), terms=[Proximal(0.7)] if springs else [],
    )  # fmt: skip
    return in_c, looped, job


def same_as_the_loop(seed: int) -> None:
    """Every client's weights, losses and statistics; and one whose samples are no numbers changes nobody else."""
    in_c, looped, job = random_case(seed)
    found, expected = in_c.train(job), looped.train(job)
    close = {"rtol": 1e-7, "atol": 1e-9}
    torch.testing.assert_close(found.flat_CP, expected.flat_CP, **close)
    torch.testing.assert_close(found.loss_C, expected.loss_C, **close)
    for now, before in ((found.states, expected.states), (found.slots, expected.slots)):
        for name, value in before.items():
            torch.testing.assert_close(now[name], value, **close)
    others, x = found.flat_CP[1:].clone(), job.samples.x.clone()
    x[job.samples.row_R[: int(job.samples.count_C[0])]] = random.Random(seed).choice([float("nan"), float("inf")])
    on_one_thread = Trainer(in_c.network, WorkerPool(in_c.gradients, 1), 5, native=in_c.native)  # in the same memory
    broken = on_one_thread.train(dataclasses.replace(job, samples=dataclasses.replace(job.samples, x=x)))
    if compiler() is not None:
        assert torch.equal(broken.flat_CP[1:], others)


@pytest.mark.parametrize("seeds", [range(40), range(40, 80)], ids=["first", "second"])
def test_random_stacks_in_c_equal_the_loop(seeds, monkeypatch):
    monkeypatch.setattr("turnout.engine.train._SMALL_JOB", 0)  # or few clients would never be shared out
    for seed in seeds:
        same_as_the_loop(seed)


@pytest.mark.slow
@pytest.mark.parametrize("narrow", ["-O3", "-mno-avx512f", "-mno-avx"])
def test_many_random_stacks_on_every_width_of_vector(narrow, monkeypatch):
    monkeypatch.setattr("turnout.engine.train._SMALL_JOB", 0)
    monkeypatch.setattr("turnout.machine.compiler.FLAGS", (*FLAGS, narrow))
    function.cache_clear()
    try:
        for seed in range(100, 300):
            same_as_the_loop(seed)
    finally:
        function.cache_clear()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a wheel."""
    made, program = tmp_path_factory.mktemp("wheel") / "kernels.so", compiler()
    assert program is not None
    build(made, [program], platform.machine())
    return made


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
@pytest.mark.parametrize("level", levels_here())
def test_kernels_of_a_wheel_give_the_bits_of_those_compiled_in_place(level, dtype, library, monkeypatch):
    """On this machine, and on older ones, which have fewer instruction sets."""
    march = "native" if level == levels_here()[-1] else {"AVX2": "haswell", "DEFAULT": "nehalem"}[level]
    monkeypatch.setattr("turnout.engine.train._SMALL_JOB", 0)
    monkeypatch.setattr("turnout.machine.compiler.FLAGS", (*FLAGS, f"-march={march}"))
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: level)

    def results() -> list[Trained]:
        function.cache_clear()
        return [in_c.train(job) for in_c, _, job in (random_case(seed, dtype) for seed in range(40))]

    try:
        in_place = results()
        monkeypatch.setattr("turnout.machine.bundled.LIBRARY", library)
        of_wheel = results()
    finally:
        function.cache_clear()
    for found, expected in zip(of_wheel, in_place, strict=True):
        assert torch.equal(found.flat_CP, expected.flat_CP)
        assert torch.equal(found.loss_C, expected.loss_C)
        assert all(torch.equal(found.states[name], value) for name, value in expected.states.items())


WRONG = {
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(30, 3)),
    "channels": lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 3)),
    "kernel": lambda: nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten(), nn.Linear(3, 3)),
    "pool": lambda: nn.Sequential(nn.MaxPool2d((7, 6)), nn.Flatten(), nn.Linear(1, 3)),
    "norm": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(35), nn.Linear(36, 3)),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_weights_that_do_not_fit_the_samples_are_not_given_to_c(make):
    """It would read and write past a client's row."""
    network = Network.of(make(), lay_out(make()), CROSS_ENTROPY)
    stack = stack_of(network.module, cross_entropy)
    assert stack is not None
    assert NativeSteps.of(stack, network.layout, torch.zeros(4, 1, 6, 6)) is None


def test_both_precisions_are_there_with_a_compiler():
    """Else what compares C with the loop would compare nothing."""
    for dtype in (torch.float32, torch.float64):
        assert (train_function(dtype) is None) == (compiler() is None)


def test_with_little_memory_there_are_fewer_threads():
    """Sixty-four threads would want 2.6 GB to sort these samples; there is 1 GB, and one thread needs 40 MB."""
    clients, count = 64, 1 << 20
    held = Samples(torch.zeros(1, 1), torch.zeros(1), torch.arange(count), torch.tensor([count] + [0] * (clients - 1)))
    steps_c = torch.tensor([3] + [0] * (clients - 1))
    given = (torch.arange(clients), steps_c, 5, False, 0, 0)
    expected = address_batches(held, *given)
    before, used = resource.getrlimit(resource.RLIMIT_AS), int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (used * resource.getpagesize() + (1 << 30), before[1]))
    try:
        found = address_batches(held, *given, threads=clients)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert torch.equal(found.row_cJB, expected.row_cJB)
