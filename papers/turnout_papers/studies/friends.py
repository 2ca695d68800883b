"""FDMS, Figures 1, 2, 5 to 9: friends' updates in place of those that are missing.

Full, Dropout, Stale and FDMS when clients drop out. The paper has curves and no table: its claims are orderings. The
accuracy of a run is its mean over the last fifth of the rounds.

Clustered (five clusters of clients, each with two classes of its own) and general settings, three dropout ratios, other
E and K, other levels of non-IID-ness, FedProx. At smaller scales Digits stands for all data sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from turnout.experiment import Experiment
from turnout_papers.recipes.friends import AUTHORS_STALE, DropoutSetting, dropout_experiment
from turnout_papers.studies.claims import UNTESTED, Claim, better
from turnout_papers.studies.study import (
    Chart,
    Curve,
    Curves,
    Pair,
    Part,
    ResultRow,
    Study,
    StudyPlan,
    last_fifth,
    unrest,
)

ALPHAS = (0.3, 0.5, 0.7)
# What the paper prints and what its authors' code does differ: both together, and one at a time.
PRINTED = {"server_rate": 0.1, "samples": "text"}
READINGS: tuple[dict[str, Any], ...] = (PRINTED, {"server_rate": 0.1}, {"samples": "text"})


@dataclass(frozen=True)
class FriendsSize:
    """How large the study is at one scale; `rounds` by data set."""

    rounds: dict[str, int]
    seeds: int


SIZES = {
    "smoke": FriendsSize({"Digits": 3}, seeds=2),
    "small": FriendsSize({"Digits": 50}, seeds=5),
    "paper": FriendsSize({"MNIST": 100, "CIFAR-10": 500, "FMNIST": 300}, seeds=10),
}


def cases(scale: str) -> list[tuple[DropoutSetting, float]]:
    """The cases of the paper's figures."""
    if scale == "paper":
        mnist, cifar = DropoutSetting("MNIST"), DropoutSetting("CIFAR-10")
        clustered, general = [mnist, cifar, DropoutSetting("FMNIST")], replace(cifar, split="general")
        varied = [mnist, cifar]
    else:
        mnist = cifar = DropoutSetting("Digits")
        clustered, general, varied = [mnist], replace(mnist, split="general"), [mnist]
    if scale == "smoke":
        some = [(mnist, alpha) for alpha in ALPHAS]
        return [*some, (replace(mnist, clients=40), 0.5), (general, 0.5)]
    found = [(s, alpha) for s in [*clustered, general] for alpha in ALPHAS]
    for s in varied:
        found += [(replace(s, epochs=epochs), 0.5) for epochs in (1, 5)]
        found += [(replace(s, clients=40), 0.5), (replace(s, independent=True), 0.5)]
        if scale == "paper":
            found += [(replace(s, **reading), alpha) for reading in READINGS for alpha in ALPHAS]
    found += [(replace(cifar, prox=True), 0.5)]
    return found + [(replace(general, split=split), 0.5) for split in ("general low", "general high")]


def variant(setting: DropoutSetting, alpha: float, method: str) -> str:
    """What an experiment is called; Full is one for all dropout ratios."""
    return f"{setting.name} Full" if method == "Full" else f"{setting.case(alpha)} {method}"


def plan(scale: str) -> StudyPlan:
    size = SIZES[scale]
    by_data: dict[str, dict[str, Experiment]] = {}
    for setting, alpha in cases(scale):
        variants = by_data.setdefault(setting.data, {})
        for method, substitution in setting.methods.items():
            ratio = 0.0 if method == "Full" else alpha
            rounds = size.rounds[setting.data]
            variants[variant(setting, alpha, method)] = dropout_experiment(setting, ratio, substitution, rounds)
    parts = [Part(name, variants, size.seeds) for name, variants in by_data.items()]
    notes = [
        "as the authors' code: server learning rate 1 (the paper prints 0.1: cases with rate=0.1), stratified dropout, "
        "everybody present in round 0 (here for Dropout too, so that all methods see the same turnout)",
        "Stale: the last update, as the paper says; Stale weights: the last weights, as in the authors' code",
        "accuracy of a run: mean over the last fifth of its rounds",
        "independent: every client drops out by itself, so a friend need not be there (Appendix B); no claim is made",
    ]
    code = (
        "as the authors' code: a client trains on the first 80 % of its samples, sorted by class, so on 62.5 % of one "
        "class and 37.5 % of the other (by the text on all it has drawn, here half of each class: cases with all "
        "samples); CIFAR-10's pixels in [-1, 1]; half of MNIST's second convolution and hidden layer dropped while "
        "it trains"
    )
    shrunk = (
        f"Digits instead of MNIST, CIFAR-10 and Fashion-MNIST, {size.rounds.get('Digits')} rounds, a network with one "
        "hidden layer of 50, batches of 10, about 72 samples a client (K = 40: 36)"
    )
    return StudyPlan.at(scale, parts, notes, shrunk, [code, "Fashion-MNIST with MNIST's network"])


