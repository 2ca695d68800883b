"""Studies `arrivals` and `departures`: their counts by hand, their claims on made-up curves."""

from __future__ import annotations

import numpy as np
import pytest

import turnout as to
from turnout.parts.membership.departure import Bounds, should_exclude
from turnout_papers.studies import arrivals, departures
from turnout_papers.studies.study import Curve, Curves


def curve(values: list[float], first: int = -1) -> Curve:
    return Curve(np.arange(first, first + len(values)), np.array(values))


def test_rounds_back_by_hand():
    values = curve([0.0, 0.5, 0.8, 0.3, 0.7, 0.8, 0.9])  # rounds -1 to 5; 0.8 in round 1, the arrival in round 2
    assert arrivals.rounds_back(values, 2) == 3
    assert arrivals.rounds_back(curve([0.0, 0.5, 0.8, 0.3, 0.7]), 2) is None
    assert arrivals.rounds_back(values, 1) == 1


def arrived(back: dict[tuple[int, str], list[int]]) -> Curves:
    """Curves whose accuracy comes back after so many rounds, by (τ0, kind) and seed."""
    size, made = arrivals.SIZES["small"], {}
    for (tau, kind), counts in back.items():
        made[arrivals.variant("SYNTHETIC", tau, kind)] = {
            seed: curve([0.5] * (tau + 1) + [0.1] * (n - 1) + [0.6] * (size.after - n + 1))
            for seed, n in enumerate(counts)
        }
    return Curves(made)


