"""`Arriving`: in every round new samples for every client, of its own labels, and a public set (paper 002).

Shape letters: C clients asked for, L labels, l labels of one client, R rows, S samples of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnout.data.federation import DataSpec, Pooled, Rows
from turnout.data.labels import LabelName, Public, Vocabulary
from turnout.errors import UserError
from turnout.rng import key, rng
from turnout.types import Samples


@dataclass(frozen=True)
class Dip:
    """One round in which a client has only a share of its usual samples.

    client   its number
    round    the round
    share    of its usual samples
    """

    client: int
    round: int
    share: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.round < 0 or self.client < 0:
            raise UserError(f"{self}: a share is above 0 and at most 1, a round and a client at least 0")


@dataclass(frozen=True)
class Arriving:
    """Clients with labels of their own, new private samples every round, and a public set (paper 002).

    data       a labelled set that is read from files; its own test samples are used like the others
    labels     each client's labels, by name
    per_label  private samples of each label in a round; drawn again in every round
    public     samples of each label that every client may see
    mix        how unequal a client's labels are in a round: proportions ~ Dirichlet(mix); None: equal
    dips       clients that have fewer samples in one round
    names      the clients' names

    >>> from turnout.data import Digits
    >>> found = Arriving(Digits(), labels=(("3", "5"), ("5", "8")), per_label=4, public=20).load(seed=0)
    >>> found.labels, found.train(torch.tensor([1]), t=7).count_C, len(found.public.x)
    (('3', '5', '8'), tensor([8]), 60)
    """

    data: DataSpec
    labels: tuple[tuple[LabelName, ...], ...]
    per_label: int = 500
    public: int = 500
    mix: float | None = None
    dips: tuple[Dip, ...] = ()
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(tuple(own) for own in self.labels))
        if not self.labels:
            raise UserError("Arriving: list the labels of each client: labels = [['cat', 'dog'], ['dog', 'sheep']]")
        if min(self.per_label, self.public) < 1:
            raise UserError(f"Arriving: per_label and public are at least 1, not {self.per_label} and {self.public}")
        if self.mix is not None and not self.mix > 0:
            raise UserError(f"Arriving: mix must be above 0, not {self.mix}; leave it out for equal parts")
        if self.names is not None and len(self.names) != len(self.labels):
            raise UserError(f"Arriving: {len(self.labels)} clients and {len(self.names)} names; give one name each")
        for dip in self.dips:
            if dip.client >= len(self.labels):
                raise UserError(f"Arriving: there is no client {dip.client} to have a dip, only {len(self.labels)}")

    def read(self, data_dir: Path | None = None) -> Any:
        """The samples of the data set inside; also used to check that its files exist."""
        if not hasattr(self.data, "read"):
            kind = type(self.data).__name__
            raise UserError(f"Arriving divides a labelled set that is read (Digits, ImageFolder, ...), not {kind}")
        return self.data.read(data_dir)

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Arrivals:
        pool = self.read(data_dir)
        if not pool.labels:
            raise UserError("Arriving needs data with labels: these targets are numbers to be predicted")
        known = Vocabulary(pool.labels, self.names)
        sets = [known.label_set(own, client) for client, own in enumerate(self.labels)]
        used_L = torch.cat(sets).unique()
        x, y = pool.x, pool.y
        if pool.test is not None:
            x, y = torch.cat([x, pool.test[0]]), torch.cat([y, pool.test[1]])
        own = tuple(torch.searchsorted(used_L, set_l) for set_l in sets)
        names = tuple(pool.labels[i] for i in used_L.tolist())
        open_: list[Tensor] = []
        private: dict[tuple[int, int], Tensor] = {}
        for label, name in enumerate(names):
            row_S = (y == used_L[label]).nonzero().squeeze(1)
            holders = [c for c, set_l in enumerate(own) if label in set_l.tolist()]
            if len(row_S) < self.public + len(holders):
                raise UserError(
                    f"Arriving: there are {len(row_S)} samples of {name!r}, too few for {self.public} public ones and "
                    f"some for each of its {len(holders)} clients: lower world.data.public"
                )
            mixed_S = row_S[torch.randperm(len(row_S), generator=rng(seed, "arriving", name))]
            open_.append(mixed_S[: self.public])
            parts = mixed_S[self.public :].tensor_split(len(holders))
            private |= {(client, label): part for client, part in zip(holders, parts, strict=True)}
        open_R = torch.cat(open_)
        number_S = torch.searchsorted(used_L, y).clamp(max=len(used_L) - 1)
        held = [torch.cat([private[client, label] for label in own[client].tolist()]) for client in range(len(own))]
        return Arrivals(
            x, number_S, Rows.of(held), Rows.of([open_R[:0]] * len(own)), len(names), names, self.names,
            central=(x[open_R], number_S[open_R]), official=True,
            public=Public(x[open_R], number_S[open_R], partial(_same_in_all_rounds, own)),
            spec=self, seed=seed, private=private,
        )  # fmt: skip


def _same_in_all_rounds(sets: tuple[Tensor, ...], client: int, t: int) -> Tensor:
    return sets[client]


@dataclass(frozen=True, eq=False, kw_only=True)
class Arrivals(Pooled):
    """The federation of `Arriving`: a pool, and a draw of rows for each client and round. The public set is used for
    testing: clients have no test samples of their own.

    spec      the settings
    seed      of the draws
    private   (client, label) -> rows that only this client draws from
    """

    spec: Arriving
    seed: int
    private: dict[tuple[int, int], Tensor]

    def examples(self, client_C: Tensor) -> Tensor:
        return torch.tensor(
            [self.spec.per_label * len(self.spec.labels[c]) for c in client_C.tolist()], device=client_C.device
        )

    def train(self, client_C: Tensor, t: int = 0) -> Samples:
        rows = [self._rows(client, t) for client in client_C.tolist()]
        row_R = torch.cat([torch.empty(0, dtype=torch.int64), *rows])
        return Samples(self.x, self.y, row_R, torch.tensor([len(own_R) for own_R in rows]))

    def _rows(self, client: int, t: int) -> Tensor:
        """A client's rows in a round: of each label random rows, without repeats as long as there are enough."""
        label_l = sorted(label for holder, label in self.private if holder == client)
        part_l = np.full(len(label_l), 1 / len(label_l))
        if self.spec.mix is not None:
            draws = np.random.default_rng(key(self.seed, "mix", client, t) & (2**63 - 1))
            part_l = draws.dirichlet(np.full(len(label_l), self.spec.mix))
        count_l = np.diff(np.round(np.cumsum(part_l) * self.spec.per_label * len(label_l)).astype(int), prepend=0)
        dip = next((d.share for d in self.spec.dips if (d.client, d.round) == (client, t)), 1.0)
        drawn = []
        for label, usual in zip(label_l, count_l.tolist(), strict=True):
            count, rows = max(1, round(dip * usual)), self.private[client, label]
            g = rng(self.seed, "arriving", client, label, t)
            often = -(-count // len(rows))
            drawn.append(torch.cat([rows[torch.randperm(len(rows), generator=g)] for _ in range(often)])[:count])
        return torch.cat(drawn)


KINDS = {"arriving": Arriving}
