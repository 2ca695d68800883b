"""FDMS, Figure 3 and Theorem 1: who is found to be whose friend, and the substitution error.

The similarity matrix after the last round, as a picture, with its means within and between clusters; which stand-ins
are cluster mates; and the substitution error |e_t|² of each method, for which the absent are simulated too.
"""

from __future__ import annotations

import numpy as np

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.machine.checksums import load_tensors
from turnout.parts.substitution.friends import similarity
from turnout.running.records.checkpoint import NAME, start_over
from turnout.running.result import Run
from turnout.settings import Evaluate
from turnout.types import unflatten
from turnout_papers.recipes.friends import METHODS, DropoutSetting, dropout_experiment
from turnout_papers.studies.claims import Claim, above, better
from turnout_papers.studies.drawing import Chart, band, matrix, picture, sheet
from turnout_papers.studies.friends import ALPHAS, SIZES
from turnout_papers.studies.study import Curves, Look, Part, ResultRow, Study, StudyPlan, last_fifth, row

MATES = 4  # clients of a cluster
COMPARED = ("Dropout", "Stale", "FDMS")
PREFIX = "substitution/"


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
    shrunk = f"shrunk as study `friends`: Digits, {size.rounds.get('Digits')} rounds"
    return StudyPlan(parts, notes if scale == "paper" else [shrunk, *notes])


def look(run: Run) -> Look:
    """The records' columns, and the similarity matrix in the checkpoint."""
    with run.records() as records:
        columns = {name: records.curve(name)[1] for name in ("substitution_error", "own_cluster")}
    columns["substitution_error"] = columns["substitution_error"][1:]  # no client is missing in the first round
    checkpoint = run.folder / NAME
    if not checkpoint.is_file():
        raise UserError(
            f"{checkpoint} is missing, and has the similarities: copy it there, or delete {run.folder} and --resume"
        )
    tensors, _ = load_tensors(checkpoint, start_over(run.folder))
    state = unflatten({n.removeprefix(PREFIX): v for n, v in tensors.items() if n.startswith(PREFIX)}, {})
    if "pairs" in state:
        columns["similarity"] = similarity(state)[1].double().numpy()
    return columns


def mean_similarity(look: Look, within: bool) -> float:
    """Of two clients of one cluster, or of two."""
    cluster = np.arange(len(look["similarity"])) // MATES
    mates = cluster[:, None] == cluster
    return float(np.nanmean(look["similarity"][(mates == within) & ~np.eye(len(cluster), dtype=bool)]))


def own_cluster(look: Look) -> float:
    return float(look["own_cluster"].mean())


def error(look: Look) -> float:
    return float(look["substitution_error"].mean())


def rows(scale: str, curves: Curves) -> list[ResultRow]:
    found = []
    for data, alpha in cases(scale):
        names = variants(data, alpha)
        if not curves.has(*names.values()):
            found.append(row(DropoutSetting(data).case(alpha), "similarity within clusters", None))
            continue
        fdms = names["FDMS"]
        for words, within in (("similarity within clusters", True), ("between clusters", False)):
            found.append(row(fdms, words, similarities(curves, fdms, within)))
        for name in reversed(names.values()):
            found.append(row(name, "stand-ins from the own cluster", curves.seen(name, own_cluster)))
            found.append(row(name, "substitution error", curves.seen(name, error)))
            found.append(curves.row(name, "accuracy", name, last_fifth))
    return found


def similarities(curves: Curves, name: str, within: bool) -> dict[int, float]:
    return curves.seen(name, lambda look: mean_similarity(look, within))


def claims(scale: str, curves: Curves) -> list[Claim]:
    found = []
    for data, alpha in cases(scale):
        label, names = DropoutSetting(data).case(alpha), variants(data, alpha)
        words = [
            f"{label}: similarity within clusters is above similarity between them",
            f"{label}: most stand-ins are cluster mates",
            f"{label}: the substitution error is smaller under FDMS than under Dropout",
            f"{label}: the substitution error is smaller under FDMS than under Stale",
        ]
        fdms = names["FDMS"]
        found += curves.undecided(words, *names.values()) or [
            better(words[0], similarities(curves, fdms, True), similarities(curves, fdms, False)),
            above(words[1], curves.seen(fdms, lambda look: own_cluster(look) - 0.5), unit="above one half"),
            better(words[2], curves.seen(names["Dropout"], error), curves.seen(fdms, error)),
            better(words[3], curves.seen(names["Stale"], error), curves.seen(fdms, error)),
        ]
    return found


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Figure 3, and the substitution error over the rounds."""
    squares: list[str] = []
    charts: list[Chart] = []
    for data, alpha in cases(scale):
        label, names = DropoutSetting(data).case(alpha), variants(data, alpha)
        if not curves.has(*names.values()):
            continue
        first = min(curves.looks[names["FDMS"]])
        seen = curves.looks[names["FDMS"]][first]["similarity"]
        squares.append(matrix(seen, f"{label}: similarity, seed {first}", MATES))
        lines = []
        for i, (method, name) in enumerate(names.items()):
            by_seed = {seed: look["substitution_error"] for seed, look in curves.looks[name].items()}
            rounds = range(min(len(values) for values in by_seed.values()))
            values = [{seed: float(v[k]) for seed, v in by_seed.items()} for k in rounds]
            lines.append(band(method, [float(k + 2) for k in rounds], values, i))
        charts.append((f"{label}: substitution error", "round", lines))
    return {"similarity.svg": sheet(squares), "substitution-error.svg": picture(charts)}


STUDY = Study("friend-discovery", __doc__, "global_accuracy", plan, rows, claims, pictures, look=look)
