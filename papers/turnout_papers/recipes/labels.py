"""Heterogeneous labels and models (Gudur, Balaji, Kumar, 2020): users with labels of their own exchange scores.

Three users with two labels each, of which neighbours share one, score a public set. The settings are those of Tables 1
and 2; what the paper leaves open (learning rate, batch, kernels, pooling, how early stopping looks) is as in `Scores`
and `models.animals_cnn`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import turnout.models as models
from turnout import Adam, Experiment, Leave, Local, World
from turnout.data import Arriving, Digits, Dip, ImageFolder
from turnout.models import Model
from turnout.scores.settings import Distil, Scores, Uses
from turnout.settings import InProcess
from turnout_papers.recipes import ONE_CORE

USERS = ("User_1", "User_2", "User_3")
DIGITS = (("3", "5"), ("5", "8"), ("8", "9"))  # four digits that look alike
ANIMALS = (("cat", "dog"), ("dog", "sheep"), ("sheep", "elephant"))
ROUNDS = 15
READINGS = {  # which rows a client scores, and how scores are combined
    "average": ("all", "average"),
    "sum": ("all", "sum"),
    "labelled average": ("labelled", "average"),
    "literal": ("labelled", "sum"),
}


def labels(rounds: int = ROUNDS) -> dict[str, Experiment]:
    """Three users with two of four digits each: scores averaged, the literal reading, and distilled; in seconds."""
    return _compared(rounds, animals=False)


def animals_labels(rounds: int = ROUNDS) -> dict[str, Experiment]:
    """The same on Animals-10 pictures (cat, dog, sheep, elephant), with the paper's networks and numbers."""
    return _compared(rounds, animals=True)


def _compared(rounds: int, animals: bool) -> dict[str, Experiment]:
    return {
        "average": three_users(reading("average"), animals, rounds),
        "literal": three_users(reading("literal"), animals, rounds),
        "distilled": three_users(reading("average"), animals, rounds, distil=True),
    }


def reading(name: str) -> Scores:
    """One of the four readings, half of the public labels held out."""
    rows, combine = READINGS[name]
    return Scores(rows=rows, combine=combine)


def three_users(
    scores: Scores,
    animals: bool = False,
    rounds: int = ROUNDS,
    distil: bool = False,
    dips: tuple[Dip, ...] = (),
    alone: str | None = None,
) -> Experiment:
    """Tables 1 and 2 around one way of federating scores; `alone`: the one user that stays.

    Adam, at most five epochs; 500 pictures a label and round, 500 a label public.
    """
    gone = tuple(Leave(user, 0) for user in USERS if alone not in (None, user))
    if animals:
        batch, local = 32, Local(Adam(1e-3, 0.9, 0.999), epochs=5, batch_size=32)
        data = Arriving(ImageFolder(Path("animals"), size=64), ANIMALS, 500, 500, mix=5.0, dips=dips, names=USERS)
    else:  # the few digits of a round come in batches of two, so that it has as many steps as the paper's (about 140):
        # a hidden softmax needs that many to get off the ground
        batch, local = 16, Local(Adam(1e-2, 0.9, 0.999), epochs=5, batch_size=2)
        data = Arriving(Digits(), DIGITS, 30, 80, mix=5.0, dips=dips, names=USERS)
    users = replace(
        scores, local=local, models=schedule(animals, rounds), distil=Distil(batch_size=batch) if distil else None
    )
    return Experiment(
        world=World(data, events=gone),
        model=network(animals, 16, 32),
        algorithm=users,
        rounds=rounds,
        runtime=InProcess() if animals else ONE_CORE,
    )


def network(animals: bool, *channels: int, activation: str = "relu") -> Model:
    """Convolutions of these widths; 8x8 digits are pooled at most twice."""
    if animals:
        return models.animals_cnn(*channels, activation=activation)
    pool = tuple(range(1, min(2, len(channels)) + 1))
    return models.CNN(channels, kernel=3, padding=1, pool=pool, activation=activation)


def schedule(animals: bool, rounds: int = ROUNDS) -> tuple[Uses, ...]:
    """Table 1's models and Table 2's changes (iteration i is round i - 1), at the same part of a shorter run."""

    def at(iteration: int) -> int:
        return round((iteration - 1) * rounds / ROUNDS)

    return (
        Uses("User_1", network(animals, 16, 32, activation="softmax")),
        Uses("User_1", models.MLP(16, 16, 32), since=at(10)),
        Uses("User_1", network(animals, 16, activation="softmax"), since=at(14)),
        Uses("User_2", network(animals, 16, 16, 32)),
        Uses("User_2", network(animals, 16, 16, 32, activation="softmax"), since=at(6)),
        Uses("User_3", network(animals, 16, 32)),
        Uses("User_3", network(animals, 8, 16, 16, 32, activation="softmax"), since=at(5)),
    )
