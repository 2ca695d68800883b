"""Models: shapes, published sizes, sentences for misfits, and that clients train side by side under vmap."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from turnout.errors import UserError
from turnout.models import (
    CNN,
    MLP,
    CharacterLSTM,
    Logistic,
    ModelSpec,
    ResNet,
    SentenceLSTM,
    animals_cnn,
    digits_cnn,
    fdms_cifar_cnn,
    fdms_mnist_cnn,
    mcmahan_cnn,
    mtfl_cifar_cnn,
    mtfl_mnist_mlp,
    pfl_cifar_cnn,
    resnet50,
    vgg11,
)
from turnout.models.recurrent import LSTMLayer
from turnout.rng import rng
from turnout.tasks import Classification


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
    "mtfl code": (mtfl_cifar_cnn(variant="code"), (3, 32, 32), 10),
    "mtfl mnist code": (mtfl_mnist_mlp(variant="code"), (1, 4, 4), 10),
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
        (resnet50(stem="large"), (3, 224, 224), 1000, 25_557_032),  # He et al. 2016
        (CharacterLSTM(), (80,), 90, 820_522),  # Shakespeare in Reddi et al. 2021
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
    assert layer_names(mtfl_mnist_mlp(), (1, 28, 28)) == "flatten linear1 norm1 act1 linear2 act2 output"
    assert layer_names(pfl_cifar_cnn(), (3, 32, 32)) == (
        "conv1 act1 conv2 act2 pool2 drop_features flatten linear3 act3 drop3 output"
    )
    assert layer_names(MLP(9, 9, batch_norm=(1,)), (4,)) == "flatten linear1 norm1 act1 linear2 act2 output"


def test_first_weights_by_glorot_s_law() -> None:
    model = CNN(channels=(8,), kernel=3, hidden=(30,), init="glorot").build((3, 8, 8), classes=4)
    for name, fans in (("conv1", (27, 72)), ("output", (30, 4))):
        layer, bound = getattr(model, name), (6 / sum(fans)) ** 0.5
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert not layer.bias.any()
    with pytest.raises(UserError, match="did you mean 'glorot'"):
        CNN(init="glorott")


def test_batch_norm_is_where_the_authors_code_of_paper_004_has_it() -> None:
    """SPEC 1.3, MTFL item 11: after ReLU (and pool), and none after the fully connected layer of the CNN."""
    cnn = mtfl_cifar_cnn(variant="code")
    assert layer_names(cnn, (3, 32, 32)) == (
        "conv1 act1 pool1 norm1 conv2 act2 pool2 norm2 flatten linear3 act3 output"
    )
    assert cnn.build((3, 32, 32), 10).linear3.in_features == 2304
    assert layer_names(mtfl_mnist_mlp(variant="code"), (1, 28, 28)) == (
        "flatten linear1 act1 norm1 linear2 act2 output"
    )
    assert layer_names(mtfl_cifar_cnn((1,), variant="code"), (3, 32, 32)).count("norm") == 1
    assert mtfl_mnist_mlp() == MLP(200, 200, batch_norm=(1,))
    with pytest.raises(UserError, match="did you mean 'code'"):
        mtfl_cifar_cnn(variant="cod")
    with pytest.raises(UserError, match="before"):
        CNN(batch_norm=True, norm_at="behind")


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
        (lambda: CNN(drop_hidden=1.0), "drop_hidden is 1.0: it is a probability"),
        (lambda: CNN(drop_channels=-0.1), "drop_channels is -0.1: it is a probability"),
        (lambda: ResNet(blocks=()), "blocks is empty"),
        (lambda: ResNet(stem="tiny"), "known are large, small"),
        (lambda: ResNet().build((784,), 10), r"shape \(784,\)"),
        (lambda: CharacterLSTM(layers=0), "layers has 0"),
        (lambda: CharacterLSTM().build((1, 28, 28), 10), r"takes characters.*\(1, 28, 28\)"),
        (lambda: SentenceLSTM(vocabulary=0), "vocabulary has 0"),
        (lambda: SentenceLSTM().build((1, 28, 28), 10), "takes words"),
        (lambda: fdms_cifar_cnn().build((784,), 10), r"shape \(784,\)"),
        (
            lambda: fdms_cifar_cnn().build((1, 8, 8), 10),
            r"\(1, 8, 8\).*maps before layer 2 of 2 are 2x2, too small for a 5x5 kernel",
        ),
        (
            lambda: vgg11().build((1, 28, 28), 10),
            "maps before layer 8 of 8 are 1x1, too small for a 3x3 kernel and a 2x2 pool",
        ),
    ],
)
def test_a_mistake_is_a_sentence(make: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
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


def assert_vectorises(spec: ModelSpec, x_CB: Tensor, y_CB: Tensor, input_shape: tuple[int, ...], classes: int) -> None:
    """Several clients' gradients and BatchNorm statistics under vmap equal a plain loop's."""
    clients = [built(spec, input_shape, classes, seed) for seed in range(len(x_CB))]
    params = {
        k: torch.stack([dict(m.named_parameters())[k].detach() for m in clients])
        for k, _ in clients[0].named_parameters()
    }
    buffers = {k: torch.stack([dict(m.named_buffers())[k] for m in clients]) for k, _ in clients[0].named_buffers()}
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


@pytest.mark.parametrize(("stem", "map_size"), [("small", 4), ("large", 1)])
def test_resnet_fits_small_and_large_images(stem: str, map_size: int) -> None:
    with torch.device("meta"):
        model = resnet50(stem).build((1, 28, 28), classes=62)
        maps = nn.Sequential(*list(model.children())[:-3])(torch.ones(2, 1, 28, 28))
        assert maps.shape == (2, 2048, map_size, map_size)
        assert model(torch.ones(2, 1, 28, 28)).shape == (2, 62)


def test_a_resnet_has_fifty_layers_with_weights() -> None:
    with torch.device("meta"):
        model = resnet50().build((3, 32, 32), classes=10)
    layers = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear) and "shortcut" not in n]
    assert len(layers) == 50


@pytest.mark.parametrize("stem", ["small", "large"])
def test_residual_clients_train_side_by_side_as_they_do_alone(stem: str) -> None:
    spec, y_CB = ResNet(blocks=(2, 1), width=3, stem=stem), torch.tensor([[0, 1, 2], [2, 2, 0]])
    assert_vectorises(spec, normal(2, 3, 1, 12, 12), y_CB, (1, 12, 12), classes=3)


def lstm_of_torch(layers: list[LSTMLayer], inputs: int, hidden: int) -> nn.LSTM:
    """torch's own LSTM with the same weights; its second bias is 0."""
    lstm = nn.LSTM(inputs, hidden, num_layers=len(layers), batch_first=True).double()
    state = {}
    for number, layer in enumerate(layers):
        state[f"weight_ih_l{number}"] = layer.input.weight
        state[f"bias_ih_l{number}"] = layer.input.bias
        state[f"weight_hh_l{number}"] = layer.recurrent.weight
        state[f"bias_hh_l{number}"] = torch.zeros(4 * hidden)
    lstm.load_state_dict(state)
    return lstm


