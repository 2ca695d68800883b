"""Study `attacks`: no paper's; hostile clients against eight aggregations, by their share and by turnout.

attack_cases.py has its experiments. A minority of the clients is a majority of those who turn up in some rounds where
few turn up, and no aggregation of a single round can tell.

The claims below were written before the first run. A run's accuracy is its mean over the last fifth of its rounds; a
round with a hostile majority is one in which at least half of the weight of those who replied is the attackers'.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from turnout.data import Backdoor
from turnout.running.result import Run
from turnout.statistics.paired import BySeed, difference
from turnout.world.attacks import hostile_clients
from turnout_papers.studies.attack_cases import (
    BACKDOOR,
    BY_SHARE,
    CLIP,
    FLIPPED,
    KINDS_OF_ATTACK,
    MEAN,
    MEDIAN,
    METHODS,
    NOBODY,
    RFA,
    SIZES,
    UNIFORM,
    VOTING,
    by_kind,
    by_share,
    plan,
)  # fmt: skip
from turnout_papers.studies.claims import Claim, above, better, no_worse
from turnout_papers.studies.drawing import Chart, band, picture
from turnout_papers.studies.study import Curve, Curves, Look, Row, Study, not_run, row

WORST = 0.4  # the share of attackers that the claims are about


def look(run: Run) -> Look:
    """The hostile part of the weight in every round, and what a backdoor reached."""
    world, seed = run.experiment.world, run.experiment.seed
    with run.records() as records:
        columns = records.clients()
        hostile = hostile_clients(world.attackers if world.attack else 0.0, run.data().clients, seed).numpy()
        came = np.nan_to_num(columns["work"].astype(np.float64)) > 0
        votes = np.where(came, columns["share"].astype(np.float64), 0.0)
        bad = np.where(np.isin(columns["client"], hostile), votes, 0.0)
        at, rounds = columns["round"].astype(np.int64), run.experiment.rounds
        total = np.bincount(at, votes, rounds)
        found = {"hostile": np.bincount(at, bad, rounds) / np.maximum(total, 1e-300)}
    return found | ({"backdoor": np.array([reached(run)])} if isinstance(world.data, Backdoor) else {})


def reached(run: Run) -> float:
    """The percentage of marked test samples of other labels that the model takes for the target."""
    data = run.experiment.world.data
    assert isinstance(data, Backdoor)
    with torch.no_grad():
        said = run.model().eval()(data.marked_test(run.experiment.seed, run.data_dir)).argmax(1)
    return 100 * float((said == data.target).double().mean())


def accuracy(curve: Curve) -> float:
    """Percent, mean over the last fifth of the rounds."""
    return 100 * curve.end(5).mean()


def majority_rounds(seen: Look) -> float:
    """Percent of the rounds in which at least half of the weight was hostile."""
    return 100 * float((seen["hostile"] >= 0.5).mean())


def step_lost(curves: Curves, variant: str) -> dict[int, float]:
    """How many points less accuracy rises in a round with a hostile majority than in others; NaN without both."""
    found = {}
    for seed, curve in curves.curves[variant].items():
        step_T = 100 * np.diff(curve.value_T)
        bad_T = curves.looks[variant][seed]["hostile"][curve.round_T[1:]] >= 0.5
        both = bool(bad_T.any()) and not bool(bad_T.all())
        found[seed] = float(step_T[~bad_T].mean() - step_T[bad_T].mean()) if both else float("nan")
    return found


def rows(scale: str, curves: Curves) -> list[Row]:
    size, found = SIZES[scale], []
    for turnout in size.turnouts:
        for share in size.shares:
            case, names = f"{100 * share:g} % hostile, {100 * turnout:g} % there", [
                by_share(share, turnout, method) for method in BY_SHARE
            ]  # fmt: skip
            if not curves.has(*names):
                found.append(not_run(case, "mean"))
                continue
            found += [row(case, m, curves.each(name, accuracy)) for m, name in zip(BY_SHARE, names, strict=True)]
            found.append(row(case, "rounds with a hostile majority, %", curves.seen(names[0], majority_rounds)))
    for kind in KINDS_OF_ATTACK:
        for method in METHODS:
            name = by_kind(kind, method)
            known = curves.has(name)
            found.append(row(kind, method, curves.each(name, accuracy)) if known else not_run(kind, method))
            if kind == BACKDOOR and known:
                found.append(row("backdoor: marked taken for the target, %", method, _reached(curves, method)))
    return found


def _reached(curves: Curves, method: str) -> dict[int, float]:
    return curves.seen(by_kind(BACKDOOR, method), lambda seen: float(seen["backdoor"][0]))


def claims(scale: str, curves: Curves) -> list[Claim]:
    """Each of the two parts is decided where its runs are there."""
    size = SIZES[scale]
    ends = (size.turnouts[0], size.turnouts[-1])
    shares = [by_share(s, q, m) for s in (0.0, WORST) for q in ends for m in (MEAN, *VOTING)]
    kinds = [by_kind(kind, method) for kind in KINDS_OF_ATTACK for method in METHODS]
    by_shares = _by_share_claims(*ends, curves) if curves.has(*shares) else _not_run("share", curves, shares)
    by_kinds = _by_kind_claims(curves) if curves.has(*kinds) else _not_run("kind", curves, kinds)
    return by_shares + by_kinds


def _not_run(what: str, curves: Curves, needed: Sequence[str]) -> list[Claim]:
    return [Claim(f"hostile clients and robust aggregation, by {what}", False, curves.why_missing(*needed))]


def _by_share_claims(most: float, least: float, curves: Curves) -> list[Claim]:
    def of(share: float, turnout: float, method: str) -> BySeed:
        return curves.each(by_share(share, turnout, method), accuracy)

    def lost(turnout: float, method: str) -> BySeed:
        return difference(of(0.0, turnout, method), of(WORST, turnout, method))

    found = []
    for method in VOTING:
        price = f"without attackers {method} is at most 3 points below the mean"
        found.append(no_worse(price, of(0.0, most, method), of(0.0, most, MEAN), 3.0, "points"))
        claim = f"with 40 % hostile and everybody there {method} beats the mean"
        found.append(better(claim, of(WORST, most, method), of(WORST, most, MEAN), "points"))
        claim = f"{method} loses more to 40 % hostile with {100 * least:g} % there than with everybody there"
        found.append(better(claim, lost(least, method), lost(most, method), "points"))
        claim = f"with {100 * least:g} % there {method} gains less in rounds with a hostile majority than in others"
        found.append(above(claim, step_lost(curves, by_share(WORST, least, method)), unit="points"))
    some = curves.seen(by_share(WORST, least, MEAN), majority_rounds)
    claim = f"40 % hostile clients are a majority in some rounds with {100 * least:g} % there"
    return [*found, above(claim, some, unit="% of the rounds")]


def _by_kind_claims(curves: Curves) -> list[Claim]:
    def of(kind: str, method: str) -> BySeed:
        return curves.each(by_kind(kind, method), accuracy)

    found = []
    for kind in ("sign flip", "noise", "inner product", "little work, flipped", FLIPPED):
        found += [better(f"{kind}: {m} beats the mean", of(kind, m), of(kind, MEAN), "points") for m in (MEDIAN, RFA)]
    found.append(better("ALIE: the mean beats the median", of("ALIE", MEAN), of("ALIE", MEDIAN), "points"))
    free = "free rider: the mean loses at most 3 points"
    found.append(no_worse(free, of("free rider", MEAN), of(NOBODY, MEAN), 3.0, "points"))
    lied = "many samples, flipped"
    claim = f"{lied}: the median by one vote each beats the median by claimed samples"
    found.append(better(claim, of(lied, UNIFORM), of(lied, MEDIAN), "points"))
    for method in (MEDIAN, CLIP):
        claim = f"backdoor: fewer marked samples are taken for the target under {method} than under the mean"
        found.append(better(claim, _reached(curves, MEAN), _reached(curves, method), "points"))
    return found


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Accuracy over the share of attackers, one chart a turnout; and how often they are a majority."""
    size = SIZES[scale]
    names = [by_share(share, turnout, m) for turnout in size.turnouts for share in size.shares for m in BY_SHARE]
    if not curves.has(*names):
        return {}
    charts: list[Chart] = []
    for turnout in size.turnouts:
        lines = [
            band(m, size.shares, [curves.each(by_share(s, turnout, m), accuracy) for s in size.shares], i, 0.01)
            for i, m in enumerate(BY_SHARE)
        ]
        charts.append((f"accuracy, {100 * turnout:g} % there", "share of the clients that attack", lines))
    often = [
        band(f"{100 * q:g} % there", size.shares,
             [curves.seen(by_share(s, q, MEAN), majority_rounds) for s in size.shares], i, 0.01)
        for i, q in enumerate(size.turnouts)
    ]  # fmt: skip
    charts.append(("rounds with a hostile majority", "share of the clients that attack", often))
    return {"attacks.svg": picture(charts, "percent")}


STUDY = Study(
    name="attacks",
    reproduces="hostile clients by share and by turnout, against robust aggregation (no paper's)",
    metric="global_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
    look=look,
)