def early(curve: Curve) -> float:
    """Percent, mean over the second tenth of the rounds, while accuracy is still rising on CIFAR-10."""
    tenth = curve.rounds // 10
    return 100 * curve.mean(after=tenth - 1, upto=2 * tenth - 1)


def over(setting: DropoutSetting, alpha: float, method: str = "FDMS", other: str = "Dropout") -> Pair:
    """The runs whose difference is what one method gains over another."""
    return variant(setting, alpha, method), variant(setting, alpha, other)


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for setting, alpha in cases(scale):
        case = setting.case(alpha)
        for method in setting.methods:
            yield curves.row(case, f"accuracy {method}", variant(setting, alpha, method), last_fifth)
        for other in ("Dropout", "Stale"):
            yield curves.row(case, f"FDMS over {other}", over(setting, alpha, other=other), last_fifth)
        if setting.data == "CIFAR-10":
            yield curves.row(case, "FDMS over Dropout, second tenth of the rounds", over(setting, alpha), early)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    """FDMS against the others in each clustered case; then how its gain over Dropout changes from case to case."""
    known = {setting.case(alpha): over(setting, alpha) for setting, alpha in cases(scale)}
    for setting, alpha in cases(scale):
        if setting.split != "clustered" or setting.independent:
            continue
        case, others = setting.case(alpha), {"Dropout": "Dropout", "Stale": "Stale"}
        if AUTHORS_STALE in setting.methods:
            others[AUTHORS_STALE] = "Stale as in the authors' code (the last weights)"
        for other, words in others.items():
            yield curves.better(f"{case}: FDMS > {words}", *over(setting, alpha, other=other), last_fifth)
        yield nearer_to_full(curves, setting, alpha)
        if (setting.clients, setting.epochs, setting.prox) == (20, 2, False):  # Figure 1
            friends, dropout = over(setting, alpha)
            yield curves.better(f"{case}: FDMS changes less from round to round than Dropout", dropout, friends, unrest)
    for data in SIZES[scale].rounds:
        base, own = f"{data} clustered", DropoutSetting(data)
        for other in ("FDMS", "Dropout"):
            stale, theirs = ((variant(own, ALPHAS[0], m), variant(own, ALPHAS[-1], m)) for m in ("Stale", other))
            claim = f"{base}: Stale loses more than {other} from alpha = {ALPHAS[0]} to {ALPHAS[-1]}"
            yield curves.better(claim, stale, theirs, last_fifth)
        compared = [
            (f"{base} alpha=0.7", f"{base} alpha=0.3", "larger at alpha = 0.7 than at 0.3"),
            (f"{base} K=40 alpha=0.5", f"{base} alpha=0.5", "larger at K = 40 than at 20 (alpha = 0.5)"),
            *(
                (f"{base} alpha={a}", f"{data} general alpha={a}", f"smaller in the general setting (alpha = {a})")
                for a in ALPHAS
            ),
        ]
        for more, less, words in compared:
            if more in known and less in known:
                claim = f"{data}: FDMS's gain over Dropout is {words}"
                yield curves.better(claim, known[more], known[less], last_fifth)


def nearer_to_full(curves: Curves, setting: DropoutSetting, alpha: float) -> Claim:
    """FDMS ends nearer to Full than Dropout does, in the seeds in which Full did not diverge."""
    claim, full = f"{setting.case(alpha)}: |Full - FDMS| < |Full - Dropout|", variant(setting, alpha, "Full")
    ended = curves.finite(full)
    if curves.has(full) and not ended:
        return Claim(claim, False, f"Full diverges in all {len(curves.curves[full])} seeds", neither=UNTESTED)
    far, near = (
        {s: abs(v) for s, v in curves.each(over(setting, alpha, "Full", m), last_fifth).items() if s in ended}
        for m in ("Dropout", "FDMS")
    )
    return better(claim, far, near, "points")


def figures(scale: str) -> dict[str, list[Chart]]:
    """Accuracy over the rounds, a chart for each case, a file for each data set."""
    found: dict[str, list[Chart]] = {}
    for setting, alpha in cases(scale):
        lines = {method: variant(setting, alpha, method) for method in setting.methods}
        found.setdefault(f"{setting.data}.svg", []).append(Chart(f"{setting.case(alpha)}: accuracy", lines))
    return found


STUDY = Study("friends", __doc__, "global_accuracy", plan, rows, claims, figures)
