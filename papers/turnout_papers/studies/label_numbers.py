"""What study `labels` reads from its runs: each user's accuracies round by round, what is gained, what a dip costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from turnout.running.result import Run
from turnout.statistics import difference, mean_over
from turnout_papers.recipes.labels import ROUNDS, USERS
from turnout_papers.studies.study import Curves, Look

PERMUTED, DISTILLED = "literal, labels permuted", "distilled"
DIPS = {"User_2": 10, "User_1": 8}  # Figure 2: the iterations the paper's text speaks of
LOCAL, GLOBAL, TAUGHT = "local_accuracy", "consensus_accuracy", "distilled_accuracy"


@dataclass(frozen=True)
class Size:
    animals: bool
    rounds: int
    seeds: int
    other_seeds: int  # of what no claim is about


SIZES = {"smoke": Size(False, 3, 2, 1), "small": Size(False, ROUNDS, 5, 2), "paper": Size(True, ROUNDS, 5, 5)}


def dipped(user: str) -> str:
    return f"dip of {user}"


def alone(user: str) -> str:
    return f"{user} alone"


def dip_round(scale: str, user: str) -> int:
    """The paper's iteration as a round, at the same part of a shorter run."""
    return round((DIPS[user] - 1) * SIZES[scale].rounds / ROUNDS)


def look(run: Run) -> Look:
    """Each user's accuracies round by round, and what a round cost."""
    with run.records() as records:
        seen, rounds = records.clients(), records.rounds()
    found = {
        f"{name} {user}": seen[name][seen["client"] == i].astype(np.float64)
        for name in (LOCAL, GLOBAL, TAUGHT)
        for i, user in enumerate(USERS)
        if name in seen
    }
    sent = rounds["bytes_up"] + rounds["bytes_down"]
    cost = {name: rounds[name] for name in ("weight_bytes", "epoch_seconds", "inference_seconds")}
    return found | {"bytes": sent.astype(np.float64)} | cost


def mean_of(name: str) -> Callable[[Look], float]:
    return lambda look: float(np.mean(look[name]))


def points(curves: Curves, variant: str, name: str, user: str) -> dict[int, float]:
    """A user's accuracy in percent, mean over the rounds."""
    return curves.seen(variant, lambda look: 100 * float(np.mean(look[f"{name} {user}"])))


def over_users(curves: Curves, variant: str, name: str) -> dict[int, float]:
    return mean_over([points(curves, variant, name, user) for user in USERS])


def gain(curves: Curves, variant: str, user: str) -> dict[int, float]:
    return difference(points(curves, variant, GLOBAL, user), points(curves, variant, LOCAL, user))


def fall(scale: str, curves: Curves, user: str, name: str) -> dict[int, float]:
    """What a dip costs in its own round, in points: the same round of the same seed without it, less that with it."""
    t = dip_round(scale, user)

    def there(look: Look) -> float:
        return 100 * float(look[f"{name} {user}"][t])

    with_dip = curves.seen(dipped(user), there)
    return difference({seed: v for seed, v in curves.seen("average", there).items() if seed in with_dip}, with_dip)
