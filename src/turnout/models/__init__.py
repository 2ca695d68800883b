"""The papers' models. A model is a small frozen spec; `build(input_shape, classes)` makes an ordinary `nn.Module`.

Read layers.py first; published.py has the papers' networks for pictures as settings of it; adapters.py freezes a model
of any kind and trains low-rank changes of its layers instead.
"""

from turnout.models.adapters import Adapted, LoRA
from turnout.models.layers import CNN, MLP, Logistic, Model, ModelSpec
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
    "CNN", "MLP", "Adapted", "CharacterLSTM", "LoRA", "Logistic", "Model", "ModelSpec", "ResNet", "SentenceLSTM",
    "animals_cnn", "digits_cnn", "fdms_cifar_cnn", "fdms_mnist_cnn", "mcmahan_cnn", "mtfl_cifar_cnn",
    "mtfl_mnist_mlp", "pfl_cifar_cnn", "resnet50", "vgg11",
]  # fmt: skip

# Kinds of modules that are not listed above, so that a new model is one file.
globals().update({kind.__name__: kind for kind in kinds_in(__name__).values()})
