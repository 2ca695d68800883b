"""What a runtime of the score track is made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turnout.data import Federation
from turnout.data.labels import Public
from turnout.engine.trainers import Place
from turnout.experiment import Experiment
from turnout.scores.exchange import ScoreRuntime
from turnout.scores.model_plan import ModelPlan
from turnout.scores.settings import Scores
from turnout.world.events import Calendar


@dataclass(frozen=True, eq=False)
class ScoreSetup:
    """Everything that is settled before a runtime starts."""

    experiment: Experiment
    algorithm: Scores
    federation: Federation
    public: Public
    plan: ModelPlan
    calendar: Calendar
    place: Place


ScoreFactory = Callable[[ScoreSetup], ScoreRuntime]
