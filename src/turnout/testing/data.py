"""Checks of data, partitions, sizes, models and tasks.

Shape letters: S samples, C clients, B samples of a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from turnout.data.federation import DataSpec
from turnout.data.partition import Partition
from turnout.data.sizes import Sizes
from turnout.models.layers import ModelSpec
from turnout.tasks import TaskSpec, scores_of
from turnout.testing.examples import all_finite, expect


def check_partition(partition: Partition, clients: int = 10) -> None:
    """Promises of a partition: at least one row for each client, no row twice, the same again; where sizes are given,
    no client gets more."""
    label_S, owner_S = torch.arange(600) % 10, torch.arange(600) // 30
    rows_C, again_C = (partition.split(label_S, owner_S, clients, 0) for _ in range(2))
    want_C = 4 + torch.arange(clients)
    fewer_C = partition.split(label_S, owner_S, clients, 0, want_C)
    for given_C in (rows_C, fewer_C):
        expect(len(given_C) == clients, f"split: rows for {clients} clients, not for {len(given_C)}")
        whole = all(rows.dtype == torch.int64 and len(rows) for rows in given_C)
        expect(whole, "split: whole numbers (int64), at least one for each client")
        every = torch.cat(list(given_C))
        expect(len(every) == len(every.unique()), "split: no sample belongs to two clients, or twice to one")
        expect(bool(((every >= 0) & (every < len(label_S))).all()), f"split: rows are 0 to {len(label_S) - 1}")
    expect(all(torch.equal(a, b) for a, b in zip(rows_C, again_C, strict=True)), "split: the same for the same seed")
    found = [len(rows) for rows in fewer_C]
    expect(all(n <= int(want) for n, want in zip(found, want_C, strict=True)), f"split: {want_C} wanted, {found} given")


def check_sizes(sizes: Sizes, clients: int = 40) -> None:
    """Promises of sizes: at least one sample each, int64; a client's size does not depend on other clients."""
    client_C, some_c = torch.arange(clients), torch.arange(1, clients, 3)
    size_C = sizes.draw(client_C, 0)
    expect(size_C.dtype == torch.int64 and size_C.shape == client_C.shape, "draw: one whole number (int64) per client")
    expect(bool((size_C >= 1).all()), f"draw: at least one sample each, not {size_C.tolist()}")
    expect(torch.equal(sizes.draw(some_c, 0), size_C[some_c]), "draw: a client's size depends on other clients")


def check_data(data: DataSpec) -> None:
    """Promises of a data set: the same for the same seed; samples of one shape, as many as reported, labels in range;
    a client's samples do not depend on other clients."""
    federation, again = data.load(0, None), data.load(0, None)
    expect(federation.fingerprint() == again.fingerprint(), "load: the same data for the same seed")
    client_C = torch.arange(min(federation.clients, 5))
    samples, count_C = federation.train(client_C, 0), federation.examples(client_C)
    expect(torch.equal(samples.count_C, count_C), f"examples: {count_C.tolist()}, but train has {samples.count_C}")
    for i, client in enumerate(client_C.tolist()):
        x, y = samples.of(i)
        expect(tuple(x.shape[1:]) == tuple(federation.input_shape), f"train: samples of {federation.input_shape}")
        expect(all_finite(x, y), f"train: a sample of client {client} is not finite")
        if not y.is_floating_point() and y.numel():
            expect(int(y.max()) < max(federation.classes, 2), f"train: label {int(y.max())} of {federation.classes}")
        alone = federation.train(torch.tensor([client]), 0).of(0)
        same = torch.equal(x, alone[0]) and torch.equal(y, alone[1])
        expect(same, f"train: the samples of client {client} depend on other clients")


def check_model(model: ModelSpec, input_shape: tuple[int, ...] = (1, 28, 28), classes: int = 10) -> None:
    """Promises of a model: an ordinary module with something to train, drawn from torch's own generator; in evaluation
    mode a sample's output does not depend on other samples."""
    built = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            built.append(model.build(input_shape, classes))
    first, second = (module.state_dict() for module in built)
    expect(all(isinstance(module, nn.Module) for module in built), "build: returns a torch.nn.Module")
    expect(any(p.requires_grad for p in built[0].parameters()), "build: something must be trainable")
    same = first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)
    expect(same, "build: the same weights for the same seed of torch")
    x = torch.rand(3, *input_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        together, alone = scores_of(built[0].eval()(x)), scores_of(built[0].eval()(x[:1]))
    expect(together.shape == (3, classes), f"the module gives {tuple(together.shape)} for 3 samples, {classes} classes")
    expect(torch.allclose(together[:1], alone, atol=1e-5), "the module: a sample's output depends on other samples")


def check_task(task: TaskSpec, output: Tensor | None = None, target: Tensor | None = None) -> None:
    """Promises of a task: loss and metrics give one finite number per sample, independent of other samples; the loss
    has a finite gradient. Pass an output and targets where they are not scores [B, 4] and labels."""
    output = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) if output is None else output
    target = torch.arange(len(output)) % output.shape[1] if target is None else target
    task.check_output(tuple(output.shape), target)
    expect(task.main in {*task.metrics, "loss"}, f"main: {task.main!r} is not among {sorted(task.metrics)}")
    for name, function in {"loss": task.loss, **task.metrics}.items():
        value_B = function(output, target)
        right = value_B.shape == (len(output),) and all_finite(value_B)
        expect(right, f"{name}: one finite number per sample, not {value_B.tolist()}")
        alone = torch.cat([function(output[i : i + 1], target[i : i + 1]) for i in range(len(output))])
        expect(torch.allclose(value_B, alone, atol=1e-6), f"{name}: a sample's number depends on other samples")
    leaf = output.clone().requires_grad_()
    task.loss(leaf, target).sum().backward()
    expect(leaf.grad is not None and all_finite(leaf.grad), "loss: its gradient must be finite")
