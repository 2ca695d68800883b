"""What missing clients would have sent: a simulation can train them too, and measure what a stand-in costs.

Nothing of it is used or stored. It measures how far the round's sum was from the sum that complete work of all clients
asked would have given (e_t of FDMS, §4), and whether stand-ins came from the missing client's own cluster, where the
data has clusters.

Shape letters: C clients of the cohort, R replies, A clients trained again, P shared parameters.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from turnout.exchange import Simulation
from turnout.parts.updates import Applied
from turnout.round import Round, decode
from turnout.server.collecting import Received
from turnout.server.late import AGE
from turnout.server.state import Context
from turnout.types import Extra

BLOCK = 256  # clients trained at a time: their updates are summed at once


def hindsight(happened: Round, simulation: Simulation, ctx: Context) -> Extra:
    """Numbers for a round's record; none where the round has no update.

    substitution_error  |e_t|², e_t the weighted sum less that of complete work of all clients (in updates, so η_L²
                        times the paper's)
    own_cluster         fraction of the missing shares that went to the missing client's cluster
    """
    if happened.total is None or happened.received is None:
        return {}
    numbers: Extra = {"substitution_error": substitution_error(happened, simulation, ctx)}
    own = own_cluster(happened.total, happened.received, simulation, ctx)
    return numbers if own is None else numbers | {"own_cluster": own}


def substitution_error(happened: Round, simulation: Simulation, ctx: Context) -> float:
    """|e_t|²: squared distance of the sum from that of complete work of all clients asked."""
    received, total, download, algorithm = happened.received, happened.total, happened.download, ctx.algorithm
    assert received is not None
    assert received.replies is not None
    assert total is not None
    assert download is not None
    replies, turnout, position_R = received.replies, received.turnout, received.position_R
    share_C, work_C = received.cohort.share_C, torch.full_like(turnout.work_C, turnout.full_work)
    full = replace(turnout, work_C=work_C, progress_C=turnout.full_progress_C)
    all_C = torch.ones_like(turnout.present_C)
    factor_C = algorithm.weighting.server_scale(share_C, all_C, full, algorithm.substitution.lends)
    dense_C = share_C * factor_C * algorithm.weighting.client_scale(full)  # of updates as trained
    sent_C = dense_C if algorithm.scale_at == "server" else share_C * factor_C  # of updates as sent

    update_RP = decode(replies, download.t, download.shared_P, ctx)
    complete_R = turnout.complete_C[position_R] & (replies.report.get(AGE, torch.zeros_like(position_R)) == 0)
    known_C = torch.zeros_like(all_C).index_fill(0, position_R[complete_R], True)
    weight_R = torch.where(complete_R, sent_C[position_R], 0.0).to(update_RP)
    error_P = total.update_P.double() - (weight_R @ update_RP).double()
    # From here on a GPU may overwrite the replies.
    for client_A in turnout.client_C[~known_C].split(BLOCK):
        client_A, update_AP = simulation.would_send(client_A, download)
        weight_A = dense_C[torch.searchsorted(turnout.client_C, client_A)].to(update_AP)
        error_P -= (weight_A @ update_AP).double()
    return float(error_P.square().sum())


def own_cluster(total: Applied, received: Received, simulation: Simulation, ctx: Context) -> float | None:
    """Fraction of the missing shares whose stand-in is of the missing client's cluster; None: not applicable."""
    turnout, share_C = received.turnout, received.cohort.share_C
    groups, counts_C = simulation.groups, turnout.mask(total.position_R)
    missing_C = ~counts_C
    if groups is None or not ctx.algorithm.substitution.lends or not bool(missing_C.any()):
        return None
    group_C, friend_C = groups[turnout.client_C], total.friend_C
    present_C = torch.where(counts_C, share_C, 0.0)
    present_G = torch.zeros(int(group_C.max()) + 1, dtype=share_C.dtype).index_add(0, group_C, present_C)
    own_C = (present_G / present_C.sum())[group_C]  # where a share is spread over all clients that count
    if friend_C is not None:
        same_C = (groups[friend_C.clamp(min=0)] == group_C).to(share_C.dtype)
        own_C = torch.where(friend_C >= 0, same_C, own_C)
    missing = share_C[missing_C]
    return float((own_C[missing_C] * missing).sum() / missing.sum().clamp(min=1e-300))
