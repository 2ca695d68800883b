"""Models for flat inputs: multinomial logistic regression and the multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from turnout.errors import UserError
from turnout.models.layers import (
    ACTIVATIONS,
    NORM_AT,
    Layers,
    Places,
    check_choice,
    check_places,
    check_size,
    check_sizes,
    dense,
    features,
    placed,
    sequential,
)


@dataclass(frozen=True)
class Logistic:
    """Multinomial logistic regression: scores = W x + b (paper 000, SYNTHETIC). Also linear regression.

    zero_init   whether the first weights are zero

    >>> model = Logistic(zero_init=True).build((60,), classes=10)
    >>> sum(p.numel() for p in model.parameters())
    610
    """

    zero_init: bool = False

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        check_size("classes", classes)
        output = nn.Linear(features(input_shape), classes)
        if self.zero_init:
            nn.init.zeros_(output.weight)
            nn.init.zeros_(output.bias)
        return sequential([("flatten", nn.Flatten()), ("output", output)])


@dataclass(frozen=True, init=False)
class MLP:
    """Fully connected layers of the given sizes; `MLP(200, 200)` is McMahan's 2NN (papers 000 and 004).

    hidden       the sizes of the hidden layers
    batch_norm   which of them have BatchNorm: all (True), or those numbered; the 2NN of paper 004 has it after the
                 first only: `MLP(200, 200, batch_norm=(1,))`
    activation   relu, softmax, tanh or sigmoid
    norm_at      "before" the activation or "after" it

    >>> model = MLP(200, 200).build((1, 28, 28), classes=10)
    >>> sum(p.numel() for p in model.parameters())
    199210
    """

    hidden: tuple[int, ...] = ()
    batch_norm: Places = False
    activation: str = "relu"
    norm_at: str = "before"

    def __init__(
        self,
        *sizes: int,
        hidden: Sequence[int] = (),
        batch_norm: Places | list[int] = False,
        activation: str = "relu",
        norm_at: str = "before",
    ) -> None:
        if sizes and hidden:
            raise UserError(f"MLP got sizes {sizes} and hidden={hidden}: write them once")
        checked = check_sizes("hidden", sizes or hidden)
        check_choice("activation", activation, ACTIVATIONS)
        check_choice("norm_at", norm_at, NORM_AT)
        object.__setattr__(self, "hidden", checked)
        object.__setattr__(self, "batch_norm", check_places("batch_norm", batch_norm, len(checked)))
        object.__setattr__(self, "activation", activation)
        object.__setattr__(self, "norm_at", norm_at)

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        check_size("classes", classes)
        norm = placed(self.batch_norm, len(self.hidden))
        layers: Layers = [("flatten", nn.Flatten())]
        inputs = features(input_shape)
        return sequential(layers + dense(inputs, self.hidden, classes, self.activation, norm, norm_at=self.norm_at))


KINDS = {"logistic": Logistic, "mlp": MLP}
