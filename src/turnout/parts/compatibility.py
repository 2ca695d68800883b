"""What makes no sense together, in one place: why, and what to use instead, before the first round.

A part checks its own settings when it is made. Here is what only shows when parts meet: one another (`check_algorithm`,
when an algorithm is made) and the model (`check_experiment`, when it is prepared). How parts meet that do make sense
together is the round's business (docs/which-part-when.md).
"""

from __future__ import annotations

from typing import Protocol

from turnout.errors import UserError
from turnout.layout import Layout, Predicate
from turnout.parts.aggregation import Aggregation
from turnout.parts.closing import Closing
from turnout.parts.compression.base import Compression, Dense
from turnout.parts.local import Local
from turnout.parts.membership.policy import Membership
from turnout.parts.mixing import Mixing
from turnout.parts.substitution.base import Substitution
from turnout.parts.terms.base import PersonalModel, Term, TermTraits, sends
from turnout.settings import Evaluate


class AlgorithmParts(Protocol):
    """What is looked at of an algorithm. (`turnout.Algorithm` itself is made of parts and checked by this module.)"""

    @property
    def local(self) -> Local: ...

    @property
    def terms(self) -> tuple[Term, ...]: ...

    @property
    def personal(self) -> Predicate | None: ...

    @property
    def share_personal(self) -> bool: ...

    @property
    def newcomers(self) -> str: ...

    @property
    def mixing(self) -> Mixing: ...

    @property
    def compression(self) -> Compression: ...

    @property
    def substitution(self) -> Substitution: ...

    @property
    def aggregation(self) -> Aggregation: ...

    @property
    def membership(self) -> Membership: ...

    @property
    def closing(self) -> Closing: ...


class Measuring(Protocol):
    """What is looked at of an experiment."""

    @property
    def evaluate(self) -> Evaluate: ...


def check_algorithm(algorithm: AlgorithmParts) -> None:
    """Refuse parts that cannot be combined, or of which one would have no effect."""
    _check_personal(algorithm)
    _check_substitution(algorithm)
    _check_robust(algorithm)
    _check_terms(algorithm)
    _check_late(algorithm)


def _check_late(algorithm: AlgorithmParts) -> None:
    """What makes no sense for replies that are used after their round."""
    closing = algorithm.closing
    if not closing.uses_late:
        return
    name = f"algorithm.closing = {type(closing).__name__}"
    if algorithm.substitution.lends:
        why = "nobody is missing, only under way" if closing.buffer else "late replies stand in for themselves"
        raise UserError(
            f"{name} uses late replies, so {why}: leave algorithm.substitution out, or set late = 'discard'"
        )
    if algorithm.mixing.personal:
        raise UserError(
            f"{name} uses late replies, and algorithm.mixing = {type(algorithm.mixing).__name__} makes models for "
            "those who reply in the same round: leave one of them out"
        )
    for term in algorithm.terms:
        if sends(term) or isinstance(term, PersonalModel):
            raise UserError(
                f"{name} uses late replies, and the term {term.name!r} combines uploads of the same "
                "round: use a term that sends nothing (Proximal; your own declares TermTraits with sends = 0), or set "
                "late = 'discard'"
            )


def _check_personal(algorithm: AlgorithmParts) -> None:
    if algorithm.share_personal and algorithm.personal is None:
        raise UserError("algorithm.share_personal has no effect without algorithm.personal: set both, or neither")
    if algorithm.newcomers == "average" and not algorithm.share_personal:
        raise UserError("algorithm.newcomers = 'average' needs something to average: set algorithm.share_personal")


def _check_substitution(algorithm: AlgorithmParts) -> None:
    name, substitution = type(algorithm.substitution).__name__, algorithm.substitution
    if algorithm.mixing.personal and substitution.lends:
        mixing = type(algorithm.mixing).__name__
        raise UserError(f"algorithm.substitution has no effect on clients' own models: leave it out with {mixing}")
    if algorithm.membership.stand_in and not substitution.lends:
        raise UserError(
            "algorithm.membership.stand_in needs a substitution that lends shares: set algorithm.substitution"
        )
    if substitution.adds_rows and not algorithm.aggregation.linear:
        raise UserError(
            f"algorithm.substitution = {name} adds old updates to a sum, and algorithm.aggregation = "
            f"{type(algorithm.aggregation).__name__} is none: use Friends or Spread"
        )


