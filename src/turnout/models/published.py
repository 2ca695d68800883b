"""The papers' networks for pictures: functions that give a `CNN` or an `MLP`."""

from __future__ import annotations

from turnout.models.layers import CNN, MLP, Places, check_choice


def digits_cnn() -> CNN:
    """A small network for 8x8 digits, fast on a CPU."""
    return CNN(channels=(16, 32), kernel=3, padding=1)


def mcmahan_cnn() -> CNN:
    """McMahan's CNN for MNIST and EMNIST (paper 000): 5x5x32, pool, 5x5x64, pool, fc512, padded.

    >>> sum(p.numel() for p in mcmahan_cnn().build((1, 28, 28), classes=10).parameters())
    1663370
    """
    return CNN(channels=(32, 64), kernel=5, padding=2, hidden=(512,))


def fdms_mnist_cnn(dropout: float = 0.0) -> CNN:
    """Paper 003 on MNIST: 5x5x10, pool, 5x5x20, pool, 320-50-10.

    The authors' code has dropout=0.5 for the second convolution's maps and the 50 units; the paper does not mention it.
    """
    return CNN(channels=(10, 20), kernel=5, hidden=(50,), drop_channels=dropout, drop_hidden=dropout)


def fdms_cifar_cnn() -> CNN:
    """Paper 003 on CIFAR-10: 5x5x6, pool, 5x5x16, pool, 400-120-84-10."""
    return CNN(channels=(6, 16), kernel=5, hidden=(120, 84))


def pfl_cifar_cnn(dropout: bool = True) -> CNN:
    """A CIFAR-10 network simulators are compared on: 3x3x32, 3x3x64, pool, dropout, fc128, dropout.

    >>> sum(p.numel() for p in pfl_cifar_cnn().build((3, 32, 32), classes=10).parameters())
    1626442
    """
    features, hidden = (0.25, 0.5) if dropout else (0.0, 0.0)
    return CNN((32, 64), kernel=3, pool=(2,), hidden=(128,), drop_features=features, drop_hidden=hidden)


def mtfl_cifar_cnn(batch_norm: Places | None = None, variant: str = "paper") -> CNN:
    """Paper 004 on CIFAR-10: 3x3x32, 3x3x64, each with BatchNorm and pool, then fc512 with BatchNorm.

    `variant` is "paper" (BatchNorm before each ReLU, after all three layers) or "code", as its authors' code has it
    (after ReLU and pool, none after fc512). `batch_norm` names other layers.
    """
    places: Places = "all" if variant == "paper" else (1, 2)
    places = places if batch_norm is None else batch_norm
    return CNN(channels=(32, 64), kernel=3, hidden=(512,), batch_norm=places, norm_at=_norm_of(variant))


def mtfl_mnist_mlp(variant: str = "paper") -> MLP:
    """Paper 004 on MNIST, its 2NN: 784-200-200-10 with BatchNorm after the first layer.

    `variant` is "paper" (before the ReLU) or "code", as its authors' code has it (after the ReLU).
    """
    return MLP(200, 200, batch_norm=(1,), norm_at=_norm_of(variant))


def _norm_of(variant: str) -> str:
    """Where paper 004's networks have BatchNorm, in print and in code."""
    check_choice("variant", variant, ("paper", "code"))
    return "before" if variant == "paper" else "after"


def animals_cnn(*channels: int, activation: str = "relu") -> CNN:
    """Paper 002, Tables 1 and 2: 1 to 4 convolutions (3x3, a pool after each), activation relu or softmax.

    The paper's only network without convolutions, "ANN (16, 16, 32)", is `MLP(16, 16, 32)`.
    """
    return CNN(channels=channels or (16, 32), kernel=3, padding=1, activation=activation)


def vgg11() -> CNN:
    """VGG11 as simplified in sparse ternary compression's experiments (paper 001): half the width or less, no
    BatchNorm, no dropout; needs images of 32x32 or more. Its first weights are TensorFlow's, with which the paper was
    made: with torch's it is still at chance after 450 steps of central training.

    >>> sum(p.numel() for p in vgg11().build((3, 32, 32), classes=10).parameters())
    865482
    """
    channels = (32, 64, 128, 128, 128, 128, 128, 128)
    return CNN(channels=channels, kernel=3, padding=1, pool=(1, 2, 4, 6, 8), hidden=(128, 128), init="glorot")


KINDS = {
    "digits-cnn": digits_cnn,
    "mcmahan-cnn": mcmahan_cnn,
    "fdms-mnist-cnn": fdms_mnist_cnn,
    "fdms-cifar-cnn": fdms_cifar_cnn,
    "pfl-cifar-cnn": pfl_cifar_cnn,
    "mtfl-cifar-cnn": mtfl_cifar_cnn,
    "mtfl-mnist-mlp": mtfl_mnist_mlp,
    "vgg11": vgg11,
}
