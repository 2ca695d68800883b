"""MTFL, §3.3: the share of neurons that satisfy each inequality of (10).

Do neurons move less with a client's own BatchNorm than with the averaged one? Every round each client compares its
neurons before the first BatchNorm, on its own test data, under the model it has trained and the one it downloads next;
a neuron satisfies an inequality of (10) if keeping its own γ, β, μ, σ² would move its output less than taking the
averaged ones. In MT-FedAdam that is compared with federated BatchNorm, which did not happen; in FedAdam the other way
round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from turnout.parts.selection import Everyone
from turnout_papers.studies.claims import Claim, above
from turnout_papers.studies.personal import SHRUNK, SIZES, experiments
from turnout_papers.studies.study import Chart, Curve, Curves, Part, ResultRow, Study, StudyPlan

METHODS = ("MT-FedAdam", "FedAdam")
INEQUALITIES = {"mean": "the mean's inequality", "variance": "the variance's inequality", "both": "both inequalities"}
LAYERS = ("norm1", "norm2", "norm3")  # the first is the paper's case; the digits' network has two


def column(inequality: str, layer: str = LAYERS[0]) -> str:
    return f"neurons_{inequality}_{layer}"


def plan(scale: str) -> StudyPlan:
    """As `personal`; at paper scale for its first 50 rounds, as every client trains and compares in each."""
    size, variants = SIZES[scale], {}
    if scale == "paper":
        size = replace(size, rounds=min(50, size.rounds))
    for name, experiment in experiments(size, classes=4, noisy=False).items():
        if name in METHODS:
            home = {"algorithm.newcomers": "average"} if name == "MT-FedAdam" else {}
            changes = {"evaluate.activations": True, "evaluate.every": 10, "algorithm.selection": Everyone()}
            variants[name] = experiment.but(**changes, **home)
    notes = [
        f"{size.data}, {size.clients} clients of 4 classes, all of them every round, so that a client's model before "
        f"aggregation is that of the round before; {size.rounds} rounds",
        "shares are means over clients and rounds, in percent of the neurons; with few test samples a client only "
        "roughly knows its distributions",
        "the paper asserts (10) and shows no numbers; μ and σ² are BatchNorm's running statistics, as there",
    ]
    return StudyPlan.at(scale, [Part("neurons", variants, size.seeds)], notes, SHRUNK)


def share(curve: Curve) -> float:
    """Percent of the neurons, mean over the rounds in which there was something to compare."""
    return 100 * curve.mean(after=-1)


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    layers = LAYERS if SIZES[scale].data == "CIFAR" else LAYERS[:2]
    for layer, method, (inequality, name) in product(layers, METHODS, INEQUALITIES.items()):
        yield curves.of(column(inequality, layer)).row(f"{method}, {layer}", name, method, share)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    for inequality, words in INEQUALITIES.items():
        claim = f"MT-FedAdam: more than half of the neurons satisfy (10) ({words}, first BatchNorm)"
        over_half = curves.of(column(inequality)).each(METHODS[0], lambda curve: share(curve) - 50)
        yield above(claim, over_half, unit="points above half")


def figures(scale: str) -> dict[str, list[Chart]]:
    """The shares over rounds."""
    lines = {method: method for method in METHODS}
    titles = {column(key): f"neurons that satisfy {words} of (10)" for key, words in INEQUALITIES.items()}
    return {"neurons.svg": [Chart(title, lines, metric) for metric, title in titles.items()]}


MORE = tuple(column(inequality, layer) for layer in LAYERS for inequality in INEQUALITIES)
STUDY = Study("activations", __doc__, "personal_accuracy", plan, rows, claims, figures, MORE)
