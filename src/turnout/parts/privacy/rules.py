"""Which parts go with `Private`: allowed, changed with a sentence that says how, or refused with an alternative.

Clipping a client's whole contribution bounds what it adds to one release, whatever parts it went through. That leaves
three ways in which a part can reveal more: a client's data changes the contributions of others, is used in rounds in
which the client took no part, or is sent in a message of its own. docs/privacy.md has the whole table.
"""

from __future__ import annotations

from typing import Any

from turnout.errors import UserError
from turnout.parts.aggregation import WeightedSum
from turnout.parts.privacy.private import Private
from turnout.parts.robust import NormClip
from turnout.parts.selection import MinSeparation, Selection
from turnout.parts.server import ServerSGD
from turnout.parts.substitution.base import NoSubstitution, Substitution
from turnout.parts.terms.base import Departures, Notifies, TermTraits, remembers
from turnout.parts.weighting import CompleteOnly, FedNova, Shares

# Below, an algorithm is a `turnout.Algorithm` and an experiment a `turnout.Experiment`, whose module imports this one.


def check_private(algorithm: Any) -> None:
    """Refuse parts that reveal more of a client than its clipped and noised contribution."""
    private, membership, aggregation = algorithm.privacy, algorithm.membership, algorithm.aggregation
    substitution, name = algorithm.substitution, type(algorithm.substitution).__name__
    if substitution.adds_rows:
        refuse(f"substitution = {name}", "uses a client's old data in rounds it took no part in", "use Spread")
    if not _inherits(substitution, Substitution, "observe", "hints"):
        refuse(
            f"substitution = {name}",
            "chooses who stands in by similarities of private updates",
            "use Spread, or a substitution of your own that lends by a public table",
        )
    if not isinstance(aggregation, WeightedSum) and getattr(aggregation, "limit", None) is None:
        refuse(
            f"aggregation = {type(aggregation).__name__}",
            "lets one client change how much all others count",
            "use WeightedSum; privacy.clip already bounds what a client can do",
        )
    if not isinstance(aggregation, WeightedSum | NormClip):
        refuse(
            f"aggregation = {type(aggregation).__name__}",
            "clips around a centre that is made of private updates",
            "use WeightedSum, which privacy.clip makes robust too",
        )
    if algorithm.mixing.personal:
        refuse(
            f"mixing = {type(algorithm.mixing).__name__}", "sends each client a mix of others' models",
            "use terms.APFL or personal layers, which stay at home",
        )  # fmt: skip
    if membership.leave == "decide" or membership.gate is not None:
        which, how = ("leave = 'decide'", "'include' or 'exclude'") if membership.gate is None else ("gate", "no gate")
        refuse(f"membership.{which}", "depends on losses or gradients that are not noised", f"use {how}")
    if private.noise_at == "client":
        raise UserError(
            "algorithm.privacy.noise_at = 'client' is for scores: the server adds the noise to a sum of updates; leave "
            "it out"
        )
    check_selection(algorithm)
    if algorithm.share_personal:
        refuse("share_personal", "releases personal layers", "leave it out, so that they stay at home")
    if algorithm.local.optimizer.moments == "federated":
        refuse("local.optimizer.moments = 'federated'", "releases moments of the optimizer", "use 'local'")
    _check_terms(algorithm)
    if isinstance(algorithm.weighting, FedNova):
        if algorithm.local.steps is None:
            refuse("weighting = FedNova", f"uses the clients' numbers of steps, {_STEPS}", "set local.steps, or ByWork")
        if private.noise != "gaussian":
            refuse(
                "weighting = FedNova", f"multiplies noise {private.noise!r} by another factor in every round",
                "use ByWork, or noise = 'gaussian'",
            )  # fmt: skip


def check_secure_private(algorithm: Any) -> None:
    """Refuse what devices cannot do when they clip and noise their updates themselves, for a secure sum."""
    private, substitution = algorithm.privacy, type(algorithm.substitution)
    needs = {
        f"privacy.noise = {private.noise!r}": (
            private.noise != "gaussian",
            "cancels noise of earlier rounds, which came from other devices",
            "use 'gaussian', which is independent",
        ),
        "privacy.quantile": (private.quantile is not None, "counts lengths of single updates", "give a fixed clip"),
        f"substitution = {substitution.__name__}": (
            substitution is not NoSubstitution,
            "multiplies updates by who is absent, which devices do not know when they clip",
            "leave it out: privacy.n0 stands for the number of clients",
        ),
    }
    for what, (is_set, why, instead) in needs.items():
        if is_set:
            raise UserError(
                f"algorithm.{what} does not go with algorithm.privacy and algorithm.secure together, where each device "
                f"adds its noise: it {why}; {instead}"
            )


_STEPS = "which epochs make depend on how many samples each holds"


