"""Logs of fleets with a known truth, to check the diagnosis on: nothing, labels, a trend, a rhythm, or an outage.

All have 40 clients in four weeks of hourly rounds, unless said otherwise. Every client has a rate of its own, and keeps
its state from hour to hour with a probability of the fleet's. Labels are known, and go with the rate in one fleet only.

Shape letters: T rounds, M clients.
"""

from __future__ import annotations

import numpy as np

from turnout.fleet.participation_log import ParticipationLog

HOUR, MONDAY = 3600.0, 4 * 86400.0
TRUTHS = ("independent", "labels", "trend", "rhythm", "outage")


def drawn_log(truth: str, seed: int, clients: int = 40, days: int = 28, keeps: float | None = None) -> ParticipationLog:
    """A log of a fleet of this truth, whose details are drawn; `keeps`: the probability of keeping a state."""
    draw = np.random.default_rng([seed, *truth.encode()])
    rounds = 24 * days
    label_M = draw.integers(0, 4, clients)
    rate_M = draw.uniform(0.2, 0.8, clients)
    if truth == "labels":
        rate_M = np.clip(np.where(label_M < 2, 0.25, 0.6) + draw.uniform(-0.15, 0.15, clients), 0.05, 0.95)
    q_TM = np.repeat(rate_M[None], rounds, axis=0)
    if truth == "trend":
        first, last = draw.uniform(0.8, 0.95), draw.uniform(0.1, 0.5)
        q_TM = np.linspace(first, last, rounds)[:, None] * draw.uniform(0.9, 1.05, clients)
        q_TM = q_TM[::-1] if draw.random() < 0.5 else q_TM
    if truth == "rhythm":  # one to three groups with hours of their own
        peak_M = draw.integers(0, 24, 3)[draw.integers(0, draw.integers(1, 4), clients)]
        wave_TM = np.cos(2 * np.pi * (np.arange(rounds)[:, None] - peak_M) / 24)
        q_TM = rate_M * (1 + draw.uniform(0.4, 1.0) * wave_TM)
    came_TM = states(draw, np.clip(q_TM, 0.02, 0.98), draw.uniform(0, 0.7) if keeps is None else keeps)
    if truth == "outage":  # the whole fleet for hours, or some devices for days
        some = draw.random() < 0.5
        out_M = np.isin(np.arange(clients), draw.permutation(clients)[: draw.integers(4, 11)]) | (not some)
        length = int(draw.integers(72, 217) if some else draw.integers(6, 25))
        begin = int(draw.integers(24, rounds - length - 24))
        came_TM[begin : begin + length, out_M] = False
    return log_of_presence(came_TM, tuple(f"label {label}" for label in label_M))


def states(draw: np.random.Generator, q_TM: np.ndarray, keeps: float) -> np.ndarray:
    """Whether each client is there: it keeps its state with probability `keeps`, else draws anew."""
    new_TM, anew_TM = draw.random(q_TM.shape) < q_TM, draw.random(q_TM.shape) >= keeps
    anew_TM[0] = True
    last_TM = np.maximum.accumulate(np.where(anew_TM, np.arange(len(q_TM))[:, None], 0), axis=0)
    return np.take_along_axis(new_TM, last_TM, axis=0)


def log_of_presence(
    came_TM: np.ndarray, labels: tuple[str, ...] | None = None, every: float = HOUR, missing: str = "absent"
) -> ParticipationLog:
    """A log of hours from a Monday on, of who came; where no row means not asked, with the absent."""
    t_N, m_N = np.nonzero(came_TM if missing == "absent" else np.ones_like(came_TM))
    start_T = MONDAY + every * np.arange(len(came_TM))
    names = tuple(f"c{m}" for m in range(came_TM.shape[1]))
    return ParticipationLog(
        "log", names, len(came_TM), t_N.astype(np.int32), m_N.astype(np.int32),
        came_TM[t_N, m_N].astype(np.float64), missing=missing, start_T=start_T, is_calendar=True, every=every,
        label_M=labels,
    )  # type: ignore[arg-type]  # fmt: skip
