"""Labels and models, Table 3, Figures 2 and 3, Table 4: users with labels and models of their own.

Three users with two of four labels each, of which neighbours share one, exchange scores on a public set (with Table 2's
model changes). Four readings of the update rule; a control in which the algorithm is shown the public labels in another
order; dips, rounds in which one user has 5 % of its data; distillation; and each user without the others, whose global
scores are its own of all rounds so far. Accuracies are on the half of the public set whose labels only they see, among
a user's own labels, averaged over the rounds as in Table 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from turnout.data import Dip
from turnout.running.result import Run
from turnout_papers.recipes.labels import READINGS, ROUNDS, USERS, reading, three_users
from turnout_papers.studies.claims import UNTESTED, Claim, above, better, difference, mean_over
from turnout_papers.studies.drawing import band, line_chart, sheet
from turnout_papers.studies.published import TABLE_3_LABELS, TABLE_4_LABELS
from turnout_papers.studies.study import Chart, Curves, Look, Part, ResultRow, Study, StudyPlan, row

PERMUTED, DISTILLED = "literal, labels permuted", "distilled"
DIPS = {"User_2": 10, "User_1": 8}  # Figure 2: the iterations the paper's text speaks of
COSTS = {  # column of the records, factor
    "s an epoch": ("epoch_seconds", 1.0),
    "ms an inference": ("inference_seconds", 1000.0),
    "scores, kB a round": ("bytes", 0.001),
    "weights, kB a round": ("weight_bytes", 0.001),
}
LOCAL, GLOBAL, TAUGHT = "local_accuracy", "consensus_accuracy", "distilled_accuracy"


@dataclass(frozen=True)
class LabelsSize:
    """How large the study is at one scale; `other_seeds` are those of the runs that no claim is about."""

    animals: bool
    rounds: int
    seeds: int
    other_seeds: int


SIZES = {
    "smoke": LabelsSize(False, 3, 2, 1),
    "small": LabelsSize(False, ROUNDS, 5, 2),
    "paper": LabelsSize(True, ROUNDS, 5, 5),
}


def dipped(user: str) -> str:
    return f"dip of {user}"


def alone(user: str) -> str:
    return f"{user} alone"


def dip_round(scale: str, user: str) -> int:
    """The paper's iteration as a round, at the same part of a shorter run."""
    return round((DIPS[user] - 1) * SIZES[scale].rounds / ROUNDS)


def plan(scale: str) -> StudyPlan:
    size = SIZES[scale]
    animals, rounds, average = size.animals, size.rounds, reading("average")
    variants = {name: three_users(reading(name), animals, rounds) for name in READINGS}
    variants[PERMUTED] = three_users(replace(reading("literal"), permuted=True), animals, rounds)
    variants[DISTILLED] = three_users(average, animals, rounds, distil=True)
    for user in DIPS:
        dip = Dip(USERS.index(user), dip_round(scale, user), share=0.05)
        variants[dipped(user)] = three_users(average, animals, rounds, dips=(dip,))
    others = {name: variants.pop(name) for name in ("sum", "labelled average", dipped("User_1"))}
    others |= {alone(user): three_users(average, animals, rounds, alone=user) for user in USERS}
    parts = [Part("table3", variants, size.seeds), Part("others", others, size.other_seeds)]
    notes = [
        "local: a user's model of the round alone; global: the global scores of its labels after the round's update; "
        "both on the half of the public set that is held out, mean over the rounds",
        "average: every user scores every public sample and overlapping labels are averaged by β; literal: only "
        "samples whose label the user has, summed, as printed; the public labels then leak into the scores",
        "labels permuted: the algorithm is shown the public labels in another order, accuracies use the true ones",
        "alone: the others have left before the first round; what is gained is by its own earlier rounds",
        "assumed, as the paper does not say: 3x3 kernels and a 2x2 pool after each convolution, early stopping on a "
        "tenth of a round's samples with patience 2, label mix ~ Dirichlet(5) a round, fresh weights every round",
    ]
    paper = "pictures of 64x64 (paper: 128x128), Adam with lr 0.001, batches of 32, draws that repeat"
    shrunk = "digits 3, 5, 8, 9 instead of cat, dog, sheep, elephant; 60 samples a user and round, 320 public; "
    return StudyPlan.at(scale, parts, notes, f"{shrunk}Adam with lr 0.01, batches of 2; {rounds} rounds", [paper])


# -- numbers


def look(run: Run) -> Look:
    """Each user's accuracies round by round, and what a round cost."""
    with run.records() as records:
        seen, rounds = records.clients(), records.rounds()
    found = {
        f"{name} {user}": seen[name][seen["client"] == i].astype(np.float64)
        for name in (LOCAL, GLOBAL, TAUGHT)
        for i, user in enumerate(USERS)
        if name in seen
    }
    sent = rounds["bytes_up"] + rounds["bytes_down"]
    cost = {name: rounds[name] for name in ("weight_bytes", "epoch_seconds", "inference_seconds")}
    return found | {"bytes": sent.astype(np.float64)} | cost


def mean_of(name: str, factor: float = 1.0) -> Callable[[Look], float]:
    return lambda look: factor * float(np.mean(look[name]))


def points(curves: Curves, variant: str, name: str, user: str) -> dict[int, float]:
    """A user's accuracy in percent, mean over the rounds."""
    return curves.seen(variant, mean_of(f"{name} {user}", 100))