def _check_terms(algorithm: Any) -> None:
    for term in algorithm.terms:
        what = f"terms: {term.name!r}"
        if remembers(term):
            refuse(what, "keeps uploads of clients that left", "leave memory out")
        if isinstance(term, TermTraits) and not term.comparable:
            refuse(what, "uploads positions, which cannot be noised", "let it upload all entries (no fisher_keep)")
        if isinstance(term, Notifies) and algorithm.local.steps is None:
            refuse(what, f"sends a mean by the clients' numbers of steps, {_STEPS}", "set local.steps")
        if _leaves_message(term) and algorithm.membership.drop is not None:
            refuse(
                "membership.drop", f"makes clients send the state of the term {term.name!r} when they are dropped",
                "leave drop out, or that term",
            )  # fmt: skip


def check_selection(algorithm: Any) -> None:
    """Refuse a selection that asks by private data, or that promises what `Private` promises already."""
    selection = algorithm.selection
    if isinstance(selection, MinSeparation) and algorithm.privacy.rounds is None:
        raise UserError(
            "algorithm.selection = MinSeparation beside algorithm.privacy would be a second place for the same "
            "promise: set privacy.min_separation and privacy.most, and give the selection that it is of"
        )
    if not isinstance(selection, MinSeparation) and not _inherits(selection, Selection, "observe"):
        refuse(
            f"selection = {type(selection).__name__}", "asks clients by what they replied (losses, similarities)",
            "use Everyone, Fraction or Count",
        )  # fmt: skip


def refuse(what: str, why: str, instead: str) -> None:
    """Refuse a setting of a private algorithm."""
    raise UserError(f"algorithm.{what} does not go with algorithm.privacy: it {why}; {instead}")


def _inherits(part: Any, role: Any, *names: str) -> bool:
    """Whether a part has these methods from its role, and none of its own."""
    return all(getattr(type(part), name, getattr(role, name)) is getattr(role, name) for name in names)


def _leaves_message(term: Any) -> bool:
    return isinstance(term, Departures) and type(term).on_leave is not Departures.on_leave


def check_private_experiment(experiment: Any, shared_states: Any) -> None:
    """Refuse what does not fit the model or the measurements of a private run."""
    if shared_states:
        raise UserError(
            "algorithm.privacy: the model has BatchNorm statistics, and averages of them would be a release of their "
            "own: set algorithm.personal = batch-norm, so that they stay at home, or take a model with GroupNorm"
        )
    if experiment.evaluate.substitution:
        raise UserError(
            "evaluate.substitution compares single updates, which a private run does not keep: leave it out"
        )


def promised(algorithm: Any, rounds: int) -> dict[str, Any]:
    """The settings of a private algorithm of any track, by path, that keep its promise of participation."""
    private: Private = algorithm.privacy.tied(rounds)
    selection = MinSeparation(private.min_separation, private.most, algorithm.selection)
    return {"algorithm.privacy": private, "algorithm.selection": selection}


def about_stopping(stop: Any) -> list[str]:
    """What the ε of a private run does not cover of its stop rules."""
    if stop.target is None and stop.patience is None:
        return []
    return ["algorithm.privacy: stop.target and stop.patience end the run by metrics of private data, which ε does not "
            "cover"]  # fmt: skip


def made_private(algorithm: Any, rounds: int) -> tuple[dict[str, Any], list[str]]:
    """The settings that a private algorithm changes, by path, and a sentence for each that a user could notice."""
    private, changes, said = algorithm.privacy, promised(algorithm, rounds), list[str]()
    if algorithm.shares.by != "uniform":
        changes["algorithm.shares"] = Shares("uniform")
        said.append("shares are uniform instead of by samples, whose numbers would be a release of their own")
    if isinstance(algorithm.aggregation, NormClip):
        changes["algorithm.aggregation"] = WeightedSum()
        said.append("NormClip is left out: privacy.clip does the same")
    if algorithm.membership.surveyed:
        changes["algorithm.membership.surveyed"] = 0  # a gradient norm of members is an extra message
    if algorithm.membership.leave == "exclude" and any(map(_leaves_message, algorithm.terms)):
        changes["algorithm.membership.leave"] = "include"
        said.append("clients that leave stay in the objective: to take them out, terms need a message of their own")
    if algorithm.local.optimizer.moments == "auto":
        changes["algorithm.local.optimizer.moments"] = "local"  # federated ones are a release
        if algorithm.local.optimizer.slots:
            said.append("moments of the local optimizer stay at home (moments = 'local')")
    if private.noise != "gaussian":
        if isinstance(algorithm.weighting, CompleteOnly):
            said.append("scheme A divides by n0 instead of multiplying by N/K, which would spoil correlated noise")
        if type(algorithm.server) is not ServerSGD:
            said.append(
                f"{type(algorithm.server).__name__} changes what noise {private.noise!r} cancels: expect less than its "
                "full gain"
            )
    return changes, [f"algorithm.privacy: {sentence}" for sentence in said]
