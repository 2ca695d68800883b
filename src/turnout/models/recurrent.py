"""Recurrent models for text (paper 001): next character (Shakespeare), one label per sentence (Sentiment140).

The LSTM has one bias per gate; `nn.LSTM` has two, of which only the sum matters.

Shape letters: B samples, T positions, I inputs of a layer, H its hidden size, K scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from turnout.errors import UserError
from turnout.models.layers import check_size


class LSTMLayer(nn.Module):
    """One LSTM layer over a whole text; gates in torch's order: input i, forget f, candidate g, output o.

    c_t = f * c_{t-1} + i * g,  h_t = o * tanh(c_t);  i, f, o = sigmoid and g = tanh of W x_t + U h_{t-1} + b
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.input = nn.Linear(inputs, 4 * hidden)
        self.recurrent = nn.Linear(hidden, 4 * hidden, bias=False)
        for weight in self.parameters():
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x_BTI: Tensor, real_BT: Tensor | None = None) -> Tensor:
        """The hidden state after every position; where `real_BT` is false (padding) it is carried over."""
        if real_BT is None:
            return self._states(x_BTI)
        # Real positions first; then each position has the state after the last real one up to it.
        order_BT1 = torch.argsort((~real_BT).long(), dim=1, stable=True).unsqueeze(2)
        state_BTH = self._states(x_BTI.gather(1, order_BT1.expand_as(x_BTI)))
        last_BT1 = real_BT.cumsum(1).unsqueeze(2) - 1
        found_BTH = state_BTH.gather(1, last_BT1.clamp(min=0).expand_as(state_BTH))
        return torch.where(last_BT1 >= 0, found_BTH, torch.zeros_like(found_BTH))

    def _states(self, x_BTI: Tensor) -> Tensor:
        """By torch's own kernel."""
        start_1BH = torch.zeros_like(x_BTI[None, :, 0, :1]).expand(1, -1, self.hidden).contiguous()
        weights = [self.input.weight, self.recurrent.weight, self.input.bias, torch.zeros_like(self.input.bias)]
        given = (True, 1, 0.0, self.training, False, True)  # biases, one layer, no dropout, one way, samples first
        return torch.lstm(x_BTI, [start_1BH, start_1BH], weights, *given)[0]


class TextScores(nn.Module):
    """Embedding, LSTM layers, and scores for each position or only the last.

    With `padded`, token 0 (or a vector of zeros if the text is already embedded) is padding and changes no state.
    """

    def __init__(self, embedding: nn.Module, layers: list[LSTMLayer], classes: int, last: bool, padded: bool) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.output = nn.Linear(layers[-1].hidden, classes)
        self.last = last
        self.padded = padded

    def forward(self, text: Tensor) -> Tensor:
        state_BTH = self.embedding(text)
        real_BT = None
        if self.padded:
            real_BT = text != 0 if text.ndim == 2 else (text != 0).any(2)
        for layer in self.layers:
            state_BTH = layer(state_BTH, real_BT)
        return self.output(state_BTH[:, -1] if self.last else state_BTH)


@dataclass(frozen=True)
class CharacterLSTM:
    """Next-character model of LEAF and McMahan et al. for Shakespeare: embedding 8, two layers of 256.

    Takes characters [B, T] as whole numbers below `classes`, gives scores [B, T, K] for the next one at every
    position.

    embedding   numbers per character
    hidden      size of each LSTM layer
    layers      how many
    last        only the last position's scores, [B, K], as LEAF trains it (task: Classification)

    >>> model = CharacterLSTM().build((80,), classes=90)
    >>> sum(p.numel() for p in model.parameters())
    820522
    """

    embedding: int = 8
    hidden: int = 256
    layers: int = 2
    last: bool = False

    def __post_init__(self) -> None:
        _check_recurrent(self)

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(input_shape) != 1:
            raise _not_text("CharacterLSTM", "characters [positions]", input_shape)
        layers = _layers(self.embedding, self)
        return TextScores(nn.Embedding(classes, self.embedding), layers, classes, self.last, padded=False)


@dataclass(frozen=True)
class SentenceLSTM:
    """One label per sentence (Sentiment140): embedding, LSTM layers, scores from the last state.

    Takes words [B, T] as whole numbers below `vocabulary`, 0 for padding on either side; or words already
    embedded, [B, T, I], zeros for padding: `embedding` and `vocabulary` are then not used.

    vocabulary   how many numbers there are for words, with padding and unknown
    embedding    numbers per word
    hidden       size of each LSTM layer
    layers       how many
    """

    vocabulary: int = 10_000
    embedding: int = 100
    hidden: int = 256
    layers: int = 2

    def __post_init__(self) -> None:
        _check_recurrent(self)
        check_size("vocabulary", self.vocabulary)

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(input_shape) not in (1, 2):
            raise _not_text("SentenceLSTM", "words [positions] or [positions, features]", input_shape)
        embedded = len(input_shape) == 2
        inputs = input_shape[1] if embedded else self.embedding
        embedding = nn.Identity() if embedded else nn.Embedding(self.vocabulary, self.embedding)
        return TextScores(embedding, _layers(inputs, self), classes, last=True, padded=True)


def _layers(inputs: int, spec: CharacterLSTM | SentenceLSTM) -> list[LSTMLayer]:
    return [LSTMLayer(inputs if number == 0 else spec.hidden, spec.hidden) for number in range(spec.layers)]


def _check_recurrent(spec: CharacterLSTM | SentenceLSTM) -> None:
    for name in ("embedding", "hidden", "layers"):
        check_size(name, getattr(spec, name))


def _not_text(model: str, takes: str, input_shape: tuple[int, ...]) -> UserError:
    return UserError(
        f"{model} takes {takes}, but a sample here has shape {tuple(input_shape)}: "
        "choose a model for such data (MLP, CNN), or use text"
    )


KINDS = {"character-lstm": CharacterLSTM, "sentence-lstm": SentenceLSTM}
