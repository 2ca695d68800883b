"""Labels by name: clients number their labels as they like, so their names are looked up among those of the public set.

Shape letters: R public samples, S samples of a client, l labels of one client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError, nearest

LabelName = str | int  # a client's name for a label


@dataclass(frozen=True, eq=False)
class Public:
    """Samples that every client may see, and each client's labels.

    x           the samples
    y_R         their labels, as indices of the federation's label names
    label_set   (client, round) -> the client's labels as indices, sorted
    """

    x: Tensor
    y_R: Tensor
    label_set: Callable[[int, int], Tensor]

    def to(self, device: torch.device | str) -> Public:
        return Public(self.x.to(device), self.y_R.to(device), self.label_set)


@dataclass(frozen=True)
class Vocabulary:
    """The public set's label names.

    labels    of the public set
    names     of the clients

    >>> Vocabulary(("cat", "dog")).number("dog", client=3)
    1
    """

    labels: tuple[str, ...]
    names: tuple[str, ...] | None = None

    def number(self, name: LabelName, client: int) -> int:
        """The index of a label that a client names; unknown names are an error."""
        if str(name) in self.labels:
            return self.labels.index(str(name))
        hint = nearest(str(name).casefold(), self.labels)
        raise UserError(
            f"{self._who(client)} has a label {name!r}, and the public set has none of that name: labels are names, "
            f"since numbers mean something else to every client; {hint}"
        )

    def label_set(self, names: Iterable[LabelName], client: int) -> Tensor:
        """A client's labels as sorted indices; fewer than two are refused."""
        numbers = [self.number(label, client) for label in names]
        if len(set(numbers)) < len(numbers):
            raise UserError(f"{self._who(client)} names a label twice: {list(names)}")
        if len(numbers) < 2:
            raise UserError(
                f"{self._who(client)} has {len(numbers)} label{'' if len(numbers) == 1 else 's'}: the score of a "
                "single label is always 1, so give it at least two (such as one for all other samples)"
            )
        return torch.tensor(sorted(numbers))

    def numbers(self, names: object, client: int) -> Tensor:
        """The labels of a client's samples [S], from its own names."""
        words = np.asarray(names.cpu() if isinstance(names, Tensor) else names)
        found, place_S = np.unique(words, return_inverse=True)
        known = [self.number(word if isinstance(word, str) else int(word), client) for word in found.tolist()]
        return torch.tensor(known, dtype=torch.int64)[torch.from_numpy(place_S.reshape(-1))]

    def _who(self, client: int) -> str:
        return f"client {client}" if self.names is None else f"client {self.names[client]!r}"


def check_own_labels(y_S: Tensor, set_l: Tensor, labels: Sequence[str], who: str) -> None:
    """Refuse a sample whose label is not among its client's labels."""
    strange_S = ~torch.isin(y_S, set_l.to(y_S.device))
    if bool(strange_S.any()):
        label, own = labels[int(y_S[strange_S][0])], ", ".join(labels[i] for i in set_l.tolist())
        raise UserError(f"{who} holds a sample of {label!r}, which is not among its labels ({own}): add it there")
