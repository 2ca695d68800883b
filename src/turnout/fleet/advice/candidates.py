"""What a method is wanted for, and the candidates: methods a fleet may be trained with, as changes of plain FedAvg."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from torch import nn

from turnout.errors import UserError, nearest
from turnout.experiment import Experiment
from turnout.fleet.advice.trials import TrialOutcome
from turnout.fleet.diagnosis import Diagnosis
from turnout.parts.compression.lossy import Quantise, SparseTernary
from turnout.parts.membership.policy import DropInactive
from turnout.parts.personal import Named, batch_norm
from turnout.parts.substitution.base import Stale
from turnout.parts.substitution.friends import Friends
from turnout.parts.terms.baselines import Proximal
from turnout.parts.terms.control_variates import Scaffold
from turnout.parts.weighting import ByShare, ByWork, CompleteOnly, FedNova
from turnout.running.config.read import parse_value
from turnout.running.config.variants import with_value
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
    worst    the metric of the worst tenth of clients
    targets  for bytes: the metric to reach, by case
    whole    for bytes: those of plain FedAvg's run, by case
    """

    aim: Aim
    metric: str
    higher: bool
    unit: Unit
    worst: str = ""
    targets: Mapping[str, float] = field(default_factory=dict)
    whole: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, aim: Aim, task: TaskSpec) -> Judge:
        metric, glossary = aim.metric.format(main=task.main), Glossary.of(task)
        worst = AIMS["worst-tenth"].metric.format(main=task.main)
        return cls(aim, metric, glossary.higher_is_better(metric), glossary.unit(metric), worst)

    def score(self, outcome: TrialOutcome, case: str) -> float:
        """How good a run was; the worst possible score if it diverged."""
        if self.aim.name == "bytes" and self.targets:
            return -math.log2(self.spent(outcome, case) or NEVER * self.whole[case])
        if outcome.diverged:
            return 0.0 if self.unit == "percent" and self.higher else -math.inf
        return outcome.final(self.metric) * (1 if self.higher else -1)

    def collapsed(self, outcome: TrialOutcome, case: str, usual: float) -> bool:
        """Whether a run diverged, did not reach the target, or ended less than half as good as a usual one."""
        if outcome.diverged:
            return True
        if self.aim.name == "bytes" and self.targets:
            return self.spent(outcome, case) is None
        value = outcome.final(self.metric)
        return value < usual / 2 if self.higher else value > 2 * usual

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


PLAIN = "FedAvg"
KEEP, SMALL_KEEP = 0.01, 0.05  # of a model's entries, in ternary messages; of a small model's
SMALL = 100_000  # parameters
STEP, STEPS = 3.0, 3  # rates are powers of 3 times that of the experiment, at most so many steps away from it

NOT_TRIED = (
    "other learning-rate schedules, batch sizes and numbers of epochs than the experiment's",
    "server optimizers (Adam, Yogi, Adagrad), the elastic term, FedGATE, VRL-SGD, MimeLite, APFL, FedAMP",
    "robust aggregation, scores instead of weights",
    "the candidates' own settings (μ of FedProx, the share of entries that ternary messages keep) beside the defaults",
)


@dataclass(frozen=True)
class Candidate:
    """A method.

    name        in tables
    about       in a few words
    changes     of the plain experiment, by path
    own_models  whether clients get models of their own
    """

    name: str
    about: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    own_models: bool = False

    def on(self, experiment: Experiment) -> Experiment:
        """The experiment with this method."""
        return experiment.but(**self.changes)


