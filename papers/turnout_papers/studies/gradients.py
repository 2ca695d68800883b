"""Study `gradients`: paper 004, Figure 7: how gradients shrink over rounds in four layers, for noisy and clean clients.

The first layer's weights, the first BatchNorm's scale γ and shift β, and the output's weights; two classes a client, a
fifth of the clients noisy. A number is the mean magnitude over a parameter's entries, a participant's local steps, and
the participants of a round. (Pictures of the drop at aggregation, Figure 3 a, come from the same runs.)
"""

from __future__ import annotations

from turnout_papers.studies.claims import Claim, better
from turnout_papers.studies.drawing import over_rounds, picture
from turnout_papers.studies.personal import METHODS, SIZES, experiments
from turnout_papers.studies.study import Curve, Curves, Part, Plan, Row, Study, not_run, row

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


def every_column() -> tuple[str, ...]:
    found = {f"gradient_{name}{who}" for names in LAYERS.values() for name in names.values() for who in WHO}
    return (*sorted(found), "before_accuracy", "after_accuracy")


def plan(scale: str) -> Plan:
    size = SIZES[scale]
    variants = {
        name: e.but(**{"evaluate.gradients": True, "evaluate.recovery": True, "evaluate.every": 10})
        for name, e in experiments(size, classes=2, noisy=True).items()
    }
    notes = [
        f"{size.data}, {size.clients} clients of 2 classes, a fifth noisy, {size.rounds} rounds",
        "a ratio is the mean magnitude in the last tenth of the rounds over that in the first tenth",
    ]
    if scale != "paper":
        notes.insert(0, "shrunk: 8x8 digits and two hidden layers of 32 for CIFAR-10 and its CNN")
    return Plan([Part("figure7", variants, size.seeds)], notes)


def ratio(curve: Curve) -> float:
    """Last tenth over first tenth."""
    rounds = int(curve.round_T[-1]) + 1
    tenth = max(1, rounds // 10)
    return curve.mean(after=rounds - tenth - 1) / curve.mean(after=-1, upto=tenth - 1)


def rows(scale: str, curves: Curves) -> list[Row]:
    found = []
    for layer in LAYERS:
        for method in METHODS:
            if not curves.has(method):
                found.append(not_run(layer, f"{method} ratio"))
                continue
            found.append(row(layer, f"{method} ratio", curves.of(column(layer, scale)).each(method, ratio)))
            for who in WHO[1:]:
                first = curves.of(column(layer, scale, who)).each(method, _first_tenth)
                found.append(row(layer, f"{method} at first,{who.replace('_', ' ')}", first))
    return found


def _first_tenth(curve: Curve) -> float:
    rounds = int(curve.round_T[-1]) + 1
    return curve.mean(after=-1, upto=max(1, rounds // 10) - 1)


def claims(scale: str, curves: Curves) -> list[Claim]:
    found = []
    for layer in LAYERS:
        claim = f"{layer}: MT-FedAdam's last-tenth to first-tenth ratio of gradient magnitude is smaller than FedAdam's"
        compared = METHODS[:2]
        if not curves.has(*compared):
            found.append(Claim(claim, False, curves.why_missing(*compared)))
            continue
        own, other = (curves.of(column(layer, scale)).each(method, ratio) for method in compared)
        found.append(better(claim, other, own))
    return found


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Figure 7: magnitude over rounds by layer; Figure 3 (a): participants' accuracy before and after training."""
    if not curves.has(*METHODS):
        return {}
    names = {method: method for method in METHODS}
    charts = []
    for who in WHO[1:]:
        for layer in LAYERS:
            lines = over_rounds(curves.of(column(layer, scale, who)), names)
            charts.append((f"{layer},{who.replace('_', ' ')} clients", "round", lines))
    drop = [
        (f"{method}: accuracy of participants", "round",
         [over_rounds(curves.of(f"{when}_accuracy"), {f"{when} training": method})[0] for when in ("before", "after")])
        for method in METHODS
    ]  # fmt: skip
    return {"figure7.svg": picture(charts, log=False), "figure3a.svg": picture(drop, "percent")}


STUDY = Study(
    name="gradients",
    reproduces="paper 004, Figure 7: gradient magnitudes by layer, for noisy and clean clients (and Figure 3 a)",
    metric="personal_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
    more=every_column(),
)
