"""FDMS, Figure 3 and Theorem 1: who is found to be whose friend, and the substitution error.

The similarity matrix after the last round, as a picture, with its means within and between clusters; which stand-ins
are cluster mates; and the substitution error |e_t|² of each method, for which the absent are simulated too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from turnout import Evaluate, Experiment, Run, UserError
from turnout.machine.checksums import load_tensors
from turnout.parts.substitution.friends import similarity
from turnout.running.records.checkpoint import NAME, start_over
from turnout.types import unflatten
from turnout_papers.recipes.friends import METHODS, DropoutSetting, dropout_experiment
from turnout_papers.studies.claims import Claim, above, better
from turnout_papers.studies.drawing import matrix, sheet
from turnout_papers.studies.friends import ALPHAS, SIZES
from turnout_papers.studies.study import Chart, Curve, Curves, Look, Part, ResultRow, Study, StudyPlan, last_fifth, row

MATES = 4  # clients of a cluster
COMPARED = ("Dropout", "Stale", "FDMS")
PREFIX = "substitution/"
ERROR, MATCHED = "substitution_error", "own_cluster"  # columns of the records


def cases(scale: str) -> list[tuple[str, float]]:
    """The data sets and dropout ratios."""
    alphas = (0.5,) if scale == "smoke" else ALPHAS
    return [(data, alpha) for data in SIZES[scale].rounds if data != "FMNIST" for alpha in alphas]


def variants(data: str, alpha: float) -> dict[str, str]:
    return {method: f"{DropoutSetting(data).case(alpha)} {method}" for method in COMPARED}


def plan(scale: str) -> StudyPlan:
    """The clustered cases again, with the absent simulated."""
    size = SIZES[scale]
    by_data: dict[str, dict[str, Experiment]] = {}
    for data, alpha in cases(scale):
        for method, name in variants(data, alpha).items():
            made = dropout_experiment(DropoutSetting(data), alpha, METHODS[method], size.rounds[data])
            by_data.setdefault(data, {})[name] = made.but(evaluate=Evaluate(substitution=True))
    parts = [Part(data, made, size.seeds) for data, made in by_data.items()]
    notes = [
        "substitution error: |e_t|² of the weighted sum of updates, mean over the rounds with anybody missing; in "
        "updates, so η_L² = 0.01 times the paper's",
        "every method has its own trajectory, so errors are compared between runs, not between sums of one round",
        "stand-ins: how much of the missing shares goes to the missing client's own cluster",
    ]
    shrunk = f"as study `friends`: Digits, {size.rounds.get('Digits')} rounds"
    return StudyPlan.at(scale, parts, notes, shrunk)


def look(run: Run) -> Look:
    """The similarity matrix in the checkpoint."""
    checkpoint = run.folder / NAME
    if not checkpoint.is_file():
        raise UserError(
            f"{checkpoint} is missing, and has the similarities: copy it there, or delete {run.folder} and --resume"
        )
    tensors, _ = load_tensors(checkpoint, start_over(run.folder))
    state = unflatten({n.removeprefix(PREFIX): v for n, v in tensors.items() if n.startswith(PREFIX)}, {})
    return {"similarity": similarity(state)[1].double().numpy()} if "pairs" in state else {}


def mean_similarity(look: Look, within: bool) -> float:
    """Of two clients of one cluster, or of two."""
    cluster = np.arange(len(look["similarity"])) // MATES
    mates = cluster[:, None] == cluster
    return float(np.nanmean(look["similarity"][(mates == within) & ~np.eye(len(cluster), dtype=bool)]))


def error(curve: Curve) -> float:
    return curve.mean(after=0)  # no client is missing in the first round


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for data, alpha in cases(scale):
        names = variants(data, alpha)
        fdms = names["FDMS"]
        for words, within in (("similarity within clusters", True), ("between clusters", False)):
            yield row(fdms, words, similarities(curves, fdms, within))
        for name in reversed(names.values()):
            yield curves.of(MATCHED).row(name, "stand-ins from the own cluster", name, Curve.mean)
            yield curves.of(ERROR).row(name, "substitution error", name, error)
            yield curves.row(name, "accuracy", name, last_fifth)


def similarities(curves: Curves, name: str, within: bool) -> dict[int, float]:
    return curves.seen(name, lambda look: mean_similarity(look, within))


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    for data, alpha in cases(scale):
        label, names = DropoutSetting(data).case(alpha), variants(data, alpha)
        fdms = names["FDMS"]
        inside, between = (similarities(curves, fdms, within) for within in (True, False))
        yield better(f"{label}: similarity within clusters is above similarity between them", inside, between)
        mates = curves.of(MATCHED).each(fdms, lambda curve: curve.mean() - 0.5)
        yield above(f"{label}: most stand-ins are cluster mates", mates, unit="above one half")
        for other in ("Dropout", "Stale"):
            claim = f"{label}: the substitution error is smaller under FDMS than under {other}"
            yield curves.of(ERROR).better(claim, names[other], fdms, error, unit="")


def figures(scale: str) -> dict[str, list[Chart]]:
    """The substitution error over the rounds."""
    lines = {DropoutSetting(data).case(alpha): variants(data, alpha) for data, alpha in cases(scale)}
    charts = [Chart(f"{label}: substitution error", own, ERROR, "number") for label, own in lines.items()]
    return {"substitution-error.svg": charts}


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Figure 3, of the first seed."""
    squares = []
    for data, alpha in cases(scale):
        for seed, seen in [*curves.looks.get(variants(data, alpha)["FDMS"], {}).items()][:1]:
            title = f"{DropoutSetting(data).case(alpha)}: similarity, seed {seed}"
            squares.append(matrix(seen["similarity"], title, MATES))
    return {"similarity.svg": sheet(squares)} if squares else {}


STUDY = Study(
    "friend-discovery", __doc__, "global_accuracy", plan, rows, claims, figures, (ERROR, MATCHED), look, None, pictures
)
