"""Study `friend-discovery`: paper 003, Figure 3, and what its theory is about.

The similarity matrix after the last round, as a picture, with its means within and between clusters; which stand-ins
are cluster mates; and the substitution error |e_t|² of each method, for which the absent are simulated too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turnout.errors import UserError
from turnout.machine.checksums import load_tensors
from turnout.parts.substitution.friends import similarity
from turnout.running.charts.lines import line_chart
from turnout.running.charts.svg import sheet
from turnout.running.records.checkpoint import NAME, start_over
from turnout.running.result import Run
from turnout.settings import Evaluate
from turnout.types import unflatten
from turnout_papers.studies.claims import Claim, above, better
from turnout_papers.studies.drawing import Chart, band, matrix
from turnout_papers.studies.friend_cases import ALPHAS, METHODS, SIZES, Setting, accuracy, experiment
from turnout_papers.studies.study import Curves, Look, Part, Plan, Row, Study, not_run, row

MATES = 4  # clients of a cluster
COMPARED = ("Dropout", "Stale", "FDMS")
PREFIX = "substitution/"


def data_sets(scale: str) -> list[str]:
    return ["MNIST", "CIFAR-10"] if scale == "paper" else ["Digits"]


def alphas(scale: str) -> tuple[float, ...]:
    return (0.5,) if scale == "smoke" else ALPHAS


def case(data: str, alpha: float) -> str:
    return Setting(data).case(alpha)


def plan(scale: str) -> Plan:
    """The clustered cases again, with the absent simulated."""
    size = SIZES[scale]
    parts = []
    for data in data_sets(scale):
        made = {
            f"{case(data, alpha)} {method}": experiment(Setting(data), alpha, METHODS[method], size.rounds[data])
            for alpha in alphas(scale)
            for method in COMPARED
        }
        watched = {name: e.but(evaluate=Evaluate(substitution=True)) for name, e in made.items()}
        parts.append(Part(data, watched, size.seeds))
    return Plan(parts, notes(scale))


def notes(scale: str) -> list[str]:
    found = [
        "substitution error: |e_t|² of the weighted sum of updates, mean over the rounds with anybody missing; in "
        "updates, so η_L² = 0.01 times the paper's",
        "every method has its own trajectory, so errors are compared between runs, not between sums of one round",
        "stand-ins: how much of the missing shares goes to the missing client's own cluster",
    ]
    if scale == "paper":
        return found
    return [f"shrunk as study `friends`: Digits, {SIZES[scale].rounds['Digits']} rounds", *found]


def look(run: Run) -> Look:
    """The records' columns, and the similarity matrix in the checkpoint."""
    with run.records() as records:
        columns = {name: records.curve(name)[1] for name in ("substitution_error", "own_cluster")}
    columns["substitution_error"] = columns["substitution_error"][1:]  # nobody is missing in the first round
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


def mates(clients: int) -> NDArray[np.bool_]:
    """Which pairs are two clients of one cluster."""
    cluster = np.arange(clients) // MATES
    return (cluster[:, None] == cluster) & ~np.eye(clients, dtype=bool)


def within(look: Look) -> float:
    """Mean similarity of two clients of one cluster."""
    return float(np.nanmean(look["similarity"][mates(len(look["similarity"]))]))


def between(look: Look) -> float:
    """Mean similarity of two clients of two clusters."""
    apart = ~mates(len(look["similarity"])) & ~np.eye(len(look["similarity"]), dtype=bool)
    return float(np.nanmean(look["similarity"][apart]))


def rows(scale: str, curves: Curves) -> list[Row]:
    found = []
    for data in data_sets(scale):
        for alpha in alphas(scale):
            found += case_rows(data, alpha, curves)
    return found


def case_rows(data: str, alpha: float, curves: Curves) -> list[Row]:
    names = {method: f"{case(data, alpha)} {method}" for method in COMPARED}
    if not curves.has(*names.values()):
        return [not_run(case(data, alpha), "similarity within clusters")]
    fdms = names["FDMS"]
    found = [
        row(fdms, "similarity within clusters", curves.seen(fdms, within)),
        row(fdms, "between clusters", curves.seen(fdms, between)),
    ]
    for name in reversed(names.values()):
        found.append(row(name, "stand-ins from the own cluster", curves.seen(name, own_cluster)))
        found.append(row(name, "substitution error", curves.seen(name, error)))
        found.append(row(name, "accuracy", curves.each(name, accuracy)))
    return found


def own_cluster(look: Look) -> float:
    return float(look["own_cluster"].mean())


def error(look: Look) -> float:
    return float(look["substitution_error"].mean())


def claims(scale: str, curves: Curves) -> list[Claim]:
    return [c for data in data_sets(scale) for alpha in alphas(scale) for c in _case_claims(data, alpha, curves)]


def _case_claims(data: str, alpha: float, curves: Curves) -> list[Claim]:
    label, names = case(data, alpha), [f"{case(data, alpha)} {method}" for method in COMPARED]
    words = [
        f"{label}: similarity within clusters is above similarity between them",
        f"{label}: most stand-ins are cluster mates",
        f"{label}: the substitution error is smaller under FDMS than under Dropout",
        f"{label}: the substitution error is smaller under FDMS than under Stale",
    ]
    if not curves.has(*names):
        return [Claim(claim, False, curves.why_missing(*names)) for claim in words]

    dropout, stale, fdms = names
    errors = {name: curves.seen(name, error) for name in names}
    return [
        better(words[0], curves.seen(fdms, within), curves.seen(fdms, between)),
        above(words[1], curves.seen(fdms, lambda look: own_cluster(look) - 0.5), unit="above one half"),
        better(words[2], errors[dropout], errors[fdms]),
        better(words[3], errors[stale], errors[fdms]),
    ]


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Figure 3, and the substitution error over the rounds."""
    squares, charts = [], []
    for data in data_sets(scale):
        for alpha in alphas(scale):
            names = {method: f"{case(data, alpha)} {method}" for method in COMPARED}
            if not curves.has(*names.values()):
                continue
            first = min(curves.looks[names["FDMS"]])
            seen = curves.looks[names["FDMS"]][first]["similarity"]
            squares.append(matrix(seen, f"{case(data, alpha)}: similarity, seed {first}", MATES))
            charts.append(_errors(f"{case(data, alpha)}: substitution error", names, curves))
    drawn = [line_chart(series, title, x, "number") for title, x, series in charts]
    return {"similarity.svg": sheet(squares), "substitution-error.svg": sheet(drawn)}


def _errors(title: str, names: dict[str, str], curves: Curves) -> Chart:
    series = []
    for i, (method, name) in enumerate(names.items()):
        by_seed = {seed: look["substitution_error"] for seed, look in curves.looks[name].items()}
        rounds = min(len(values) for values in by_seed.values())
        values = [{seed: float(v[k]) for seed, v in by_seed.items()} for k in range(rounds)]
        series.append(band(method, [float(k + 2) for k in range(rounds)], values, i))
    return title, "round", series


STUDY = Study(
    name="friend-discovery",
    reproduces="paper 003, Figure 3 and Theorem 1: who is found to be whose friend, and the substitution error",
    metric="global_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
    look=look,
)
