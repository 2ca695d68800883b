"""Labels by name: which label of the public set a client's own label name refers to.

Clients number their labels as they like, so a client's name for a label is looked up among those of the public set.

Shape letters: R public samples, S samples of a client, l labels of one client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError, nearest
from turnout.world.enrolment import ClientNames

LabelName = str | int  # a client's own name for a label


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
class Means:
    """A translation of a client's own name for a label.

    said     the client's name for it
    label    the public label that it means
    client   the client that uses it, by number or name; None for all
    """

    said: LabelName
    label: str
    client: int | str | None = None


@dataclass(frozen=True)
class Vocabulary:
    """The public set's label names, and the translations of other names.

    labels    of the public set
    mapping   translations
    names     of the clients

    >>> Vocabulary(("cat", "dog"), (Means("Dog", "dog"),)).number("Dog", client=3)
    1
    """

    labels: tuple[str, ...]
    mapping: tuple[Means, ...] = ()
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for means in self.mapping:
            if means.label not in self.labels:
                hint = nearest(means.label, self.labels)
                raise UserError(f"the mapping of {means.said!r} leads to {means.label!r}, which is not a label: {hint}")
            if means.client is not None and self.names and self._clients.number(means.client) is None:
                hint = nearest(str(means.client), self.names)
                raise UserError(f"the mapping of {means.said!r} names the client {means.client!r}: {hint}")

    @cached_property
    def _clients(self) -> ClientNames:
        return ClientNames(self.names, None if self.names is None else len(self.names))

    def number(self, name: LabelName, client: int) -> int:
        """The index of the label that a client's own name refers to; unknown names are an error."""
        own = [m for m in self.mapping if m.client is None or self._clients.number(m.client) == client]
        meant = {m.said: m.label for m in sorted(own, key=lambda m: m.client is not None)}  # a client's own win
        label = meant.get(name, meant.get(str(name), str(name)))
        if label in self.labels:
            return self.labels.index(label)
        what = f"a label {name!r}" if isinstance(name, str) else f"the number {name} for a label"
        first = "" if isinstance(name, str) else "numbers mean something else to every client, so labels are names; "
        raise UserError(
            f"{self._who(client)} has {what}, and the public set has no label of that name: {first}"
            f"{nearest(str(name).casefold(), self.labels)}; rename it, or translate it: "
            f"mapping = {{{str(name)!r}: '...'}}"
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
        """The labels of a client's samples [S], from its own names, or from numbers that the mapping translates."""
        words = np.asarray(names.cpu() if isinstance(names, Tensor) else names)
        found, place_S = np.unique(words, return_inverse=True)
        known = [self.number(word if isinstance(word, str) else int(word), client) for word in found.tolist()]
        return torch.tensor(known, dtype=torch.int64)[torch.from_numpy(place_S.reshape(-1))]

    def _who(self, client: int) -> str:
        return f"client {client}" if self.names is None else f"client {self.names[client]!r}"


Mapped = Sequence[Means] | Mapping[str, str]


def as_mapping(given: Mapped) -> tuple[Means, ...]:
    """A mapping as users write it, {"Dog": "dog"} or a list of `Means`, as a tuple of `Means`."""
    if isinstance(given, Mapping):
        return tuple(Means(name, label) for name, label in given.items())
    return tuple(given)


def check_own_labels(y_S: Tensor, set_l: Tensor, labels: Sequence[str], who: str) -> None:
    """Refuse a sample whose label is not among its client's labels."""
    strange_S = ~torch.isin(y_S, set_l.to(y_S.device))
    if bool(strange_S.any()):
        label, own = labels[int(y_S[strange_S][0])], ", ".join(labels[i] for i in set_l.tolist())
        raise UserError(f"{who} holds a sample of {label!r}, which is not among its labels ({own}): add it there")
