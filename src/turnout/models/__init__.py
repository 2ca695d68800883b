"""The papers' models. A model is a small frozen spec; `build(input_shape, classes)` makes an ordinary `nn.Module`.

layers.py          the protocol of specs, stacks of named layers, checks; read this first
plain.py           logistic regression, multi-layer perceptron
convolutional.py   one general CNN
published.py       the papers' networks for pictures, as functions that give such specs
residual.py        residual networks
recurrent.py       LSTMs for text

Imports only root modules.
"""

from turnout.models.convolutional import CNN
from turnout.models.layers import Model, ModelSpec
from turnout.models.plain import MLP, Logistic
from turnout.models.published import (
    animals_cnn,
    digits_cnn,
    fdms_cifar_cnn,
    fdms_mnist_cnn,
    mcmahan_cnn,
    mtfl_cifar_cnn,
    mtfl_mnist_mlp,
    pfl_cifar_cnn,
    vgg11,
)
from turnout.models.recurrent import CharacterLSTM, SentenceLSTM
from turnout.models.residual import ResNet, resnet50
from turnout.suggestions import kinds_in

__all__ = [
    "CNN", "MLP", "CharacterLSTM", "Logistic", "Model", "ModelSpec", "ResNet", "SentenceLSTM", "animals_cnn",
    "digits_cnn", "fdms_cifar_cnn", "fdms_mnist_cnn", "mcmahan_cnn", "mtfl_cifar_cnn", "mtfl_mnist_mlp",
    "pfl_cifar_cnn", "resnet50", "vgg11",
]  # fmt: skip

# Kinds of modules that are not listed above, so that a new model is one file.
globals().update({kind.__name__: kind for kind in kinds_in(__name__).values()})
