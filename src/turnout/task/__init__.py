"""What is learned: a loss and metrics, each one number per sample.

spec.py      what every task promises; a metric with its direction and unit: read this first
tasks.py     classification, next character, regression, and a user's own functions as a task
unit.py      standardised targets, and the way back to their own unit
outputs.py   what a model returns, read as one tensor
checks.py    whether a model's output fits the targets

Imports nothing of the library but errors: every room may import it.
"""

from turnout.task.checks import check_model
from turnout.task.outputs import ScoresOnly, scores_of
from turnout.task.spec import WELL_KNOWN, Metric, MetricInfo, PerSample, TaskSpec, Unit, metric_infos
from turnout.task.tasks import Classification, NextCharacter, Regression, Task, correct
from turnout.task.unit import InOwnUnit, Predictor, Standardised

__all__ = [
    "WELL_KNOWN",
    "Classification",
    "InOwnUnit",
    "Metric",
    "MetricInfo",
    "NextCharacter",
    "PerSample",
    "Predictor",
    "Regression",
    "ScoresOnly",
    "Standardised",
    "Task",
    "TaskSpec",
    "Unit",
    "check_model",
    "correct",
    "metric_infos",
    "scores_of",
]
