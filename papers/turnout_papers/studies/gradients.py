"""MTFL, Figure 7: gradient magnitudes by layer, for noisy and clean clients (and Figure 3 a).

How gradients shrink over the rounds in four layers: the first layer's weights, the first BatchNorm's scale γ and shift
β, and the output's weights; two classes a client, a fifth of the clients noisy. A number is the mean magnitude over a
parameter's entries, a participant's local steps, and the participants of a round. (Pictures of the drop at aggregation,
Figure 3 a, come from the same runs.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from turnout_papers.studies.claims import Claim, better
from turnout_papers.studies.personal import METHODS, SHRUNK, SIZES, experiments
from turnout_papers.studies.study import Chart, Curve, Curves, Part, ResultRow, Study, StudyPlan

LAYERS = {
    "first layer W": {"digits": "linear1.weight", "CIFAR": "conv1.weight"},
    "first BatchNorm γ": {"digits": "norm1.weight", "CIFAR": "norm1.weight"},
    "first BatchNorm β": {"digits": "norm1.bias", "CIFAR": "norm1.bias"},
    "output W": {"digits": "output.weight", "CIFAR": "output.weight"},
}
WHO = ("", "_noisy", "_clean")


def column(layer: str, scale: str, who: str = "") -> str:
    """What a layer's magnitude is called in the records."""
    return f"gradient_{LAYERS[layer][SIZES[scale].data]}{who}"


def plan(scale: str) -> StudyPlan:
    size = SIZES[scale]
    variants = {
        name: e.but(**{"evaluate.gradients": True, "evaluate.recovery": True, "evaluate.every": 10})
        for name, e in experiments(size, classes=2, noisy=True).items()
    }
    notes = [
        f"{size.data}, {size.clients} clients of 2 classes, a fifth noisy, {size.rounds} rounds",
        "a ratio is the mean magnitude in the last tenth of the rounds over that in the first tenth",
    ]
    return StudyPlan.at(scale, [Part("figure7", variants, size.seeds)], notes, SHRUNK)


def first_tenth(curve: Curve) -> float:
    return curve.mean(after=-1, upto=max(1, curve.rounds // 10) - 1)


def ratio(curve: Curve) -> float:
    """Last tenth over first tenth."""
    return curve.end(10).mean() / first_tenth(curve)


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for layer, method in product(LAYERS, METHODS):
        yield curves.of(column(layer, scale)).row(layer, f"{method} ratio", method, ratio)
        for who in WHO[1:]:
            words = f"{method} at first,{who.replace('_', ' ')}"
            yield curves.of(column(layer, scale, who)).row(layer, words, method, first_tenth)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    ours, theirs = METHODS[:2]
    for layer in LAYERS:
        claim = f"{layer}: {ours}'s last-tenth to first-tenth ratio of gradient magnitude is smaller than {theirs}'s"
        yield curves.of(column(layer, scale)).better(claim, theirs, ours, ratio, unit="")
    for layer, method in product(LAYERS, (ours, theirs)):
        noisy, clean = (curves.of(column(layer, scale, who)).each(method, first_tenth) for who in WHO[1:])
        yield better(f"{layer}, {method}: at first noisy clients' gradients are larger than the others'", noisy, clean)


def figures(scale: str) -> dict[str, list[Chart]]:
    """Figure 7: magnitude over rounds by layer; Figure 3 (a): participants' accuracy before and after training."""
    lines = {method: method for method in METHODS}
    magnitudes = [
        Chart(f"{layer},{who.replace('_', ' ')} clients", lines, column(layer, scale, who), "number")
        for who in WHO[1:]
        for layer in LAYERS
    ]
    drop = [Chart(f"accuracy of participants {t} training", lines, f"{t}_accuracy") for t in ("before", "after")]
    return {"figure7.svg": magnitudes, "figure3a.svg": drop}


COLUMNS = sorted({f"gradient_{name}{who}" for names in LAYERS.values() for name in names.values() for who in WHO})
MORE = (*COLUMNS, "before_accuracy", "after_accuracy")
STUDY = Study("gradients", __doc__, "personal_accuracy", plan, rows, claims, figures, MORE)