def _check_robust(algorithm: AlgorithmParts) -> None:
    """An aggregation that keeps hostile updates out needs updates that say something of what it looks at."""
    aggregation, compression = algorithm.aggregation, algorithm.compression
    name, keep = type(aggregation).__name__, getattr(compression, "keep", 1.0)
    if getattr(aggregation, "guards", None) and algorithm.mixing.personal:
        raise UserError(
            f"algorithm.aggregation = {name} has no effect on clients' own models, which "
            f"{type(algorithm.mixing).__name__} mixes itself: leave one of them out"
        )
    if getattr(aggregation, "by_parameter", False) and keep < 0.5:
        raise UserError(
            f"algorithm.aggregation = {name} looks at one parameter at a time, and of each most messages of "
            f"{type(compression).__name__}(keep={keep:g}) say 0, so hardly anything would be learned: use "
            "GeometricMedian, MultiKrum or NormClip, which look at whole updates, or Quantise"
        )


def _check_terms(algorithm: AlgorithmParts) -> None:
    names = [term.name for term in algorithm.terms]
    if any("/" in name for name in names):
        raise UserError(f"a term's name must not contain '/' ({', '.join(names)}): give it another name")
    if len(set(names)) != len(names):
        raise UserError(f"two terms are called the same ({', '.join(names)}): give one of them another name")
    optimizer = algorithm.local.optimizer
    for term in algorithm.terms:
        if isinstance(term, TermTraits) and term.requires_plain_sgd and not optimizer.linear:
            raise UserError(
                f"the term {term.name!r} takes a client's path for the mean of its gradients, which "
                f"{type(optimizer).__name__}'s steps are not: use SGD, or Scaffold(option=1), which measures gradients"
            )


def check_experiment(experiment: Measuring, algorithm: AlgorithmParts, layout: Layout) -> None:
    """Refuse what does not fit the model: layers that are not there, parts that would have nothing to act on."""
    if algorithm.personal is not None and layout.personal == 0:
        name = getattr(algorithm.personal, "__name__", repr(algorithm.personal)).replace("_", "-")
        raise UserError(
            f"algorithm.personal = {name} keeps nothing at home: nothing in this model is of that kind, so it would be "
            "plain FedAvg. Its parameters are " + ", ".join(slot.name for slot in layout.slots[:6])
        )
    if algorithm.newcomers == "calibrated" and not any(n.endswith("running_mean") for n in layout.personal_states):
        raise UserError(
            "algorithm.newcomers = 'calibrated' is about BatchNorm statistics that stay home, and here none do: set "
            "algorithm.personal = batch-norm on a model with BatchNorm, or leave newcomers out"
        )
    if experiment.evaluate.activations:
        _check_activations(algorithm, layout)
    if layout.shared == 0:
        _check_independent(algorithm)


def _check_activations(algorithm: AlgorithmParts, layout: Layout) -> None:
    if not any(name.endswith("running_mean") for name in layout.states):
        raise UserError("evaluate.activations looks at BatchNorm layers, and this model has none")
    if layout.personal_states and algorithm.newcomers != "average":
        raise UserError(
            "evaluate.activations compares clients' own BatchNorm with the average, which they are not sent: set "
            "algorithm.share_personal and algorithm.newcomers = 'average'"
        )


def _check_independent(algorithm: AlgorithmParts) -> None:
    """Where everything is personal, a part that is about what is shared would do nothing."""
    if algorithm.local.optimizer.moments == "federated":
        raise UserError("algorithm.local.optimizer.moments = 'federated', but nothing is shared: use 'local' or 'auto'")
    idle = {
        "substitution": algorithm.substitution.lends,
        "terms": bool(algorithm.terms),
        "compression": not isinstance(algorithm.compression, Dense),
        "mixing": algorithm.mixing.personal,
    }
    for name in (name for name, is_set in idle.items() if is_set):
        raise UserError(
            f"algorithm.{name} is about the parameters that are shared, and algorithm.personal keeps all of them at "
            f"home, so nothing is shared: leave algorithm.{name} out, or keep less at home"
        )
