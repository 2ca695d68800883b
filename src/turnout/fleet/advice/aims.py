"""What the method is for: how good a run was, as one number (higher is better)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from turnout.errors import UserError, nearest
from turnout.fleet.advice.trial import Outcome
from turnout.running.records.glossary import Glossary
from turnout.tasks import TaskSpec, Unit

NEARLY = 0.9  # of what plain FedAvg reaches: the target when bytes are to be saved
NEVER = 10.0  # times plain FedAvg's whole run: what counts where the target is not reached
MARGIN = 0.005  # half a point: candidates that are shown to be closer are as good as each other
BYTES_MARGIN = 0.07  # a twentieth of the bytes, as a logarithm to base 2


@dataclass(frozen=True)
class Aim:
    """An aim: the metric it is about, and whether methods that make clients models of their own take part."""

    name: str
    about: str
    metric: str  # with {main} for the task's main metric
    own_models: bool

    def metric_of(self, task: TaskSpec) -> str:
        return self.metric.format(main=task.main)


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
    """Scores outcomes for an aim. `targets` (by case) and `whole` (bytes of plain FedAvg's run) are for bytes."""

    aim: Aim
    metric: str
    higher: bool
    unit: Unit
    targets: Mapping[str, float]
    whole: Mapping[str, float]

    @classmethod
    def of(cls, aim: Aim, task: TaskSpec) -> Judge:
        metric, glossary = aim.metric_of(task), Glossary.of(task)
        return cls(aim, metric, glossary.higher_is_better(metric), glossary.unit(metric), {}, {})

    def score(self, outcome: Outcome, case: str) -> float:
        """How good a run was; the worst there is where it diverged."""
        if self.aim.name == "bytes" and self.targets:
            return -math.log2(self.spent(outcome, case) or NEVER * self.whole[case])
        if outcome.diverged:
            return 0.0 if self.unit == "percent" and self.higher else -math.inf
        found = outcome.final(self.metric)
        return found if self.higher else -found

    def spent(self, outcome: Outcome, case: str) -> float | None:
        """The bytes that had been sent when the target was first reached; None if it was not."""
        target = self.targets[case]
        values = outcome.values.get(self.metric, ())
        reached = (v >= target if self.higher else v <= target for v in values)
        return next((sent for there, sent in zip(reached, outcome.sent, strict=True) if there), None)

    def aimed_at(self, plain: Mapping[str, list[Outcome]]) -> Judge:
        """The same with targets, from plain FedAvg's runs in each case (with other seeds than those of the race)."""
        if self.aim.name != "bytes":
            return self
        final = {case: _mean([o.final(self.metric) for o in found]) for case, found in plain.items()}
        targets = {case: value * NEARLY if self.higher else value / NEARLY for case, value in final.items()}
        whole = {case: _mean([o.up + o.down for o in found]) for case, found in plain.items()}
        return Judge(self.aim, self.metric, self.higher, self.unit, targets, whole)

    @property
    def margin(self) -> float:
        """Differences below this do not matter."""
        return BYTES_MARGIN if self.aim.name == "bytes" else MARGIN if self.unit == "percent" else 0.0

    def shown(self, gap: float) -> str:
        """A difference of two scores, as people say it: points, or times the bytes.

        >>> judge = Judge(AIMS["accuracy"], "global_accuracy", True, "percent", {}, {})
        >>> judge.shown(-0.021)
        '-2.1'
        """
        if self.aim.name == "bytes":
            return f"{2**-gap:.2f}×"
        return f"{100 * gap:+.1f}" if self.unit == "percent" else f"{gap if self.higher else -gap:+.3g}"


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