def test_claims_of_arrivals():
    taus = arrivals.SIZES["small"].taus
    fast = {(tau, "fast"): [3, 4, 5, 6, 7, 8] for tau in taus}
    slow = {(tau, "vanilla"): [3 + tau // 10, 4 + tau // 10, 5 + tau // 10, 6 + tau // 10, 7, 9] for tau in taus}
    found = arrivals.STUDY.decide("small", arrived(fast | slow))
    assert [claim.outcome for claim in found] == ["holds"] * 4 + ["not run"] * 3
    assert "5 of 6 seeds" in found[0].evidence
    even = {(tau, "vanilla"): [3, 4, 5, 6, 7, 8] for tau in taus}
    assert not any(claim.holds for claim in arrivals.STUDY.decide("small", arrived(fast | even)))
    rows = {(r.case, r.metric): r for r in arrivals.rows("small", arrived(fast | slow))}
    assert rows["SYNTHETIC τ0=30", "rounds, fast"].ours == 5.5
    assert rows["SYNTHETIC τ0=30", "rounds, vanilla"].published == 6


def test_arrivals_in_a_row_are_counted_until_the_next():
    """Figure 5: τ0 = 30, 50, 70; a model that is back only after the next arrival is not back."""
    assert arrivals.windows("small") == {30: 20, 50: 20, 70: 40}

    def three(counts: tuple[int, int, int]) -> Curve:
        value = [0.5] * 31  # from before round 0 up to round 29
        for n, window in zip(counts, (20, 20, 40), strict=True):
            value += [0.1] * (n - 1) + [0.5] * (window - n + 1) if n <= window else [0.1] * (window - 1) + [0.5]
        return curve(value)

    runs = {
        arrivals.in_a_row("SYNTHETIC", "fast"): {s: three((3, 4, 5)) for s in range(5)},
        arrivals.in_a_row("SYNTHETIC", "vanilla"): {s: three((6, 4, 39)) for s in range(5)},
    }
    found = arrivals.STUDY.decide("small", Curves(runs))[-3:]
    assert [claim.outcome for claim in found] == ["holds", "level", "holds"]
    rows = {(r.case, r.metric): r.ours for r in arrivals.rows("small", Curves(runs))}
    assert rows["SYNTHETIC in a row, τ0=70", "rounds, vanilla"] == 39
    late = {seed: curve([0.5] * 31 + [0.1] * 25 + [0.6] * 55) for seed in range(5)}
    counted = arrivals.counted_in_a_row(
        Curves({arrivals.in_a_row("SYNTHETIC", "fast"): late}), "SYNTHETIC", 30, "fast", 20
    )
    assert set(counted.values()) == {None}


def test_mnist_is_part_of_the_paper_scale():
    parts = {part.name: part for part in arrivals.plan("paper").parts}
    mnist = parts["MNIST"].variants["MNIST 70 fast"]
    assert mnist.world.events == (to.Join(9, 70),)
    assert (mnist.world.data.clients, mnist.rounds) == (10, 170)
    assert parts["MNIST-in-a-row"].variants["MNIST in a row fast"].world.events == tuple(
        to.Join(7 + i, 100 + 50 * i) for i in range(3)
    )
    missing = Curves({}, dict.fromkeys(parts["MNIST"].variants, "MNIST is not there"))
    claims = arrivals.STUDY.decide("paper", missing)
    assert {claim.evidence for claim in claims} == {"not run: MNIST is not there"}
    assert {row.ours for row in arrivals.rows("paper", missing)} == {"not run"}


def test_crossing_by_hand():
    kept, out = curve([1.0, 0.9, 0.5, 0.5, 0.5, 0.5]), curve([1.0, 0.9, 0.8, 0.6, 0.5, 0.4])
    assert departures.crossing(kept, out, tau=1, last=9) == 3.0
    assert departures.crossing(kept, curve([1.0, 0.9, 0.8, 0.8, 0.8, 0.8]), tau=1, last=9) == 9.0
    assert not departures.excluding_pays(kept, out, tau=1, remaining=3)  # equal
    assert departures.excluding_pays(kept, out, tau=1, remaining=4)


def left(cross: dict[tuple[float, int], int]) -> Curves:
    """Curves of include and exclude that meet after so many rounds, and constants that foresee it, for three seeds."""
    size, made = departures.SIZES["small"], {}
    more: dict[str, dict[str, dict[int, Curve]]] = {f"decide_{c}": {} for c in departures.CONSTANTS}
    for (spread, tau), n in cross.items():
        total = tau + size.after
        kept = [0.5] * (total + 1)
        for seed in range(3):
            m = n + seed
            out = [0.5] * (tau + 1) + [1.0] * (m - 1) + [0.4] * (size.after - m + 1)
            for leave, values in (("include", kept), ("exclude", out)):
                made.setdefault(departures.variant(spread, tau, leave), {})[seed] = curve(values)
            # f0(T) = x D / (T + 1), f1(T) = V~ / (x + 1): they meet at x = m for D = V~ (τ0 + m + 1) / (m (m + 1))
            constants = {
                "D": (tau + m + 1) / (m * (m + 1)),
                "V": 0.0,
                "gamma": 1.0,
                "Gamma_l": 1.0,
                "E": 1.0,
                "noise": 0,
            }
            for name, value in constants.items():
                where = more[f"decide_{name}"].setdefault(departures.variant(spread, tau, "decide"), {})
                where[seed] = curve([value * (1 + 1e-9)], first=tau)
    return Curves(made, {}, {name: Curves(found) for name, found in more.items()})


def test_claims_of_departures():
    taus = departures.SIZES["small"].taus
    cross = {(spread, tau): int(tau * (0.3 + 0.5 * spread)) for spread in (0.1, 1.0) for tau in taus}
    curves = left(cross)
    found = departures.STUDY.decide("small", curves)
    assert [claim.holds for claim in found] == [True, True, True]
    rows = {(r.case, r.metric): r for r in departures.rows("small", curves)}
    assert rows["(1, 1) τ0=30", "rounds until they meet"].ours == 25.0
    assert rows["(1, 1) τ0=30", "rounds until they meet"].published == 34
    assert rows["(1, 1) τ0=30", "decide is right"].ours == 1.0
    assert rows["(1, 1) τ0=30", "include is right"].ours == pytest.approx(4 / 6)
    blind = Curves(curves.curves, {}, {name: Curves({}) for name in curves.more})  # no constants: exclude
    assert not departures.STUDY.decide("small", blind)[2].holds
    falling = left({(spread, tau): 60 - tau for spread in (0.1, 1.0) for tau in taus})
    assert [claim.holds for claim in departures.STUDY.decide("small", falling)][:2] == [False, False]


def test_the_made_up_constants_meet_where_they_should():
    bounds = Bounds(D=(30 + 7 + 1) / (7 * 8) * (1 + 1e-9), V=0.0, gamma=1.0, Gamma_l=1.0, E=1.0)
    assert [should_exclude(bounds, 30, 30 + x) for x in (6, 7, 8)] == [False, True, True]
