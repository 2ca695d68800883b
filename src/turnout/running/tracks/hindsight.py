"""What the missing would have sent: a simulation can train them too, and measure what a stand-in costs.

Nothing of it is used or stored: it tells, for the record, how far the round's sum was from the one that complete work
of everybody asked would have given (e_t of paper 003, §4), and whether stand-ins came from the missing client's own
cluster, where the data has clusters.

Shape letters: C clients of the cohort, R replies, A clients trained again, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.exchange import Download, Simulation
from turnout.experiment import Algorithm
from turnout.layout import Layout
from turnout.parts.compression.base import Sending
from turnout.server.arriving import AGE
from turnout.server.in_flight import updates_of
from turnout.server.state import Served
from turnout.types import Extra, Replies, Turnout

BLOCK = 256  # clients trained at a time: their updates are summed at once


@dataclass(frozen=True)
class SimulatedHindsight:
    """Hindsight of a simulated world."""

    simulation: Simulation
    algorithm: Algorithm
    layout: Layout
    seed: int

    def compare(self, served: Served, replies: Replies, turnout: Turnout, share_C: Tensor, download: Download) -> Extra:
        """`substitution_error`: |e_t|², e_t the weighted sum less that of everybody's complete work (in updates, so
        η_L² times the paper's). `own_cluster`: how much of the missing shares went to the missing client's cluster."""
        own = self.own_cluster(served, turnout, share_C)
        said: Extra = {"substitution_error": self.error(served, replies, turnout, share_C, download)}
        return said if own is None else said | {"own_cluster": own}

    def error(self, served: Served, replies: Replies, turnout: Turnout, share_C: Tensor, download: Download) -> float:
        algorithm = self.algorithm
        full = replace(
            turnout,
            work_C=torch.full_like(turnout.work_C, turnout.full_work),
            progress_C=turnout.full_progress_C,
        )
        everybody_C = torch.ones_like(served.counts_C)
        factor_C = algorithm.weighting.server_scale(share_C, everybody_C, full, algorithm.substitution.lends)
        dense_C = share_C * factor_C * algorithm.weighting.client_scale(full)  # of updates as trained
        sent_C = dense_C if algorithm.scale_at == "server" else share_C * factor_C  # of updates as sent

        sending = Sending(download.t, self.seed, replies.client_C, self.layout.shared_slots)
        update_RP = updates_of(replies.message, algorithm.compression, sending, download.shared_P)
        position_R = torch.searchsorted(turnout.client_C, replies.client_C)
        complete_R = turnout.complete_C[position_R] & (replies.report.get(AGE, torch.zeros_like(position_R)) == 0)
        known_C = torch.zeros_like(everybody_C).index_fill(0, position_R[complete_R], True)
        weight_R = torch.where(complete_R, sent_C[position_R], 0.0).to(update_RP)
        error_P = served.total_P.double() - (weight_R @ update_RP).double()
        # From here on a GPU may write over the replies.
        for client_A in turnout.client_C[~known_C].split(BLOCK):
            client_A, update_AP = self.simulation.would_send(client_A, download)
            weight_A = dense_C[torch.searchsorted(turnout.client_C, client_A)].to(update_AP)
            error_P -= (weight_A @ update_AP).double()
        return float(error_P.square().sum())

    def own_cluster(self, served: Served, turnout: Turnout, share_C: Tensor) -> float | None:
        """The part of the missing shares whose stand-in is of the missing client's cluster; None: nothing to say."""
        groups, missing_C = self.simulation.groups, ~served.counts_C
        if groups is None or not self.algorithm.substitution.lends or not bool(missing_C.any()):
            return None
        group_C, friend_C = groups[turnout.client_C], served.lent.friend_C
        size = int(group_C.max()) + 1
        present_C = torch.where(served.counts_C, share_C, 0.0)
        present_G = torch.zeros(size, dtype=share_C.dtype).index_add(0, group_C, present_C)
        own_C = (present_G / present_C.sum())[group_C]  # where a share is spread over all who count
        if friend_C is not None:
            same_C = (groups[friend_C.clamp(min=0)] == group_C).to(share_C.dtype)
            own_C = torch.where(friend_C >= 0, same_C, own_C)
        missing = share_C[missing_C]
        return float((own_C[missing_C] * missing).sum() / missing.sum().clamp(min=1e-300))
