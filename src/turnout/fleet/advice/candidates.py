"""The candidates: what a fleet may be trained with, the simplest first, as changes of plain FedAvg."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from turnout.errors import UserError
from turnout.experiment import Algorithm, Experiment
from turnout.fleet.advice.aims import Aim
from turnout.fleet.advice.fleet import FleetFacts
from turnout.parts.compression.quantise import Quantise
from turnout.parts.compression.ternary import SparseTernary
from turnout.parts.membership.policy import DropInactive
from turnout.parts.personal import Named, batch_norm
from turnout.parts.substitution.friends import Friends
from turnout.parts.substitution.stale import Stale
from turnout.parts.terms.control_variates import Scaffold
from turnout.parts.terms.proximal import Proximal
from turnout.parts.weighting import ByShare, ByWork, CompleteOnly, FedNova
from turnout.running.config.read import parse_value, with_value

PLAIN = "FedAvg"
KEEP, SMALL_KEEP = 0.01, 0.05  # of a model's entries, in ternary messages; of a small model's
SMALL = 100_000  # parameters
RATES = (1 / 3, 1.0, 3.0)  # times the learning rate of the experiment: what is tuned, for every candidate alike

NOT_TRIED = (
    "other learning-rate schedules, batch sizes and numbers of epochs than the experiment's",
    "server optimizers (Adam, Yogi, Adagrad), the elastic term, FedGATE, VRL-SGD, MimeLite, APFL, FedAMP",
    "asking other clients than the log did (selection), robust aggregation, scores instead of weights",
    "the candidates' own settings (μ of FedProx, the share of entries that ternary messages keep) beside the defaults",
)


@dataclass(frozen=True)
class Candidate:
    """A method: changes of the plain experiment by path; `own_models` where clients get models of their own."""

    name: str
    about: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    own_models: bool = False

    def on(self, experiment: Experiment) -> Experiment:
        """The experiment with this method."""
        return experiment.but(**self.changes)


def known_candidates(aim: Aim, facts: FleetFacts, template: nn.Module) -> list[Candidate]:
    """Those of ours that can make a difference for this aim and this fleet."""
    small = sum(p.numel() for p in template.parameters()) < SMALL
    ternary = {"algorithm.compression": SparseTernary(SMALL_KEEP if small else KEEP)}
    found = [*_schemes(), *_against_absence(facts), *_against_skew(), *_for_bytes(ternary, aim.name == "bytes")]
    if aim.own_models:
        found += _personal(template)
    return [Candidate(PLAIN, "the mean over those who replied"), *found]


def _schemes() -> Iterator[Candidate]:
    weighting = "algorithm.weighting"
    yield Candidate("scheme A", "only complete work counts", {weighting: CompleteOnly()})
    yield Candidate(
        "scheme B", "unfinished work counts as it is, absent shares keep the old model", {weighting: ByShare()}
    )
    yield Candidate("scheme C", "unfinished work is scaled up to the full share", {weighting: ByWork()})
    yield Candidate("FedNova", "updates divided by their local steps", {weighting: FedNova()})


def _against_absence(facts: FleetFacts) -> Iterator[Candidate]:
    substitution, membership = "algorithm.substitution", "algorithm.membership"
    yield Candidate(
        "friends", "an absent client's share goes to the most similar one present", {substitution: Friends()}
    )
    yield Candidate("friends + C", "friends, unfinished work scaled up",
                    {substitution: Friends(), "algorithm.weighting": ByWork()})  # fmt: skip
    yield Candidate("stale", "an absent client takes part with its last update", {substitution: Stale()})
    if facts.hardly_there:
        yield Candidate("drop the inactive", "clients that are hardly ever there are taken out of the objective",
                        {f"{membership}.drop": DropInactive(least=3.0)})  # fmt: skip
    if facts.left:
        yield Candidate("leavers by rule", "whether who left still counts is decided by the bounds of paper 000",
                        {f"{membership}.leave": "decide"})  # fmt: skip


def _against_skew() -> Iterator[Candidate]:
    terms = "algorithm.terms"
    yield Candidate("FedProx", "local steps are pulled back to where they began", {terms: (Proximal(0.1),)})
    yield Candidate("SCAFFOLD", "control variates correct the drift of local steps", {terms: (Scaffold(),)})
    yield Candidate("SCAFFOLD + friends", "control variates, and friends for the absent",
                    {terms: (Scaffold(),), "algorithm.substitution": Friends()})  # fmt: skip


def _for_bytes(ternary: Mapping[str, Any], wanted: bool) -> Iterator[Candidate]:
    yield Candidate("ternary", "sparse ternary messages both ways", ternary)
    if wanted:
        yield Candidate("8 bits", "updates in eight bits an entry", {"algorithm.compression": Quantise()})
        yield Candidate("ternary + C", "ternary messages, unfinished work scaled up",
                        {**ternary, "algorithm.weighting": ByWork()})  # fmt: skip


def _personal(template: nn.Module) -> Iterator[Candidate]:
    layers = own_layers(template)
    for name, rule in layers.items():
        own = {"algorithm.personal": rule, "algorithm.share_personal": True, "algorithm.newcomers": "average"}
        yield Candidate(f"personal {name}", f"{name} stays home", own, True)
        yield Candidate(f"personal {name} + C", f"{name} stays home, unfinished work scaled up",
                        {**own, "algorithm.weighting": ByWork()}, True)  # fmt: skip


def own_layers(template: nn.Module) -> dict[str, Any]:
    """What may stay home: BatchNorm where the model has it, else its last layer."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in template.modules()):
        return {"BatchNorm": batch_norm}
    holders = [name for name, module in template.named_modules() if any(True for _ in module.parameters(recurse=False))]
    return {"last layer": Named(f"{holders[-1]}.*")} if len(holders) > 1 else {}


def plain(experiment: Experiment) -> Experiment:
    """The user's experiment with plain FedAvg: their model, data, local training, shares and selection stay."""
    given = experiment.algorithm
    if not isinstance(given, Algorithm):
        raise UserError("advice is for methods that federate weights: the experiment's algorithm is another track")
    kept = Algorithm(local=given.local, shares=given.shares, selection=given.selection, nonfinite=given.nonfinite)
    return replace(experiment, algorithm=kept)


def given_candidates(base: Experiment, given: Mapping[str, Experiment], also: Sequence[str]) -> list[Candidate]:
    """The user's own: the file's variants (or the file itself, where it is not plain), and settings `a.b=c`."""
    found = [
        Candidate(name, "from the experiment file", {"algorithm": experiment.algorithm}, _makes_own(experiment))
        for name, experiment in given.items()
        if experiment.algorithm != base.algorithm
    ]
    for setting in also:
        path, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"--also {setting}: write it as algorithm.part=value, as for turnout run --set")
        changed = with_value(base, path.strip(), parse_value(value))
        found.append(Candidate(setting, "asked for", {"algorithm": changed.algorithm}, _makes_own(changed)))
    return found


def _makes_own(experiment: Experiment) -> bool:
    return isinstance(experiment.algorithm, Algorithm) and experiment.algorithm.makes_own


def with_rate(experiment: Experiment, times: float) -> Experiment:
    """The experiment with its local learning rate multiplied."""
    lr = experiment.algorithm.local.optimizer.lr * times
    return experiment.but(**{"algorithm.local.optimizer.lr": float(f"{lr:.3g}")})
