"""The memory of pairs of clients: the similarity of their updates when they met, and how often they met.

Tables are dense over the clients ever seen, in the slots they got with their first reply: reading all pairs of a round
is then a few large, regular memory operations. They are written in place.

Shape letters: K slots, R replies, M missing clients, L clients that left, I any clients, N pairs, b rows of a block, c
columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.parts.substitution.base import find_slots
from turnout.types import State

CACHED = 16  # rows of a table read together, so that they stay in the cache
_MOST_COUNT = 32_000  # fits int16; from here on a mean moves as after this many rounds


@dataclass(frozen=True)
class Judging:
    """How candidates are judged now: dropped if `theta` or more below a client's best, once met `least` times."""

    theta: float
    least: int


@dataclass(frozen=True)
class Pairs:
    """Running means over the rounds in which both clients replied.

    client_K   the client of each slot, -1: free
    seen_K     the round in which it last replied
    mean_KK    mean similarity; in the rows of slots that are taken, -inf where two have not met
    count_KK   |count|, symmetric: rounds in which two met; negative where the column's client is no longer a candidate
               of the row's
    best_K     mean similarity of each client's best candidate, where candidates are kept
    weight_KK  total weight of two clients' meetings in their mean; None: 1 each
    """

    client_K: Tensor
    seen_K: Tensor
    mean_KK: Tensor
    count_KK: Tensor
    best_K: Tensor
    weight_KK: Tensor | None = None

    @classmethod
    def empty(cls, weighted: bool) -> Pairs:
        """Before any two clients have met; with a table of weights if meetings are `weighted`."""
        none, nothing = torch.empty(0, dtype=torch.int64), torch.empty(0, 0)
        counts = torch.empty(0, 0, dtype=torch.int16)
        return cls(none, none.clone(), nothing, counts, torch.empty(0), nothing.clone() if weighted else None)

    def to_state(self) -> State:
        tables = {"mean": self.mean_KK, "count": self.count_KK, "best": self.best_K}
        weights = {} if self.weight_KK is None else {"weight": self.weight_KK}
        return {"client": self.client_K, "seen": self.seen_K} | tables | weights

    @classmethod
    def from_state(cls, state: State) -> Pairs:
        client_K, seen_K, mean_KK, count_KK, best_K = (state[n] for n in ("client", "seen", "mean", "count", "best"))
        return cls(client_K, seen_K, mean_KK, count_KK, best_K, state.get("weight"))

    def find(self, client_I: Tensor) -> Tensor:
        """The slots of clients, -1 for those without one."""
        return find_slots(self.client_K, client_I)

    def place(
        self, client_R: Tensor, t: int, most: int, population: int, dtype: torch.dtype, judging: Judging | None
    ) -> tuple[Pairs, Tensor]:
        """Slots for the clients that replied, at most `most` in all: the client not seen for longest makes room.

        -1 for clients without one, because more replied than are remembered.
        """
        new_R = self.find(client_R) < 0
        free = int((self.client_K < 0).sum())
        wanted = len(self.client_K) + int(new_R.sum()) - free
        pairs = self
        if wanted > len(self.client_K):
            pairs = self._grown(min(most, max(wanted, min(4 * len(self.client_K), population))), dtype)
        here_R = pairs.find(client_R)
        others_K = torch.ones_like(pairs.client_K, dtype=torch.bool).index_fill(0, here_R[here_R >= 0], False)
        order_K = pairs.seen_K.argsort(stable=True)
        room = order_K[others_K[order_K]][: int(new_R.sum())]
        newcomers = client_R[new_R][: len(room)]
        pairs._clear(room[pairs.client_K[room] >= 0], judging)
        pairs.mean_KK.index_fill_(0, room, -torch.inf)
        pairs.client_K[room] = newcomers
        slot_R = pairs.find(client_R)
        pairs.seen_K[slot_R[slot_R >= 0]] = t
        return pairs, slot_R

    def _grown(self, slots: int, dtype: torch.dtype) -> Pairs:
        """The same tables with more slots. Zeros cost no memory before they are written."""
        old = len(self.client_K)
        if slots <= old:
            return self

        def longer(old_K: Tensor, blank: float, dtype: torch.dtype) -> Tensor:
            new_K = torch.full((slots,), blank, dtype=dtype)
            new_K[:old] = old_K
            return new_K

        def larger(old_KK: Tensor, blank: float, dtype: torch.dtype) -> Tensor:
            new_KK = torch.zeros(slots, slots, dtype=dtype)
            new_KK[:old] = blank
            new_KK[:old, :old] = old_KK
            return new_KK

        return Pairs(
            longer(self.client_K, -1, torch.int64),
            longer(self.seen_K, -1, torch.int64),
            larger(self.mean_KK, -torch.inf, dtype),
            larger(self.count_KK, 0, self.count_KK.dtype),
            longer(self.best_K, -torch.inf, dtype),
            None if self.weight_KK is None else larger(self.weight_KK, 0, self.weight_KK.dtype),
        )

    def _clear(self, slot_L: Tensor, judging: Judging | None) -> None:
        """Clear the rows and columns of clients; those whose best friend was among them get the next best."""
        if not len(slot_L):
            return
        bereft_B = slot_L[:0]
        if judging is not None:
            mean_LK = self.mean_KK.index_select(0, slot_L)
            best_was_K = ((mean_LK > -torch.inf) & (mean_LK >= self.best_K)).any(0).index_fill(0, slot_L, False)
            bereft_B = best_was_K.nonzero().squeeze(1)
            self._judge(bereft_B, judging)  # absent clients too, by the best they had
        self.mean_KK.index_fill_(0, slot_L, -torch.inf).index_fill_(1, slot_L, -torch.inf)
        for table in (self.count_KK, *(() if self.weight_KK is None else (self.weight_KK,))):
            table.index_fill_(0, slot_L, 0).index_fill_(1, slot_L, 0)
        self.best_K[slot_L] = -torch.inf
        if judging is not None:
            for slot_b in bereft_B.split(CACHED):  # one that has lost its last candidate starts again with all of them
                count_bK = self.count_KK.index_select(0, slot_b)
                alone_b1 = ~(count_bK > 0).any(1, keepdim=True)
                self.count_KK.index_copy_(0, slot_b, torch.where(alone_b1, count_bK.abs(), count_bK))
            self.rate(bereft_B, judging.least)

    def forget(self, client_L: Tensor, judging: Judging | None = None) -> Pairs:
        """Without clients that have left: their rows and columns are cleared."""
        slot_L = self.find(client_L)
        slot_L = slot_L[slot_L >= 0]
        self._clear(slot_L, judging)
        return replace(
            self, client_K=self.client_K.index_fill(0, slot_L, -1), seen_K=self.seen_K.index_fill(0, slot_L, -1)
        )

    def met(self, row_N: Tensor, column_N: Tensor, score_N: Tensor, weight_N: Tensor | float, candidates: bool) -> None:
        """Pairs that met: R_ij <- (N_ij R_ij + r) / (N_ij + 1), N_ij <- N_ij + 1, in both of their places (eq. 15).

        Where meetings are weighted, R_ij is the weighted mean; N_ij still counts the rounds.
        """
        mean, count = self.mean_KK.view(-1), self.count_KK.view(-1)
        there_N, back_N = row_N * len(self.client_K) + column_N, column_N * len(self.client_K) + row_N
        count_N, mean_N = count[there_N], mean[there_N]
        before_N = count_N.abs().to(mean.dtype)
        if self.weight_KK is not None:
            weight = self.weight_KK.view(-1)
            before_N = weight[there_N].to(mean.dtype)
            weight[there_N] = weight[back_N] = (before_N + weight_N).to(weight.dtype)
        moved_N = mean_N + (score_N - mean_N) * (weight_N / (before_N + weight_N))
        mean[there_N] = mean[back_N] = torch.where(count_N != 0, moved_N, score_N)
        after_N = (count_N.abs() + 1).clamp_(max=_MOST_COUNT)
        count[there_N] = torch.where(count_N < 0, -after_N, after_N) if candidates else after_N
        count[back_N] = torch.where(count[back_N] < 0, -after_N, after_N) if candidates else after_N

    def prune(self, slot_R: Tensor, judging: Judging) -> Tensor:
        """Judge the candidates of these clients; mask of the pairs in which one is a candidate of the other."""
        self._judge(slot_R, judging)
        dropped_RR = torch.empty(len(slot_R), len(slot_R), dtype=torch.bool)
        for first in range(0, len(slot_R), CACHED):
            count_bK = self.count_KK.index_select(0, slot_R[first : first + CACHED])
            dropped_RR[first : first + CACHED] = count_bK.index_select(1, slot_R) < 0
        return ~(dropped_RR & dropped_RR.T)

    def _judge(self, slot_R: Tensor, judging: Judging) -> None:
        """Drop each client's candidates whose mean is `theta` or more below its best.

        Only candidates met `least` times are judged, and the best always stays (its gap is 0).
        """
        if judging.theta > 1:  # means are in [0, 1]
            return
        for slot_b in slot_R.split(CACHED):
            count_bK = self.count_KK.index_select(0, slot_b)
            drop_bK = self._falls(slot_b, self.mean_KK.index_select(0, slot_b), count_bK, judging)
            if bool(drop_bK.any()):
                self.count_KK.index_copy_(0, slot_b, torch.where(drop_bK, -count_bK, count_bK))

    def _falls(self, slot_b: Tensor, mean_bc: Tensor, count_bc: Tensor, judging: Judging) -> Tensor:
        return (count_bc >= judging.least) & (self.best_K[slot_b, None] - mean_bc >= judging.theta)

    def rate(self, slot_R: Tensor, least: int) -> None:
        """Update each client's best candidate, among those met `least` times."""
        for slot_b in slot_R.split(CACHED):
            judged_bK = self.count_KK.index_select(0, slot_b) >= least
            mean_bK = self.mean_KK.index_select(0, slot_b)
            self.best_K[slot_b] = torch.where(judged_bK, mean_bK, -torch.inf).amax(1)

    def closest(
        self, missing_M: Tensor, friend_R: Tensor, least: int, judging: Judging | None, near: float, work_R: Tensor
    ) -> Tensor:
        """For each missing slot, the position of the most similar one in `friend_R` (slots), -1 where there is none.

        Only those met `least` times; candidates first; the first of equals, or of those at most `near` below the best
        the one that did most work.
        """
        blocks = []
        for slot_b in missing_M.split(CACHED):
            score_bR = self.mean_KK.index_select(0, slot_b).index_select(1, friend_R)
            if least > 1 or judging is not None:
                count_bR = self.count_KK.index_select(0, slot_b).index_select(1, friend_R)
                score_bR.masked_fill_(count_bR.abs() < least, -torch.inf)
            if judging is not None:
                candidate_bR = (count_bR >= 0) & ~self._falls(slot_b, score_bR, count_bR, judging)
                candidate_bR &= score_bR > -torch.inf
                alone_b1 = ~candidate_bR.any(1, keepdim=True)  # no candidate is present: the best of all that are
                score_bR.masked_fill_(~(candidate_bR | alone_b1), -torch.inf)
            best_b1 = score_bR.amax(1, keepdim=True)
            if near:
                near_bR = score_bR >= best_b1 - near
                most_b1 = torch.where(near_bR, work_R, -1.0).amax(1, keepdim=True)
                score_bR.masked_fill_(~(near_bR & (work_R == most_b1)), -torch.inf)
            blocks.append(torch.where(best_b1.squeeze(1) > -torch.inf, score_bR.argmax(1), -1))
        return torch.cat(blocks)
