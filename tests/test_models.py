"""Models: shapes, published sizes, sentences for misfits, and that clients train side by side under vmap."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from turnout.errors import Mistake
from turnout.models import (
    CNN,
    MLP,
    Logistic,
    ModelSpec,
    animals_cnn,
    digits_cnn,
    fdms_cifar_cnn,
    fdms_mnist_cnn,
    mcmahan_cnn,
    mtfl_cifar_cnn,
    pfl_cifar_cnn,
    vgg11,
)
from turnout.rng import rng
from turnout.task import Classification


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng(0, "test", *shape), dtype=torch.float64)


def built(spec: ModelSpec, input_shape: tuple[int, ...], classes: int, seed: int = 0) -> nn.Module:
    """The module in float64, from a fixed seed, without touching the global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return spec.build(input_shape, classes).double()


def parameters(spec: ModelSpec, input_shape: tuple[int, ...], classes: int) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in spec.build(input_shape, classes).parameters())


# (spec, shape of a sample, classes): every image model on the smallest input it is meant for
IMAGE_MODELS: dict[str, tuple[ModelSpec, tuple[int, ...], int]] = {
    "logistic": (Logistic(), (60,), 10),
    "mlp": (MLP(7, 5), (1, 4, 4), 3),
    "mlp with batch norm": (MLP(7, 5, batch_norm=True), (6,), 3),
    "mlp with one batch norm": (MLP(7, 5, batch_norm=(1,)), (6,), 3),
    "mlp softmax": (MLP(16, 16, 32, activation="softmax"), (6,), 4),
    "digits": (digits_cnn(), (1, 8, 8), 10),
    "mcmahan": (mcmahan_cnn(), (1, 28, 28), 10),
    "fdms mnist": (fdms_mnist_cnn(), (1, 28, 28), 10),
    "fdms cifar": (fdms_cifar_cnn(), (3, 32, 32), 10),
    "pfl": (pfl_cifar_cnn(dropout=False), (3, 32, 32), 10),
    "mtfl": (mtfl_cifar_cnn(), (3, 32, 32), 10),
    "mtfl plain": (mtfl_cifar_cnn(batch_norm=False), (3, 32, 32), 10),
    "animals 1": (animals_cnn(16, activation="softmax"), (3, 16, 16), 2),
    "animals 2": (animals_cnn(16, 32), (3, 16, 16), 2),
    "animals 4": (animals_cnn(8, 16, 16, 32, activation="softmax"), (3, 16, 16), 2),
    "vgg11": (vgg11(), (3, 32, 32), 100),
}


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_each_model_gives_one_score_per_class(name: str) -> None:
    spec, shape, classes = IMAGE_MODELS[name]
    model = built(spec, shape, classes)
    score_BK = model(normal(3, *shape))
    assert score_BK.shape == (3, classes)
    assert not torch.allclose(score_BK.exp().sum(1), torch.ones(3, dtype=torch.float64))  # logits


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_the_stacked_models_are_plain_sequentials(name: str) -> None:
    spec, shape, classes = IMAGE_MODELS[name]
    model = spec.build(shape, classes)
    assert type(model) is nn.Sequential
    assert all(next(layer.children(), None) is None for layer in model)


@pytest.mark.parametrize(
    ("spec", "input_shape", "classes", "published"),
    [
        (Logistic(), (60,), 10, 610),
        (MLP(200, 200), (1, 28, 28), 10, 199_210),  # McMahan's 2NN
        (mcmahan_cnn(), (1, 28, 28), 10, 1_663_370),  # McMahan et al. 2017, section 3
        (fdms_mnist_cnn(dropout=0.5), (1, 28, 28), 10, 21_840),
        (fdms_cifar_cnn(), (3, 32, 32), 10, 62_006),
        (vgg11(), (3, 32, 32), 10, 865_482),  # VGG11* of sparse ternary compression
    ],
)
def test_the_published_number_of_parameters(
    spec: ModelSpec, input_shape: tuple[int, ...], classes: int, published: int
) -> None:
    assert parameters(spec, input_shape, classes) == published


def layer_names(spec: ModelSpec, input_shape: tuple[int, ...]) -> str:
    return " ".join(name for name, _ in spec.build(input_shape, 10).named_children())


def test_layers_come_in_the_order_of_the_papers() -> None:
    assert layer_names(mtfl_cifar_cnn(), (3, 32, 32)) == (
        "conv1 norm1 act1 pool1 conv2 norm2 act2 pool2 flatten linear3 norm3 act3 output"
    )
    assert layer_names(mtfl_cifar_cnn(batch_norm=(1, 2)), (3, 32, 32)).count("norm") == 2
    assert layer_names(pfl_cifar_cnn(), (3, 32, 32)) == (
        "conv1 act1 conv2 act2 pool2 drop_features flatten linear3 act3 drop3 output"
    )
    assert layer_names(MLP(9, 9, batch_norm=(1,)), (4,)) == "flatten linear1 norm1 act1 linear2 act2 output"


def test_pfl_and_fdms_drop_the_published_shares() -> None:
    pfl = pfl_cifar_cnn().build((3, 32, 32), 10).children()
    fdms = fdms_mnist_cnn(dropout=0.5).build((1, 28, 28), 10).children()
    assert [layer.p for layer in pfl if isinstance(layer, nn.Dropout)] == [0.25, 0.5]
    assert [(type(layer), layer.p) for layer in fdms if hasattr(layer, "p")] == [
        (nn.Dropout2d, 0.5),
        (nn.Dropout, 0.5),
    ]
    assert "drop" not in layer_names(pfl_cifar_cnn(dropout=False), (3, 32, 32))


