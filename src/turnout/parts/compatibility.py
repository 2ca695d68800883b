"""Combinations of parts that make no sense, refused before the first round with a reason and an alternative.

A part checks its own settings when it is created. This module checks parts against one another (`check_algorithm`, when
an algorithm is created) and against the model (`check_experiment`, when it is prepared).
"""

from __future__ import annotations

from typing import Any

from turnout.errors import UserError
from turnout.layout import Layout
from turnout.parts.aggregation import WeightedSum
from turnout.parts.compression.base import Dense
from turnout.parts.privacy.rules import check_private, check_private_experiment, check_secure_private
from turnout.parts.products import ProductMean, factor_pairs
from turnout.parts.robust import Robust
from turnout.parts.substitution.base import NoSubstitution, Spread
from turnout.parts.terms.base import Notifies, PersonalModel, ServerShift, TermTraits, remembers, sends

# Below, an algorithm is a `turnout.Algorithm` and an experiment a `turnout.Experiment`, whose module imports this one.


def check_algorithm(algorithm: Any) -> None:
    """Refuse parts that cannot be combined, or of which one would have no effect."""
    if algorithm.share_personal and algorithm.personal is None:
        raise UserError("algorithm.share_personal has no effect without algorithm.personal: set both, or neither")
    if algorithm.newcomers == "average" and not algorithm.share_personal:
        raise UserError("algorithm.newcomers = 'average' needs something to average: set algorithm.share_personal")
    name, substitution = type(algorithm.substitution).__name__, algorithm.substitution
    if algorithm.mixing.personal and substitution.lends:
        mixing = type(algorithm.mixing).__name__
        raise UserError(f"algorithm.substitution has no effect on clients' own models: leave it out with {mixing}")
    if algorithm.membership.stand_in and not substitution.lends:
        raise UserError(
            "algorithm.membership.stand_in needs a substitution that lends shares: set algorithm.substitution"
        )
    is_sum = algorithm.aggregation.linear and not isinstance(algorithm.aggregation, ProductMean)
    if substitution.adds_rows and not is_sum:
        raise UserError(
            f"algorithm.substitution = {name} adds old updates to a sum, and algorithm.aggregation = "
            f"{type(algorithm.aggregation).__name__} is not a sum of updates: use Friends or Spread"
        )
    _check_robust(algorithm)
    names, optimizer = [term.name for term in algorithm.terms], algorithm.local.optimizer
    if any("/" in name for name in names) or len(set(names)) != len(names):
        raise UserError(f"terms need different names without '/', not {', '.join(names)}: give one another name")
    for term in algorithm.terms:
        by_path = isinstance(term, TermTraits) and term.requires_plain_sgd
        if by_path and not optimizer.linear:
            raise UserError(
                f"the term {term.name!r} derives the mean of a client's gradients from its path, which does not hold "
                f"for {type(optimizer).__name__}: use SGD, or Scaffold(option=1), which measures gradients"
            )
    if algorithm.closing.uses_late:
        _check_late(algorithm)
    if algorithm.secure is not None:
        _check_secure(algorithm)
    if algorithm.privacy is not None:
        check_private(algorithm)


def _check_late(algorithm: Any) -> None:
    """Refuse parts that cannot use replies after their round."""
    closing = algorithm.closing
    name = f"algorithm.closing = {type(closing).__name__}"
    if algorithm.substitution.lends:
        why = "no client is missing, only in flight" if closing.buffer else "late replies stand in for themselves"
        raise UserError(
            f"{name} uses late replies, so {why}: leave algorithm.substitution out, or set late = 'discard'"
        )
    if algorithm.mixing.personal:
        raise UserError(
            f"{name} uses late replies, and algorithm.mixing = {type(algorithm.mixing).__name__} makes models of "
            "replies of the same round: leave one of them out"
        )
    for term in algorithm.terms:
        if sends(term) or isinstance(term, PersonalModel):
            raise UserError(
                f"{name} uses late replies, and the term {term.name!r} combines uploads of the same round: use a term "
                "that sends nothing (Proximal; your own declares TermTraits with sends = 0), or set late = 'discard'"
            )


def _check_secure(algorithm: Any) -> None:
    """Refuse parts that need the update of a single client, which a secure sum hides."""
    policy, term = algorithm.membership, next((t for t in algorithm.terms if _needs_single(t)), None)
    needs = {
        "compression": (not isinstance(algorithm.compression, Dense), "leave it out: masked updates cannot be shorter"),
        "substitution": (type(algorithm.substitution) not in (NoSubstitution, Spread), "use Spread, or none"),
        "aggregation": (type(algorithm.aggregation) is not WeightedSum, "use WeightedSum"),
        "mixing": (algorithm.mixing.personal, "use SharedStart, with algorithm.personal for layers of one's own"),
        "closing": (algorithm.closing.uses_late, "set late = 'discard': a secure sum has no late replies"),
        "terms": (term is not None, f"leave {getattr(term, 'name', '')!r} out: it combines what each client sends"),
        "share_personal": (algorithm.share_personal, "leave personal layers at the client"),
        "max_weight": (algorithm.max_weight is not None, "leave it out: clients multiply with their weights"),
        "scale_at": (algorithm.scale_at == "server", "use 'client': clients multiply with E/s"),
        "local.optimizer": (algorithm.local.optimizer.moments == "federated", "set moments = 'local'"),
        "membership": (
            policy.join != "vanilla" or policy.leave == "decide",
            "set join = 'vanilla', and leave = 'include' or 'exclude': boosts and gradient norms are of single clients",
        ),
    }
    for name, (is_set, instead) in needs.items():
        if is_set:
            raise UserError(
                f"algorithm.{name} needs updates of single clients, which algorithm.secure hides: {instead}"
            )
    if algorithm.privacy is not None:
        check_secure_private(algorithm)


