"""The aim of a method: how good a run was, as one number (higher is better)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from turnout.errors import UserError, nearest
from turnout.fleet.advice.trials import TrialOutcome
from turnout.running.records.glossary import Glossary
from turnout.tasks import TaskSpec, Unit

NEARLY = 0.9  # of what plain FedAvg reaches: the target when bytes are to be saved
NEVER = 10.0  # times plain FedAvg's whole run: counts as the bytes if the target is not reached
MARGIN = 0.005  # half a point: candidates that are shown to be closer are as good as each other
BYTES_MARGIN = 0.07  # a twentieth of the bytes, as a logarithm to base 2


@dataclass(frozen=True)
class Aim:
    """What a method is wanted for.

    name        in settings
    about       in a few words
    metric      it is measured by, with {main} for the task's main metric
    own_models  whether methods that give clients models of their own take part
    """

    name: str
    about: str
    metric: str
    own_models: bool


AIMS = {
    aim.name: aim
    for aim in (
        Aim("accuracy", "the common model on common test data", "global_{main}", False),
        Aim("worst-tenth", "the model each client uses on its own test data, mean of the worst tenth of clients",
            "personal_{main}_worst", True),
        Aim("personal", "the model each client uses on its own test data, mean over clients", "personal_{main}", True),
        Aim("bytes", f"bytes both ways until the common model is {100 * NEARLY:.0f} % as good as plain FedAvg gets",
            "global_{main}", False),
    )
}  # fmt: skip


def find_aim(name: str) -> Aim:
    if name not in AIMS:
        raise UserError(f"there is no aim {name!r}: {nearest(name, list(AIMS))}")
    return AIMS[name]


@dataclass(frozen=True)
class Judge:
    """Scores outcomes for an aim.

    aim      the aim
    metric   the name of its metric for the task
    higher   whether a higher metric is better
    unit     of the metric
    targets  for bytes: the metric to reach, by case
    whole    for bytes: those of plain FedAvg's run, by case
    """

    aim: Aim
    metric: str
    higher: bool
    unit: Unit
    targets: Mapping[str, float] = field(default_factory=dict)
    whole: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, aim: Aim, task: TaskSpec) -> Judge:
        metric, glossary = aim.metric.format(main=task.main), Glossary.of(task)
        return cls(aim, metric, glossary.higher_is_better(metric), glossary.unit(metric))

    def score(self, outcome: TrialOutcome, case: str) -> float:
        """How good a run was; the worst possible score if it diverged."""
        if self.aim.name == "bytes" and self.targets:
            return -math.log2(self.spent(outcome, case) or NEVER * self.whole[case])
        if outcome.diverged:
            return 0.0 if self.unit == "percent" and self.higher else -math.inf
        return outcome.final(self.metric) * (1 if self.higher else -1)

    def reaches(self, value: float, target: float) -> bool:
        return value >= target if self.higher else value <= target

    def spent(self, outcome: TrialOutcome, case: str) -> float | None:
        """The bytes that had been sent when the target was first reached; None if it was not."""
        values = zip(outcome.values.get(self.metric, ()), outcome.sent, strict=True)
        return next((sent for value, sent in values if self.reaches(value, self.targets[case])), None)

    def nearly(self, plain: list[TrialOutcome]) -> float:
        """The metric that is nearly as good as plain FedAvg's."""
        value = fmean(outcome.final(self.metric) for outcome in plain)
        return value * NEARLY if self.higher else value / NEARLY

    def aimed_at(self, plain: Mapping[str, list[TrialOutcome]]) -> Judge:
        """The same with targets, from plain FedAvg's runs in each case (with other seeds than those of the race)."""
        if self.aim.name != "bytes":
            return self
        targets = {case: self.nearly(found) for case, found in plain.items()}
        return replace(
            self, targets=targets, whole={c: fmean(o.up + o.down for o in runs) for c, runs in plain.items()}
        )

    @property
    def margin(self) -> float:
        """Smaller differences do not matter."""
        return BYTES_MARGIN if self.aim.name == "bytes" else MARGIN if self.unit == "percent" else 0.0

    def shown(self, gap: float) -> str:
        """A difference of two scores in points, or in times the bytes.

        >>> judge = Judge(AIMS["accuracy"], "global_accuracy", True, "percent")
        >>> judge.shown(-0.021)
        '-2.1'
        """
        if self.aim.name == "bytes":
            return f"{2**-gap:.2f}×"
        return f"{100 * gap:+.1f}" if self.unit == "percent" else f"{gap if self.higher else -gap:+.3g}"