def test_logistic_can_start_at_zero() -> None:
    model = Logistic(zero_init=True).build((3,), 2)
    assert torch.equal(model(torch.ones(4, 3)), torch.zeros(4, 2))


def test_mlp_sizes_may_be_positions_or_a_list_and_replace_works() -> None:
    assert MLP(200, 100, batch_norm=True) == MLP(hidden=[200, 100], batch_norm=True)
    assert hash(MLP(5)) == hash(MLP(hidden=[5]))
    assert MLP(5, 4, batch_norm=[2]).batch_norm == (2,)
    assert replace(MLP(200, 100, activation="tanh"), batch_norm="all") == MLP(
        200, 100, batch_norm="all", activation="tanh"
    )
    assert CNN(channels=[4, 8], hidden=[3], batch_norm=[1, 3]) == CNN((4, 8), hidden=(3,), batch_norm=(1, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MLP(0), "hidden has 0"),
        (lambda: MLP(20.0), "hidden has 20.0"),  # type: ignore[arg-type]
        (lambda: MLP(hidden=200), r"such as \[200, 200\]"),  # type: ignore[arg-type]
        (lambda: MLP(5, hidden=(5,)), "write them once"),
        (lambda: MLP(5, activation="rleu"), "did you mean 'relu'"),
        (lambda: MLP(5, batch_norm=(2,)), "names layer 2, but there are 1 layers"),
        (lambda: MLP(5, batch_norm="al"), "did you mean 'all'"),
        (lambda: CNN(channels=()), "channels is empty"),
        (lambda: CNN(kernel=0), "kernel has 0"),
        (lambda: CNN(padding=-1), "padding has -1"),
        (lambda: CNN(pool=(3,)), "pool names layer 3"),
        (lambda: CNN(drop_hidden=1.0), "drop_hidden is 1.0"),
        (lambda: Logistic().build((4,), 0), "classes"),
        (lambda: Logistic().build((), 2), "holds no features"),
        (lambda: fdms_cifar_cnn().build((784,), 10), r"shape \(784,\)"),
        (
            lambda: fdms_cifar_cnn().build((1, 8, 8), 10),
            r"\(1, 8, 8\).*maps are 2x2, too small for a 5x5 kernel",
        ),
        (lambda: vgg11().build((1, 28, 28), 10), "maps are 1x1, too small for a 2x2 pool"),
    ],
)
def test_a_mistake_is_a_sentence(make: object, says: str) -> None:
    with pytest.raises(Mistake, match=says):
        make()  # type: ignore[operator]


def test_the_smallest_image_that_fits_gives_one_map() -> None:
    assert vgg11().map_size((3, 32, 32)) == (1, 1)
    assert CNN(channels=(4,), kernel=8, pool="none").map_size((1, 8, 9)) == (1, 2)
    assert mcmahan_cnn().map_size((1, 28, 28)) == (7, 7)


def steps(model: nn.Module, x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients and loss of one client by ordinary autograd; updates the module's buffers."""
    loss = Classification().loss(model(x).flatten(0, -2), y.flatten()).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), gradients, strict=True)), loss.detach()


def assert_vectorises(
    spec: ModelSpec, x_CB: Tensor, y_CB: Tensor, input_shape: tuple[int, ...], classes: int
) -> None:
    """Several clients' gradients and BatchNorm statistics under vmap equal a plain loop's."""
    clients = [built(spec, input_shape, classes, seed) for seed in range(len(x_CB))]
    params = {
        k: torch.stack([dict(m.named_parameters())[k].detach() for m in clients])
        for k, _ in clients[0].named_parameters()
    }
    buffers = {
        k: torch.stack([dict(m.named_buffers())[k] for m in clients]) for k, _ in clients[0].named_buffers()
    }
    model = built(spec, input_shape, classes)

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        output = functional_call(model, (p, b), (x,))
        return Classification().loss(output.flatten(0, -2), y.flatten()).mean()

    gradients, loss_C = vmap(grad_and_value(loss))(params, buffers, x_CB, y_CB)
    for c, client in enumerate(clients):
        alone, loss_alone = steps(client, x_CB[c], y_CB[c])
        assert torch.allclose(loss_C[c], loss_alone, atol=1e-10)
        for name, value in alone.items():
            assert torch.allclose(gradients[name][c], value, atol=1e-9), name
        for name, value in client.named_buffers():
            assert torch.allclose(buffers[name][c], value), name


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_clients_train_side_by_side_as_they_do_alone(name: str) -> None:
    spec, shape, classes = IMAGE_MODELS[name]
    y_CB = torch.arange(6).reshape(2, 3) % classes
    assert_vectorises(spec, normal(2, 3, *shape), y_CB, shape, classes)


def test_batch_norm_statistics_move_in_training() -> None:
    spec, shape, classes = IMAGE_MODELS["mtfl"]
    model = built(spec, shape, classes)
    model(normal(3, *shape))
    assert int(model.get_buffer("norm1.num_batches_tracked")) == 1
    assert model.get_buffer("norm3.running_mean").abs().max() > 0
