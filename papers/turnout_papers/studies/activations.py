"""Study `activations`: paper 004, §3.3: do neurons move less with a client's own BatchNorm than with the averaged one?

Every round each client compares its neurons before the first BatchNorm, on its own test data, under the model it has
trained and the one it downloads next; a neuron satisfies an inequality of (10) if keeping its own γ, β, μ, σ² would
move its output less than taking the averaged ones. In MT-FedAdam that is what happened against what federated
BatchNorm would have done; in FedAdam the other way round.
"""

from __future__ import annotations

from dataclasses import replace

from turnout.parts.selection import Everyone
from turnout_papers.studies.claims import Claim, above
from turnout_papers.studies.drawing import over_rounds, picture
from turnout_papers.studies.personal import SIZES, Size, experiments
from turnout_papers.studies.study import Curve, Curves, Part, Plan, Row, Study, not_run, row

METHODS = ("MT-FedAdam", "FedAdam")
INEQUALITIES = {"mean": "the mean's inequality", "variance": "the variance's inequality", "both": "both inequalities"}
LAYERS = ("norm1", "norm2", "norm3")  # the first is the paper's case; the digits' network has two


def column(inequality: str, layer: str = LAYERS[0]) -> str:
    return f"neurons_{inequality}_{layer}"


def sized(scale: str) -> Size:
    """As `personal`; at paper scale for its first 50 rounds, as everybody trains and compares in each."""
    return replace(SIZES[scale], rounds=min(50, SIZES[scale].rounds)) if scale == "paper" else SIZES[scale]


def plan(scale: str) -> Plan:
    size, variants = sized(scale), {}
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
    if scale != "paper":
        notes.insert(0, "shrunk: 8x8 digits and two hidden layers of 32 for CIFAR-10 and its CNN")
    return Plan([Part("neurons", variants, size.seeds)], notes)


def share(curve: Curve) -> float:
    """Percent of the neurons, mean over the rounds in which there was something to compare."""
    return 100 * curve.mean(after=-1)


def rows(scale: str, curves: Curves) -> list[Row]:
    found = []
    for layer in LAYERS:
        for method in METHODS:
            for inequality in INEQUALITIES:
                label, name = f"{method}, {layer}", INEQUALITIES[inequality]
                if not curves.has(method):
                    found.append(not_run(label, name))
                elif curves.of(column(inequality, layer)).has(method):
                    found.append(row(label, name, curves.of(column(inequality, layer)).each(method, share)))
    return found


def claims(scale: str, curves: Curves) -> list[Claim]:
    found = []
    for inequality, words in INEQUALITIES.items():
        claim = f"MT-FedAdam: more than half of the neurons satisfy (10) ({words}, first BatchNorm)"
        if curves.has(METHODS[0]):
            over_half = {s: v - 50 for s, v in curves.of(column(inequality)).each("MT-FedAdam", share).items()}
            found.append(above(claim, over_half, unit="points above half"))
        else:
            found.append(Claim(claim, False, curves.why_missing(*METHODS)))
    return found


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """The shares over rounds."""
    there = {method: method for method in METHODS if curves.has(method)}
    if not there:
        return {}
    charts = []
    for inequality, words in INEQUALITIES.items():
        lines = over_rounds(curves.of(column(inequality)), there, lambda v: 100 * v)
        charts.append((f"neurons that satisfy {words} of (10), percent", "round", lines))
    return {"neurons.svg": picture(charts)}


STUDY = Study(
    name="activations",
    reproduces="paper 004, §3.3: the share of neurons that satisfy each inequality of (10)",
    metric="personal_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
    more=tuple(column(inequality, layer) for layer in LAYERS for inequality in INEQUALITIES),
)