def known_candidates(aim: Aim, facts: Diagnosis, template: nn.Module) -> list[Candidate]:
    """Our methods that can make a difference for this aim and this fleet."""
    small = sum(p.numel() for p in template.parameters()) < SMALL
    ternary = {"algorithm.compression": SparseTernary(SMALL_KEEP if small else KEEP)}
    scheme_c, friends = {"algorithm.weighting": ByWork()}, {"algorithm.substitution": Friends()}
    scaffold = {"algorithm.terms": (Scaffold(),)}
    found = [
        Candidate(PLAIN, "the mean over those who replied"),
        Candidate("scheme A", "only complete work counts", {"algorithm.weighting": CompleteOnly()}),
        Candidate("scheme B", "unfinished work counts as it is, absent shares keep the old model",
                  {"algorithm.weighting": ByShare()}),
        Candidate("scheme C", "unfinished work is scaled up to the full share", scheme_c),
        Candidate("FedNova", "updates divided by their local steps", {"algorithm.weighting": FedNova()}),
        Candidate("friends", "an absent client's share goes to the most similar one present", friends),
        Candidate("friends + C", "friends, unfinished work scaled up", {**friends, **scheme_c}),
        Candidate("stale", "an absent client takes part with its last update", {"algorithm.substitution": Stale()}),
    ]  # fmt: skip
    if facts.hardly_there:
        found.append(Candidate("drop the inactive", "clients that hardly ever come are removed from the objective",
                               {"algorithm.membership.drop": DropInactive(least=3.0)}))  # fmt: skip
    if facts.left:
        found.append(Candidate("leavers by rule", "convergence bounds decide whether a client that left counts",
                               {"algorithm.membership.leave": "decide"}))  # fmt: skip
    found += [
        Candidate("FedProx", "local steps are pulled back to where they began", {"algorithm.terms": (Proximal(0.1),)}),
        Candidate("SCAFFOLD", "control variates correct the drift of local steps", scaffold),
        Candidate("SCAFFOLD + friends", "control variates, and friends for the absent", {**scaffold, **friends}),
        Candidate("ternary", "sparse ternary messages both ways", ternary),
    ]
    if aim.name == "bytes":
        found.append(Candidate("8 bits", "updates in eight bits an entry", {"algorithm.compression": Quantise()}))
        found.append(Candidate("ternary + C", "ternary messages, unfinished work scaled up", {**ternary, **scheme_c}))
    for name, rule in own_layers(template).items() if aim.own_models else ():
        own = {"algorithm.personal": rule, "algorithm.share_personal": True, "algorithm.newcomers": "average"}
        found.append(Candidate(f"personal {name}", f"{name} stays on the client", own, True))
        about = f"{name} stays on the client, unfinished work scaled up"
        found.append(Candidate(f"personal {name} + C", about, {**own, **scheme_c}, True))
    return found


def own_layers(template: nn.Module) -> dict[str, Any]:
    """The layers that may stay on clients: BatchNorm if the model has it, else its last layer."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in template.modules()):
        return {"BatchNorm": batch_norm}
    holders = [name for name, module in template.named_modules() if any(True for _ in module.parameters(recurse=False))]
    return {"last layer": Named(f"{holders[-1]}.*")} if len(holders) > 1 else {}


def given_candidates(base: Experiment, given: Mapping[str, Experiment], also: Sequence[str]) -> list[Candidate]:
    """The user's own: the file's variants (or the file itself, if it is not plain), and settings `a.b=c`."""
    listed = [(name, "from the experiment file", experiment) for name, experiment in given.items()]
    listed = [entry for entry in listed if entry[2].algorithm != base.algorithm]
    for setting in also:
        path, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"--also {setting}: write it as algorithm.part=value, as for turnout run --set")
        listed.append((setting, "asked for", with_value(base, path.strip(), parse_value(value))))
    return [
        Candidate(name, about, {"algorithm": made.algorithm}, getattr(made.algorithm, "makes_own", False))
        for name, about, made in listed
    ]


def settings_of(steps: int) -> str:
    """A learning rate in words, so many steps above that of the experiment.

    >>> settings_of(0), settings_of(-2)
    ('lr × 1', 'lr × 0.111')
    """
    return f"lr × {STEP**steps:.3g}"


def rate_of(settings: str) -> float:
    """The learning rate of these settings, in times that of the experiment."""
    return next(STEP**k for k in range(-STEPS, STEPS + 1) if settings_of(k) == settings)


def with_rate(experiment: Experiment, times: float) -> Experiment:
    """The experiment with its local learning rate multiplied."""
    lr = experiment.algorithm.local.optimizer.lr * times
    return experiment.but(**{"algorithm.local.optimizer.lr": float(f"{lr:.3g}")})
