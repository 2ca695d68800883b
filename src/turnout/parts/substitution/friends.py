"""Friends (FL-FDMS, paper 003): a missing client's share goes to the present client with the most similar updates.

    r_ij = ½ (<Δ_i, Δ_j> / (|Δ_i| |Δ_j|) + 1)                      when i and j meet in a round (eq. 14)
    R_ij = mean of r_ij over the rounds in which they met         (eq. 15)
    φ(k) = argmax_i R_ki over the clients present                 ties to the lowest client

Copying a friend's update is the same as giving it the missing share, so only weights change. Similarity is of the
shared parameters alone. All pairs of a round are one matrix product, in blocks.

Shape letters: C clients of the cohort, R replies, M missing clients, P shared parameters, D columns compared,
b replies of a block, c those it is multiplied with, N pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.machine.profiling import staged
from turnout.machine.threads import ordered_map
from turnout.parts.substitution.base import NoSubstitution, Substitutes, Updates, lend_share, spread
from turnout.parts.substitution.projection import sketch
from turnout.parts.substitution.similarity_table import Judging, Pairs
from turnout.types import State, Tensors

BLOCK, SMALL = 256, 64  # replies per block of a product: with all replies, and with their candidates
HINT = "sketch"
_NOTHING = 1e-12  # the length below which an update has no direction

Block = tuple[slice | Tensor, slice | Tensor, Tensor]  # rows, columns, which of the pairs


@dataclass(frozen=True)
class Candidates:
    """Complexity reduction (§5.3, Theorem 2): a client drops candidates Θ_t or more less similar than its best.

        Θ_t = theta_scale · (√((2 ln(2 K² T B_max) - 2 ln p) / (β t)) + δ_f)

    t counts the rounds in which similarities were computed; K is the population. Pairs in which neither is a candidate
    of the other are no longer compared. A client's candidates are judged again when it is next present: until then only
    Θ changes.

    theta_scale  1 and 0.5 are the paper's cases; the published Θ is above 1, where it drops no client, for long
    min_common   rounds two clients must have met before one is judged
    friends      B_max, the most friends a client has
    failure      p, the probability of a wrong drop
    beta         β: two clients meet in at least β t rounds
    rounds       T
    spread       δ_f, the spread of the similarities of friends
    """

    theta_scale: float = 1.0
    min_common: int = 3
    friends: int = 3
    failure: float = 0.05
    beta: float = 0.25
    rounds: int = 500
    spread: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self, theta_scale="(0, inf)", beta="(0, inf)", failure="(0, 1)", spread="[0, inf)")
        check_settings(self, **dict.fromkeys(("min_common", "friends", "rounds"), "[1, inf)"))

    def theta(self, t: int, clients: int) -> float:
        """Θ_t; infinite before the first similarity.

        >>> [round(Candidates().theta(t, clients=20), 2) for t in (10, 100, 500)]
        [3.69, 1.17, 0.52]
        """
        if t == 0:
            return math.inf
        confidence = 2 * math.log(2 * clients**2 * self.rounds * self.friends) - 2 * math.log(self.failure)
        return self.theta_scale * (math.sqrt(confidence / (self.beta * t)) + self.spread)


@dataclass(frozen=True)
class Friends(NoSubstitution):
    """Lend each missing share to the best friend present; without one, spread it over the clients present.

    candidates      complexity reduction; None: all pairs are always compared
    min_common      rounds two clients must have met before one may stand in for the other
    near_tie        among friends this close to the best, the one that did most work
    weight_by_work  a meeting weighs as much in the mean as the less complete of the two: min(s_i, s_j) / E
    remember        most clients to remember; the one not seen for longest makes room (600 MB for 10,000)
    project_above   products (pairs × parameters) of a round above which a random projection is compared
    project_to      columns of that projection (project_above = inf: none)
    client_sketch   columns of a projection that clients send of their uncompressed update (0: none)
    """

    lends: ClassVar[bool] = True

    candidates: Candidates | None = None
    min_common: int = 1
    near_tie: float = 0.0
    weight_by_work: bool = False
    remember: int = 10_000
    project_above: float = 1e9
    project_to: int = 2048
    client_sketch: int = 0

    def __post_init__(self) -> None:
        check_settings(self, min_common="[1, inf)", near_tie="[0, inf)", remember="[2, inf)")
        check_settings(self, project_above="[-inf, inf]", project_to="[1, inf)", client_sketch="[0, inf)")

    def begin(self, clients: int, width: int) -> State:
        return {"pairs": Pairs.empty(self.weight_by_work).to_state(), "population": clients, "rounds": 0, "compared": 0}

    def memory(self, clients: int, width: int) -> int:
        return min(clients, self.remember) ** 2 * (10 if self.weight_by_work else 6)

    def hints(self, update_RP: Tensor, t: int, seed: int) -> Tensors:
        return {HINT: sketch(update_RP, self.client_sketch, seed, t)} if self.client_sketch else {}

    @staged("similarity")
    def observe(self, state: State, updates: Updates) -> State:
        """Compare all pairs of replies, or only pairs of candidates."""
        dtype = updates.hints.get(HINT, updates.update_RP).dtype
        table, judging = Pairs.from_state(state["pairs"]), self._judging(state)
        pairs, slot_R = table.place(updates.client_R, updates.t, self.remember, state["population"], dtype, judging)
        row_R = (slot_R >= 0).nonzero().squeeze(1)
        slot_R, wanted_RR = slot_R[row_R], None
        if judging is not None:
            wanted_RR = pairs.prune(slot_R, judging)
        blocks = list(_blocks(len(slot_R), wanted_RR))
        x_RD = self._shown(updates, row_R, sum(wanted_bc.numel() for _, _, wanted_bc in blocks))
        work_R = None
        if self.weight_by_work:
            work_R = (updates.turnout.work_C / updates.turnout.full_work)[updates.position_R[row_R]].to(dtype)
        compared = self._compare(pairs, slot_R, x_RD, blocks, work_R)
        if judging is not None:
            pairs.rate(slot_R, judging.least)
        rounds = state["rounds"] + (1 if compared else 0)
        return state | {"pairs": pairs.to_state(), "rounds": rounds, "compared": compared}

    def _judging(self, state: State) -> Judging | None:
        """How candidates are judged in this round; None: all clients stay candidates."""
        if self.candidates is None:
            return None
        return Judging(self.candidates.theta(state["rounds"], state["population"]), self.candidates.min_common)

    def _shown(self, updates: Updates, row_R: Tensor, pairs: int) -> Tensor:
        """The rows to compare: the updates, a projection of them where pairs are many, or the clients' sketches."""
        x_RD = updates.hints.get(HINT, updates.update_RP)
        if len(row_R) < len(x_RD):
            x_RD = x_RD[row_R.to(x_RD.device)]
        if HINT in updates.hints or pairs * x_RD.shape[1] <= self.project_above or x_RD.shape[1] <= self.project_to:
            return x_RD
        return sketch(x_RD, self.project_to, updates.seed, updates.t)

    def _compare(
        self, pairs: Pairs, slot_R: Tensor, x_RD: Tensor, blocks: Sequence[Block], work_R: Tensor | None
    ) -> int:
        """Learn from every wanted pair of rows that are not zero; returns how many there were."""
        length_R = torch.linalg.vector_norm(x_RD, dim=1).cpu()
        moves_R, candidates = length_R > _NOTHING, self.candidates is not None

        def learn(block: Block) -> int:
            """Each pair is in one block only, so several blocks can be written into the tables at once."""
            row_b, row_c, wanted_bc = block
            wanted_bc = wanted_bc & moves_R[row_b, None] & moves_R[row_c]
            b_N, c_N = wanted_bc.nonzero(as_tuple=True)
            product_N = (x_RD[row_b] @ x_RD[row_c].T).cpu()[wanted_bc]
            score_N = (product_N / (length_R[row_b][b_N] * length_R[row_c][c_N])).add_(1).mul_(0.5).clamp_(0, 1)
            weight_N = 1.0 if work_R is None else torch.minimum(work_R[row_b][b_N], work_R[row_c][c_N])
            pairs.met(slot_R[row_b][b_N], slot_R[row_c][c_N], score_N, weight_N, candidates)
            return len(b_N)

        return sum(ordered_map(learn, blocks, threads=1 if x_RD.is_cuda else None))

    @staged("substitution")
    def lend(self, state: State, share_C: Tensor, counts_C: Tensor, updates: Updates) -> Substitutes:
        pairs, missing_C, turnout = Pairs.from_state(state["pairs"]), ~counts_C, updates.turnout
        position_M, position_R = missing_C.nonzero().squeeze(1), counts_C.nonzero().squeeze(1)
        slot_M, slot_R = pairs.find(turnout.client_C[position_M]), pairs.find(turnout.client_C[position_R])
        position_M, slot_M = position_M[slot_M >= 0], slot_M[slot_M >= 0]
        position_R, slot_R = position_R[slot_R >= 0], slot_R[slot_R >= 0]
        place_C, judging = torch.full((len(share_C),), -1), self._judging(state)
        if len(slot_M) and len(slot_R):
            work_R = turnout.work_C[position_R]
            place_M = pairs.closest(slot_M, slot_R, self.min_common, judging, self.near_tie, work_R)
            place_C[position_M] = torch.where(place_M >= 0, position_R[place_M], -1)
        found_C = place_C >= 0
        borrowed_C = lend_share(share_C, place_C, found_C) + spread(share_C, counts_C, missing_C & ~found_C)
        friend_C = torch.where(found_C, turnout.client_C[place_C], -1)
        extra: dict[str, float | str] = {
            "pairs_compared": float(state["compared"]),
            "friends_found": float(found_C.sum()),
        }
        if judging is not None and state["rounds"]:
            extra["theta"] = judging.theta
        return Substitutes(borrowed_C, friend_C, extra=extra)

    def forget(self, state: State, client_L: Tensor) -> State:
        return state | {"pairs": Pairs.from_state(state["pairs"]).forget(client_L, self._judging(state)).to_state()}


