"""Settings of differential privacy for a fleet, as levers: how often clients rest, how far they are clipped, the noise.

A client that took part rests for b rounds, so in T rounds it takes part at most k = ⌈T / b⌉ times: less noise, but
fewer replies. The log says how many are left. The noise of a round is z C / n0, with n0 the replies of a round of the
whole fleet; a race with fewer stand-ins has as much noise in its mean, so their z is smaller by that factor. The ε
that is named is that of the fleet.

Shape letters: M clients of the log.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from turnout.fleet import ParticipationLog
from turnout.fleet.advice.cases import RaceCase
from turnout.fleet.advice.levers import AS_NOW, Lever
from turnout.parts.privacy.private import Private
from turnout.round import run_round
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.weights import Weights
from turnout.server.state import Context

SEPARATIONS = (1, 4, 12)  # b: rounds from one participation to the next
CLIPS = (0.3, 1.0, 3.0)  # times the usual length of an update
PILOT = 4  # rounds in which it is measured


def replies_with_rest(log: ParticipationLog, separation: int) -> float:
    """Replies of a round, on average, if a client that took part rests."""
    last_M, count = np.full(log.clients, -separation, dtype=np.int64), 0
    for t in range(log.rounds):
        client_A, work_A = log.row(t)
        ready_A = client_A[(work_A > 0) & (last_M[client_A] + separation <= t)]
        last_M[ready_A] = t
        count += len(ready_A)
    return count / log.rounds


def usual_length(case: RaceCase, data_dir: Path | None) -> float:
    """The median length of a client's update in the first rounds."""
    track = prepare(case.experiment.but(**{"world.events": ()}), data_dir)
    assert isinstance(track, Weights)
    server, found = track.begin(), []
    for t in range(min(PILOT, case.experiment.rounds)):
        happened = run_round(server, t, Context(track.algorithm, track.runtime, case.experiment.seed))
        server = happened.after
        if happened.total is not None:
            found.append(torch.linalg.vector_norm(happened.total.update_RP, dim=1))
    track.runtime.close()
    return float(torch.cat(found).median()) if found else 1.0


def private_levers(
    case: RaceCase, clients: int, log: ParticipationLog, epsilon: float, delta: float, data_dir: Path | None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Lever]:  # fmt: skip
    """The fleet as it is now, and private with each separation and clipping length."""
    rounds, usual = case.experiment.rounds, usual_length(case, data_dir)
    found = [Lever(AS_NOW, "without privacy", every=log.every)]
    came = float(f"{replies_with_rest(log, 1):.3g}")
    for separation in (b for b in SEPARATIONS if b <= rounds):
        left, noise = float(f"{replies_with_rest(log, separation):.3g}"), "gaussian" if separation == 1 else "banded"
        whole = Private(1.0, n0=left, delta=delta, epsilon=epsilon, noise=noise, min_separation=separation)
        multiplier = float(whole.tied(rounds).begin()["multiplier"])
        smaller = min(1.0, clients / log.clients)
        for clip in (float(f"{times * usual:.2g}") for times in CLIPS):
            part = Private(
                clip, n0=max(1.0, left * smaller), delta=delta, noise_multiplier=multiplier * smaller, noise=noise,
                min_separation=separation,
            )  # fmt: skip
            most = math.ceil(rounds / separation)
            about = (
                f"a client takes part at most {most} times, {separation} rounds apart; {left:g} replies a round "
                f"instead of {came:g}; noise multiplier {multiplier:.3g}"
            )
            setting = (
                f"--set 'algorithm.privacy={{clip={clip}, n0={left:g}, delta={delta:g}, epsilon={epsilon:g}, "
                f'noise="{noise}", min_separation={separation}}}\''
            )
            name = f"b={separation}, k={most}, clip {clip:g}"
            found.append(Lever(name, about, setting, {"algorithm.privacy": part}, log.every))
    return found
