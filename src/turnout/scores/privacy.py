"""Differential privacy of scores: what a round releases, and what a client sends that adds the noise itself.

All scores that a client sends in a round are one vector, a matrix with a column for each label and zeros where it has
no label. The server clips it, sums, and adds noise (parts/privacy/private.py); or each client clips and noises its own
before it sends it. Global scores are made of the noised sums alone, and divided by public numbers: which labels a
client has is public, as is when it took part, so it is public how many participants have scored an entry.

Shape letters: C participants, R public samples, L labels, l labels of one client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from turnout.errors import UserError
from turnout.parts.privacy.private import Private
from turnout.parts.privacy.rules import promised
from turnout.scores.exchange import ScoreReply
from turnout.scores.score_table import PublicLabels, ScoreTable
from turnout.scores.settings import Scores
from turnout.settings import Evaluate
from turnout.types import State


def made_private_scores(algorithm: Scores, rounds: int) -> tuple[dict[str, Any], list[str]]:
    """The settings that private scores change, by path, and a sentence for each that a user could notice."""
    changes = promised(algorithm, rounds)
    noise = changes["algorithm.privacy"].noise
    said = ["scores of all clients count alike (α = 1) instead of by samples, whose numbers would be a release"]
    if algorithm.growth == "plain":
        changes["algorithm.growth"] = "mean"
        said.append("scores are read per participant (growth = 'mean'): plain sums are larger where more have a label")
    if noise != "gaussian" and (algorithm.growth == "shrunk" or algorithm.decay < 1):
        said.append(f"growth = 'shrunk' and decay change what noise {noise!r} cancels: expect less than its full gain")
    return changes, [f"algorithm.privacy: {sentence}" for sentence in said]


def check_evaluated(algorithm: Scores, evaluate: Evaluate) -> None:
    """Refuse measurements that clients would send without noise."""
    if algorithm.client_noise is not None and evaluate.personal:
        raise UserError(
            "evaluate.personal asks clients for outputs of their models without noise, and with "
            "algorithm.privacy.noise_at = 'client' they send nothing else than noised scores: leave it out"
        )


def noised_reply(reply: ScoreReply, private: Private, multiplier: float, key: int | None, t: int) -> ScoreReply:
    """What a client sends that adds its own noise: its noised scores, and no other number that depends on its data."""
    assert key is not None, "scores are never sent without their noise"
    f_Rl = private.noised_message(reply.f_Rl, multiplier, key, t, reply.client)
    return replace(reply, f_Rl=f_Rl, examples=1, loss=0.0, epochs=0.0, training=0.0, scoring=0.0)


def release_of(
    replies: Sequence[ScoreReply], algorithm: Scores, public: PublicLabels, state: State, t: int, key: int
) -> State:
    """What a private round releases, as a tree that can be stored; {} without replies.

    client   whose scores are in it
    sum      their clipped and noised sum [R, L]
    count    how many of them have scored each entry [R, L]
    privacy  the next state of the part
    extra    columns for the round's record
    """
    if not replies:
        return {}
    score_CRL = torch.zeros(len(replies), len(public.true_R), len(public.names), dtype=torch.float64)
    count_RL = torch.zeros_like(score_CRL[0])
    for score_RL, reply in zip(score_CRL, replies, strict=True):
        row_R1 = public.scored(reply.set_l, algorithm.rows)[:, None].double()
        score_RL[:, reply.set_l] = row_R1 * reply.f_Rl
        count_RL[:, reply.set_l] += row_R1
    assert algorithm.privacy is not None
    client_C, one_C = torch.tensor([reply.client for reply in replies]), torch.ones(len(replies), dtype=torch.float64)
    sums, state, extra = algorithm.privacy.noised_sums({"scores": (score_CRL, one_C)}, client_C, t, state, key)
    return {"client": client_C, "sum": sums["scores"], "count": count_RL, "privacy": state, "extra": extra}


def released_update(table: ScoreTable, release: State, algorithm: Scores) -> ScoreTable:
    """f_G = decay · f_G + (Σ_m f_m + noise) / n0, and the evidence likewise with the number of participants that have
    scored an entry; both divided by decay + that number / n0 if "shrunk". An entry that none has scored stays, but for
    correlated noise, which cancels only if all of it is added.

    >>> from turnout.scores.settings import Scores
    >>> private = Scores(beta="equal", growth="mean", privacy=Private(1.0, n0=4, delta=0.1, epsilon=1.0))
    >>> two = {"sum": torch.tensor([[1.5, 0.1]]), "count": torch.tensor([[2.0, 0.0]])}
    >>> released_update(ScoreTable.blank(1, 2), two, private).means()
    tensor([[0.7500,    nan]], dtype=torch.float64)
    """
    private = algorithm.privacy
    assert private is not None
    sum_RL, evidence_RL = release["sum"] / private.n0, release["count"] / private.n0
    scored_RL = evidence_RL > 0
    kept_RL = torch.where(scored_RL, algorithm.decay, 1.0)
    whole_RL = torch.where(scored_RL & (algorithm.growth == "shrunk"), algorithm.decay + evidence_RL, 1.0)
    if private.noise == "gaussian":
        sum_RL = torch.where(scored_RL, sum_RL, 0.0)
    return ScoreTable(
        (kept_RL * table.score_RL + sum_RL) / whole_RL, (kept_RL * table.evidence_RL + evidence_RL) / whole_RL
    )
