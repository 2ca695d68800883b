"""Small worlds for the score track: four labels, clients with two of them each, float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import turnout as to
from turnout.round_record import RoundRecord
from turnout.scores.exchange import BuildAnswer, BuildRequest
from turnout.scores.round import ScoreServer
from turnout.scores.track import ScoreTrack
from worlds import EXACT, Given

LABELS = ("ant", "bee", "cow", "dog")
SETS = (("ant", "bee"), ("bee", "cow"), ("cow", "dog"))
COUNTS = (12, 20, 8, 16)
LOCAL = to.Local(to.Adam(0.02, 0.9, 0.999), epochs=3, batch_size=5)


def samples(labels: list[int], seed: int, spread: float = 1.0) -> Tensor:
    """Four clouds in five dimensions, overlapping."""
    centre = torch.randn(4, 5, generator=torch.Generator().manual_seed(99))
    noise = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(seed))
    return centre[torch.tensor(labels)] + spread * noise


class Arrive:
    """Client c's samples of round t: of its own labels in turn, by name. (A class: worlds travel to processes.)"""

    def __init__(self, sets: tuple[tuple[str, ...], ...] = SETS, spoil: int | None = None, shift: int = 0):
        self.sets, self.spoil, self.shift = sets, spoil, shift

    def __call__(self, client: int, t: int) -> tuple[Tensor, list[str]]:
        own = self.sets[client]
        names = [own[i % len(own)] for i in range(COUNTS[client])]
        x = samples([LABELS.index(name) for name in names], seed=1000 * client + t + self.shift * (client == 1))
        return (1e6 * x if client == self.spoil else x), names


def public(rows: int = 40) -> tuple[Tensor, list[str]]:
    labels = [i % 4 for i in range(rows)]
    return samples(labels, seed=7), [LABELS[i] for i in labels]


def stream(sets: tuple[tuple[str, ...], ...] = SETS, **changes: Any) -> to.data.Stream:
    function = changes.pop("function", Arrive(sets))
    shown = changes.pop("public", public)
    given = {"clients": len(sets), "input_shape": (5,), "classes": 4, "labels": LABELS, "label_sets": sets}
    return to.data.Stream(function, public=shown, **(given | changes))


def score_world(*fractions: float, sets: tuple[tuple[str, ...], ...] = SETS, **changes: Any) -> to.Experiment:
    """Scores on the stream, with this turnout every round; a `data` and `events` of one's own."""
    data, events = changes.pop("data", stream(sets)), changes.pop("events", ())
    rounds, model = changes.pop("rounds", 4), changes.pop("model", to.models.MLP(6))
    local = changes.pop("local", LOCAL)
    return to.Experiment(
        to.World(data, Given(*(fractions or [1.0] * len(sets))), events),
        model,
        to.scores.Scores(local=local, **changes),
        rounds=rounds,
        runtime=EXACT,
    )


def play(track: ScoreTrack, rounds: int = 1, state: ScoreServer | None = None) -> tuple[ScoreServer, list[RoundRecord]]:
    state, records = state or track.begin(), []
    for t in range(rounds):
        state, record = track.round(state, t)
        records.append(record)
    return state, records


def ask(track: ScoreTrack, client_C: Tensor, t: int) -> BuildAnswer:
    """What clients answer to the first question of a round."""
    local = track.algorithm.local
    return track.runtime.build(BuildRequest(t, local.schedule.rate(local.optimizer.lr, t), client_C))