def over_users(curves: Curves, variant: str, name: str) -> dict[int, float]:
    return mean_over([points(curves, variant, name, user) for user in USERS])


def fall(scale: str, curves: Curves, user: str, name: str) -> dict[int, float]:
    """What a dip costs in its own round, in points: the same round of the same seed without it, less that with it."""
    t = dip_round(scale, user)

    def there(look: Look) -> float:
        return 100 * float(look[f"{name} {user}"][t])

    return difference(curves.seen("average", there), curves.seen(dipped(user), there))


# -- rows, claims, pictures


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for name in (*READINGS, PERMUTED):
        for user in USERS:
            yield from _increase_rows(curves, f"{name}, {user}", name, user, TABLE_3_LABELS[user])
        last = curves.each(name, lambda c: 100 * float(c.value_T[-1]))
        yield row(f"{name}, all four labels", "global, last round", last)
    for user in USERS:  # what a user's own earlier rounds gain, without the other users
        yield from _increase_rows(curves, alone(user), alone(user), user)
    for user in DIPS:
        yield row(dipped(user), "local falls by", fall(scale, curves, user, LOCAL))
        yield row(dipped(user), "global falls by", fall(scale, curves, user, GLOBAL))
    for user in USERS:
        before, taught = points(curves, "average", LOCAL, user), points(curves, DISTILLED, TAUGHT, user)
        yield row(f"{DISTILLED}, {user}", "local", before)
        yield row(f"{DISTILLED}, {user}", "own model", taught)
        yield row(f"{DISTILLED}, {user}", "increase", difference(taught, before))
    for name, (column, factor) in COSTS.items():
        yield row("cost", name, curves.seen("average", mean_of(column, factor)), TABLE_4_LABELS.get(name))


def _increase_rows(
    curves: Curves, case: str, variant: str, user: str, published: tuple[float, float] | None = None
) -> Iterator[ResultRow]:
    """A user's local and global accuracy, and the difference."""
    local, shared = published or (None, None)
    ours, theirs = (points(curves, variant, column, user) for column in (LOCAL, GLOBAL))
    increase = round(published[1] - published[0], 2) if published else None
    yield row(case, "local", ours, local)
    yield row(case, "global", theirs, shared)
    yield row(case, "increase", difference(theirs, ours), increase)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    gains = {
        user: difference(points(curves, "average", GLOBAL, user), points(curves, "average", LOCAL, user))
        for user in USERS
    }
    for user in USERS:
        yield above(f"{user}: the global update's accuracy is above the local one", gains[user], unit="points")
    others = {seed: max(gains["User_1"][seed], gains["User_3"][seed]) for seed in gains["User_1"]}
    yield better("the user with two overlapping labels (User_2) gains most", gains["User_2"], others, "points")
    claim = "a dip (User_2 trained once on 5 % of its data) lowers the global accuracy less than the local one"
    local = fall(scale, curves, "User_2", LOCAL)
    decided = better(claim, local, fall(scale, curves, "User_2", GLOBAL), "points")
    if local and not any(local.values()):  # nothing fell that the global accuracy could withstand
        untested = f"the local accuracy falls in none of {len(local)} seeds; global less local: {decided.evidence}"
        decided = Claim(claim, False, untested.partition("; undecided")[0], neither=UNTESTED)
    yield decided
    literal = over_users(curves, "literal", GLOBAL)
    claim = "the literal reading's global accuracy is higher than the average's, mean over users"
    yield better(claim, literal, over_users(curves, "average", GLOBAL), "points")
    claim = "it comes from the public labels: permute them and it falls"
    yield better(claim, literal, over_users(curves, PERMUTED, GLOBAL), "points")
    claim = "distillation raises clients' accuracy on unseen data, mean over users"
    yield better(claim, over_users(curves, DISTILLED, TAUGHT), over_users(curves, "average", LOCAL), "points")


def figures(scale: str) -> dict[str, list[Chart]]:
    """Figure 3: all four labels."""
    return {"figure3.svg": [Chart("global accuracy over all four labels", {name: name for name in READINGS})]}


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Figure 2: each user's local and global accuracy; the dips."""

    def chart(title: str, user: str, lines: dict[str, tuple[str, str]]) -> list[str]:
        """Lines by label: the variant, and which accuracy of it."""
        series = []
        for i, (label, (variant, name)) in enumerate(lines.items()):
            by_seed = {seed: look[f"{name} {user}"] for seed, look in curves.looks.get(variant, {}).items()}
            rounds = range(min(map(len, by_seed.values()), default=0))
            values = [{seed: float(value[t]) for seed, value in by_seed.items()} for t in rounds]
            series += [band(label, [t + 1.0 for t in rounds], values, i)] if values else []
        return [line_chart(series, title, "round", "percent")] if series else []

    two, dips = [], []
    for name in ("average", "literal"):
        for user in USERS:
            two += chart(f"{name}, {user}", user, {"local": (name, LOCAL), "global": (name, GLOBAL)})
    for user in DIPS:
        lines = {"local without": ("average", LOCAL), "global without": ("average", GLOBAL)}
        lines |= {"local with the dip": (dipped(user), LOCAL), "global with the dip": (dipped(user), GLOBAL)}
        dips += chart(dipped(user), user, lines)
    return {name: sheet(drawn) for name, drawn in (("figure2.svg", two), ("dips.svg", dips)) if drawn}


STUDY = Study("labels", __doc__, "global_accuracy", plan, rows, claims, figures, look=look, pictures=pictures)