@pytest.mark.parametrize("count", [1, 2])
def test_the_lstm_equals_torchs(count: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [LSTMLayer(3 if number == 0 else 5, 5).double() for number in range(count)]
    x_BTI = normal(4, 7, 3)
    expected_BTH, _ = lstm_of_torch(layers, inputs=3, hidden=5)(x_BTI)
    state_BTH = x_BTI
    for layer in layers:
        state_BTH = layer(state_BTH)
    assert torch.allclose(state_BTH, expected_BTH, atol=1e-10, rtol=0)


def test_characters_get_scores_at_every_position_that_see_only_the_past() -> None:
    model = built(CharacterLSTM(embedding=3, hidden=4), (6,), classes=9)
    text_BT = torch.arange(12).reshape(2, 6) % 9
    changed_BT = text_BT.clone()
    changed_BT[:, 4] = 8
    score_BTK, changed_BTK = model(text_BT), model(changed_BT)
    assert score_BTK.shape == (2, 6, 9)
    assert torch.equal(score_BTK[:, :4], changed_BTK[:, :4])
    assert not torch.allclose(score_BTK[:, 5], changed_BTK[:, 5])


def test_last_only_gives_the_scores_of_the_last_position() -> None:
    text_BT = torch.arange(12).reshape(2, 6) % 9
    every = built(CharacterLSTM(embedding=3, hidden=4), (6,), classes=9)(text_BT)
    last = built(CharacterLSTM(embedding=3, hidden=4, last=True), (6,), classes=9)(text_BT)
    torch.testing.assert_close(every[:, -1], last)


def test_padding_on_either_side_does_not_change_a_sentence() -> None:
    model = built(SentenceLSTM(vocabulary=9, embedding=3, hidden=4), (6,), classes=2)
    alone = model(torch.tensor([[5, 2, 7]]))
    padded = model(torch.tensor([[5, 2, 7, 0, 0, 0], [0, 0, 0, 5, 2, 7]]))
    assert alone.shape == (1, 2)
    assert torch.allclose(padded, alone.expand(2, 2), atol=1e-14)


def test_embedded_words_give_what_their_numbers_give() -> None:
    by_number = built(SentenceLSTM(vocabulary=9, embedding=3, hidden=4), (4,), classes=2)
    by_vector = built(SentenceLSTM(hidden=4), (4, 3), classes=2)
    weights = {k: v for k, v in by_number.state_dict().items() if not k.startswith("embedding")}
    by_vector.load_state_dict(weights)
    words_BT = torch.tensor([[5, 2, 7, 0]])
    vectors_BTI = by_number.get_submodule("embedding")(words_BT) * (words_BT != 0)[..., None]
    assert torch.allclose(by_vector(vectors_BTI), by_number(words_BT), atol=1e-14)


TEXT_MODELS: dict[str, tuple[ModelSpec, tuple[int, ...]]] = {
    "every character": (CharacterLSTM(embedding=3, hidden=4), (2, 3, 5)),
    "last character": (CharacterLSTM(embedding=3, hidden=4, last=True), (2, 3)),
    "sentence": (SentenceLSTM(vocabulary=9, embedding=3, hidden=4), (2, 3)),
}


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_text_clients_train_side_by_side_as_they_do_alone(name: str) -> None:
    spec, target_shape = TEXT_MODELS[name]
    text_CBT = torch.arange(30).reshape(2, 3, 5) * 7 % 9
    target = torch.arange(int(torch.tensor(target_shape).prod())).reshape(target_shape) % 9
    assert_vectorises(spec, text_CBT, target, (5,), classes=9)


def test_embedded_sentences_train_side_by_side() -> None:
    x_CBTI = normal(2, 3, 5, 4) * (torch.arange(5) < 3)[:, None]
    y_CB = torch.tensor([[0, 1, 0], [1, 1, 0]])
    assert_vectorises(SentenceLSTM(hidden=4, layers=1), x_CBTI, y_CB, (5, 4), classes=2)
