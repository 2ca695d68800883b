"""Study `labels`: paper 002, Table 3, Figures 2 and 3 (with Table 2's model changes), and Table 4.

Three users with two of four labels each, of which neighbours share one, exchange scores on a public set. Four readings
of the update rule; a control in which the algorithm is shown the public labels in another order; dips, rounds in which
one user has 5 % of its data; distillation; and each user without the others, whose global scores are its own of all
rounds so far. Accuracies are on the half of the public set whose labels only they see, among a user's own labels,
averaged over the rounds as in Table 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from turnout.data import Dip
from turnout.experiment import Experiment
from turnout.statistics import BySeed, difference
from turnout_papers.recipes.labels import READINGS, USERS, reading, three_users
from turnout_papers.studies.claims import Claim, above, better
from turnout_papers.studies.label_numbers import (
    DIPS,
    DISTILLED,
    GLOBAL,
    LOCAL,
    PERMUTED,
    SIZES,
    TAUGHT,
    Size,
    alone,
    dip_round,
    dipped,
    fall,
    gain,
    look,
    mean_of,
    over_users,
    points,
)
from turnout_papers.studies.label_pictures import pictures
from turnout_papers.studies.published import TABLE_3_LABELS, TABLE_4_LABELS
from turnout_papers.studies.study import Curve, Curves, Part, Plan, Row, Study, not_run, row


def plan(scale: str) -> Plan:
    size = SIZES[scale]
    variants = {name: _experiment(size, name) for name in READINGS}
    variants[PERMUTED] = _experiment(size, "literal", permuted=True)
    variants[DISTILLED] = _experiment(size, "average", distil=True)
    for user in DIPS:
        dip = Dip(USERS.index(user), dip_round(scale, user), share=0.05)
        variants[dipped(user)] = three_users(reading("average"), size.animals, size.rounds, dips=(dip,))
    others = {name: variants.pop(name) for name in ("sum", "labelled average", dipped("User_1"))}
    others |= {alone(user): three_users(reading("average"), size.animals, size.rounds, alone=user) for user in USERS}
    return Plan([Part("table3", variants, size.seeds), Part("others", others, size.other_seeds)], notes(scale))


def _experiment(size: Size, name: str, permuted: bool = False, distil: bool = False) -> Experiment:
    scores = replace(reading(name), permuted=permuted)
    return three_users(scores, size.animals, size.rounds, distil)


def notes(scale: str) -> list[str]:
    found = [
        "local: a user's model of the round alone; global: the global scores of its labels after the round's update; "
        "both on the half of the public set that is held out, mean over the rounds",
        "average: every user scores every public sample and overlapping labels are averaged by β; literal: only "
        "samples whose label the user has, summed, as printed; the public labels then leak into the scores",
        "labels permuted: the algorithm is shown the public labels in another order, accuracies use the true ones",
        "alone: the others have left before the first round; what is gained is by its own earlier rounds",
        "assumed, as the paper does not say: 3x3 kernels and a 2x2 pool after each convolution, early stopping on a "
        "tenth of a round's samples with patience 2, label mix ~ Dirichlet(5) a round, fresh weights every round",
    ]
    if scale == "paper":
        return [*found, "pictures of 64x64 (paper: 128x128), Adam with lr 0.001, batches of 32, draws that repeat"]
    shrunk = "shrunk: digits 3, 5, 8, 9 instead of cat, dog, sheep, elephant; 60 samples a user and round, 320 public; "
    return [f"{shrunk}Adam with lr 0.01, batches of 2; {SIZES[scale].rounds} rounds", *found]


# -- rows


def rows(scale: str, curves: Curves) -> list[Row]:
    found = [r for name in (*READINGS, PERMUTED) for r in _reading_rows(name, curves)]
    return found + _alone_rows(curves) + _dip_rows(scale, curves) + _distilled_rows(curves) + _cost_rows(curves)


def _reading_rows(name: str, curves: Curves) -> list[Row]:
    found = []
    for user in USERS:
        case, (local, glob) = f"{name}, {user}", TABLE_3_LABELS[user]
        if not curves.has(name):
            found += [not_run(case, "local", local), not_run(case, "global", glob)]
            continue
        found.append(row(case, "local", points(curves, name, LOCAL, user), local))
        found.append(row(case, "global", points(curves, name, GLOBAL, user), glob))
        found.append(row(case, "increase", gain(curves, name, user), round(glob - local, 2)))
    if not curves.has(name):
        return [*found, not_run(f"{name}, all four labels", "global, last round")]
    return [*found, row(f"{name}, all four labels", "global, last round", curves.each(name, last))]


def last(curve: Curve) -> float:
    return 100 * float(curve.value_T[-1])


def _alone_rows(curves: Curves) -> list[Row]:
    """What a user's own earlier rounds bring, without anybody else's."""
    found = []
    for user in USERS:
        name = alone(user)
        if not curves.has(name):
            found.append(not_run(name, "global"))
            continue
        local, shared = (points(curves, name, column, user) for column in (LOCAL, GLOBAL))
        found += [row(name, "local", local), row(name, "global", shared)]
        found.append(row(name, "increase", difference(shared, local)))
    return found


def _dip_rows(scale: str, curves: Curves) -> list[Row]:
    found = []
    for user in DIPS:
        names = {"local falls by": LOCAL, "global falls by": GLOBAL}
        if curves.has("average", dipped(user)):
            found += [row(dipped(user), word, fall(scale, curves, user, name)) for word, name in names.items()]
        else:
            found += [not_run(dipped(user), word) for word in names]
    return found


def _distilled_rows(curves: Curves) -> list[Row]:
    found = []
    for user in USERS:
        case = f"{DISTILLED}, {user}"
        if not curves.has("average", DISTILLED):
            found.append(not_run(case, "own model"))
            continue
        alone, taught = points(curves, "average", LOCAL, user), points(curves, DISTILLED, TAUGHT, user)
        found += [row(case, "local", alone), row(case, "own model", taught)]
        found.append(row(case, "increase", difference(taught, alone)))
    return found


def _cost_rows(curves: Curves) -> list[Row]:
    case, seconds = "cost", {"s an epoch": 1.0, "ms an inference": 1000.0}
    if not curves.has("average"):
        return [not_run(case, name, TABLE_4_LABELS[name]) for name in seconds]
    columns = ("epoch_seconds", "inference_seconds")
    found = []
    for (name, factor), column in zip(seconds.items(), columns, strict=True):
        spent = {seed: factor * value for seed, value in curves.seen("average", mean_of(column)).items()}
        found.append(row(case, name, spent, TABLE_4_LABELS[name]))
    for name, column in (("scores, kB a round", "bytes"), ("weights, kB a round", "weight_bytes")):
        sent = {seed: value / 1000 for seed, value in curves.seen("average", mean_of(column)).items()}
        found.append(row(case, name, sent))
    return found


# -- claims


def claims(scale: str, curves: Curves) -> list[Claim]:
    return [
        *_global_claims(curves),
        _dip_claim(scale, curves),
        *_leak_claims(curves),
        _distilled_claim(curves),
    ]


def _global_claims(curves: Curves) -> list[Claim]:
    words = {user: f"{user}: the global update's accuracy is above the local one" for user in USERS}
    most = "the user with two overlapping labels (User_2) gains most"
    if not curves.has("average"):
        return [Claim(claim, False, curves.why_missing("average")) for claim in (*words.values(), most)]
    gains = {user: gain(curves, "average", user) for user in USERS}
    others = {seed: max(gains["User_1"][seed], gains["User_3"][seed]) for seed in gains["User_1"]}
    found = [above(words[user], gains[user], unit="points") for user in USERS]
    return [*found, better(most, gains["User_2"], others, "points")]


def _dip_claim(scale: str, curves: Curves) -> Claim:
    claim = "a dip (User_2 trained once on 5 % of its data) lowers the global accuracy less than the local one"
    if not curves.has("average", dipped("User_2")):
        return Claim(claim, False, curves.why_missing("average", dipped("User_2")))
    local, shared = (fall(scale, curves, "User_2", name) for name in (LOCAL, GLOBAL))
    return better(claim, local, shared, "points")


def _leak_claims(curves: Curves) -> list[Claim]:
    words = (
        "the literal reading's global accuracy is higher than the average's, mean over users",
        "it comes from the public labels: permute them and it falls",
    )
    if not curves.has("average", "literal", PERMUTED):
        return [Claim(claim, False, curves.why_missing("average", "literal", PERMUTED)) for claim in words]
    literal = over_users(curves, "literal", GLOBAL)
    pairs: Mapping[str, BySeed] = {words[0]: over_users(curves, "average", GLOBAL)}
    pairs = {**pairs, words[1]: over_users(curves, PERMUTED, GLOBAL)}
    return [better(claim, literal, other, "points") for claim, other in pairs.items()]


def _distilled_claim(curves: Curves) -> Claim:
    claim = "distillation raises clients' accuracy on unseen data, mean over users"
    if not curves.has("average", DISTILLED):
        return Claim(claim, False, curves.why_missing("average", DISTILLED))
    return better(claim, over_users(curves, DISTILLED, TAUGHT), over_users(curves, "average", LOCAL), "points")


STUDY = Study(
    name="labels",
    reproduces="paper 002, Table 3, Figures 2 and 3, Table 4: users with labels and models of their own",
    metric="global_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
    look=look,
)
