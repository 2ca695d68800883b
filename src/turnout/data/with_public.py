"""`WithPublic`: makes some of a data set's test samples public; wraps any labelled data set in one pool.

Shape letters: R public samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.data.federation import DataSpec
from turnout.data.labels import Public, Vocabulary
from turnout.data.pooled import Pooled, Rows
from turnout.errors import UserError
from turnout.rng import rng


@dataclass(frozen=True)
class WithPublic:
    """Test samples that everybody may see, so that clients can exchange scores on them; a client's labels are those
    among its training samples.

    per_label  how many of each label; None: all there are

    >>> from turnout.data import Digits
    >>> from turnout.data.partition import Classes
    >>> found = WithPublic(Digits(clients=5, partition=Classes(per_client=2)), per_label=10).load(seed=0)
    >>> len(found.public.x), len(found.public.label_set(3, 0))
    (100, 2)
    """

    data: DataSpec
    per_label: int | None = None

    def __post_init__(self) -> None:
        if self.per_label is not None and self.per_label < 1:
            raise UserError(
                f"WithPublic: per_label is at least 1, not {self.per_label}; leave it out for all there are"
            )

    def read(self, data_dir: Path | None = None) -> Any:
        """The samples of the set inside; also used to check that its files are there."""
        return self.data.read(data_dir) if hasattr(self.data, "read") else None

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        found = self.data.load(seed, data_dir)
        if not isinstance(found, Pooled) or not found.labels or found.y.ndim != 1:
            kind = type(self.data).__name__
            raise UserError(
                f"WithPublic needs a labelled data set in one pool, not {kind}: give Stream or Loader public"
            )
        if found.central is None:
            raise UserError(
                "WithPublic makes test samples public, and there are none: raise world.data.data.test_share"
            )
        x, y = found.central
        order_R = torch.randperm(len(y), generator=rng(seed, "public"))
        kept = [order_R[y[order_R] == label][: self.per_label] for label in range(found.classes)]
        open_R = torch.cat(kept)
        known = Vocabulary(found.labels, (), found.names)
        return replace(found, public=Public(x[open_R], y[open_R], _Held(found.train_rows, found.y, known)))


@dataclass(frozen=True)
class _Held:
    """A client's labels: those among its training samples."""

    rows: Rows
    y: Tensor
    known: Vocabulary

    def __call__(self, client: int, t: int) -> Tensor:
        held_l = self.y[self.rows.take(torch.tensor([client]))[0]].unique()
        return self.known.label_set([self.known.labels[i] for i in held_l.tolist()], client)


KINDS = {"with-public": WithPublic}
