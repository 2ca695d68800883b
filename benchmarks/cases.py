"""The benchmark cases: one model, one set of data and one amount of work, the same for every side.

Everything is drawn by numpy from the case's own name, so that two environments that share nothing but this file train
the same weights on the same samples. `reference_round` is the work of a round as a plain loop; every side's result is
compared with it.

Shapes: N clients of the population, S samples of one client, C clients of a cohort, B samples of a batch.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from own_models import ResNet20, TextModel, VisionTransformer
from torch import Tensor, nn

CLASSES = 10
CHARACTERS = 90
State = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One round: `cohort` of `population` clients each make `steps` plain SGD steps on batches of `batch`."""

    name: str
    what: str
    input_shape: tuple[int, ...]
    population: int
    cohort: int
    steps: int
    batch: int
    lr: float

    @property
    def text(self) -> bool:
        """Whether samples are characters."""
        return len(self.input_shape) == 1 and self.name in "ghij"

    @property
    def everywhere(self) -> bool:
        """Whether every position has a label of its own."""
        return self.name in "hij"

    @property
    def samples(self) -> int:
        """Each client holds exactly what one pass uses, so one epoch is `steps` steps for everybody."""
        return self.steps * self.batch

    def cohort_at(self, t: int) -> list[int]:
        """The clients of round t: the next `cohort` in line.

        >>> CASES["d"].cohort_at(19)[-1], CASES["d"].cohort_at(20)[0]
        (999, 0)
        """
        return [(t * self.cohort + c) % self.population for c in range(self.cohort)]


CASES = {
    case.name: case
    for case in (
        Case("a", "logistic regression 60-10", (60,), 50, 50, 10, 20, 0.1),
        Case("b", "MNIST MLP 784-200-200-10", (784,), 100, 100, 10, 10, 0.1),
        Case("c", "FDMS MNIST CNN", (1, 28, 28), 20, 20, 10, 5, 0.1),
        Case("d", "CIFAR-10 CNN of pfl's benchmark", (3, 32, 32), 1000, 50, 5, 10, 0.1),
        Case("e", "ResNet-20 with GroupNorm", (3, 32, 32), 100, 20, 5, 10, 0.1),
        Case("f", "small vision transformer", (3, 32, 32), 100, 20, 5, 10, 0.1),
        Case("g", "nn.LSTM, 2 layers of 100, last of 80 characters", (80,), 100, 20, 5, 10, 0.1),
        Case("h", "nn.LSTM, 2 layers of 256, all of 80 characters", (80,), 100, 20, 5, 10, 0.1),
        Case("i", "CharacterLSTM of that size", (80,), 100, 20, 5, 10, 0.1),
        Case("j", "nn.GRU, 2 layers of 256, all of 80 characters", (80,), 100, 20, 5, 10, 0.1),
    )
}


def layers(case: Case) -> nn.Module:
    """The architecture, with torch's own initial weights."""
    match case.name:
        case "a":
            return nn.Sequential(nn.Linear(60, CLASSES))
        case "b":
            hidden = [nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()]
            return nn.Sequential(*hidden, nn.Linear(200, CLASSES))
        case "c":
            first = [nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()]
            second = [nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()]
            return nn.Sequential(*first, *second, nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, CLASSES))
        case "d":
            convolutions = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
            head = [nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, CLASSES)]
            return nn.Sequential(*convolutions, nn.Dropout(0.25), nn.Flatten(), *head)
        case "e":
            return ResNet20(CLASSES)
        case "f":
            return VisionTransformer(CLASSES)
        case "g":
            return TextModel(CHARACTERS, 100, CLASSES, last=True)
        case "h":
            return TextModel(CHARACTERS, 256, CHARACTERS, last=False)
        case "i":
            from turnout.models import CharacterLSTM  # the peers' environments need not have Turnout

            return CharacterLSTM().build(case.input_shape, CHARACTERS)
        case "j":
            return TextModel(CHARACTERS, 256, CHARACTERS, last=False, layers=nn.GRU)
    raise ValueError(f"no case {case.name!r}: choose one of {', '.join(CASES)}")


def build_model(case: Case, dropout: bool = True) -> nn.Module:
    """The case's model with the weights every side starts from, uniform in ±1/sqrt(inputs of a unit).

    `dropout=False` turns the dropout layers off, for comparing results: no two libraries draw the same masks.
    """
    model = layers(case)
    draw = np.random.default_rng(zlib.crc32(f"weights {case.name}".encode()))
    bound = 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # a weight comes before its bias, which shares its bound
            if "norm" in name:
                continue  # torch's own ones and zeros
            if parameter.dim() > 1:
                bound = float(parameter[0].numel()) ** -0.5
            values = draw.uniform(-bound, bound, tuple(parameter.shape)).astype(np.float32)
            parameter.copy_(torch.from_numpy(values))
    for module in model.modules():
        if isinstance(module, nn.Dropout) and not dropout:
            module.p = 0.0
    return model


def make_data(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Random samples x [N, S, *input_shape] float32 and labels y [N, S] int64; only the shape matters for speed."""
    draw = np.random.default_rng(zlib.crc32(f"samples {case.name}".encode()))
    shape = (case.population, case.samples)
    if case.text:
        x_NS = draw.integers(0, CHARACTERS, (*shape, *case.input_shape))
        return x_NS, draw.integers(0, CHARACTERS, x_NS.shape) if case.everywhere else draw.integers(0, CLASSES, shape)
    x_NS = draw.standard_normal((*shape, *case.input_shape), dtype=np.float32)
    return x_NS, draw.integers(0, CLASSES, shape)


def make_tensors(case: Case, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """`make_data` as two tensors on the device."""
    x_NS, y_NS = make_data(case)
    return torch.from_numpy(x_NS).to(device), torch.from_numpy(y_NS).to(device)


def train_client(model: nn.Module, x_S: Tensor, y_S: Tensor, case: Case) -> None:
    """One client's work: plain SGD over its batches in order, mean cross-entropy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=case.lr)
    for x_B, y_B in zip(x_S.split(case.batch), y_S.split(case.batch), strict=True):
        optimizer.zero_grad()
        mean_loss(model(x_B), y_B).backward()
        optimizer.step()


def mean_loss(output: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy, over samples and, where each has a label, over positions."""
    return nn.functional.cross_entropy(output.flatten(0, -2), y.flatten())


def reference_round(model: nn.Module, x_NS: Tensor, y_NS: Tensor, case: Case, t: int) -> None:
    """One round of federated averaging as a plain loop; the model is updated in place."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    for c in case.cohort_at(t):
        model.load_state_dict(start)
        train_client(model, x_NS[c], y_NS[c], case)
        for name, value in model.state_dict().items():
            total[name] += value
    model.load_state_dict({name: value / case.cohort for name, value in total.items()})


def difference(state: State, case: Case, device: str = "cpu") -> tuple[float, float]:
    """After round 0: how far a side's weights are from the reference's, and how far those moved (largest entries).

    The side must have started from `build_model(case, dropout=False)`; the reference runs on the side's own device.
    """
    model = build_model(case, dropout=False).to(device)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    reference_round(model, *make_tensors(case, device), case, 0)
    end = model.state_dict()
    apart = max((state[name].to(device) - end[name]).abs().max().item() for name in end)
    return apart, max((end[name] - start[name]).abs().max().item() for name in end)
