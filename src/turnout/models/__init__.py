"""The papers' models: small specs that build plain modules."""

from turnout.models.convolutional import (
    CNN,
    animals_cnn,
    digits_cnn,
    fdms_cifar_cnn,
    fdms_mnist_cnn,
    mcmahan_cnn,
    mtfl_cifar_cnn,
    pfl_cifar_cnn,
    vgg11,
)
from turnout.models.layers import ModelSpec
from turnout.models.plain import MLP, Logistic

__all__ = [
    "CNN",
    "MLP",
    "Logistic",
    "ModelSpec",
    "animals_cnn",
    "digits_cnn",
    "fdms_cifar_cnn",
    "fdms_mnist_cnn",
    "mcmahan_cnn",
    "mtfl_cifar_cnn",
    "pfl_cifar_cnn",
    "vgg11",
]