def _needs_single(term: Any) -> bool:
    return bool(sends(term)) or remembers(term) or isinstance(term, Notifies | ServerShift)


def _check_robust(algorithm: Any) -> None:
    """Refuse a robust aggregation where it has no effect or does not protect, or where updates are too sparse."""
    aggregation, compression = algorithm.aggregation, algorithm.compression
    name, keep = type(aggregation).__name__, getattr(compression, "keep", 1.0)
    if not isinstance(aggregation, Robust):
        return
    if algorithm.mixing.personal:
        raise UserError(
            f"algorithm.aggregation = {name} has no effect on clients' own models, which "
            f"{type(algorithm.mixing).__name__} mixes itself: leave one of them out"
        )
    for term in algorithm.terms:
        differs = isinstance(term, TermTraits) and not term.comparable
        if differs:
            raise UserError(
                f"algorithm.aggregation = {name} protects uploads entry by entry, and the entries that the term "
                f"{term.name!r} uploads mean something else for each client: let it upload all of them (Elastic: leave "
                "fisher_keep out)"
            )
        if remembers(term):
            raise UserError(
                f"algorithm.aggregation = {name} does not protect what the term {term.name!r} keeps of clients that "
                "have left: let it forget them (Elastic: leave memory out)"
            )
    if getattr(aggregation, "by_parameter", False) and keep < 0.5:
        raise UserError(
            f"algorithm.aggregation = {name} treats each parameter separately, and most messages of "
            f"{type(compression).__name__}(keep={keep:g}) are 0 there, so hardly anything would be learned: use "
            "GeometricMedian, MultiKrum or NormClip, which treat whole updates, or Quantise"
        )


def check_experiment(experiment: Any, algorithm: Any, layout: Layout) -> None:
    """Refuse parts that do not fit the model: layers that do not exist, parts without an effect."""
    if algorithm.personal is not None and layout.personal == 0:
        name = getattr(algorithm.personal, "__name__", repr(algorithm.personal)).replace("_", "-")
        raise UserError(
            f"algorithm.personal = {name} keeps nothing at the client: nothing in this model matches, so it would be "
            "plain FedAvg. Its parameters are " + ", ".join(slot.name for slot in layout.slots[:6])
        )
    if algorithm.newcomers == "calibrated" and not any(n.endswith("running_mean") for n in layout.personal_states):
        raise UserError(
            "algorithm.newcomers = 'calibrated' is about personal BatchNorm statistics, and here there are none: set "
            "algorithm.personal = batch-norm on a model with BatchNorm, or leave newcomers out"
        )
    if algorithm.secure is not None:
        _check_secure_experiment(experiment.evaluate, layout)
    if experiment.evaluate.activations:
        if not any(name.endswith("running_mean") for name in layout.states):
            raise UserError("evaluate.activations looks at BatchNorm layers, and this model has none")
        if layout.personal_states and algorithm.newcomers != "average":
            raise UserError(
                "evaluate.activations compares clients' own BatchNorm with the average, which they do not receive: set "
                "algorithm.share_personal and algorithm.newcomers = 'average'"
            )
    if algorithm.privacy is not None:
        check_private_experiment(experiment, layout.shared_states)
    if isinstance(algorithm.aggregation, ProductMean) and not list(factor_pairs(layout.shared_slots)):
        raise UserError(
            "algorithm.aggregation = ProductMean needs both factors of an adapter, lora_A and lora_B, among the shared "
            "parameters, and there is no such pair: use WeightedSum, which is exact if A is frozen"
        )
    if layout.shared == 0:
        _check_independent(algorithm)


def _check_secure_experiment(evaluate: Any, layout: Layout) -> None:
    """Refuse what clients would send one by one beside a secure sum."""
    if layout.shared_states:
        raise UserError(
            f"algorithm.secure hides updates, and this model also averages {layout.shared_states[0]}: keep such "
            "statistics at the client, algorithm.personal = batch-norm, or use a model without them"
        )
    for name in ("recovery", "gradients", "activations", "substitution"):
        if getattr(evaluate, name):
            raise UserError(f"evaluate.{name} looks at single clients, which algorithm.secure hides: leave one out")


def _check_independent(algorithm: Any) -> None:
    """Refuse parts that act on shared parameters where all of them are personal."""
    if algorithm.local.optimizer.moments == "federated":
        raise UserError("algorithm.local.optimizer.moments = 'federated', but nothing is shared: use 'local' or 'auto'")
    idle = {
        "substitution": algorithm.substitution.lends,
        "terms": bool(algorithm.terms),
        "compression": not isinstance(algorithm.compression, Dense),
        "mixing": algorithm.mixing.personal,
        "privacy": algorithm.privacy is not None,
    }
    for name in (name for name, is_set in idle.items() if is_set):
        raise UserError(
            f"algorithm.{name} acts on shared parameters, and algorithm.personal keeps all of them at the client, so "
            f"nothing is shared: leave algorithm.{name} out, or make fewer parameters personal"
        )