def _blocks(count: int, wanted_RR: Tensor | None) -> Iterator[Block]:
    """Blocks of a product of replies, and the pairs wanted of each; every pair is wanted once.

    Where only some pairs are wanted, replies that share their first candidate are grouped: friends of friends then fill
    small blocks, and replies that no row of a block needs are left out of its product.
    """
    if wanted_RR is None or int(wanted_RR.sum()) * 2 > count**2:  # most pairs: rows as they lie
        for first in range(0, count, BLOCK):
            row_b, row_c = slice(first, min(first + BLOCK, count)), slice(first, count)
            upper_bc = torch.ones(row_b.stop - first, count - first, dtype=torch.bool).triu_(1)
            yield row_b, row_c, upper_bc if wanted_RR is None else upper_bc & wanted_RR[row_b, row_c]
        return
    order_R = wanted_RR.to(torch.int8).argmax(1).argsort(stable=True)
    wanted_RR = wanted_RR[order_R][:, order_R].triu_(1)
    for first in range(0, count, SMALL):
        wanted_bR = wanted_RR[first : first + SMALL]
        column_c = wanted_bR.any(0).nonzero().squeeze(1)
        if len(column_c):
            yield order_R[first : first + SMALL], order_R[column_c], wanted_bR[:, column_c]


def similarity(state: State) -> tuple[Tensor, Tensor]:
    """The clients ever seen, sorted, and the similarity R of their updates, NaN where two never met."""
    pairs = Pairs.from_state(state["pairs"])
    slots = (pairs.client_K >= 0).nonzero().squeeze(1)
    slots = slots[pairs.client_K[slots].argsort()]
    met = pairs.count_KK[slots][:, slots] != 0
    return pairs.client_K[slots], torch.where(met, pairs.mean_KK[slots][:, slots], torch.nan)


KINDS = {"friends": Friends}
